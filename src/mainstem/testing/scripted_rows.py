"""ScriptedRows: the rows of a scripted stream on their way through operators, without Spark.

Passed to an operator instead of a DataFrame. Spark's own methods are not supported and raise an error; an
operator's engine gets the rows and clocks that it would get from a flow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.arguments import checked_calls, column_names
from mainstem.errors import Invalid, did_you_mean
from mainstem.log.sql_sandbox import quote
from mainstem.operators.aggregates.aggregate_columns import WrittenAggregates, read_aggregates
from mainstem.operators.stage.engine import BatchClock, Step
from mainstem.operators.stage.frame_columns import Value, columns_of, transform_with
from mainstem.operators.stage.hashes import bucket_groups
from mainstem.operators.stage.stage import StageSpec, add_stage, show_late_rows, stage_schema
from mainstem.operators.stage.stage_task import add_record
from mainstem.operators.stage.state_runs import MemoryState
from mainstem.operators.tables.feed_rows import read_values
from mainstem.operators.top import RowOrder, read_order
from mainstem.operators.windows.window_time import RowTime
from mainstem.testing.row_sql import compute_columns, read_aggregate_text, read_order_text, read_value_text

__all__ = ["ScriptedBatch", "ScriptedRows", "ScriptedRun", "TestResults", "list_late"]


# TestResults: the results of a scripted stream.


Row = dict[str, Any]


@checked_calls
@dataclass(frozen=True)
class TestResults:
    """The rows that were emitted, in order, and the late rows and counts.

    >>> results = TestResults([[("insert", {"team": "red", "total": 3})], [("update", {"team": "red", "total": 5})]])
    >>> results.rows
    [{'team': 'red', 'total': 3}, {'team': 'red', 'total': 5}]
    >>> results.latest("team")
    [{'team': 'red', 'total': 5}]
    """

    # pytest would take it for a class of tests.
    __test__ = False

    # For each step of the script (each batch, if it is split otherwise), its rows with their changes, without `record`.
    batches: list[list[tuple[str, Row]]]
    # Late rows as in <flow>.late, without nulls.
    late: list[Row] = field(default_factory=list)
    # Counters of the stages: duplicates, late rows, ...
    counts: dict[str, int] = field(default_factory=dict)
    # The number of state rows of each stage at the end, by its name.
    state_rows: dict[str, int] = field(default_factory=dict)
    # The number of batches that were killed, and repeated with the same result.
    killed: int = 0

    @property
    def changes(self) -> list[tuple[str, Row]]:
        """All rows, each with its change: insert, update or delete."""
        return [change for batch in self.batches for change in batch]

    @property
    def rows(self) -> list[Row]:
        """All rows that were emitted, without retractions."""
        return [row for change, row in self.changes if change != "delete"]

    def latest(self, key: str | Sequence[str]) -> list[Row]:
        """The rows of a view with this key, in the order in which its keys first appeared."""
        names = column_names(key, "key")
        held: dict[str, Row] = {}
        for change, row in self.changes:
            if missing := [name for name in names if name not in row]:
                raise Invalid(
                    f'the results have no column "{missing[0]}"',
                    detail=f"Their columns are: {', '.join(row)}.",
                    hint=did_you_mean(missing[0], row) or "Name one of these.",
                )
            # As text: a window is a dict, which cannot be a key.
            identity = str([row[name] for name in names])
            if change == "delete":
                held.pop(identity, None)
            else:
                held[identity] = row
        return list(held.values())


# Methods of a DataFrame that a user might call between two operators.
_SPARK_ALONE = frozenset(
    [
        "agg",
        "alias",
        "cache",
        "coalesce",
        "crossJoin",
        "cube",
        "distinct",
        "drop",
        "dropDuplicates",
        "dropDuplicatesWithinWatermark",
        "dropna",
        "explode",
        "fillna",
        "filter",
        "groupBy",
        "groupby",
        "hint",
        "intersect",
        "join",
        "limit",
        "mapInArrow",
        "mapInPandas",
        "na",
        "observe",
        "orderBy",
        "persist",
        "pivot",
        "repartition",
        "replace",
        "rollup",
        "sample",
        "select",
        "selectExpr",
        "sort",
        "sparkSession",
        "stat",
        "subtract",
        "to",
        "toDF",
        "transform",
        "union",
        "unionAll",
        "unionByName",
        "unpivot",
        "where",
        "withColumn",
        "withColumnRenamed",
        "withColumns",
        "withColumnsRenamed",
        "withMetadata",
        "withWatermark",
        "write",
        "writeStream",
    ]
)


@dataclass(frozen=True)
class ScriptedBatch:
    """One batch: its rows, its clock, and whether its first attempt is killed."""

    rows: pa.Table
    clock: BatchClock
    killed: bool = False


@dataclass
class ScriptedRun:
    """The late rows, counters and state sizes of stages."""

    late: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    state_rows: dict[str, int] = field(default_factory=dict)
    operators: list[str] = field(default_factory=list)

    def name_stage(self, operator: str) -> str:
        """The name of the next stage of this operator."""
        self.operators.append(operator)
        return f"{operator}-{self.operators.count(operator)}"


class ScriptedRows:
    """The rows of a script, given to an operator in place of a DataFrame. All of them are known, so a stage runs as soon
    as it is built.

    >>> from mainstem.operators import aggregate
    >>> from mainstem.testing import TestStream
    >>> def total(rows):
    ...     return aggregate(rows, aggregates="sum(score) AS total") if isinstance(rows, ScriptedRows) else None
    >>> TestStream("score INT").rows([{"score": 3}, {"score": 4}]).run(total).rows
    [{'total': 7}]
    """

    isStreaming = True  # noqa: N815 - as a DataFrame calls it

    def __init__(self, schema: pa.Schema, batches: Sequence[ScriptedBatch], run: ScriptedRun) -> None:
        self.schema = schema
        self.batches = list(batches)
        self.run = run

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def __getattr__(self, name: str) -> NoReturn:
        if name not in _SPARK_ALONE:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise Invalid(
            f'"{name}" needs Spark, and this test runs without it',
            detail="Without Spark a scripted stream passes only through Mainstem's own operators, one after the other.",
            hint="Use run_on_spark instead of run, or test the operator alone.",
        )

    def through(self, spec: StageSpec, *others: ScriptedRows, name: str | None = None) -> ScriptedRows:
        """The output of an operator's engine for the batches, one by one, with its state in memory."""
        called = name or self.run.name_stage(spec.operator)
        state = MemoryState(spec.engine.state_schema)
        given, offset = [], 0
        for parts in zip(self.batches, *(other.batches for other in others), strict=True):
            prepared = _prepare(spec, [part.rows for part in parts])
            batch = replace(parts[0], clock=_earliest([part.clock for part in parts]))
            clock = _clock(batch.clock, spec)
            step = spec.engine.step(state, prepared, clock)
            if batch.killed:
                # A flow that died within a batch repeats it with the state from before.
                _check_same(step, spec.engine.step(state, prepared, clock), called)
            self._note(step, spec)
            state.apply(step)
            after = batch.clock.earlier(spec.behind)
            given.append(ScriptedBatch(add_record(step, 0, offset, batch.clock, spec.behind), after, batch.killed))
            offset += step.output.num_rows
        self.run.state_rows[called] = state.rows.num_rows
        return ScriptedRows(stage_schema(spec.engine), given, self.run)

    def _note(self, step: Step, spec: StageSpec) -> None:
        for what, count in step.counts.items():
            if count:
                self.run.counts[what] = self.run.counts.get(what, 0) + count
        if step.late is not None:
            self.run.late.extend(list_late(show_late_rows(step.late, spec)))

    def mapped(self, function: Callable[[pa.Table], pa.Table], schema: pa.Schema) -> ScriptedRows:
        """The rows after a stateless step: `function` returns the columns of `schema`."""
        batches = [
            ScriptedBatch(function(batch.rows).cast(_plain(schema)), batch.clock, batch.killed)
            for batch in self.batches
        ]
        return ScriptedRows(schema, batches, self.run)

    def transformed(
        self, values: Mapping[str, Value], _: object, arrow: Callable[[pa.Table, pa.Table], pa.Table]
    ) -> ScriptedRows:
        """The rows after a step of an operator, over Arrow."""
        for value in values.values():
            if not isinstance(value, str):
                raise Invalid(
                    f"{value} needs Spark, and this test runs without it",
                    detail="Without Spark a column that differs from row to row is computed from SQL.",
                    hint="Use run_on_spark instead of run.",
                )
        sql = {name: str(value) for name, value in values.items()}

        def function(rows: pa.Table) -> pa.Table:
            return arrow(rows, compute_columns(sql, rows))

        return self.mapped(function, function(self.schema.empty_table()).schema)

    def _aggregates(
        self, texts: Sequence[Any], time: RowTime | None = None, retracting: str | None = None
    ) -> WrittenAggregates:
        at = "0::BIGINT" if time is None else f"epoch_us({'.'.join(map(quote, time.path))}) - {time.less}"
        back = None if retracting is None else f"{quote(retracting)}.change = 'delete'"
        return read_aggregate_text(self.schema, texts, at, back)

    def _order(self, texts: Sequence[Any]) -> RowOrder:
        return read_order_text(self.schema, texts)

    def _values(self, texts: Mapping[str, Any], operator: str) -> Mapping[str, Value]:
        return dict(read_value_text(self.schema, texts, operator))


