"""WindowScript: rows, watermarks and times of day one after the other, and what `windowed` makes of them without Spark.

The four ways of a case: as scripted, with each step killed and done again, all rows in one batch when everything has
come, and the rows in other orders, one a batch. Whatever the order, a row keeps its own watermark: the log wrote it
down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any

import pyarrow as pa

from mainstem.clock import as_us
from mainstem.log.record import record_array, record_schema
from mainstem.log.rows.schema_ddl import schema_from_ddl
from mainstem.log.watermark import NO_TIME, WATERMARKED_RECORD, with_watermark
from mainstem.operators.stage.engine import NEVER, BatchClock
from mainstem.operators.windowed import windowed
from mainstem.operators.windows.window_kinds import WindowKind
from mainstem.testing import ScriptedRows
from mainstem.testing.scripted_rows import ScriptedBatch, ScriptedRun

END_OF_TIME = NEVER - 1
TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Shown:
    """One row that was put out: when, as what change, and the row."""

    at: datetime | None
    change: str
    row: dict[str, Any]

    @property
    def window(self) -> tuple[datetime | None, datetime | None]:
        return self.row["window"]["start"], self.row["window"]["end"]


@dataclass(frozen=True)
class _Step:
    row: dict[str, Any] | None
    # The row's own watermark, or the batch's.
    watermark: int
    now: int


class WindowScript:
    """Steps, each a batch of its own."""

    def __init__(self, schema: str, *, event_time: str) -> None:
        self.schema = schema_from_ddl(schema)
        self.event_time = event_time
        self.steps: list[_Step] = []
        self._watermark, self._now = NO_TIME, NO_TIME

    def add(self, row: dict[str, Any]) -> None:
        self.steps.append(_Step(row, self._watermark, self._now))

    def watermark(self, at: datetime | None) -> None:
        """None: everything has come."""
        self._watermark = END_OF_TIME if at is None else as_us(at)
        self.steps.append(_Step(None, self._watermark, self._now))

    def now(self, at: datetime) -> None:
        self._now = as_us(at)
        self.steps.append(_Step(None, self._watermark, self._now))

    # The ways

    def scripted(self, window: WindowKind, **asked: Any) -> list[Shown]:
        return self._run([([step] if step.row else [], step.watermark, step.now) for step in self.steps], window, asked)

    def killed(self, window: WindowKind, **asked: Any) -> list[Shown]:
        batches = [([step] if step.row else [], step.watermark, step.now) for step in self.steps]
        return self._run(batches, window, asked, killed=True)

    def at_once(self, window: WindowKind, **asked: Any) -> list[Shown]:
        rows = [step for step in self.steps if step.row]
        return self._run([(rows, END_OF_TIME, END_OF_TIME)], window, asked)

    def shuffled(self, seed: int, window: WindowKind, **asked: Any) -> list[Shown]:
        rows = [step for step in self.steps if step.row]
        Random(seed).shuffle(rows)
        left = [min((step.watermark for step in rows[place + 1 :]), default=END_OF_TIME) for place in range(len(rows))]
        batches = [([step], watermark, step.now) for step, watermark in zip(rows, left, strict=True)]
        return self._run([*batches, ([], END_OF_TIME, END_OF_TIME)], window, asked)

    def _run(
        self,
        steps: Sequence[tuple[list[_Step], int, int]],
        window: WindowKind,
        asked: dict[str, Any],
        *,
        killed: bool = False,
    ) -> list[Shown]:
        schema = record_schema(self.schema, self.event_time, record=WATERMARKED_RECORD)
        batches, offset, clock = [], 0, BatchClock()
        for rows, watermark, now in steps:
            clock = BatchClock(watermark, now, clock.watermark, clock.now)
            batches.append(ScriptedBatch(self._table(schema, rows, offset), clock, killed))
            offset += len(rows)
        given = windowed(ScriptedRows(schema, batches, ScriptedRun()), window, **asked)  # type: ignore[arg-type]
        return [
            Shown(_moment(batch.clock.now), row.pop("record")["change"], row)
            for batch in given.batches  # type: ignore[attr-defined]
            for row in batch.rows.to_pylist()
        ]

    def _table(self, schema: pa.Schema, steps: list[_Step], offset: int) -> pa.Table:
        rows = pa.Table.from_pylist([step.row for step in steps], schema=self.schema)
        own = pa.array([None if step.watermark == NO_TIME else step.watermark for step in steps], pa.int64()).view(TIME)
        record = with_watermark(record_array(0, offset, 0, count=len(steps)), own)
        return pa.Table.from_arrays([*rows.columns, record], schema=schema)


def _moment(at: int) -> datetime | None:
    return None if at in (NO_TIME, END_OF_TIME) else datetime.fromtimestamp(at / 1_000_000, UTC)


def status(shown: Sequence[Shown]) -> list[dict[str, Any]]:
    """What a view would hold in the end: of each key and window the last row that was not taken back."""
    held: dict[str, dict[str, Any]] = {}
    for at in shown:
        key = str([value for name, value in at.row.items() if name == "window" or isinstance(value, str)])
        if at.change == "delete":
            held.pop(key)
        else:
            held[key] = at.row
    return list(held.values())
