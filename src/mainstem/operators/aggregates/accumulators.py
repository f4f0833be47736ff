"""Accumulators: the mergeable state of one aggregate function.

An aggregate function is a value (`AggregateCall`); its accumulator has a few columns of its own (`a0_sum`, `a0_count`),
computed in four ways: native SQL for one row, native SQL for many rows at once, Arrow for one row,
and a merge of parts over Arrow. `finish` computes the function's result from them. The input columns are named after
the function's number: `i0_0` is the first argument of the first function; `time`, `topic`, `partition` and `offset`
give the order of a row.

The state does not depend on how rows were split into parts, except for the last digits of sums of doubles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, localcontext
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Invalid
from mainstem.log.rows.schema_ddl import type_to_ddl

__all__ = [
    "Accumulator",
    "Added",
    "AggregateCall",
    "Average",
    "Collected",
    "Extreme",
    "Int64Array",
    "Moments",
    "Parts",
    "Placed",
    "lists_of",
    "whole",
]


# Parts: accumulator rows grouped by an id, and vectorized aggregations of their columns.


Int64Array = npt.NDArray[np.int64]


class Parts:
    """Row i belongs to group `ids[i]`, of `count` groups. For one thread."""

    def __init__(self, ids: Int64Array, count: int) -> None:
        self.ids = ids
        self.count = count

    @cached_property
    def _ids(self) -> pa.Array:
        return pa.array(self.ids, pa.int64())

    @cached_property
    def single(self) -> bool:
        """Whether nothing needs merging: row i is group i."""
        return len(self.ids) == self.count and bool((self.ids == np.arange(self.count)).all())

    @cached_property
    def order(self) -> Int64Array:
        """The rows group by group, in their original order within a group."""
        return np.argsort(self.ids, kind="stable")

    @cached_property
    def sizes(self) -> Int64Array:
        """The number of rows of each group."""
        return np.bincount(self.ids, minlength=self.count).astype(np.int64)

    def sum(self, values: pa.Array) -> pa.Array:
        """The sums, added in the order of the rows; null where there is no value."""
        if self.single:
            return values
        if values.type not in (pa.int64(), pa.float64()):
            return self._aggregate(values, "sum").cast(values.type)
        found = np.zeros(self.count, values.type.to_pandas_dtype())
        known, ids = self._known(values)
        np.add.at(found, ids, np.asarray(known))
        return pa.array(found, mask=self._absent(ids))

    def extreme(self, values: pa.Array, which: str) -> pa.Array:
        """The `min` or `max`; null where there is no value."""
        kind = values.type
        if self.single:
            return values
        if pa.types.is_struct(kind):
            rows = self.first(self.extreme_rows(values, which, np.flatnonzero(np.asarray(values.is_valid()))))
            return values.take(pa.array(rows, mask=rows < 0))
        if pa.types.is_timestamp(kind):
            return self.extreme(values.view(pa.int64()), which).view(kind)
        if not (pa.types.is_floating(kind) or pa.types.is_signed_integer(kind)):
            return self._aggregate(values, which)
        known, ids = self._known(values)
        numbers = np.asarray(known)
        least = -np.inf if pa.types.is_floating(kind) else np.iinfo(numbers.dtype).min
        # NaN is the largest number.
        most = np.nan if pa.types.is_floating(kind) else np.iinfo(numbers.dtype).max
        found = np.full(self.count, most if which == "min" else least, numbers.dtype)
        with np.errstate(invalid="ignore"):
            (np.fmin if which == "min" else np.maximum).at(found, ids, numbers)
        return pa.array(found, kind, mask=self._absent(ids))

    def extreme_rows(self, values: pa.Array, which: str, rows: Int64Array, fields: int | None = None) -> Int64Array:
        """Of these rows of structs those with the least or greatest of their group: field by field, as Spark compares.

        `fields`: how many fields are compared, if not all.
        """
        for place in range(values.type.num_fields if fields is None else fields):
            field = values.field(place)
            known = np.asarray(field.take(pa.array(rows)).is_valid())
            # Null is the smallest value.
            decides = known if which == "max" else ~known
            decided = np.zeros(self.count, np.bool_)
            decided[self.ids[rows[decides]]] = True
            rows, known = (of[decides | ~decided[self.ids[rows]]] for of in (rows, known))
            apart, rows = rows[~known], rows[known]
            if pa.types.is_struct(field.type):
                rows = self.extreme_rows(field, which, rows)
            else:
                here, ids = field.take(pa.array(rows)), self.ids[rows]
                best = Parts(ids, self.count).extreme(here, which).take(pa.array(ids))
                same = pc.equal(here, best)
                if pa.types.is_floating(field.type):
                    same = pc.or_(same, pc.and_(pc.is_nan(here), pc.is_nan(best)))
                rows = rows[np.asarray(same)]
            rows = np.sort(np.r_[apart, rows])
        return rows

    def _known(self, values: pa.Array) -> tuple[pa.Array, Int64Array]:
        """The values that are not null, and their groups."""
        return (
            (values.drop_null(), self.ids[np.asarray(values.is_valid())]) if values.null_count else (values, self.ids)
        )

    def _absent(self, ids: Int64Array) -> npt.NDArray[np.bool_]:
        """Which groups are not among these."""
        absent = np.ones(self.count, np.bool_)
        absent[ids] = False
        return absent

    def first(self, order: Int64Array) -> Int64Array:
        """For each group its first row in `order` (row numbers); -1 if it has none."""
        found = np.full(self.count, -1, np.int64)
        # In reverse, so that the first row of a group overwrites the others.
        found[self.ids[order[::-1]]] = order[::-1]
        return found

    def _aggregate(self, values: pa.Array, function: str) -> pa.Array:
        table = pa.table({"id": self._ids, "value": values})
        # With threads the order of additions would vary.
        found = table.group_by("id", use_threads=False).aggregate([("value", function)])
        places = np.full(self.count, -1, np.int64)
        places[np.asarray(found.column("id"))] = np.arange(found.num_rows)
        return found.column(f"value_{function}").combine_chunks().take(pa.array(places, mask=places < 0))


@dataclass(frozen=True)
class AggregateCall:
    """One aggregate function: the types of its arguments and its result, and its constants."""

    function: str
    inputs: tuple[pa.DataType, ...]
    output: pa.DataType
    # As SQL: for messages, and to check that stored state matches.
    text: str
    constants: tuple[Any, ...] = ()


class Accumulator(Protocol):
    """The state columns of one function, and the operations on them."""

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """The state columns."""

    @property
    def output(self) -> pa.Field:
        """The column of the result."""

    def native_row(self) -> list[str]:
        """SQL for each column, of a single row."""

    def native_rows(self) -> list[str]:
        """SQL for each column, an aggregate over many rows."""

    def of_rows(self, rows: pa.Table) -> list[pa.Array]:
        """The columns of single rows, without Spark."""

    def nothing(self) -> list[Any]:
        """The values of the columns for no rows."""

    def merge(self, columns: Sequence[pa.Array], parts: Parts) -> list[pa.Array]:
        """The columns, with the parts merged."""

    def finish(self, columns: Sequence[pa.Array], rows: pa.Array) -> pa.Array:
        """The results; `rows` is the number of rows of each."""


@dataclass(frozen=True)
class Added:
    """sum, count: numbers are added. A count is never null; a sum is null if no row had a value.

    signed_count: the argument is the weight of a row, 1 or -1.
    """

    number: int
    call: AggregateCall

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (pa.field(f"a{self.number}_{self.call.function}", self.call.output),)

    @property
    def output(self) -> pa.Field:
        return pa.field(f"o{self.number}", self.call.output)

    @property
    def _counts(self) -> bool:
        return self.call.function in ("count", "signed_count")

    def native_row(self) -> list[str]:
        if self.call.function == "signed_count":
            return [f"coalesce(i{self.number}_0, 0L)"]
        if self._counts:
            return [f"IF(i{self.number}_0 IS NULL, 0L, 1L)" if self.call.inputs else "1L"]
        return [f"CAST(i{self.number}_0 AS {type_to_ddl(self.call.output)})"]

    def native_rows(self) -> list[str]:
        if self.call.function == "signed_count":
            return [f"coalesce(sum(i{self.number}_0), 0L)"]
        if self._counts:
            return [f"count(i{self.number}_0)" if self.call.inputs else "count(*)"]
        return [f"CAST(sum(i{self.number}_0) AS {type_to_ddl(self.call.output)})"]

    def of_rows(self, rows: pa.Table) -> list[pa.Array]:
        if self.call.function == "signed_count":
            return [whole(rows, f"i{self.number}_0").fill_null(0)]
        if not self._counts:
            return [whole(rows, f"i{self.number}_0").cast(self.call.output)]
        if self.call.inputs:
            return [whole(rows, f"i{self.number}_0").is_valid().cast(pa.int64())]
        return [pa.array(np.ones(rows.num_rows, np.int64))]

    def nothing(self) -> list[Any]:
        return [0 if self._counts else None]

    def merge(self, columns: Sequence[pa.Array], parts: Parts) -> list[pa.Array]:
        (values,) = columns
        added = parts.sum(values)
        if not pa.types.is_integer(values.type) or self._counts:
            return [added]
        # Arrow's sum overflows silently; Spark's raises.
        if len(values) and _magnitude(values) * len(values) >= 2**63:
            rough = parts.sum(values.cast(pa.float64(), safe=False))
            if np.abs(np.asarray(rough.fill_null(0.0))).max() >= 2.0**63 * 0.999:
                raise Invalid(
                    f"{self.call.text} does not fit into a bigint",
                    detail="The sum of a window is beyond 9223372036854775807.",
                    hint="Sum a wider type: F.sum(F.col(...).cast('decimal(38,0)')).",
                )
        return [added]

    def finish(self, columns: Sequence[pa.Array], rows: pa.Array) -> pa.Array:
        (values,) = columns
        if self._counts or not values.null_count:
            return values
        zero = pa.scalar(Decimal(0) if pa.types.is_decimal(values.type) else 0, values.type)
        return pc.if_else(pc.equal(rows, 0), zero, values)


@dataclass(frozen=True)
class Extreme:
    """min, max; NaN is the largest double, as in Spark."""

    number: int
    call: AggregateCall

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (pa.field(f"a{self.number}_{self.call.function}", self.call.output),)

    @property
    def output(self) -> pa.Field:
        return pa.field(f"o{self.number}", self.call.output)

    def native_row(self) -> list[str]:
        return [f"i{self.number}_0"]

    def native_rows(self) -> list[str]:
        return [f"{self.call.function}(i{self.number}_0)"]

    def of_rows(self, rows: pa.Table) -> list[pa.Array]:
        return [whole(rows, f"i{self.number}_0").cast(self.call.output)]

    def nothing(self) -> list[Any]:
        return [None]

    def merge(self, columns: Sequence[pa.Array], parts: Parts) -> list[pa.Array]:
        return [parts.extreme(columns[0], self.call.function)]

    def finish(self, columns: Sequence[pa.Array], rows: pa.Array) -> pa.Array:
        return columns[0]


@dataclass(frozen=True)
class Average:
    """avg: a sum (exact for integers and decimals) and a count."""

    number: int
    call: AggregateCall

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        names = f"a{self.number}_sum", f"a{self.number}_count"
        return pa.field(names[0], self._sum), pa.field(names[1], pa.int64())

    @property
    def output(self) -> pa.Field:
        return pa.field(f"o{self.number}", self.call.output)

    @property
    def _sum(self) -> pa.DataType:
        (of,) = self.call.inputs
        if pa.types.is_decimal(of):
            return pa.decimal128(min(38, of.precision + 10), of.scale)
        # A sum of bigints may overflow; Spark averages them as doubles.
        exact = pa.types.is_integer(of) and of.bit_width < 64
        return pa.int64() if exact else pa.float64()

    def native_row(self) -> list[str]:
        name = f"i{self.number}_0"
        return [f"CAST({name} AS {type_to_ddl(self._sum)})", f"IF({name} IS NULL, 0L, 1L)"]

    def native_rows(self) -> list[str]:
        name, sql = f"i{self.number}_0", type_to_ddl(self._sum)
        return [f"CAST(sum(CAST({name} AS {sql})) AS {sql})", f"count({name})"]

    def of_rows(self, rows: pa.Table) -> list[pa.Array]:
        values = whole(rows, f"i{self.number}_0")
        return [values.cast(self._sum, safe=False), values.is_valid().cast(pa.int64())]

    def nothing(self) -> list[Any]:
        return [None, 0]

    def merge(self, columns: Sequence[pa.Array], parts: Parts) -> list[pa.Array]:
        return [parts.sum(columns[0]), parts.sum(columns[1])]

    def finish(self, columns: Sequence[pa.Array], rows: pa.Array) -> pa.Array:
        sums, counts = columns
        if pa.types.is_decimal(self.call.output):
            pairs = zip(sums.to_pylist(), counts.to_pylist(), strict=True)
            return pa.array([_divide(added, count, self.call.output) for added, count in pairs], self.call.output)
        some = pc.if_else(pc.equal(counts, 0), None, counts)
        return pc.divide(sums.cast(pa.float64(), safe=False), some.cast(pa.float64(), safe=False)).cast(
            self.call.output
        )


@dataclass(frozen=True)
class Moments:
    """stddev and variance: count, mean and the sum of squared distances from it, merged as Chan, Golub and LeVeque do."""

    number: int
    call: AggregateCall

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        types = {"count": pa.int64(), "mean": pa.float64(), "squares": pa.float64()}
        return tuple(pa.field(f"a{self.number}_{name}", of) for name, of in types.items())

    @property
    def output(self) -> pa.Field:
        return pa.field(f"o{self.number}", self.call.output)

    def native_row(self) -> list[str]:
        name = f"i{self.number}_0"
        return [f"IF({name} IS NULL, 0L, 1L)", f"CAST({name} AS DOUBLE)", f"IF({name} IS NULL, NULL, 0.0D)"]

    def native_rows(self) -> list[str]:
        name = f"CAST(i{self.number}_0 AS DOUBLE)"
        return [f"count({name})", f"avg({name})", f"var_pop({name}) * count({name})"]

    def of_rows(self, rows: pa.Table) -> list[pa.Array]:
        values = whole(rows, f"i{self.number}_0").cast(pa.float64(), safe=False)
        zero = pa.array(np.zeros(len(values)), mask=np.asarray(values.is_null()))
        return [values.is_valid().cast(pa.int64()), values, zero]

    def nothing(self) -> list[Any]:
        return [0, None, None]

    def merge(self, columns: Sequence[pa.Array], parts: Parts) -> list[pa.Array]:
        counts = np.asarray(columns[0])
        means, squares = (np.asarray(column.fill_null(0.0)) for column in columns[1:])
        count = np.asarray(parts.sum(columns[0]).fill_null(0))
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.bincount(parts.ids, counts * means, parts.count) / count
            distance = np.where(counts > 0, means - mean[parts.ids], 0.0)
            square = np.bincount(parts.ids, squares + counts * distance * distance, parts.count)
        none = count == 0
        return [pa.array(count), pa.array(mean, mask=none), pa.array(square, mask=none)]

    def finish(self, columns: Sequence[pa.Array], rows: pa.Array) -> pa.Array:
        count = np.asarray(columns[0])
        squares = np.asarray(columns[2].fill_null(0.0))
        less = 1 if self.call.function.endswith("samp") else 0
        with np.errstate(invalid="ignore", divide="ignore"):
            found = squares / (count - less)
            found = np.sqrt(found) if self.call.function.startswith("stddev") else found
        return pa.array(found, mask=count <= less).cast(self.call.output)


def whole(rows: pa.Table, name: str) -> pa.Array:
    """A column as one array."""
    column = rows.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _magnitude(values: pa.Array) -> int:
    ends = pc.min_max(values).as_py()
    return int(max(abs(ends["min"] or 0), abs(ends["max"] or 0)))


def _divide(added: Decimal | None, count: int, of: pa.DataType) -> Decimal | None:
    if added is None or not count:
        return None
    with localcontext() as context:
        context.prec = 76
        return (added / count).quantize(Decimal(1).scaleb(-of.scale), ROUND_HALF_UP)


# Accumulators that store values with their positions in the log: first, last, min_by, max_by, collect_list.
#
# Rows with the same time are ordered by their position (topic, partition, offset), so the result does not depend on the
# order of arrival.


_PLACE = ("topic", "partition", "offset")
_PLACE_FIELDS = [pa.field("topic", pa.int32()), pa.field("partition", pa.int32()), pa.field("offset", pa.int64())]


@dataclass(frozen=True)
class Placed:
    """The value of the first or last row in an order.

    Arguments: the value; the order (event time for first and last); whether the row counts.
    """

    number: int
    call: AggregateCall

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        value, order, _ = self.call.inputs
        kept = [pa.field("order", order), *_PLACE_FIELDS, pa.field("value", value)]
        return (pa.field(f"a{self.number}_{self.call.function}", pa.struct(kept)),)

    @property
    def output(self) -> pa.Field:
        return pa.field(f"o{self.number}", self.call.output)

    @property
    def _last(self) -> bool:
        return self.call.function in ("last", "max_by")

    def native_row(self) -> list[str]:
        value, order, counts = (f"i{self.number}_{argument}" for argument in range(3))
        place = ", ".join(f"'{name}', {name}" for name in _PLACE)
        struct = f"named_struct('order', {order}, {place}, 'value', {value})"
        return [f"CASE WHEN {counts} AND {order} IS NOT NULL THEN {struct} END"]

    def native_rows(self) -> list[str]:
        return [f"{'max' if self._last else 'min'}({self.native_row()[0]})"]

    def of_rows(self, rows: pa.Table) -> list[pa.Array]:
        value, order, counts = (whole(rows, f"i{self.number}_{argument}") for argument in range(3))
        absent = ~np.asarray(counts.fill_null(False)) | np.asarray(order.is_null())
        (field,) = self.fields
        kept = [order, *(whole(rows, name) for name in _PLACE), value]
        cast = [column.cast(inner.type) for column, inner in zip(kept, field.type, strict=True)]
        return [pa.StructArray.from_arrays(cast, fields=list(field.type), mask=pa.array(absent))]

    def nothing(self) -> list[Any]:
        return [None]

    def merge(self, columns: Sequence[pa.Array], parts: Parts) -> list[pa.Array]:
        (kept,) = columns
        if parts.single:
            return [kept]
        there = np.flatnonzero(np.asarray(kept.is_valid()))
        # By order and position; the value is the last field.
        chosen = parts.extreme_rows(kept, "max" if self._last else "min", there, len(kept.type) - 1)
        rows = parts.first(chosen)
        return [kept.take(pa.array(rows, mask=rows < 0))]

    def finish(self, columns: Sequence[pa.Array], rows: pa.Array) -> pa.Array:
        return pa.compute.struct_field(columns[0], "value").cast(self.call.output)


@dataclass(frozen=True)
class Collected:
    """collect_list: all values that are not null, in log order."""

    number: int
    call: AggregateCall

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        item = pa.struct([*_PLACE_FIELDS, pa.field("value", self.call.inputs[0])])
        return (pa.field(f"a{self.number}_list", pa.list_(pa.field("element", item))),)

    @property
    def output(self) -> pa.Field:
        return pa.field(f"o{self.number}", self.call.output)

    def _native_item(self) -> str:
        place = ", ".join(f"'{name}', {name}" for name in _PLACE)
        return f"named_struct({place}, 'value', i{self.number}_0)"

    def native_row(self) -> list[str]:
        (field,) = self.fields
        one = f"IF(i{self.number}_0 IS NULL, array(), array({self._native_item()}))"
        return [f"CAST({one} AS {type_to_ddl(field.type)})"]

    def native_rows(self) -> list[str]:
        return [f"collect_list(CASE WHEN i{self.number}_0 IS NOT NULL THEN {self._native_item()} END)"]

    def of_rows(self, rows: pa.Table) -> list[pa.Array]:
        value = whole(rows, f"i{self.number}_0")
        there = np.asarray(value.is_valid())
        item = self.fields[0].type.value_type
        kept = [*(whole(rows, name) for name in _PLACE), value]
        cast = [column.cast(inner.type).filter(pa.array(there)) for column, inner in zip(kept, item, strict=True)]
        values = pa.StructArray.from_arrays(cast, fields=list(item))
        return [lists_of(np.flatnonzero(there), values, rows.num_rows, self.fields[0].type)]

    def nothing(self) -> list[Any]:
        return [[]]

    def merge(self, columns: Sequence[pa.Array], parts: Parts) -> list[pa.Array]:
        (kept,) = columns
        if parts.single:
            return [kept]
        ids = parts.ids[np.asarray(pa.compute.list_parent_indices(kept))]
        order = np.argsort(ids, kind="stable")
        values = kept.flatten().take(pa.array(order))
        return [lists_of(ids[order], values, parts.count, kept.type)]

    def finish(self, columns: Sequence[pa.Array], rows: pa.Array) -> pa.Array:
        (kept,) = columns
        parents = np.asarray(pa.compute.list_parent_indices(kept))
        items = kept.flatten()
        places = [np.asarray(items.field(name)) for name in reversed(_PLACE)]
        order = np.lexsort((*places, parents))
        return lists_of(parents[order], items.field("value").take(pa.array(order)), len(kept), self.call.output)


def lists_of(ids: np.ndarray, values: pa.Array, count: int, of: pa.DataType) -> pa.ListArray:
    """One list per id: list i has the values with id i; `ids` is sorted."""
    ends = np.cumsum(np.bincount(ids, minlength=count)) if count else np.empty(0, np.int64)
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values.cast(of.value_type), type=of)
