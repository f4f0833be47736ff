"""A sink in memory: it keeps the rows of every attempt of every batch, and fails where it is told to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mainstem.batch import Batch, FlowRun, Written
from mainstem.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass
class MemorySink:
    """Keeps to `Sink`. What is committed outlives a run, like that of every sink."""

    name: str
    # Batches that fail once, after their rows were read.
    failing: set[int] = field(default_factory=set)
    kind: str = "memory"
    version: int = 1
    committed_batch: int = -1
    attempts: dict[int, list[list[dict[str, Any]]]] = field(default_factory=dict)

    def accept(self, schema: pa.Schema) -> None:
        """Takes everything."""

    def writer(self, run: FlowRun, schema: pa.Schema) -> MemorySink:
        return self

    def write(self, rows: DataFrame, batch: Batch) -> Written:
        found = rows.toArrow().to_pylist()
        self.attempts.setdefault(batch.number, []).append(found)
        if batch.number in self.failing:
            self.failing.remove(batch.number)
            raise Invalid(f"batch {batch.number} was to fail", detail="It did.", hint="Run it again.")
        self.committed_batch = batch.number
        return Written(len(found))

    def close(self) -> None:
        """Nothing is open."""

    def rows(self) -> list[dict[str, Any]]:
        """What was committed, in the order of partitions and offsets."""
        rows = [row for attempts in self.attempts.values() for row in attempts[-1]]
        return sorted(rows, key=lambda row: (row["record"]["partition"], row["record"]["offset"]))
