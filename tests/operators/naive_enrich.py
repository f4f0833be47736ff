"""Rows looked up in a table as it is defined: after every batch, from all versions so far, each with each."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.watermark import NO_TIME
from mainstem.operators import enrich, table
from mainstem.testing import TestStreams
from tests.operators.two_streams import Columns, Row, batches_so_far, two_streams

SIDES = {"facts": Columns("fact", "at"), "versions": Columns("row", "since", deletes=True)}
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


def written(random: Random, *, keys: int = 3, steps: int = 12, rows: int = 6, idle: str = "") -> TestStreams:
    """A script of facts and versions; some versions say that their key is gone."""
    return two_streams(random, SIDES, keys=keys, steps=steps, rows=rows, idle=idle)


# Of a fact its version's number, and until when that is valid as far as was known; None for none.
Found = tuple[int, int | None] | None


def naive_lookups(
    script: TestStreams, asked: Asked, batches: str = "scripted"
) -> tuple[list[dict[int, Found]], set[int]]:
    """After each batch the facts that are shown, each with its version, and in the end those that took no part."""
    shown: list[dict[int, Found]] = []
    late: set[int] = set()
    for rows, watermark in batches_so_far(script, SIDES, batches):
        facts = [row for row in rows if row.side == "facts"]
        versions = [row for row in rows if row.side == "versions"]
        late = {fact.number for fact in facts if fact.time == NO_TIME or fact.own > fact.time + asked.lateness}
        found = {
            fact.number: found_version(fact, versions, asked)
            for fact in facts
            if fact.number not in late and fact.time < watermark
        }
        shown.append({fact: row for fact, row in found.items() if row is not None or asked.how == "left"})
    return shown, late


def found_version(fact: Row, versions: list[Row], asked: Asked) -> Found:
    """The version that holds at a fact's time."""
    if fact.key is None:
        return None
    of_key = [version for version in versions if version.key == fact.key and version.time != NO_TIME]
    held = _held(fact.time, of_key, asked)
    if held is None or held.gone:
        return None
    ends = [version.time for version in of_key if version.time > fact.time and version.own <= fact.time]
    return held.number, min(ends, default=None)


def _held(time: int, versions: list[Row], asked: Asked) -> Row | None:
    """One version after the other begins to count; a delete is remembered for the lateness."""
    slack = asked.lateness if asked.corrections == "re-emit" else 0
    held: Row | None = None

    def counts(version: Row) -> int:
        return max(version.time, version.own - slack)

    for version in sorted(versions, key=lambda version: (counts(version), version.time, version.place)):
        if counts(version) > time:
            break
        if held is not None and held.gone and counts(version) > counts(held) + asked.lateness:
            held = None
        if held is None or (version.time, version.place) >= (held.time, held.place):
            held = version
    return held
