"""FeedRows: the rows of a feed as the engines of `table` and `versions` take them, each with its key, whether it is a delete,
its order and its position in the log (`table_engine.table_input`).

A feed is a stream of facts about keys: each row says what its key is from now on, or that it was deleted. `order_by` and
`delete_when` are columns or expressions; expressions are computed before the stage, as columns of these names:

    mainstem_order_0, ...    the parts of `order_by` that are expressions
    mainstem_delete          `delete_when`

With several parts the order is a struct, null if its first part is null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Invalid, did_you_mean
from mainstem.log.record import CORRECTED_MARK
from mainstem.operators.stage.arrow_columns import whole
from mainstem.operators.stage.frame_columns import (
    Shown,
    Value,
    add_columns,
    check_column,
    columns_of,
    quote_name,
    record_field,
    select_columns,
    transform,
    transform_with,
)
from mainstem.operators.stage.keyed_rows import arrow_hashes, arrow_tie, can_tie, native_hashes, native_tie
from mainstem.operators.stage.spark_hashes import hashable
from mainstem.operators.tables.changing import is_changing
from mainstem.operators.tables.table_engine import table_input

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["FeedColumns", "FeedRows", "bad_expression", "compute_feed", "mark_deletes", "read_feed", "read_values"]

DELETE = "mainstem_delete"
ORDER = "mainstem_order"
# Of `F.desc("version")`.
_DIRECTION = re.compile(r"\s(ASC|DESC)( NULLS (FIRST|LAST))?$", re.IGNORECASE)


@dataclass(frozen=True)
class FeedColumns:
    """What `order_by` and `delete_when` of an operator are made of."""

    # The columns of the order, computed ones included.
    order: tuple[str, ...]
    # The expressions by the names of their columns.
    values: Mapping[str, Column | str]
    # As the user wrote them; None if not given.
    order_by: str | list[str] | None
    delete_when: str | None


def read_feed(
    rows: DataFrame,
    order_by: Column | str | Sequence[Column | str] | None,
    delete_when: Column | str | None,
    operator: str,
) -> FeedColumns:
    """Parse both. Raises `Invalid` for a column that the rows lack, and for what is neither a column nor an expression."""
    names = rows.columns
    parts: list[Any] = [] if order_by is None else list(order_by) if isinstance(order_by, (list, tuple)) else [order_by]
    if not parts and order_by is not None:
        raise Invalid(
            f"order_by of {operator} is empty",
            detail="It tells which of two rows of a key is the newer one.",
            hint='Name a column: order_by="version"; or leave it out.'
            if operator == "table"
            else 'Name a column: order_by="version".',
        )
    order: list[str] = []
    values: dict[str, Column | str] = {}
    for place, part in enumerate(parts):
        if isinstance(part, str) and (part in names or part.isidentifier()):
            if names.count(part) != 1:
                check_column(part, columns_of(rows), operator)
            order.append(part)
        else:
            order.append(f"{ORDER}_{place}")
            values[order[-1]] = part
    if delete_when is not None:
        values[DELETE] = delete_when
    texts = [_text(part, f"order_by of {operator}") for part in parts]
    for text in texts:
        if _DIRECTION.search(text):
            raise Invalid(
                f"order_by of {operator} cannot have a direction",
                detail=f"It is {text}; the row with the highest value is the newest.",
                hint="Leave the direction out; to reverse the order of a number, negate it.",
            )
    condition = None if delete_when is None else _text(delete_when, f"delete_when of {operator}")
    written = texts if len(texts) > 1 else texts[0] if texts else None
    return FeedColumns(tuple(order), values, written, condition)


def _text(value: Column | str, parameter: str) -> str:
    if isinstance(value, str):
        return value
    if not hasattr(value, "_jc"):
        raise Invalid(
            f"{parameter} is {value!r}",
            detail="It is a column or an expression: SQL text, or a Spark column.",
            hint='For example: order_by="version", delete_when="op = \'DELETE\'".',
        )
    return str(cast("Any", value)._jc.toString())


def compute_feed(rows: DataFrame, feed: FeedColumns, operator: str) -> DataFrame:
    """The rows with the columns of the feed's expressions."""
    if not feed.values:
        return rows
    values = read_values(rows, feed.values, operator)
    return transform_with(rows, values, lambda frame, given: _add(frame, given, operator), add_columns)


def _add(frame: DataFrame, values: Mapping[str, Column], operator: str) -> DataFrame:
    from pyspark.errors import PySparkException

    for name, value in values.items():
        try:
            frame = frame.withColumn(name, value)
        except PySparkException as error:
            parameters = error.getMessageParameters() or {}
            missing = str(parameters.get("objectName", "")).strip("`")
            raise bad_expression(operator, name, str(error), missing, frame.columns) from error
    return frame


