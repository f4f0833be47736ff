"""The key that a user gives to look up a row: a value, a tuple or a dict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from mainstem.errors import Invalid, InvalidRows
from mainstem.log.rows.merged_rows import normal_key
from mainstem.log.rows.python_rows import array_of
from mainstem.log.rows.row_errors import format_value
from mainstem.log.rows.schema_ddl import type_to_ddl

__all__ = ["key_column", "key_columns", "key_values"]


def key_columns(given: Any, key: Sequence[str], schema: pa.Schema, *, of: str) -> list[pa.Array]:
    """For each column of the key an array with the one value; `of` is whose key it is, such as 'view "revenue"'."""
    return [
        key_column(value, schema.field(name), of=of)
        for name, value in zip(key, key_values(given, key, of=of), strict=True)
    ]


def key_values(given: Any, key: Sequence[str], *, of: str) -> list[Any]:
    """The values of the key's columns, in their order."""
    if isinstance(given, Mapping) and set(given) == set(key):
        return [given[name] for name in key]
    if isinstance(given, tuple) and len(given) == len(key):
        return list(given)
    if len(key) == 1 and not isinstance(given, tuple):
        return [given]
    raise Invalid(
        f"{format_value(given)} is not a key of {of}",
        detail=f"Its key has {len(key)} column{'s' if len(key) > 1 else ''}: {', '.join(key)}.",
        hint=f"Give a tuple in that order, or a dict: .get({{{', '.join(f'{name!r}: ...' for name in key)}}}).",
    )


def key_column(value: Any, field: pa.Field, *, of: str) -> pa.Array:
    """One value of a key as an array of its column's type."""
    try:
        return normal_key(array_of([value], field.type, path=field.name, topic=of))
    except InvalidRows as error:
        raise Invalid(
            f'{format_value(value)} is not a value of "{field.name}", which is {type_to_ddl(field.type)}',
            detail=f'"{field.name}" is in the key of {of}.',
            hint=error.hint,
            column=field.name,
        ) from error
