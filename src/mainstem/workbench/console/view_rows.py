"""Rows of a view for a page: sorted by key, a few at a time, with the cursor from which a stream continues."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from mainstem.errors import Invalid
from mainstem.log.rows.plain_values import NotAValue, json_line, json_reader, parse_json, plain_writer
from mainstem.views.view import View
from mainstem.views.view_history import format_cursor, position_as_of
from mainstem.workbench.console.given_row import exact_value
from mainstem.workbench.console.row_cells import column_facts, json_rows

__all__ = ["key_text", "parse_key", "view_page"]


def view_page(view: View, after: str | None, limit: int, as_of: datetime | None = None, now: int = 0) -> dict[str, Any]:
    """Up to `limit` rows, and the cursor of their moment; `next` is the `after` of the next page, None if there is none.

    With `as_of`, a time before `now`, as they were.
    """
    with view.snapshot() as snapshot:
        facts, version, position = snapshot.facts, snapshot.version, snapshot.positions()[1]
        past = None if as_of is None else position_as_of(snapshot, as_of, view=view.name, now=now)
        total, schema = snapshot.count(past), snapshot.schema
        key = [schema.field(name) for name in facts.key]
        begin = None if not after else parse_key(after, key)
        page = snapshot.page(begin, limit, past)
    return {
        "view": view.name,
        "key": list(facts.key),
        "version": version,
        "columns": column_facts(page.rows.schema),
        "rows": json_rows(page.rows),
        "total": total,
        "cursor": format_cursor(facts, position if past is None else max(past, 0)),
        "next": None if page.after is None else key_text(page.after, key),
    }


def key_text(values: Sequence[Any], key: Sequence[pa.Field]) -> str:
    """The values of a key as a JSON list."""
    return json_line([plain_writer(field.type)(value) for value, field in zip(values, key, strict=True)])


def parse_key(text: str, key: Sequence[pa.Field], given: str = "after") -> tuple[Any, ...]:
    """The values of a key, from a JSON list or an object; `given`: the parameter that has it."""
    try:
        values = parse_json(text, exact=True)
        if isinstance(values, dict) and set(values) == {field.name for field in key}:
            values = [values[field.name] for field in key]
        if isinstance(values, list) and len(values) == len(key):
            return tuple(_read(value, field) for value, field in zip(values, key, strict=True))
    except (ValueError, RecursionError, NotAValue):
        pass
    if given == "key":
        raise Invalid(
            f'"{text[:60]}" is not a key',
            detail=f"It is a JSON list with a value for each of: {', '.join(field.name for field in key)}.",
            hint='For example: key=["Berlin"]',
        )
    raise Invalid(
        f'after "{text[:60]}" is not the end of a page',
        detail="It is `next` of the page before.",
        hint="Leave it out for the first page.",
    )


def _read(value: Any, field: pa.Field) -> Any:
    return json_reader(field.type, field.name)(exact_value(value, field.type))
