"""Rows looked up in a table as it is defined: after every batch, from all versions so far, each with each."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.clock import as_datetime, as_us
from mainstem.log.watermark import NO_TIME
from mainstem.operators import enrich, table
from mainstem.testing import TestStream, TestStreams
from mainstem.testing.scripted_log import batches_of

ORIGIN = 1_767_268_800_000_000
LATENESS = [0, 4, 15]


@dataclass(frozen=True)
class Asked:
    lateness: int
    corrections: str
    how: str = "left"

    def looked_up(self, facts: Any, versions: Any) -> Any:
        return enrich(
            facts, table(with_deletes(versions), key="key"), on="key", lateness=f"{self.lateness} microseconds",
            corrections=self.corrections, how=self.how,
        )  # fmt: skip


def with_deletes(rows: Any) -> Any:
    """Where a row says `gone` its record is a delete."""

    def changed(given: pa.Table) -> pa.Table:
        if not given.num_rows:
            return given
        record = given.column("record").combine_chunks()
        change = pc.if_else(pc.fill_null(given.column("gone").combine_chunks(), False), "delete", "insert")
        fields = [change if field.name == "change" else record.field(field.name) for field in record.type]
        place = given.schema.get_field_index("record")
        return given.set_column(place, "record", pa.StructArray.from_arrays(fields, fields=list(record.type)))

    return rows.mapped(changed, rows.schema)


def written(random: Random, *, keys: int = 3, steps: int = 12, rows: int = 6) -> TestStreams:
    """A script of facts and versions, out of order, late, without key; some versions say that their key is gone."""
    delays = [f"{random.choice([0, 2, 6])} microseconds" for _ in range(2)]
    script = TestStreams(
        facts=TestStream("fact INT, key INT, at TIMESTAMP", event_time="at", delay=delays[0]),
        versions=TestStream("row INT, key INT, gone BOOLEAN, since TIMESTAMP", event_time="since", delay=delays[1]),
    )
    time, number = 0, 0
    for _ in range(steps):
        stream = random.choice(["facts", "versions"])
        time += random.choice([0, 1, 3, 8])
        given: list[dict[str, Any]] = []
        for _ in range(random.randint(0, rows)):
            number += 1
            at = as_datetime(ORIGIN + time - random.choice([0, 0, 1, 2, 5, 12, 25]))
            key = None if random.random() < 0.05 else random.randrange(keys)
            if stream == "facts":
                given.append({"fact": number, "key": key, "at": at})
            else:
                given.append({"row": number, "key": key, "gone": random.random() < 0.2, "since": at})
        script = script.rows(stream, given)
        if random.random() < 0.2:
            script = script.kill()
    return script


def naive_lookups(
    script: TestStreams, asked: Asked, batches: str = "scripted"
) -> tuple[list[dict[int, int | None]], set[int]]:
    """After each batch the facts that are shown, each with its version's row, and in the end those that came too late."""
    topics = {name: stream.topic for name, stream in script.streams.items()}
    given = batches_of(topics, script.steps, batches)
    facts: list[_Row] = []
    versions: dict[int | None, list[_Row]] = {}
    shown: list[dict[int, int | None]] = []
    late: set[int] = set()
    for of_facts, of_versions in zip(given["facts"], given["versions"], strict=True):
        facts += [_Row.of(row, "fact", "at") for row in of_facts.rows.to_pylist()]
        for row in of_versions.rows.to_pylist():
            versions.setdefault(row["key"], []).append(_Row.of(row, "row", "since"))
        late = {fact.number for fact in facts if fact.own > fact.time + asked.lateness}
        found = {
            fact.number: None if fact.key is None else _held(fact, versions.get(fact.key, []), asked)
            for fact in facts
            if fact.number not in late and fact.time < of_facts.clock.watermark
        }
        shown.append({fact: row for fact, row in found.items() if row is not None or asked.how == "left"})
    return shown, late


@dataclass(frozen=True)
class _Row:
    number: int
    key: int | None
    time: int
    own: int
    offset: int
    gone: bool

    @classmethod
    def of(cls, row: dict[str, Any], number: str, time: str) -> _Row:
        record = row["record"]
        own = NO_TIME if record["watermark"] is None else as_us(record["watermark"])
        return cls(row[number], row["key"], as_us(row[time]), own, record["offset"], bool(row.get("gone")))


def _held(fact: _Row, versions: list[_Row], asked: Asked) -> int | None:
    slack = asked.lateness if asked.corrections == "re-emit" else 0
    counting = [version for version in versions if version.time <= fact.time and version.own - slack <= fact.time]
    if not counting:
        return None
    held = max(counting, key=lambda version: (version.time, version.offset))
    return None if held.gone else held.number
