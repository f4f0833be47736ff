"""PaneEngine: what the engines of all kinds of windows have in common: the key, the aggregates, and when panes are shown."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from mainstem.operators.windows.cells import POSITION, CellLayout, WindowAggregates
from mainstem.operators.windows.late_contributions import late_schema
from mainstem.operators.windows.triggers import Trigger, each_row

__all__ = ["PaneEngine"]


@dataclass(frozen=True)
class PaneEngine:
    """The base of an engine of windows, each of which looks at single rows unless it says otherwise."""

    # What the state of a flow calls these windows.
    windows: ClassVar[str]

    # The key's columns: by_0, by_1, ...
    by: pa.Schema
    aggregates: WindowAggregates
    early: Trigger | None = None
    # Where there is lateness: each row, unless something else is said.
    late: Trigger | None = None
    # In microseconds.
    lateness: int = 0
    # discard | accumulate | retract
    results: str = "accumulate"
    # always | if changed
    on_time: str = "always"

    @cached_property
    def late_trigger(self) -> Trigger | None:
        return (self.late or each_row()) if self.lateness else None

    @property
    def closes_after(self) -> int:
        """How far beyond the end of a window the watermark is when it closes: 1 where a row at the end belongs to it."""
        return 0

    @property
    def behind(self) -> int:
        """By how much the watermark may be past the last moment of a window (its `end` less 1) before it is shown on time."""
        return 0

    @property
    def keeps_rows(self) -> bool:
        """Whether the state has columns for single rows."""
        return True

    @cached_property
    def layout(self) -> CellLayout:
        again = self.early is not None or self.lateness > 0
        return CellLayout(self.by, self.aggregates, self.results, again and self.results != "discard", self.keeps_rows)

    @property
    def state_schema(self) -> pa.Schema:
        return self.layout.state_schema

    @property
    def output_schema(self) -> pa.Schema:
        return self.layout.output_schema

    @property
    def late_schema(self) -> pa.Schema:
        return late_schema(self.by, self.aggregates)

    @property
    def input_schema(self) -> pa.Schema:
        """What `step` takes: one row for each row."""
        return self.single_rows()

    def single_rows(self, *more: pa.Field) -> pa.Schema:
        """Single rows with their own watermarks and places, and more that is known of each."""
        return pa.schema(
            [
                pa.field("group", pa.int64()),
                pa.field("check", pa.int64()),
                *self.by,
                pa.field("time", pa.int64()),
                pa.field("watermark", pa.int64()),
                *more,
                *POSITION,
                *self.aggregates.partial_schema,
            ]
        )

    def described(self) -> dict[str, Any]:
        return {
            "windows": self.windows,
            "state": [[at.name, str(at.type)] for at in self.state_schema],
            "results": self.results,
            "lateness": self.lateness,
        }
