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
from mainstem.workbench.console.row_cells import column_facts, json_rows

__all__ = ["view_page"]


def view_page(view: View, after: str | None, limit: int, as_of: datetime | None = None, now: int = 0) -> dict[str, Any]:
    """Up to `limit` rows, and the cursor of their moment; `next` is the `after` of the next page, None if there is none.

    With `as_of`, a time before `now`, as they were.
    """
    with view.snapshot() as snapshot:
        facts, version, position = snapshot.facts, snapshot.version, snapshot.positions()[1]
        past = None if as_of is None else position_as_of(snapshot, as_of, view=view.name, now=now)
        total, schema = snapshot.count(past), snapshot.schema
        key = [schema.field(name) for name in facts.key]
        begin = None if not after else _parse_key(after, key)
        page = snapshot.page(begin, limit, past)
    return {
        "view": view.name,
        "key": list(facts.key),
        "version": version,
        "columns": column_facts(page.rows.schema),
        "rows": json_rows(page.rows),
        "total": total,
        "cursor": format_cursor(facts, position),
        "next": None if page.after is None else _key_text(page.after, key),
    }


def _key_text(values: Sequence[Any], key: Sequence[pa.Field]) -> str:
    return json_line([plain_writer(field.type)(value) for value, field in zip(values, key, strict=True)])


def _parse_key(text: str, key: Sequence[pa.Field]) -> tuple[Any, ...]:
    try:
        values = parse_json(text, exact=True)
        if isinstance(values, list) and len(values) == len(key):
            return tuple(json_reader(field.type, field.name)(value) for value, field in zip(values, key, strict=True))
    except (ValueError, RecursionError, NotAValue):
        pass
    raise Invalid(
        f'after "{text[:60]}" is not the end of a page',
        detail="It is `next` of the page before.",
        hint="Leave it out for the first page.",
    )
