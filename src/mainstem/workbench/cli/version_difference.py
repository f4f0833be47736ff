"""How two versions of a view differ, as a person and as a program read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from mainstem.log.plain_values import cell_text, python_value
from mainstem.workbench.cli.amounts import counted
from mainstem.workbench.cli.terminal_table import Column, show_table

if TYPE_CHECKING:
    from mainstem.views.version_pair import Difference

__all__ = ["difference_json", "show_difference"]


def show_difference(found: Difference, key: tuple[str, ...]) -> None:
    """Counts first, then the first rows of each kind; of a changed row the columns that changed, old and new."""
    counts = ", ".join(f"{counted(count)} {kind}" for kind, count in _counts(found).items())
    typer.echo(f"version {found.after} against version {found.before}: {counts}")
    if found.changed_rows:
        typer.echo()
        _show_changed(found, key)
    for kind, rows, count in (
        ("added", found.added_rows, found.added),
        ("removed", found.removed_rows, found.removed),
    ):
        if rows:
            typer.echo()
            columns = [Column(name, style="bold" if name in key else "") for name in rows[0]]
            show_table(columns, [[_cell(value) for value in row.values()] for row in rows], title=kind)
            _show_rest(len(rows), count)


def _show_changed(found: Difference, key: tuple[str, ...]) -> None:
    rows = []
    for before, after in found.changed_rows:
        for name in dict.fromkeys([*before, *after]):
            old, new = before.get(name), after.get(name)
            if name not in key and old != new:
                rows.append([*(_cell(after[column]) for column in key), name, _cell(old), _cell(new)])
    columns = [Column(name, style="bold") for name in key]
    show_table([*columns, Column("column"), Column("was"), Column("is")], rows, title="changed")
    _show_rest(len(found.changed_rows), found.changed)


def _show_rest(shown: int, count: int) -> None:
    if shown < count:
        typer.echo(f"... and {counted(count - shown)} more")


def _cell(value: Any) -> str:
    return "null" if value is None else cell_text(python_value(value))


def _counts(found: Difference) -> dict[str, int]:
    return {"same": found.same, "changed": found.changed, "added": found.added, "removed": found.removed}


def difference_json(found: Difference) -> dict[str, Any]:
    """The same for a program."""
    return {
        "before": found.before,
        "after": found.after,
        **_counts(found),
        "changed_rows": [
            {"was": python_value(before), "is": python_value(after)} for before, after in found.changed_rows
        ],
        "added_rows": [python_value(row) for row in found.added_rows],
        "removed_rows": [python_value(row) for row in found.removed_rows],
    }
