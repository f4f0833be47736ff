"""`mainstem view read`: the rows of a view on standard output."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from mainstem.errors import Invalid, did_you_mean
from mainstem.workbench.cli.command_arguments import (
    AsOfOption,
    HomeOption,
    ViewArgument,
    open_home,
    opened_view,
    parse_as_of,
    split_words,
)
from mainstem.workbench.cli.row_output import RowFormat

if TYPE_CHECKING:
    import pyarrow as pa

    from mainstem.views.view import View
    from mainstem.views.view_history import AsOf

__all__ = ["read"]


def read(
    view: ViewArgument,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with its changes, until Ctrl-C or --limit.")] = False,
    version: Annotated[
        int | None, typer.Option(metavar="N", help="Another version than the live one.", show_default=False)
    ] = None,
    as_of: AsOfOption = None,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many rows.", show_default=False)] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="COLUMN,...", help="Only these columns.", show_default=False)
    ] = None,
    form: Annotated[RowFormat, typer.Option("--format", help="How to write them.")] = RowFormat.TABLE,
    home: HomeOption = None,
) -> None:
    """Read the rows of a view, sorted by key, as they are at one moment; with --follow also what changes from then on.

    With --follow each row says in its first column, `change`, whether it is an insert or a delete; an update is the old
    row deleted and the new one inserted.

    With --as-of, of a view that keeps its history, the rows as they were: at a time, or right after the batch that holds an
    append.

    Example: mainstem view read revenue --limit 10 --format json
    """
    if as_of is not None and (follow or version is not None):
        raise typer.BadParameter("shows what the live version was, once", param_hint="--as-of")
    if follow and version is not None:
        raise typer.BadParameter("follows the live version, so it has no --version", param_hint="--follow")
    from mainstem.workbench.cli.row_output import row_writer

    with open_home(home) as stem, opened_view(stem, view) as opened:
        batches = _changes(opened) if follow else _rows(opened, version, parse_as_of(as_of))
        # Closed also when the limit is reached: it holds a transaction of the file open.
        with closing(batches):
            schema = next(batches).schema
            wanted = _wanted(schema, split_words(columns), view)
            writer = row_writer(form, _selected(schema.empty_table(), wanted).schema)
            left = limit
            for batch in batches:
                part = batch if left is None else batch.slice(0, left)
                for shown in _selected(part, wanted).to_batches():
                    writer.write(shown)
                left = None if left is None else left - part.num_rows
                if left == 0:
                    break
            writer.close()


def _rows(view: View, version: int | None, as_of: AsOf | None) -> Generator[pa.Table, None, None]:
    """First a table without rows, for its columns, then the rows; memory does not grow with the view."""
    import pyarrow as pa

    if as_of is not None:
        with closing(view.batches(as_of=as_of)) as past:
            first = next(past, None)
            yield view.schema.empty_table() if first is None else first.schema.empty_table()
            for batch in past if first is None else chain([first], past):
                yield pa.Table.from_batches([batch])
        return
    with view.snapshot(version) as snapshot:
        yield snapshot.schema.empty_table()
        for batch in snapshot.batches():
            yield pa.Table.from_batches([batch])


def _changes(view: View) -> Generator[pa.Table, None, None]:
    """First a table without rows, then all rows as inserts, then what changes."""
    import pyarrow as pa

    yield _with_change(view.schema.empty_table(), pa.array([], pa.string()))
    for update in view.subscribe():
        rows = update.rows
        if update.kind == "snapshot":
            yield _with_change(rows, pa.repeat(pa.scalar("insert"), len(rows)))
        else:
            record = rows.column("record").combine_chunks()
            yield _with_change(rows.drop_columns(["record"]), record.field("change"))


def _with_change(rows: pa.Table, change: pa.Array) -> pa.Table:
    return rows.add_column(0, "change", [change])


def _wanted(schema: pa.Schema, columns: list[str] | None, view: str) -> list[str]:
    if columns is None:
        return list(schema.names)
    for name in columns:
        if name not in schema.names:
            raise Invalid(
                f'view "{view}" has no column "{name}"',
                detail=f"Its columns are: {', '.join(schema.names)}.",
                hint=did_you_mean(name, schema.names) or "Name some of these.",
                column=name,
            )
    return [name for name in schema.names if name in columns or name == "change"]


def _selected(rows: pa.Table, names: list[str]) -> pa.Table:
    return rows.select(names)
