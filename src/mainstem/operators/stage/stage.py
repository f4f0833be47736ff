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
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

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
    "prepared_batch",
    "prepared_together",
    "remembered",
    "stage_schema",
    "staged",
    "staged_together",
    "told_late",
]

# A value as JSON has it.
Parameter: TypeAlias = "str | int | Sequence[str] | Mapping[str, str] | None"


@dataclass(frozen=True)
class Preparation:
    """How the rows of one input become what the engine takes: with Spark, and over Arrow where there is none."""

    native: Callable[[DataFrame], DataFrame]
    arrow: Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class StageSpec:
    """What an operator wants of its stage."""

    # The stage is named after it: <operator>-<number in its flow>.
    operator: str
    engine: Engine
    # From the rows of a batch, a frame that is not a stream, to exactly what the engine takes; "group" is a column of it.
    # Where a stage has several inputs this is done with a stream: row by row, as in a projection.
    prepare: Callable[[DataFrame], DataFrame]
    # The same over Arrow, with no Spark.
    prepare_rows: Callable[[pa.Table], pa.Table]
    # What lets the state forget; empty if nothing does.
    bounded_by: str = ""
    # What the columns of late rows are called in <flow>.late, where it is not as the engine calls them.
    late_names: Mapping[str, str] = field(default_factory=dict)
    # Which of them (as they are called there) are added up in `flow describe`.
    late_units: tuple[str, ...] = ()
    # What the program says the state is of: its key, its windows, its aggregates. Other ones cannot go on with it.
    definition: Mapping[str, Any] = field(default_factory=dict)
    # Every parameter that the operator was given, as it takes effect and as a person reads it. State that was kept by another
    # value does not fit, unless the parameter is one of those that decide nothing about the state.
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    changeable: frozenset[str] = frozenset()
    # What the watermark of its batches is about: event times, or append times.
    time: Literal["event", "append"] = "event"
    # How the further inputs are prepared, where a stage has several; all come to the same columns, and a column of their
    # own (`side`) tells the engine which input a row is of.
    others: tuple[Preparation, ...] = ()
    # So many microseconds the event times of its rows may be behind the watermark: time is as much earlier for what follows.
    behind: int = 0
    # What the engine takes, where the readers of topics may prepare it; see `packed_rows`. None where they must not: the
    # preparations over Arrow must give rows the groups that Spark does, and be methods (`arrow`) of dataclasses.
    packed: pa.Schema | None = None

    @property
    def preparations(self) -> tuple[Preparation, ...]:
        """One for each input."""
        return (Preparation(self.prepare, self.prepare_rows), *self.others)


@dataclass(frozen=True)
class Stage:
    """A stage of a program: its number there, its name in its flow, and the rows that go in, by input."""

    number: int
    spec: StageSpec
    name: str
    inputs: tuple[DataFrame, ...]


class ScriptedRows(Protocol):
    """Rows without Spark; see `mainstem.testing`."""

    def through(self, spec: StageSpec, name: str | None, others: Sequence[Any]) -> Any: ...


class BatchStages(Protocol):
    """One batch of a flow on its way through its stages."""

    def root(self, number: int) -> DataFrame:
        """The rows of the streaming query that go into a stage; where it has several inputs: prepared, and all of them."""

    def passed(self, stage: Stage) -> DataFrame:
        """What a stage gives for its rows."""


def staged(rows: DataFrame, spec: StageSpec, *, name: str | None = None) -> DataFrame:
    """The rows that an engine makes of these, with `record` as their last column.

    Of rows that are not a stream: what it makes of all of them at once.
    """
    return staged_together([rows], spec, name=name)


def staged_together(inputs: Sequence[DataFrame], spec: StageSpec, *, name: str | None = None) -> DataFrame:
    """The same for several inputs, each prepared in its own way (`spec.preparations`)."""
    through: Any = getattr(type(inputs[0]), "through", None)
    if through is not None:
        scripted: DataFrame = through(inputs[0], spec, name, inputs[1:])
        return scripted
    build = current_build()
    number = -1 if build is None else build.stage_number()
    stage = Stage(number, spec, name or "", tuple(inputs))
    batch: BatchStages | None = None if build is None else build.batch
    if batch is not None:
        return batch.passed(stage)
    if not any(rows.isStreaming for rows in inputs):
        from mainstem.operators.stage.stage_task import at_once

        return at_once(prepared_together(stage), spec)
    _check_streams(stage)
    if build is not None:
        build.stages[number] = stage
    return placeholder(inputs[0], number, spark_schema(stage_schema(spec.engine)))


def prepared_together(stage: Stage, which: Sequence[int] | None = None) -> DataFrame:
    """The rows of a stage's inputs, or of some of them, as its engine takes them."""
    places = range(len(stage.inputs)) if which is None else which
    parts = [stage.spec.preparations[place].native(stage.inputs[place]) for place in places]
    united = parts[0]
    for part in parts[1:]:
        united = united.unionByName(part)
    return united


def prepared_batch(batch: BatchStages, stage: Stage) -> DataFrame:
    """The rows of a batch as the stage's engine takes them: what the streaming query has, and what earlier stages gave."""
    given = [place for place, rows in enumerate(stage.inputs) if not rows.isStreaming]
    if len(given) == len(stage.inputs):
        return prepared_together(stage)
    root = batch.root(stage.number)
    if is_packed(root):
        return root
    if len(stage.inputs) == 1:
        return stage.spec.prepare(root)
    return root.unionByName(prepared_together(stage, given)) if given else root


def _check_streams(stage: Stage) -> None:
    if not all(rows.isStreaming for rows in stage.inputs):
        raise Invalid(
            f"{stage.spec.operator} cannot combine a stream with batch rows",
            detail="Batch rows never change, and have no batches.",
            hint="Give it only streams, .stream(), or only batch rows, .read(); to look up rows in a table that "
            "never changes, use Spark's own join.",
        )


def stage_schema(engine: Engine) -> pa.Schema:
    """The columns that a stage gives."""
    shown = [at for at in engine.output_schema if at.name != "change"]
    return pa.schema([*shown, pa.field("record", WATERMARKED_RECORD, metadata=RECORD_MARK)])


def remembered(key: str, make: Callable[[], Any]) -> Any:
    """What was found out while the program was first looked at, for the operator that is being built now.

    A program is built several times: what costs a millisecond or more to find out belongs here.
    """
    build: Build | None = current_build()
    if build is None:
        return make()
    known = (build.next_stage, key)
    if known not in build.memory:
        build.memory[known] = make()
    return build.memory[known]


# Rows that came too late, as people see them: under the names that they know, and with times as times.


TIME = pa.timestamp("us", "UTC")
# What engines have as microseconds. A user's columns are by_0, ... there, so none of them has such a name.
_TIMES = ("time", "watermark", "window_start", "window_end")


def told_late(rows: pa.Table, spec: StageSpec) -> pa.Table:
    """What an engine gave as late. The engine's own columns stay as they are: a user's "offset" becomes "offset_"."""
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
    """A window of all time has no end, and a row without a watermark has none."""
    values = np.asarray(microseconds.fill_null(NO_TIME))
    return pa.array(values, mask=(values == NO_TIME) | (values >= NEVER // 2)).view(TIME)
