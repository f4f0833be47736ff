"""Why a row of a view is as it is, for a page: its values over time and a few of its records at a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from mainstem.errors import Invalid
from mainstem.views.view import View
from mainstem.workbench.cli.why_command import range_sentences, sentence_of_why
from mainstem.workbench.console.row_cells import cell_writer, column_facts, json_rows
from mainstem.workbench.console.view_rows import key_text, parse_key

__all__ = ["view_why"]


def view_why(view: View, key: str | None, at: datetime | None, limit: int, after: str | None) -> dict[str, Any]:
    """The answer; `key` is a JSON list of the values of the key, or an object of them."""
    schema = view.schema
    fields = [schema.field(name) for name in view.key]
    if not key:
        raise Invalid(
            "the question has no key",
            detail=f"The key of view {view.name!r} is {', '.join(view.key)}.",
            hint='Give it as a JSON list: key=["Berlin"]',
        )
    values = parse_key(key, fields, "key")
    found = view.why(values, as_of=at, limit=limit, after=after)
    writers = {field.name: cell_writer(field.type) for field in schema}

    def row(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
        return None if given is None else {name: write(given[name]) for name, write in writers.items()}

    return {
        "view": view.name,
        "flow": found.flow,
        "key": list(view.key),
        "question": key_text(values, fields),
        "columns": column_facts(schema),
        "row": row(found.row),
        "exact": found.exact,
        "sentence": sentence_of_why(found),
        "ranges": range_sentences(found),
        "shown": [{"at": it.at, "batch": it.batch, "change": it.change, "row": row(it.row)} for it in found.shown],
        "sources": [
            {"topic": topic, "columns": column_facts(table.schema)[:-1], "rows": json_rows(table)}
            for topic, table in found.records.items()
        ],
        "total": found.total,
        "after": found.after,
    }
