"""AggregatePlan: the plan of an `aggregate`: its input columns, the stage, and its output columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mainstem.errors import Invalid
from mainstem.operators.aggregates.aggregate_columns import read_aggregates
from mainstem.operators.aggregates.aggregate_text import computed, read_aggregate_text
from mainstem.operators.stage.frame_columns import Shown, by_names, check_record, columns_of, record_field, scripted
from mainstem.operators.stage.stage import StageSpec
from mainstem.operators.tables.aggregate_engine import AggregateEngine, ChangingAggregates
from mainstem.operators.tables.changed_rows import ChangedRows
from mainstem.operators.tables.changing import check_hashable, shown_changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["AggregatePlan", "planned_aggregate"]


@dataclass(frozen=True)
class AggregatePlan:
    """A stage with the steps around it."""

    spec: StageSpec
    key: tuple[pa.Field, ...]
    record: str | None
    # By name (i0_0, ...) over the rows, and by the user's name over the answers: Spark columns, or SQL without Spark.
    inputs: Mapping[str, Any]
    answers: Mapping[str, Any]
    narrow: pa.Schema
    answer_fields: tuple[pa.Field, ...]

    def narrowed(self, rows: Any) -> Any:
        """What the stage needs of the rows."""
        names = [*(field.name for field in self.key), *([] if self.record is None else [self.record])]
        if not scripted(rows):
            from pyspark.sql import functions as F

            kept = [F.col(_quoted(name)) for name in names]
            return rows.select(*kept, *(column.alias(name) for name, column in self.inputs.items()))

        def selected(table: pa.Table) -> pa.Table:
            found = computed(self.inputs, table) if self.inputs else table
            columns = {name: table.column(name) for name in names}
            return pa.table({**columns, **{name: found.column(name) for name in self.inputs}})

        return rows.mapped(selected, self.narrow)

    def shown(self, rows: Any) -> DataFrame:
        """What the user gets of the stage."""
        key = [Shown(f"by_{place}", field) for place, field in enumerate(self.key)]
        answers = [Shown(field.name, field) for field in self.answer_fields]
        return shown_changes(self._with_answers(rows), [*key, *answers])

    def _with_answers(self, rows: Any) -> Any:
        if not scripted(rows):
            from pyspark.sql import functions as F

            names = [f"by_{place}" for place in range(len(self.key))]
            kept = [F.col(name) for name in [*names, "record"]]
            return rows.select(*kept, *(column.alias(name) for name, column in self.answers.items()))

        def selected(table: pa.Table) -> pa.Table:
            kept = {name: table.column(name) for name in table.column_names if not _is_answer(name)}
            numbered = table.select([name for name in table.column_names if _is_answer(name)])
            found = computed(self.answers, numbered)
            return pa.table({**kept, **{name: found.column(name) for name in self.answers}})

        kept = [field for field in rows.schema if not _is_answer(field.name)]
        return rows.mapped(selected, pa.schema([*kept, *self.answer_fields]))


def planned_aggregate(rows: DataFrame, by: str | Sequence[str], aggregates: Sequence[Any]) -> AggregatePlan:
    """Everything is checked here, so that errors are raised while the program is built."""
    schema = columns_of(rows)
    names = by_names(by, schema, "aggregate")
    check_record(schema, "aggregate")
    written: Any
    if scripted(rows):
        written = read_aggregate_text(schema, aggregates, "0")
    else:
        from pyspark.sql import functions as F

        written = read_aggregates(rows, aggregates, F.lit(0).cast("bigint"))
    functions = ChangingAggregates(tuple(written.calls))
    _check_names(names, list(written.answers))
    record = record_field(schema)
    inputs = [
        pa.field(f"i{number}_{place}", of)
        for number, call in enumerate(written.calls)
        for place, of in enumerate(call.inputs)
    ]
    check_hashable([field for field in inputs if int(field.name[1:].split("_")[0]) in functions.valued], "aggregate")
    key = tuple(schema.field(name) for name in names)
    narrow = pa.schema([*key, *([] if record is None else [record]), *inputs])
    hashed = tuple(
        tuple(field.name for field in inputs if field.name.startswith(f"i{number}_")) for number in functions.valued
    )
    changed = ChangedRows(narrow, names, hashed=hashed, kept=tuple(field.name for field in inputs))
    engine = AggregateEngine(changed.by_fields, functions)
    values = [written.calls[number].text for number in functions.valued]
    kept = f", and for each its values of {', '.join(values)}" if values else ""
    spec = StageSpec(
        "aggregate",
        engine,
        changed.native,
        changed.arrow,
        bounded_by=f"one row for each {', '.join(names) or 'table'}{kept}",
        definition={"by": list(names), "aggregates": [call.text for call in written.calls]},
        parameters={"by": list(names), "aggregates": [call.text for call in written.calls]},
    )
    title = None if record is None else record.name
    return AggregatePlan(
        spec, key, title, written.inputs, written.answers, narrow, _answer_fields(rows, engine, written)
    )


def _answer_fields(rows: Any, engine: AggregateEngine, written: Any) -> tuple[pa.Field, ...]:
    """The columns of the answers, as the user sees them."""
    answers = engine.aggregates.output_schema
    if scripted(rows):
        return tuple(computed(written.answers, answers.empty_table()).schema)
    from mainstem.spark.spark_types import arrow_schema, spark_schema

    empty = rows.sparkSession.createDataFrame([], spark_schema(answers))
    shown = empty.select(*(column.alias(name) for name, column in written.answers.items()))
    return tuple(arrow_schema(shown.schema))


def _check_names(by: Sequence[str], aggregates: Sequence[str]) -> None:
    for name in [*by, *aggregates]:
        if name == "record":
            raise Invalid(
                'a column of the result would be named "record"',
                detail="The result has its own `record`, with the position of a row in the log.",
                hint='Give it another name: .alias("records").',
            )
    if both := sorted(set(by) & set(aggregates)):
        raise Invalid(
            f'an aggregate has the name of a key column: "{both[0]}"',
            detail="Both are columns of the result.",
            hint=f'Give the aggregate another name: .alias("{both[0]}_total").',
        )


def _is_answer(name: str) -> bool:
    return name.startswith("o") and name[1:].isdigit()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
