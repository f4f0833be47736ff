"""Two streams for the naive joins: scripts of rows that are out of order, late, without key or without time; and those rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from mainstem.clock import as_datetime, as_us
from mainstem.log.watermark import NO_TIME
from mainstem.testing import TestStream, TestStreams
from mainstem.testing.scripted_home import batches_of

ORIGIN = 1_767_268_800_000_000
# Partition and offset.
Place = tuple[int, int]


@dataclass(frozen=True)
class Columns:
    """How a side calls the number and the time of a row, and whether some of its rows say that their key is gone."""

    number: str
    at: str
    deletes: bool = False

    @property
    def schema(self) -> str:
        gone = ", gone BOOLEAN" if self.deletes else ""
        return f"{self.number} INT, key INT{gone}, {self.at} TIMESTAMP"


@dataclass(frozen=True)
class Row:
    """A row as the log has it: its own watermark, and its place."""

    side: str
    number: int
    key: int | None
    time: int
    own: int
    place: Place
    gone: bool = False


def two_streams(
    random: Random, sides: Mapping[str, Columns], *, keys: int = 3, steps: int = 10, rows: int = 6, idle: str = ""
) -> TestStreams:
    """A script of both, some of whose steps state a watermark, and some of whose batches are killed. One side may be `idle`
    after a while: then time passes too."""
    script = TestStreams(
        **{
            side: TestStream(columns.schema, event_time=columns.at, delay=f"{random.choice([0, 2, 6])} microseconds",
                             idle_after="5 microseconds" if side == idle else None)
            for side, columns in sides.items()
        }
    )  # fmt: skip
    time, number = 0, 0
    timed: set[tuple[str, int]] = set()
    for _ in range(steps):
        side = random.choice(list(sides))
        time += random.choice([0, 1, 3, 8])
        if idle:
            script = script.now(as_datetime(ORIGIN + time))
            side = random.choice([*sides, *(other for other in sides if other != idle)])
        if random.random() < 0.15:
            script = script.watermark(side, as_datetime(ORIGIN + time - random.randint(0, 10)))
            continue
        given: list[dict[str, Any]] = []
        for _ in range(random.randint(0, rows)):
            number += 1
            behind = random.choice([0, 0, 1, 2, 5, 12, 25])
            at = None if random.random() < 0.03 else as_datetime(ORIGIN + time - behind)
            key = None if random.random() < 0.05 else random.randrange(keys)
            given.append({sides[side].number: number, "key": key, sides[side].at: at})
            if sides[side].deletes:
                given[-1]["gone"] = random.random() < 0.2
        partition = random.choice([0, 0, 1])
        if not any(row[sides[side].at] for row in given) and (side, partition) not in timed:
            # A partition that is written to for the first time, and says nothing of time, would take back what time it was.
            continue
        timed.add((side, partition))
        script = script.rows(side, given, partition=partition)
        if random.random() < 0.2:
            script = script.kill()
    return script


def batches_so_far(script: TestStreams, sides: Mapping[str, Columns], batches: str) -> list[tuple[list[Row], int]]:
    """For each batch all rows up to it, and its watermark."""
    topics = {name: stream.topic for name, stream in script.streams.items()}
    given = batches_of(topics, script.steps, batches)
    found: list[tuple[list[Row], int]] = []
    so_far: list[Row] = []
    for one, other in zip(*(given[side] for side in sides), strict=True):
        for side, batch in zip(sides, (one, other), strict=True):
            so_far = [*so_far, *read(side, sides[side], batch.rows)]
        found.append((so_far, one.clock.watermark))
    return found


def read(side: str, columns: Columns, rows: Any) -> list[Row]:
    """Rows of a side as the log gives them."""
    return [
        Row(side, row[columns.number], row["key"], *(NO_TIME if at is None else as_us(at) for at in
            (_time(row, columns), row["record"]["watermark"])), (row["record"]["partition"], row["record"]["offset"]),
            bool(row.get("gone")))
        for row in rows.to_pylist()
    ]  # fmt: skip


def _time(row: dict[str, Any], columns: Columns) -> Any:
    """Of a delete without a time, when it was appended."""
    at = row[columns.at]
    return row["record"]["appended_at"] if at is None and row.get("gone") else at
