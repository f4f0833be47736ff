"""Sink: the target of a flow, which commits each batch exactly once.

Topics, views and files implement this protocol. A sink commits the rows of a batch and the batch's number in one
transaction, and checks the epoch of the run in it: a batch is committed completely or not at all, and an older
run of the flow is fenced.
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
        """The number of the last committed batch; -1 if there is none."""

    def write(self, rows: DataFrame, batch: Batch) -> Written:
        """Commit the rows and the batch's number together. The rows are consumed in one action."""

    def close(self) -> None:
        """Close what is open."""


class Sink(Protocol):
    """The target of a flow.

    A sink may also have an `id`, a text that stays the same when it is moved and that no other sink has, and a `location`
    for messages: then a flow that finds a different sink than before is refused. A sink with `takes_columns` gets the rows of
    a flow that needs no Spark operator as columns: its writers are `ColumnWriter`.
    """

    @property
    def name(self) -> str:
        """The name; also the default name of the flow."""

    @property
    def kind(self) -> str:
        """The kind of sink: topic, view, files."""

    @property
    def version(self) -> int:
        """The version that is written. When it changes, the flow continues with the checkpoint of the new version."""

    def accept(self, schema: pa.Schema) -> None:
        """Raise if the sink cannot store such rows. Nothing is written."""

    def writer(self, run: FlowRun, schema: pa.Schema) -> BatchWriter:
        """Begin a run: the sink is created if it does not exist, and older runs are fenced."""
