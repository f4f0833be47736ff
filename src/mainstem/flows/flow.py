"""Flow: rows on their way into a sink. A value: nothing happens until a program is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mainstem.errors import Invalid, did_you_mean
from mainstem.names import check_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mainstem.sinks.sink import Sink

__all__ = ["Flow"]

MODES = ("batches", "real-time")


@dataclass(frozen=True)
class Flow:
    """Streaming rows and the sink that is kept current with them, named after the sink unless `name` says otherwise.

    `rejected_max` is the share of a batch's rows that the sink may refuse before the flow stops instead of going on.

    `mode="real-time"` passes each row on as it comes instead of in batches, at least once: from topics on Kafka into a
    topic there, by what Spark does with one row at a time. Whatever stands in the way is said when the program is built.

    >>> def flows(stem):
    ...     orders = stem.topic("orders").stream()
    ...     yield Flow(orders.where("amount > 1000"), into=stem.topic("big_orders"))
    """

    rows: DataFrame
    into: Sink
    name: str = ""
    rejected_max: float = 1.0
    mode: Literal["batches", "real-time"] = "batches"

    def __post_init__(self) -> None:
        if not hasattr(self.rows, "isStreaming"):
            raise Invalid(
                f"a flow cannot be made of {type(self.rows).__name__}",
                detail=f"It is {str(self.rows)[:200]}.",
                hint='Give a streaming DataFrame: stem.topic("...").stream().',
            )
        for needed in ("name", "kind", "accept", "writer"):
            if not hasattr(self.into, needed):
                raise Invalid(
                    f"a flow cannot go into {type(self.into).__name__}",
                    detail=f"It is {self.into!r}.",
                    hint='Give a sink: stem.topic("..."), stem.view("...", key=...), stem.files("...").',
                )
        if not self.name:
            object.__setattr__(self, "name", self.into.name)
        check_name(self.name, "flow")
        if self.mode not in MODES:
            raise Invalid(
                f'flow "{self.name}" has no mode {self.mode!r}',
                detail=f"A flow goes by one of these: {', '.join(MODES)}.",
                hint=did_you_mean(str(self.mode), MODES) or 'Leave it out: "batches" is what most flows want.',
            )
        if not 0 <= self.rejected_max <= 1:
            raise Invalid(
                f"rejected_max is {self.rejected_max}",
                detail="It is a share of the rows, from 0 to 1.",
                hint="For instance rejected_max=0.01: stop when more than one row in a hundred is refused.",
            )
