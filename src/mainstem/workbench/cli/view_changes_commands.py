"""`mainstem view history` and `view difference`: every change of a key, and how two versions differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.workbench.cli.command_arguments import HomeOption, ViewArgument, open_home, open_view
from mainstem.workbench.cli.json_output import JsonOption, print_json
from mainstem.workbench.cli.terminal_table import Column, moment, show_count, show_note, show_table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["difference", "history"]


def history(
    view: ViewArgument,
    key: Annotated[list[str], typer.Argument(metavar="KEY...", help="A value for each column of the key.")],
    *,
    before: Annotated[
        int | None, typer.Option(metavar="POSITION", min=1, help="Older changes than this position.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The maximum number of changes.")] = 50,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show every change of the row with a key that is kept, newest first: when, by which batch, before and after.

    Values are written as for `view get`. A view with history keeps all changes of that time, another one its last changes.

    Example: mainstem view history revenue Berlin 12:20
    """
    from mainstem.log.rows.plain_values import cell_text
    from mainstem.workbench.cli.key_arguments import find_key

    with open_home(home) as stem, open_view(stem, view) as opened:
        schema, names = opened.schema, opened.key
        found = opened.history(find_key(opened, key), before=before, limit=limit)
    changes = [
        {
            "position": it.position, "change": it.change, "at": it.at, "batch": None if it.batch < 0 else it.batch,
            "before": _plain(it.before, schema), "after": _plain(it.after, schema),
        }
        for it in found
    ]  # fmt: skip
    if as_json:
        print_json(changes)
        return
    values = [name for name in schema.names if name not in names]
    show_table(
        [Column("position", "right"), Column("at", firm=True), Column("batch", "right"), Column("change"), *map(Column, values)],
        (
            [
                str(it.position), moment(it.at), "switch" if it.batch < 0 else str(it.batch), it.change,
                *(_pair(it.before, it.after, name, schema, cell_text) for name in values),
            ]
            for it in found
        ),
        empty="no change of this key is kept",
    )  # fmt: skip
    if len(found) == limit:
        show_note(f"older changes: --before {found[-1].position}")


def _plain(row: dict[str, Any] | None, schema: pa.Schema) -> dict[str, Any] | None:
    from mainstem.log.rows.plain_values import plain_writer

    return row and {field.name: plain_writer(field.type)(row[field.name]) for field in schema if field.name in row}


def _pair(before: dict[str, Any] | None, after: dict[str, Any] | None, name: str, schema: pa.Schema, text: Any) -> str:
    """A value before and after; one of them if there is no other, or if they are equal."""
    rows = [row for row in (_plain(before, schema), _plain(after, schema)) if row is not None]
    cells = list(dict.fromkeys(text(row.get(name)) for row in rows))
    return " -> ".join(cells)


def difference(
    view: ViewArgument,
    before: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="A version.")],
    after: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="The version to compare it with.")],
    *,
    limit: Annotated[int, typer.Option(min=1, help="The maximum number of rows of each kind.")] = 10,
    skip: Annotated[int, typer.Option(min=0, help="Rows of each kind that are left out first.")] = 0,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Compare two versions of a view: how many rows are the same, changed, added and removed, and the first of each kind.

    Example: mainstem view difference revenue 1 2
    """
    from mainstem.log.rows.plain_values import cell_text

    with open_home(home) as stem, open_view(stem, view) as opened:
        found = opened.difference(before, after, limit=limit, skip=skip)
        with opened.snapshot(before) as old, opened.snapshot(after) as new:
            was, became = old.schema, new.schema
        key = list(opened.key)
    pairs = [
        *(("changed", _plain(one, was), _plain(other, became)) for one, other in found.changed_rows),
        *(("added", None, _plain(row, became)) for row in found.added_rows),
        *(("removed", _plain(row, was), None) for row in found.removed_rows),
    ]
    counts = {name: getattr(found, name) for name in ("same", "changed", "added", "removed")}
    if as_json:
        rows = [{"kind": kind, "before": one, "after": other} for kind, one, other in pairs]
        print_json({"view": view, "before": before, "after": after, **counts, "rows": rows})
        return
    typer.echo(
        f"version {after} against version {before}: "
        + ", ".join(f"{show_count(n)} {kind}" for kind, n in counts.items())
    )
    names = list(dict.fromkeys([*key, *became.names, *was.names]))
    show_table(
        [Column("change", style="bold"), *map(Column, names)],
        (
            [kind, *(" -> ".join(dict.fromkeys(cell_text(row.get(name)) for row in (one, other) if row is not None)) for name in names)]
            for kind, one, other in pairs
        ),
        empty="no row differs",
    )  # fmt: skip
