"""Flow: streaming rows and their sink. A value: nothing happens until a program is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mainstem.arguments import INTEGER_MAX, checked_calls, show_value, type_name
from mainstem.durations import Duration, duration_us
from mainstem.errors import Invalid, did_you_mean
from mainstem.names import check_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mainstem.sinks.sink import Sink

__all__ = ["Flow"]

MODES = ("batches", "real-time")


@checked_calls
@dataclass(frozen=True)
class Flow:
    """Streaming rows and the sink that they are written into. It is named after the sink unless `name` is given.

    `rejected_max` is the fraction of a batch's rows that the sink may reject; if it rejects more, the flow stops.

    `every` is the least time between the begins of two batches that have rows. Without it, a flow pauses after a batch for as
    long as the batch took, at most 200 ms, so that a few rows per second do not keep it busy; `every="0 seconds"` never
    pauses. A flow that is far behind does not pause either. It may be changed between two runs.

    `rows_max` is the maximal number of rows that a batch reads, and so bounds the memory that a batch takes. Without it, it is
    500,000; 2,000,000 for a flow without state whose rows do not pass through the driver. Rows of one transaction stay in one
    batch, and a partition is divided by about a thousand rows. It may be changed between two runs.

    `mode="real-time"` writes each row as it arrives instead of in batches, at least once: from topics on Kafka into a
    topic there, with operators of Spark that work row by row. Anything else is refused when the program is built.

    >>> def flows(stem):
    ...     orders = stem.topic("orders").stream()
    ...     yield Flow(orders.where("amount > 1000"), into=stem.topic("big_orders"))
    """

    rows: DataFrame
    into: Sink
    name: str = ""
    rejected_max: float = 1.0
    mode: Literal["batches", "real-time"] = "batches"
    every: Duration | None = None
    rows_max: int | None = None

    def __post_init__(self) -> None:
        if not hasattr(self.rows, "isStreaming"):
            raise Invalid(
                f"a flow cannot read {_thing(self.rows)} itself"
                if hasattr(self.rows, "stream")
                else f"a flow cannot read {type_name(self.rows)}",
                detail=f"It is {str(self.rows)[:200]}.",
                hint='Give a streaming DataFrame: stem.topic("...").stream().',
            )
        for needed in ("name", "kind", "accept", "writer"):
            if not hasattr(self.into, needed):
                raise Invalid(
                    f"a flow cannot write into {type_name(self.into)}",
                    detail=f"It is {show_value(self.into)}.",
                    hint='Give a sink: stem.topic("..."), stem.view("...", key=...), stem.files("...").',
                )
        if not self.name:
            object.__setattr__(self, "name", self.into.name)
        check_name(self.name, "flow")
        if self.mode not in MODES:
            raise Invalid(
                f'flow "{self.name}" has no mode {self.mode!r}',
                detail=f"The modes are: {', '.join(MODES)}.",
                hint=did_you_mean(str(self.mode), MODES) or 'Leave mode out: the default, "batches", suits most flows.',
            )
        if self.every_us is not None and self.mode == "real-time":
            raise Invalid(
                f'flow "{self.name}" has every={self.every!r} and mode="real-time"',
                detail="In the mode real-time rows are written as they arrive: there are no batches to begin.",
                hint='Leave out one of the two: every=, or mode="real-time".',
            )
        if self.rows_max is not None:
            self._check_rows_max(self.rows_max)
        if not 0 <= self.rejected_max <= 1:
            raise Invalid(
                f"rejected_max is {self.rejected_max}",
                detail="It must be a fraction of the rows, from 0 to 1.",
                hint="For example, rejected_max=0.01 stops the flow when more than 1 % of the rows are rejected.",
            )

    def _check_rows_max(self, rows_max: object) -> None:
        if self.mode == "real-time":
            raise Invalid(
                f'flow "{self.name}" has rows_max={rows_max} and mode="real-time"',
                detail="In the mode real-time rows are written as they arrive: there are no batches.",
                hint='Leave out one of the two: rows_max=, or mode="real-time".',
            )
        if not isinstance(rows_max, int) or isinstance(rows_max, bool) or not 0 < rows_max <= INTEGER_MAX:
            raise Invalid(
                f"rows_max is {rows_max!r}",
                detail="It must be a whole number of rows, at least 1.",
                hint="For example, rows_max=100_000. Leave it out for the default.",
            )

    @property
    def every_us(self) -> int | None:
        """`every` in microseconds; None for the default."""
        return None if self.every is None else duration_us(self.every, setting="every")


def _thing(value: object) -> str:
    kind = getattr(value, "kind", "")
    return f'{kind} "{getattr(value, "name", "")}"' if kind else type_name(value)
