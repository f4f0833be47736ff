"""Rows of a view for a page: sorted by key, a few at a time, with the cursor from which a stream continues."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from mainstem.errors import Invalid
from mainstem.views.view import View
from mainstem.views.view_history import format_cursor
from mainstem.workbench.console.row_cells import column_facts, json_rows

__all__ = ["view_page"]


def view_page(view: View, after: str | None, limit: int) -> dict[str, Any]:
    """Up to `limit` rows; `next` is the `after` of the next page, None if there is none."""
    skipped = _skipped(after)
    with view.snapshot() as snapshot:
        batches, rows, seen = snapshot.batches(), 0, 0
        found: list[pa.RecordBatch] = []
        for batch in batches:
            part = batch.slice(max(0, skipped - seen))
            seen += batch.num_rows
            if part.num_rows and rows <= limit:
                found.append(part)
                rows += part.num_rows
            if rows > limit:
                break
        table = pa.Table.from_batches(found, schema=snapshot.schema)
        return {
            "view": view.name,
            "key": list(snapshot.facts.key),
            "version": snapshot.version,
            "columns": column_facts(snapshot.schema),
            "rows": json_rows(table.slice(0, limit)),
            "total": snapshot.count(),
            "cursor": format_cursor(snapshot.facts, snapshot.positions()[1]),
            "next": str(skipped + limit) if table.num_rows > limit else None,
        }


def _skipped(after: str | None) -> int:
    if not after:
        return 0
    if not after.isascii() or not after.isdigit() or len(after) > 12:
        raise Invalid(
            f'after "{after[:60]}" is not the end of a page',
            detail="It is `next` of the page before.",
            hint="Leave it out for the first page.",
        )
    return int(after)
