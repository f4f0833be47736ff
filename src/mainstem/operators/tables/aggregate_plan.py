"""AggregatePlan: the plan of an `aggregate`: its input columns, the stage, and its output columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mainstem.errors import Invalid
from mainstem.operators.aggregates.aggregate_columns import read_aggregates
from mainstem.operators.stage.frame_columns import (
    Shown,
    Value,
    add_columns,
    by_names,
    check_record,
    columns_of,
    quote_name,
    record_field,
    transform_with,
)
from mainstem.operators.stage.stage import StageSpec
from mainstem.operators.tables.aggregate_engine import AggregateEngine, ChangingAggregates
from mainstem.operators.tables.changed_rows import ChangedRows
from mainstem.operators.tables.changing import check_hashable, show_changes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["AggregatePlan", "plan_aggregate"]


@dataclass(frozen=True)
class AggregatePlan:
    """A stage with the steps around it."""

    spec: StageSpec
    key: tuple[pa.Field, ...]
    record: str | None
    # By name (i0_0, ...) over the rows, and by the user's name over the results.
    inputs: Mapping[str, Value]
    answers: Mapping[str, Value]

    def narrow(self, rows: DataFrame) -> DataFrame:
        """The columns that the stage needs."""
        names = [*(field.name for field in self.key), *([] if self.record is None else [self.record])]
        return _select_with(rows, names, self.inputs)

    def show(self, rows: DataFrame) -> DataFrame:
        """The stage's output as the user sees it."""
        key = [Shown(f"by_{place}", field) for place, field in enumerate(self.key)]
        answered = _select_with(rows, [*(shown.source for shown in key), "record"], self.answers)
        return show_changes(answered, [*key, *self.answers])


def _select_with(rows: DataFrame, names: Sequence[str], values: Mapping[str, Value]) -> DataFrame:
    """These columns, and values computed from all columns."""

    def native(frame: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
        return frame.select(*map(quote_name, names), *(column.alias(name) for name, column in columns.items()))

    return transform_with(rows, values, native, lambda table, computed: add_columns(table.select(names), computed))


def plan_aggregate(rows: DataFrame, by: str | Sequence[str], aggregates: Sequence[Any]) -> AggregatePlan:
    """Everything is checked here, so that errors are raised while the program is built."""
    schema = columns_of(rows)
    names = by_names(by, schema, "aggregate")
    check_record(schema, "aggregate")
    written = read_aggregates(rows, aggregates)
    functions = ChangingAggregates(tuple(written.calls))
    _check_names(names, list(written.answers))
    record = record_field(schema)
    inputs = [
        pa.field(f"i{number}_{place}", of)
        for number, call in enumerate(written.calls)
        for place, of in enumerate(call.inputs)
    ]
    check_hashable(
        [field for field in inputs if int(field.name[1:].split("_")[0]) in functions.valued_calls], "aggregate"
    )
    key = tuple(schema.field(name) for name in names)
    narrow = pa.schema([*key, *([] if record is None else [record]), *inputs])
    hashed = tuple(
        tuple(field.name for field in inputs if field.name.startswith(f"i{number}_"))
        for number in functions.valued_calls
    )
    changed = ChangedRows(narrow, names, hashed=hashed, kept=tuple(field.name for field in inputs))
    engine = AggregateEngine(changed.by_fields, functions)
    values = [written.calls[number].text for number in functions.valued_calls]
    kept = f", and for each its values of {', '.join(values)}" if values else ""
    spec = StageSpec(
        "aggregate",
        engine,
        changed.native,
        changed.arrow,
        bounded_by=f"one row for each {', '.join(names) or 'table'}{kept}",
        definition={"by": list(names), "aggregates": [call.text for call in written.calls]},
        parameters={"by": list(names), "aggregates": [call.text for call in written.calls]},
        packed=changed.input_schema if changed.packable else None,
        lineage={"by": list(names)},
    )
    title = None if record is None else record.name
    return AggregatePlan(spec, key, title, written.inputs, written.answers)


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
