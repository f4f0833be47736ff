"""Merges a batch of rows for a view, in SQLite's form, and checks that rows fit a view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from mainstem.errors import Invalid, SchemaMismatch, did_you_mean
from mainstem.log.rows.arrow_rows import convert
from mainstem.log.rows.merged_rows import Rejection, merge_columns
from mainstem.views.sqlite.sqlite_columns import stored_values

__all__ = ["MergedBatch", "check_columns", "check_panes", "merge_batch"]


@dataclass(frozen=True)
class MergedBatch:
    """Values in SQLite's form, column by column: rows to upsert, keys to delete."""

    upserts: list[list[Any]]
    deletes: list[list[Any]]
    rejections: tuple[Rejection, ...]

    @property
    def rows(self) -> int:
        """The number of keys in the batch."""
        return len(self.upserts[0]) + len(self.deletes[0])


def merge_batch(rows: pa.Table, schema: pa.Schema, key: Sequence[str], *, view: str) -> MergedBatch:
    """The rows as a view with this schema and key takes them.

    >>> schema = pa.schema({"store": pa.string(), "revenue": pa.int64()})
    >>> merged = merge_batch(pa.table({"store": ["b", "a", "b", None], "revenue": [1, 2, 3, 4]}), schema, ["store"], view="v")
    >>> merged.upserts, merged.rejections
    ([['a', 'b'], [2, 3]], (Rejection(row=3, reason='column "store" is null, and is in the key'),))
    """
    check_columns(rows.schema, schema, view=view)
    merged = merge_columns(rows, schema, key, name=view)
    upserts, deletes = ([stored_values(column) for column in columns] for columns in (merged.upserts, merged.deletes))
    return MergedBatch(upserts, deletes, merged.rejections)


def check_columns(given: pa.Schema, schema: pa.Schema, *, view: str) -> None:
    """Raise unless the rows have exactly the view's columns, besides `record`, each of a convertible type."""
    names = [name for name in given.names if name != "record"]
    for name in names:
        if name not in schema.names:
            raise _mismatch(view, f'has no column "{name}"', schema, name, did_you_mean(name, schema.names))
    for field in schema:
        if field.name not in names:
            raise _mismatch(view, f'has a column "{field.name}", which the rows lack', schema, field.name, "")
        convert(pa.nulls(0, given.field(field.name).type), field.type, path=field.name, topic=view)


def check_panes(given: pa.Schema, key: Sequence[str], *, view: str) -> None:
    """Raise for windows with results="discard", unless `pane` is part of the key."""
    marks = given.field("window").metadata or {} if "window" in given.names else {}
    if marks.get(b"mainstem.results") == b"discard" and "pane" not in key:
        raise Invalid(
            f'view "{view}" would keep only the last pane of each window',
            detail='With results="discard" a pane covers the rows since the previous pane, and each would replace the one before.',
            hint='Use results="accumulate", or make "pane" part of the key, so that each pane is a row.',
        )


def _mismatch(view: str, complaint: str, schema: pa.Schema, column: str, near: str) -> SchemaMismatch:
    rebuild = (
        "If the flow was changed on purpose, build a new version beside the live one: "
        f"mainstem view rebuild {view} --program FILE --apply"
    )
    return SchemaMismatch(
        f'view "{view}" {complaint}',
        detail=f"Its columns are: {', '.join(schema.names)}.",
        hint=f"{near} {rebuild}".strip(),
        column=column,
        view=view,
    )
