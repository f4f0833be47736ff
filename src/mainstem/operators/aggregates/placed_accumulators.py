"""Accumulators that keep rows' values with their places in the log: first, last, min_by, max_by, collect_list.

Of rows with the same time the one that stands earlier in the log (by topic, partition, offset) is the earlier one, so
the answer is the same however the rows came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from mainstem.log.schema_ddl import type_to_ddl
from mainstem.operators.aggregates.accumulators import AggregateCall, whole
from mainstem.operators.aggregates.parts import Parts

__all__ = ["Collected", "Placed", "lists_of"]

_PLACE = ("topic", "partition", "offset")
_PLACE_FIELDS = [pa.field("topic", pa.int32()), pa.field("partition", pa.int32()), pa.field("offset", pa.int64())]


@dataclass(frozen=True)
class Placed:
    """The value of the row that is first or last by an order.

    Arguments: the value; the order (event time for first and last); whether the row counts at all.
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

    def merged(self, columns: Sequence[pa.Array], parts: Parts) -> list[pa.Array]:
        (kept,) = columns
        if parts.single:
            return [kept]
        there = np.flatnonzero(np.asarray(kept.is_valid()))
        inner = kept.take(pa.array(there))
        keys = pa.table({"order": inner.field("order"), **{name: inner.field(name) for name in _PLACE}})
        by_key = there[np.asarray(pa.compute.sort_indices(keys, [(name, "ascending") for name in keys.column_names]))]
        rows = parts.first(by_key[::-1] if self._last else by_key)
        return [kept.take(pa.array(rows, mask=rows < 0))]

    def finished(self, columns: Sequence[pa.Array], rows: pa.Array) -> pa.Array:
        return pa.compute.struct_field(columns[0], "value").cast(self.call.output)


@dataclass(frozen=True)
class Collected:
    """collect_list: all values that are not null, in the order of the log."""

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

    def merged(self, columns: Sequence[pa.Array], parts: Parts) -> list[pa.Array]:
        (kept,) = columns
        if parts.single:
            return [kept]
        ids = parts.ids[np.asarray(pa.compute.list_parent_indices(kept))]
        order = np.argsort(ids, kind="stable")
        values = kept.flatten().take(pa.array(order))
        return [lists_of(ids[order], values, parts.count, kept.type)]

    def finished(self, columns: Sequence[pa.Array], rows: pa.Array) -> pa.Array:
        (kept,) = columns
        parents = np.asarray(pa.compute.list_parent_indices(kept))
        items = kept.flatten()
        places = [np.asarray(items.field(name)) for name in reversed(_PLACE)]
        order = np.lexsort((*places, parents))
        return lists_of(parents[order], items.field("value").take(pa.array(order)), len(kept), self.call.output)


def lists_of(ids: np.ndarray, values: pa.Array, count: int, of: pa.DataType) -> pa.ListArray:
    """Lists of values, list i of those with id i; the ids are in order."""
    ends = np.cumsum(np.bincount(ids, minlength=count)) if count else np.empty(0, np.int64)
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values.cast(of.value_type), type=of)