# The functions that operators call on a DataFrame, for ScriptedRows.
columns_of.register(ScriptedRows, lambda rows: rows.schema)
transform_with.register(ScriptedRows, ScriptedRows.transformed)  # type: ignore[arg-type]
add_stage.register(ScriptedRows, ScriptedRows.through)  # type: ignore[arg-type]
read_aggregates.register(ScriptedRows, ScriptedRows._aggregates)
read_order.register(ScriptedRows, ScriptedRows._order)
read_values.register(ScriptedRows, ScriptedRows._values)


def list_late(late: pa.Table) -> list[dict[str, Any]]:
    """Late rows as dicts without nulls: stages have different columns."""
    return [{name: value for name, value in row.items() if value is not None} for row in late.to_pylist()]


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.type) for column in schema])


def _check_same(first: Step, second: Step, stage: str) -> None:
    for part in ("output", "put", "gone", "late", "counts"):
        one, other = getattr(first, part), getattr(second, part)
        # As text where they differ: NaN is not equal to itself.
        if one != other and str(_to_list(one)) != str(_to_list(other)):
            raise AssertionError(
                f'stage "{stage}" ran a batch twice from the same state with different results: {part} was '
                f"{_to_list(one)}, then {_to_list(other)}"
            )


def _to_list(part: Any) -> Any:
    return part.to_pylist() if isinstance(part, pa.Table) else part


def _prepare(spec: StageSpec, inputs: Sequence[pa.Table]) -> pa.Table:
    """The rows of all inputs as the engine takes them."""
    parts = [by.arrow(rows) for by, rows in zip(spec.preparations, inputs, strict=True)]
    rows = parts[0] if len(parts) == 1 else pa.concat_tables([part.select(parts[0].schema.names) for part in parts])
    if spec.broadcasts:
        # There is one bucket.
        group = pc.fill_null(rows.column("group"), bucket_groups(1)[0])
        rows = rows.set_column(rows.schema.get_field_index("group"), "group", group)
    return rows


def _earliest(clocks: Sequence[BatchClock]) -> BatchClock:
    """The clock with the lowest watermark: inputs may be behind by different spans."""
    return min(clocks, key=lambda clock: clock.watermark)


def _clock(clock: BatchClock, spec: StageSpec) -> BatchClock:
    """With append times the watermark is the clock: all appended rows were read."""
    clock = replace(clock, appended=clock.now)
    return clock if spec.time == "event" else replace(clock, watermark=clock.now, watermark_before=clock.now_before)
