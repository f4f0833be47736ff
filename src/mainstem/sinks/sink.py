"""Sink: where a flow's rows go, each batch once.

Topics, views and files keep to this by their shape. A sink commits the rows of a batch and the batch's number in one
transaction of its own, and checks the epoch of the run in it: what it holds of a batch is all or nothing, and an older
run of the flow commits nothing any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from mainstem.batch import Batch, FlowRun, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BatchWriter", "Sink"]


class BatchWriter(Protocol):
    """Writes the batches of one run of a flow."""

    @property
    def committed_batch(self) -> int:
        """The number of the last batch that is committed; -1 if there is none."""

    def write(self, rows: DataFrame, batch: Batch) -> Written:
        """Commit the rows and the batch's number together. The rows are consumed in one action."""

    def close(self) -> None:
        """Let go of what is open."""


class Sink(Protocol):
    """Where rows go.

    A sink may also have an `id`, a text that stays the same when it is moved and that another one in its place does not
    have, and a `location` to name in messages: then a flow that finds another sink than before is refused.
    """

    @property
    def name(self) -> str:
        """A flow is named after its sink."""

    @property
    def kind(self) -> str:
        """What it is: topic, view, files."""

    @property
    def version(self) -> int:
        """Which version of it is written. When it becomes another one, the flow goes on with that one's checkpoint."""

    def accept(self, schema: pa.Schema) -> None:
        """Raise if the sink cannot take such rows. Nothing is written."""

    def writer(self, run: FlowRun, schema: pa.Schema) -> BatchWriter:
        """Begin a run: the sink is made if it is not there, and older runs are fenced."""