@singledispatch
def read_values(rows: DataFrame, values: Mapping[str, Column | str], operator: str) -> Mapping[str, Value]:
    """Expressions over these rows; a text is SQL."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    found = {}
    for name, value in values.items():
        try:
            found[name] = F.expr(value) if isinstance(value, str) else value
        except PySparkException as error:
            raise bad_expression(operator, name, str(error)) from error
    return found


def bad_expression(operator: str, name: str, reason: str, missing: str = "", names: Sequence[str] = ()) -> Invalid:
    """The error for an expression that cannot be computed; `missing`: a column that the rows lack."""
    parameter = "delete_when" if name == DELETE else "order_by"
    if missing:
        known = [at for at in names if not at.startswith("mainstem_")]
        return Invalid(
            f'{parameter} of {operator} uses the column "{missing}", which the rows lack',
            detail=f"The columns are: {', '.join(known)}.",
            hint=did_you_mean(missing, known) or "Name one of these.",
            column=missing,
        )
    example = "delete_when=\"op = 'DELETE'\"" if name == DELETE else 'order_by="coalesce(updated_at, created_at)"'
    return Invalid(
        f"{parameter} of {operator} cannot be computed",
        detail=next(iter(reason.strip().splitlines()), ""),
        hint=f"Give a column, or an expression in SQL. For example: {example}.",
    )


@dataclass(frozen=True)
class FeedRows:
    """Converts rows of a feed, with Spark and over Arrow."""

    # How the engine orders rows of one position in the log; see `packed_rows`.
    same_position: ClassVar[str] = "tie"

    # With the columns of the feed's expressions.
    schema: pa.Schema
    key: tuple[str, ...]
    # The columns of the result.
    row: tuple[str, ...]
    order: tuple[str, ...] = ()

    def check(self, operator: str) -> None:
        """Raise if rows cannot be ordered by the order, or a delete is not a condition."""
        for name in self.order:
            of = self.schema.field(name).type
            if pa.types.is_nested(of) or not _rankable(of):
                shown = "this expression" if name.startswith(f"{ORDER}_") else f'"{name}"'
                raise Invalid(
                    f"{operator} cannot order rows by {shown}",
                    detail=f"It is {of}; rows can be ordered by a number, a text or a time.",
                    hint="Name a column of such a type, or several: order_by=[...].",
                )
        if DELETE in self.schema.names and self.schema.field(DELETE).type != pa.bool_():
            raise Invalid(
                f"delete_when of {operator} is not a condition",
                detail=f"It is {self.schema.field(DELETE).type}; a row is a delete if it is true.",
                hint="Write a comparison: delete_when=\"op = 'DELETE'\".",
            )

    @property
    def lineage(self) -> dict[str, Any]:
        """For `table`: how its rows follow from those of the feed."""
        record = record_field(self.schema)
        return {
            "key": list(self.key),
            "row": list(self.row),
            "order": list(self.order),
            "delete": DELETE if DELETE in self.schema.names else None,
            "record": None if record is None else record.name,
            "placed": self.placed,
        }

    @property
    def unplaced(self) -> bool:
        """Whether a hash decides between rows with the same order: without a `record` they have no positions."""
        return bool(self.order) and record_field(self.schema) is None

    @property
    def tied(self) -> pa.Schema:
        """The columns of which `tie` is a hash. With an order it decides between rows of several topics in different batches: so
        it must be the same for streams and batch rows, whose `record` differ."""
        return pa.schema([self.schema.field(name) for name in self.row]) if self.order else self.schema

    @property
    def placed(self) -> bool:
        """Whether rows have positions that order them; see `TableEngine`."""
        record = record_field(self.schema)
        corrected = record is not None and any(mark in (record.metadata or {}) for mark in CORRECTED_MARK)
        return not (is_changing(self.schema) or corrected)

    @property
    def row_type(self) -> pa.DataType:
        return pa.struct([pa.field(name, self.schema.field(name).type) for name in self.row])

    @property
    def order_type(self) -> pa.DataType | None:
        types = [self.schema.field(name).type for name in self.order]
        if len(types) < 2:
            return types[0] if types else None
        return pa.struct([pa.field(f"order_{place}", of) for place, of in enumerate(types)])

    @property
    def input_schema(self) -> pa.Schema:
        return table_input(self.row_type, self.order_type)

    def native(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        columns = {name: F.col(quote_name(name)) for name in self.schema.names}
        found = record_field(self.schema)
        record = None if found is None else columns[found.name]
        places: list[Any] = [F.lit(0), F.lit(0).cast("bigint") if self.unplaced else F.monotonically_increasing_id()]
        in_log = F.lit(False)
        if record is not None:
            places = [record["partition"], record["offset"]]
            in_log = F.coalesce(record["change"] == "delete", F.lit(False))
        deleted = in_log | F.coalesce(columns[DELETE], F.lit(False)) if DELETE in columns else in_log
        ordered = []
        if self.order:
            order = self._native_order(columns)
            ordered = [order.alias("order"), (in_log & order.isNull()).alias("silent")]
        return frame.select(
            *native_hashes(self.schema, self.key),
            deleted.alias("deleted"),
            *ordered,
            places[0].alias("partition"),
            places[1].alias("offset"),
            native_tie(self.tied).alias("tie"),
            F.struct(*(columns[name].alias(name) for name in self.row)).alias("row"),
        )

    def _native_order(self, columns: Mapping[str, Column]) -> Column:
        from pyspark.sql import functions as F

        parts = [columns[name] for name in self.order]
        if len(parts) == 1:
            return parts[0]
        return F.when(
            parts[0].isNotNull(), F.struct(*(part.alias(f"order_{place}") for place, part in enumerate(parts)))
        )

    @property
    def packable(self) -> bool:
        """Whether `arrow` gives rows the same groups as `native`."""
        return record_field(self.schema) is not None and all(
            hashable(self.schema.field(name).type) for name in self.key
        )

    def arrow(self, table: pa.Table) -> pa.Table:
        count = table.num_rows
        keys, row = ([table.column(name) for name in names] for names in (self.key, self.row))
        found = record_field(self.schema)
        record = None if found is None or not count else whole(table.column(found.name))
        change = pa.nulls(count, pa.string()) if record is None else record.field("change")
        in_log = deleted = pc.fill_null(pc.equal(change, "delete"), False)
        if DELETE in self.schema.names:
            deleted = pc.or_(in_log, pc.fill_null(whole(table.column(DELETE)), False))
        ordered = []
        if self.order:
            order = self._arrow_order(table)
            ordered = [order, pc.and_(in_log, order.is_null())]
        columns = [
            *arrow_hashes(keys, count),
            deleted,
            *ordered,
            np.zeros(count, np.int32) if record is None else record.field("partition"),
            self._arrow_offset(count) if record is None else record.field("offset"),
            # Rows with a `record` are of one topic here, whose positions are unique.
            arrow_tie(self.tied, table) if self.unplaced and can_tie(self.tied) else np.zeros(count, np.int64),
            pa.StructArray.from_arrays([whole(column) for column in row], fields=list(self.row_type)),
        ]
        arrays = [pa.array(column) if isinstance(column, np.ndarray) else column for column in columns]
        schema = self.input_schema
        return pa.Table.from_arrays(arrays, names=schema.names).cast(schema)

    def _arrow_offset(self, count: int) -> np.ndarray:
        return np.zeros(count, np.int64) if self.unplaced else np.arange(count)

    def _arrow_order(self, table: pa.Table) -> pa.Array:
        parts = [whole(table.column(name)) for name in self.order]
        if len(parts) == 1:
            return parts[0]
        of = self.order_type
        assert of is not None
        return pa.StructArray.from_arrays(parts, fields=list(of), mask=parts[0].is_null())


def _rankable(kind: pa.DataType) -> bool:
    try:
        pc.rank(pa.nulls(1, kind), sort_keys="ascending", tiebreaker="dense")
    except pa.ArrowNotImplementedError:
        return False
    return True


def mark_deletes(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Computed rows of a feed as those of a topic: `delete_when` becomes `record.change`; only these columns are left."""
    record = record_field(columns_of(rows))
    assert record is not None
    names = [field.name for field in record.type]

    def native(frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        given = F.col(quote_name(record.name))
        change = F.when(F.col(DELETE), F.lit("delete")).otherwise(given["change"])
        fields = {name: given[name] for name in names} | {"change": change}
        return frame.withColumn(record.name, F.struct(*(value.alias(name) for name, value in fields.items())))

    def arrow(table: pa.Table) -> pa.Table:
        if not table.num_rows:
            return table
        given = whole(table.column(record.name))
        deleted = pc.fill_null(whole(table.column(DELETE)), False)
        change = pc.if_else(deleted, "delete", given.field("change"))
        fields = [change if name == "change" else given.field(name) for name in names]
        place = table.schema.get_field_index(record.name)
        return table.set_column(
            place, table.schema.field(place), pa.StructArray.from_arrays(fields, fields=list(record.type))
        )

    shown = [Shown(record.name, record) if name == record.name else name for name in columns]
    return select_columns(transform(rows, native, arrow), shown)
