"""Accumulators: what is kept of the rows behind one aggregate function, so that two parts can be merged.

An aggregate function is a value (`AggregateCall`); its accumulator has a few columns of its own (`a0_sum`, `a0_count`),
and says in four ways how they come about: native SQL for one row, native SQL for many rows at once, Arrow for one row,
and a merge of parts over Arrow. `finished` makes the function's answer of them. The columns that go in are named after
the function's number: `i0_0` is the first argument of the first function; `time`, `topic`, `partition` and `offset` say
where a row stands.

Whatever is kept does not depend on how rows were divided into parts, but for the last digits of sums of doubles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Invalid
from mainstem.log.schema_ddl import type_to_ddl
from mainstem.operators.aggregates.parts import Parts

__all__ = ["Accumulator", "Added", "AggregateCall", "Average", "Extreme", "Moments"]


@dataclass(frozen=True)
class AggregateCall:
    """One aggregate function as it was written: its arguments' types, its answer's type, and the constants in it."""

    function: str
    inputs: tuple[pa.DataType, ...]
    output: pa.DataType
    # As SQL, for messages and for telling whether kept state fits.
    text: str
    constants: tuple[Any, ...] = ()


class Accumulator(Protocol):
    """The columns that are kept for one function, and what can be done with them."""

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """The columns that are kept."""

    @property
    def output(self) -> pa.Field:
        """The column of the answer."""

    def native_row(self) -> list[str]:
        """SQL for each column, of a single row."""

    def native_rows(self) -> list[str]:
        """SQL for each column, an aggregate over many rows."""

    def of_rows(self, rows: pa.Table) -> list[pa.Array]:
        """The columns of single rows, without Spark."""

    def nothing(self) -> list[Any]:
        """The columns' values where there was no row."""

    def merged(self, columns: Sequence[pa.Array], parts: Parts) -> list[pa.Array]:
        """The columns, with the parts put together."""

    def finished(self, columns: Sequence[pa.Array], rows: pa.Array) -> pa.Array:
        """The answers; `rows` says how many rows each is of."""


@dataclass(frozen=True)
class Added:
    """sum, count: numbers are added. A count is never null; a sum is null where rows came and none had a value.

    signed_count: each row says how much it counts, 1 or -1.
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

    def merged(self, columns: Sequence[pa.Array], parts: Parts) -> list[pa.Array]:
        (values,) = columns
        added = parts.added(values)
        if not pa.types.is_integer(values.type) or self._counts:
            return [added]
        # Arrow's sum goes round in silence where Spark's stops.
        if len(values) and _magnitude(values) * len(values) >= 2**63:
            rough = parts.added(values.cast(pa.float64(), safe=False))
            if np.abs(np.asarray(rough.fill_null(0.0))).max() >= 2.0**63 * 0.999:
                raise Invalid(
                    f"{self.call.text} does not fit into a bigint",
                    detail="The sum of a window is beyond 9223372036854775807.",
                    hint="Sum a wider type: F.sum(F.col(...).cast('decimal(38,0)')).",
                )
        return [added]

    def finished(self, columns: Sequence[pa.Array], rows: pa.Array) -> pa.Array:
        (values,) = columns
        if self._counts or not values.null_count:
            return values
        zero = pa.scalar(Decimal(0) if pa.types.is_decimal(values.type) else 0, values.type)
        return pc.if_else(pc.equal(rows, 0), zero, values)


@dataclass(frozen=True)
class Extreme:
    """min, max; of doubles NaN is the largest, as Spark has it."""

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

    def merged(self, columns: Sequence[pa.Array], parts: Parts) -> list[pa.Array]:
        return [parts.extreme(columns[0], self.call.function)]

    def finished(self, columns: Sequence[pa.Array], rows: pa.Array) -> pa.Array:
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
        # A sum of bigints may not fit into one, and Spark's average does not mind.
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

    def merged(self, columns: Sequence[pa.Array], parts: Parts) -> list[pa.Array]:
        return [parts.added(columns[0]), parts.added(columns[1])]

    def finished(self, columns: Sequence[pa.Array], rows: pa.Array) -> pa.Array:
        sums, counts = columns
        if pa.types.is_decimal(self.call.output):
            pairs = zip(sums.to_pylist(), counts.to_pylist(), strict=True)
            return pa.array([_divided(added, count, self.call.output) for added, count in pairs], self.call.output)
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

    def merged(self, columns: Sequence[pa.Array], parts: Parts) -> list[pa.Array]:
        counts = np.asarray(columns[0])
        means, squares = (np.asarray(column.fill_null(0.0)) for column in columns[1:])
        count = np.asarray(parts.added(columns[0]).fill_null(0))
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.bincount(parts.ids, counts * means, parts.count) / count
            distance = np.where(counts > 0, means - mean[parts.ids], 0.0)
            square = np.bincount(parts.ids, squares + counts * distance * distance, parts.count)
        none = count == 0
        return [pa.array(count), pa.array(mean, mask=none), pa.array(square, mask=none)]

    def finished(self, columns: Sequence[pa.Array], rows: pa.Array) -> pa.Array:
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


def _divided(added: Decimal | None, count: int, of: pa.DataType) -> Decimal | None:
    if added is None or not count:
        return None
    with localcontext() as context:
        context.prec = 76
        return (added / count).quantize(Decimal(1).scaleb(-of.scale), ROUND_HALF_UP)
