"""A feed of changes as it is defined: the newest row of each key, and its versions, from all rows at once, one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa

from mainstem.log.record import record_array, record_schema
from mainstem.operators.stage.engine import BatchClock
from mainstem.testing.scripted_rows import ScriptedBatch, ScriptedRows, ScriptedRun

__all__ = ["FEED", "Fact", "facts_of", "feed", "naive_newest", "naive_versions", "split_anyhow"]

FEED = pa.schema([
    ("id", pa.int32()), ("city", pa.string()), ("note", pa.int32()), ("version", pa.int32()), ("rank", pa.int32()),
    ("op", pa.string()),
])  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """A row of a topic with its position."""

    partition: int
    offset: int
    row: dict[str, Any]

    @property
    def deleted(self) -> bool:
        return self.row["op"] == "DELETE"

    @property
    def order(self) -> tuple[Any, ...]:
        """Null is below every value."""
        version, rank = self.row["version"], self.row["rank"]
        return (version is not None, version or 0, rank is not None, rank or 0, self.partition, self.offset)


def facts_of(chance: Random, count: int, *, keys: int = 3, partitions: int = 3, times: int = 6, nulls: bool = True) -> list[Fact]:  # fmt: skip
    """Few values of everything, so that rows tie, repeat each other and come in any order."""
    found, offsets = [], [0] * partitions
    for _ in range(count):
        partition = chance.randrange(partitions)
        op = chance.choice(["UPSERT", "UPSERT", "UPSERT", "DELETE", None])
        row = {
            "id": chance.randrange(keys),
            "city": chance.choice(["Bonn", "Ulm", None]),
            "note": chance.randrange(2),
            "version": None if nulls and chance.random() < 0.1 else chance.randrange(times),
            "rank": chance.choice([0, 0, 1, None]),
            "op": op,
        }
        found.append(Fact(partition, offsets[partition], row))
        offsets[partition] += 1
    return found


def split_anyhow(facts: Sequence[Fact], chance: Random) -> list[list[Fact]]:
    """In batches: of each partition in its order, but one partition may be read long before another."""
    left = [[fact for fact in facts if fact.partition == of] for of in sorted({fact.partition for fact in facts})]
    batches = []
    while any(left):
        batch = []
        for of in left:
            count = chance.choice([0, 0, 1, 2, len(of)])
            batch += of[:count]
            del of[:count]
        batches.append(batch)
    return batches


def feed(batches: Sequence[Sequence[Fact]], *, killed: bool = False, in_log: bool = True) -> ScriptedRows:
    """The rows as several partitions of a topic give them; with `in_log` deletes are deletions of the log."""
    shown = record_schema(FEED)
    made = []
    for batch in batches:
        parts = [shown.empty_table()]
        for fact in batch:
            rows = pa.Table.from_pylist([fact.row], schema=FEED)
            change = pa.array(["delete" if in_log and fact.deleted else "update"])
            record = record_array(fact.partition, fact.offset, 0, count=1, change=change)
            parts.append(pa.Table.from_arrays([*rows.columns, record], schema=shown))
        made.append(ScriptedBatch(pa.concat_tables(parts).combine_chunks(), BatchClock(), killed))
    return ScriptedRows(shown, made, ScriptedRun())


def naive_newest(facts: Sequence[Fact]) -> list[dict[str, Any]]:
    found = {}
    for fact in sorted(facts, key=lambda fact: fact.order):
        found[fact.row["id"]] = fact
    return [fact.row for fact in found.values() if not fact.deleted]


def naive_versions(facts: Sequence[Fact], tracked: Callable[[dict[str, Any]], Any]) -> list[dict[str, Any]]:
    """Each key's rows in their order; rows without one are left out."""
    found = []
    for key in {fact.row["id"] for fact in facts}:
        at: dict[int, Fact] = {}
        for fact in sorted(facts, key=lambda fact: fact.order):
            if fact.row["id"] == key and fact.row["version"] is not None:
                at[fact.row["version"]] = fact
        versions: list[dict[str, Any]] = []
        is_open = False
        for time in sorted(at):
            fact = at[time]
            if is_open and not fact.deleted and tracked(versions[-1]) == tracked(fact.row):
                versions[-1] |= fact.row
                continue
            if is_open:
                versions[-1]["valid_until"] = time
            if not fact.deleted:
                versions.append({**fact.row, "valid_from": time, "valid_until": None})
            is_open = not fact.deleted
        found += versions
    return found
