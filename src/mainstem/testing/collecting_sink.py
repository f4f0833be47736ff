"""CollectingSink: where a flow of a test puts its rows, batch by batch, in memory; it can be told to lose one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mainstem.errors import Invalid
from mainstem.log_on_spark.flow_run import Batch, FlowRun, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["CollectingSink"]


@dataclass
class CollectingSink:
    """Keeps to `Sink`. What is committed outlives a run, like that of every sink."""

    name: str
    kind: str = "memory"
    version: int = 1
    held: int = -1
    # The next batch is lost when its rows were read and before they are committed: as if the process had died there.
    killing: bool = False
    batches: dict[int, pa.Table] = field(default_factory=dict)
    # What lost batches held.
    lost: dict[int, pa.Table] = field(default_factory=dict)
    # Of each step of the script that is over, the rows of its batches with their changes: none, one or several batches.
    steps: list[list[tuple[str, dict[str, Any]]]] = field(default_factory=list)
    _told: int = -1

    def accept(self, schema: pa.Schema) -> None:
        """Takes everything."""

    def writer(self, run: FlowRun, schema: pa.Schema) -> CollectingSink:
        """The same for every run."""
        return self

    def write(self, rows: DataFrame, batch: Batch) -> Written:
        """Keep the rows of a batch."""
        found = rows.toArrow()
        if self.killing:
            self.killing = False
            self.lost[batch.number] = found
            raise Invalid(f"batch {batch.number} was killed", detail="The test says so.", hint="It is done again.")
        self.batches[batch.number] = found
        if batch.number in self.lost:
            _check_same(batch.number, _changes(self.lost[batch.number]), _changes(found))
        self.held = batch.number
        return Written(found.num_rows)

    def close(self) -> None:
        """Nothing is open."""

    def end_step(self) -> None:
        """What came since the last step is of this one: rows without `record`, in the order of partitions and offsets."""
        numbers = sorted(number for number in self.batches if number > self._told)
        self.steps.append([change for number in numbers for change in _changes(self.batches[number])])
        self._told = max([self._told, *numbers])


def _check_same(number: int, first: list[Any], second: list[Any]) -> None:
    # As text: NaN is not equal to itself.
    if str(first) != str(second):
        raise AssertionError(f"batch {number} was killed and done again, and gave {second} instead of {first}")


def _changes(rows: pa.Table) -> list[tuple[str, dict[str, Any]]]:
    found = rows.to_pylist()
    if "record" in rows.column_names:
        found.sort(key=lambda row: (row["record"]["partition"], row["record"]["offset"]))
    changes = [(row.pop("record", None) or {}).get("change", "insert") for row in found]
    return list(zip(changes, found, strict=True))
