r"""Stage: the place of one of our operators in a flow.

Spark's streaming query ends before it. The stage and all that follows run as batch jobs on each batch of that query: native
Spark prepares the rows, they are divided into buckets by their group, and an engine processes the rows and the state of each
bucket in one task. To the user it is a function from a DataFrame to a DataFrame:

    rows.where(...) -> [stage: prepare, divide, engine] -> .select(...) -> [another stage] -> sink
    \____________/    \___________________________________________________________________/
     streaming query                    runs on every batch of it

While a program is built, a stage returns a placeholder: a stream that is never read, found again in the plan by its
number. In each batch it is replaced by the output rows of the stage (see `bound_plan`). If that is not possible, the program is
built again for each batch, and then a stage returns the batch's own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa

from mainstem.errors import Invalid
from mainstem.log.record import RECORD_MARK
from mainstem.log.watermark import NO_TIME, WATERMARKED_RECORD
from mainstem.operators.stage.arrow_columns import whole
from mainstem.operators.stage.engine import NEVER, Engine
from mainstem.operators.stage.packed_rows import is_packed
from mainstem.spark.build import Build, current_build
from mainstem.spark.plan.bound_plan import placeholder
from mainstem.spark.spark_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "BatchStages",
    "Parameter",
    "Preparation",
    "Stage",
    "StageSpec",
    "add_stage",
    "prepare_batch",
    "prepare_inputs",
    "remember",
    "show_late_rows",
    "stage_schema",
]

T = TypeVar("T")

# A JSON value.
Parameter: TypeAlias = "str | int | Sequence[str] | Mapping[str, str] | None"


@dataclass(frozen=True)
class Preparation:
    """Converts the rows of one input to the engine's input: with Spark, and over Arrow."""

    native: Callable[[DataFrame], DataFrame]
    arrow: Callable[[pa.Table], pa.Table]
    # Broadcast: its rows reach every bucket. It leaves `group` null; in each bucket a row then has the group of that bucket
    # (`bucket_groups`), under which an engine can keep it. Such a stage takes no packed rows.
    every_bucket: bool = False


@dataclass(frozen=True)
class StageSpec:
    """The stage of an operator."""

    # The stage is named after it: <operator>-<number in its flow>.
    operator: str
    engine: Engine
    # Converts the rows of a batch (not a stream) to exactly the engine's input; "group" is one of its columns.
    # If a stage has several inputs it is applied to a stream: row by row, as a projection.
    prepare: Callable[[DataFrame], DataFrame]
    # The same over Arrow, without Spark.
    prepare_rows: Callable[[pa.Table], pa.Table]
    # What bounds the state; empty if it is unbounded.
    bounded_by: str = ""
    # The names of columns in <flow>.late that differ from the engine's.
    late_names: Mapping[str, str] = field(default_factory=dict)
    # The columns of <flow>.late that `flow describe` sums.
    late_units: tuple[str, ...] = ()
    # The definition of the state: its key, windows and aggregates. A program with another one cannot use it.
    definition: Mapping[str, Any] = field(default_factory=dict)
    # The effective parameters of the operator, in readable form. State written with another value cannot be used, unless
    # the parameter is `changeable`: it does not affect the state.
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    changeable: frozenset[str] = frozenset()
    # What the watermark of its batches follows: event times, or append times.
    time: Literal["event", "append"] = "event"
    # The preparations of further inputs; all give the same columns, and `side` tells the engine which input a row is
    # from.
    others: tuple[Preparation, ...] = ()
    # How far event times of its rows may be behind the watermark, in microseconds: delays the output watermark.
    behind: int = 0
    # The engine's input, if the readers of topics may prepare it (see `packed_rows`); else None. It requires that the
    # preparations over Arrow give the same groups as Spark, and are methods (`arrow`) of dataclasses.
    packed: pa.Schema | None = None
    # How its output follows from its input, as JSON, in columns of its inputs and of its engine's output (see `traced_stages`);
    # None if that cannot be said.
    lineage: Mapping[str, Any] | None = None

    @property
    def preparations(self) -> tuple[Preparation, ...]:
        """One for each input."""
        return (Preparation(self.prepare, self.prepare_rows), *self.others)

    @property
    def broadcasts(self) -> bool:
        """Whether an input reaches every bucket."""
        return any(one.every_bucket for one in self.preparations)


@dataclass(frozen=True)
class Stage:
    """A stage of a program: its number there, its name in its flow, and its input rows."""

    number: int
    spec: StageSpec
    name: str
    inputs: tuple[DataFrame, ...]


