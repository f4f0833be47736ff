"""One key of a view: its row, and every change of it that is kept."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from mainstem.clock import as_us
from mainstem.errors import NotFound
from mainstem.views.view import View
from mainstem.workbench.cli.key_arguments import find_key
from mainstem.workbench.console.row_cells import column_facts, json_rows

__all__ = ["key_history", "key_row", "one_row"]


def key_row(view: View, given: Sequence[str], as_of: datetime | None) -> dict[str, Any]:
    """The row with a key that is written as on the command line: a value for each column, a window by its start."""
    key = find_key(view, given, as_of)
    row = view.get(key, as_of=as_of)
    if row is None:
        raise NotFound(
            f'view "{view.name}" has no row with the key {", ".join(given)}',
            detail=f"Its key is {', '.join(view.key)}.",
            hint="It may have had one: its history says so.",
        )
    schema = view.schema
    return {"view": view.name, "key": list(view.key), "columns": column_facts(schema), "rows": one_row(row, schema)}


def key_history(
    view: View, given: Sequence[str], before: int | None, limit: int, as_of: datetime | None
) -> dict[str, Any]:
    """The changes of a key, newest first; `next` is the `before` of older ones, None if there are none."""
    with view.snapshot() as snapshot:
        if as_of is not None:
            last = (snapshot.position_at(as_us(as_of)) or 0) + 1
            before = last if before is None else min(before, last)
        kept, first = snapshot.kept_since(), snapshot.positions()[0]
    found = view.history(_written_key(view, given, as_of), before=before, limit=limit + 1)
    shown = found[:limit]
    return {
        "view": view.name,
        "key": list(view.key),
        "columns": column_facts(view.schema),
        "changes": [
            {
                "position": str(it.position), "change": it.change, "at": it.at, "batch": None if it.batch < 0 else it.batch,
                **_rows_json(it.before, it.after, view.schema),
            }
            for it in shown
        ],
        "kept": "history" if kept is not None else "changes",
        # Before its first change nothing is missing.
        "complete": (first <= 1 if kept is None else kept.position < 0) and len(found) <= limit,
        "next": str(shown[-1].position) if len(found) > limit else None,
    }  # fmt: skip


def _written_key(view: View, given: Sequence[str], as_of: datetime | None) -> Any:
    """The key; of a window that no row has any more, the one that is written in full."""
    try:
        return find_key(view, given, as_of)
    except NotFound:
        return find_key(view, given)


def _rows_json(before: dict[str, Any] | None, after: dict[str, Any] | None, schema: pa.Schema) -> dict[str, Any]:
    """The row before and after a change, as cells of a table."""
    return {
        name: None if row is None else one_row(row, schema)[0] for name, row in (("before", before), ("after", after))
    }


def one_row(row: dict[str, Any], schema: pa.Schema) -> list[dict[str, Any]]:
    """A row as the only one of a table."""
    return json_rows(pa.Table.from_pylist([row], schema=schema))
