"""The key that a user gives to `get`, as the store is asked for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from mainstem.arguments import text
from mainstem.errors import Invalid, InvalidRows
from mainstem.log.python_rows import array_of
from mainstem.log.row_errors import shown
from mainstem.log.schema_ddl import type_to_ddl
from mainstem.views.merge_batch import normal_key
from mainstem.views.stored_columns import stored_values

__all__ = ["key_columns", "stored_key"]

# Values that are kept as they are: the usual keys, and not worth a detour through Arrow.
_PLAIN = {pa.string(): str, pa.int64(): int, pa.int32(): int, pa.binary(): bytes}


def stored_key(given: Any, key: Sequence[str], schema: pa.Schema, *, view: str) -> list[Any]:
    """A scalar, a tuple or a dict as the values of the key's columns.

    >>> schema = pa.schema({"store": pa.string(), "day": pa.date32()})
    >>> from datetime import date
    >>> stored_key(("Berlin", date(1970, 1, 2)), ["store", "day"], schema, view="revenue")
    ['Berlin', 1]
    """
    return [
        _stored(value, schema.field(name), view) for name, value in zip(key, _values(given, key, view), strict=True)
    ]


def key_columns(given: Any, key: Sequence[str], schema: pa.Schema, *, view: str) -> list[pa.Array]:
    """The same as Arrow: for each column of the key an array with the one value."""
    return [
        _column(value, schema.field(name), view) for name, value in zip(key, _values(given, key, view), strict=True)
    ]


def _values(given: Any, key: Sequence[str], view: str) -> list[Any]:
    if isinstance(given, Mapping) and set(given) == set(key):
        return [given[name] for name in key]
    if isinstance(given, tuple) and len(given) == len(key):
        return list(given)
    if len(key) == 1 and not isinstance(given, tuple):
        return [given]
    raise Invalid(
        f'{shown(given)} is not a key of view "{view}"',
        detail=f"Its key has {len(key)} column{'s' if len(key) > 1 else ''}: {', '.join(key)}.",
        hint=f"Give a tuple in that order, or a dict: view.get({{{', '.join(f'{name!r}: ...' for name in key)}}}).",
    )


def _stored(value: Any, field: pa.Field, view: str) -> Any:
    if type(value) is _PLAIN.get(field.type):
        return text(value, field.name) if isinstance(value, str) else value
    return stored_values(_column(value, field, view))[0]


def _column(value: Any, field: pa.Field, view: str) -> pa.Array:
    try:
        return normal_key(array_of([value], field.type, path=field.name, topic=view))
    except InvalidRows as error:
        raise Invalid(
            f'{shown(value)} is not a value of "{field.name}", which is {type_to_ddl(field.type)}',
            detail=f'"{field.name}" is in the key of view "{view}".',
            hint=error.hint,
            column=field.name,
        ) from error