class BatchStages(Protocol):
    """Runs one batch of a flow through its stages."""

    def root(self, number: int) -> DataFrame:
        """The rows of the streaming query for a stage; if it has several inputs, those of all inputs, prepared."""

    def run_stage(self, stage: Stage) -> DataFrame:
        """The output rows of a stage."""


@singledispatch
def add_stage(rows: DataFrame, spec: StageSpec, *others: DataFrame, name: str | None = None) -> DataFrame:
    """The output rows of an engine for these rows, with `record` as the last column.

    Batch rows are processed all at once. Each input has its own preparation (`spec.preparations`).
    """
    inputs = (rows, *others)
    build = current_build()
    number = -1 if build is None else build.stage_number()
    stage = Stage(number, spec, name or "", inputs)
    batch: BatchStages | None = None if build is None else build.batch
    if batch is not None:
        return batch.run_stage(stage)
    if not any(given.isStreaming for given in inputs):
        from mainstem.operators.stage.stage_task import at_once

        return at_once(prepare_inputs(stage), spec)
    _check_streams(stage)
    if build is not None:
        build.stages[number] = stage
    return placeholder(rows, number, spark_schema(stage_schema(spec.engine)))


def prepare_inputs(stage: Stage, which: Sequence[int] | None = None) -> DataFrame:
    """The rows of a stage's inputs, or of some of them, as its engine takes them."""
    places = range(len(stage.inputs)) if which is None else which
    parts = [stage.spec.preparations[place].native(stage.inputs[place]) for place in places]
    united = parts[0]
    for part in parts[1:]:
        united = united.unionByName(part)
    return united


def prepare_batch(batch: BatchStages, stage: Stage) -> DataFrame:
    """The rows of a batch as the stage's engine takes them: those of the streaming query and of earlier stages."""
    given = [place for place, rows in enumerate(stage.inputs) if not rows.isStreaming]
    if len(given) == len(stage.inputs):
        return prepare_inputs(stage)
    root = batch.root(stage.number)
    if is_packed(root):
        return root
    if len(stage.inputs) == 1:
        return stage.spec.prepare(root)
    return root.unionByName(prepare_inputs(stage, given)) if given else root


def _check_streams(stage: Stage) -> None:
    if not all(rows.isStreaming for rows in stage.inputs):
        raise Invalid(
            f"{stage.spec.operator} cannot combine a stream with batch rows",
            detail="Batch rows never change, and have no batches.",
            hint="Give it only streams, .stream(), or only batch rows, .read(); to look up rows in a table that "
            "never changes, use Spark's own join.",
        )


def stage_schema(engine: Engine) -> pa.Schema:
    """The output columns of a stage."""
    shown = [at for at in engine.output_schema if at.name != "change"]
    return pa.schema([*shown, pa.field("record", WATERMARKED_RECORD, metadata=RECORD_MARK)])


def remember(key: str, make: Callable[[], T]) -> T:
    """The value of `make` from the first build of the program, for the operator that is being built now.

    A program is built several times: what takes a millisecond or more to compute is cached here.
    """
    build: Build | None = current_build()
    if build is None:
        return make()
    known = (build.next_stage, key)
    if known not in build.memory:
        build.memory[known] = make()
    return cast("T", build.memory[known])


# Late rows as users see them: under the users' column names, and with times as timestamps.


TIME = pa.timestamp("us", "UTC")
# Columns that engines have in microseconds. A user's columns are by_0, ... there, so none of them has such a name.
_TIMES = ("time", "watermark", "window_start", "window_end")


def show_late_rows(rows: pa.Table, spec: StageSpec) -> pa.Table:
    """The late rows of an engine. Its own columns keep their names: a user's "offset" becomes "offset_"."""
    for place, column in enumerate(rows.schema):
        if column.name in _TIMES and column.type == pa.int64():
            rows = rows.set_column(place, column.name, _times(whole(rows.column(place))))
    taken = {name for name in rows.schema.names if name not in spec.late_names}
    names = []
    for name in rows.schema.names:
        shown = spec.late_names.get(name, name)
        while name in spec.late_names and shown in taken:
            shown += "_"
        names.append(shown)
    return rows.rename_columns(names)


def _times(microseconds: pa.Array) -> pa.Array:
    """Timestamps; null for NO_TIME and for the end of an unbounded window."""
    values = np.asarray(microseconds.fill_null(NO_TIME))
    return pa.array(values, mask=(values == NO_TIME) | (values >= NEVER // 2)).view(TIME)
