"""`mainstem view rebuild`: rebuilds a view from the log beside the live version, and compares the two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.workbench.cli.command_arguments import (
    HomeOption,
    SparkOption,
    ViewArgument,
    ask,
    is_interactive,
    open_home,
    open_view,
)
from mainstem.workbench.cli.json_output import JsonOption, print_json
from mainstem.workbench.cli.program_file import load_program
from mainstem.workbench.cli.terminal_table import (
    Column,
    about_duration,
    show_count,
    show_note,
    show_progress,
    show_table,
)

if TYPE_CHECKING:
    from mainstem.flows.rebuild import Rebuild
    from mainstem.stem import Mainstem
    from mainstem.views.version_pair import Difference

__all__ = ["difference_json", "rebuild", "show_difference", "value_text"]


# The differences between two versions of a view, as text and as JSON.


def show_difference(found: Difference, key: tuple[str, ...]) -> None:
    """The counts, then the first rows of each kind; for a changed row the changed columns, old and new."""
    counts = ", ".join(f"{show_count(count)} {kind}" for kind, count in _counts(found).items())
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
            show_table(columns, [[value_text(value) for value in row.values()] for row in rows], title=kind)
            _show_rest(len(rows), count)


def _show_changed(found: Difference, key: tuple[str, ...]) -> None:
    rows = []
    for before, after in found.changed_rows:
        for name in dict.fromkeys([*before, *after]):
            old, new = before.get(name), after.get(name)
            if name not in key and old != new:
                rows.append([*(value_text(after[column]) for column in key), name, value_text(old), value_text(new)])
    columns = [Column(name, style="bold") for name in key]
    show_table([*columns, Column("column"), Column("was"), Column("is")], rows, title="changed")
    _show_rest(len(found.changed_rows), found.changed)


def _show_rest(shown: int, count: int) -> None:
    if shown < count:
        typer.echo(f"... and {show_count(count - shown)} more")


def value_text(value: Any) -> str:
    """A value of a row as a cell shows it."""
    from mainstem.log.rows.plain_values import cell_text, python_value

    return "null" if value is None else cell_text(python_value(value))


def _counts(found: Difference) -> dict[str, int]:
    return {"same": found.same, "changed": found.changed, "added": found.added, "removed": found.removed}


def difference_json(found: Difference) -> dict[str, Any]:
    """The same as JSON."""
    from mainstem.log.rows.plain_values import python_value

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


def rebuild(
    view: ViewArgument,
    *,
    program: Annotated[str, typer.Option(metavar="PROGRAM.py", help="The program that has the view's flow.")],
    apply: Annotated[bool, typer.Option("--apply", help="Make the new version live without asking.")] = False,
    keep_both: Annotated[
        bool, typer.Option("--keep-both", help="Keep the new version beside the live one, without asking.")
    ] = False,
    spark: SparkOption = "local[*]",
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Replay the log into a new version beside the live one, show the differences, then ask which one is to be live.

    Readers see the live version all the time, and then the new one, without a gap. The old version is kept until it is
    dropped; `mainstem view versions VIEW --use N` returns to it.

    Example: mainstem view rebuild revenue --program shop.py
    """
    if apply and keep_both:
        raise typer.BadParameter("makes the new version live, so it excludes --keep-both", param_hint="--apply")
    if not apply and not keep_both and not is_interactive():
        raise typer.BadParameter("one of them is required without a terminal", param_hint="--apply, --keep-both")
    from mainstem.workbench.cli.before_spark import check_before_spark, check_writable

    file = load_program(program)
    with open_home(home, upkeep="background", spark=spark) as stem:
        check_writable(stem.home)
        check_before_spark(stem, file, view=view)
        with show_progress("start Spark"):
            _ = stem.spark
        with file.locate_errors():
            made = stem.rebuild(view, file.flows)
        with made:
            _replay(view, made, stem)
            found = made.difference()
            if not as_json:
                _show(stem, view, found)
            outcome = "apply" if apply else "keep" if keep_both else _ask_outcome(view, made.version, found)
            if outcome == "apply":
                made.apply()
            elif outcome == "keep":
                made.keep_both()
        _tell(view, made.version, found, outcome, as_json=as_json)


def _replay(view: str, made: Rebuild, stem: Mainstem) -> None:
    clock = stem.log.clock
    began = clock.monotonic()
    with show_progress(f"rebuild {view}", total=100) as shown:

        def show_rebuilt(done: int, total: int) -> None:
            seconds = (clock.monotonic() - began) / 1_000_000
            left = about_duration(seconds * (total - done) / done) if done else "unknown"
            shown.advance_to(
                100 * done // max(1, total), f"{show_count(done)} of {show_count(total, 'row')}, {left} left"
            )

        made.wait(show_rebuilt)


def _show(stem: Mainstem, view: str, found: Difference) -> None:
    with open_view(stem, view) as opened:
        show_difference(found, opened.key)


def _ask_outcome(view: str, version: int, found: Difference) -> str:
    """Ask what to do with the new version."""
    if not found.changed + found.added + found.removed:
        show_note("The new version holds the same rows.")
    if ask(f'Make version {version} of view "{view}" the live one?'):
        return "apply"
    return "keep" if ask(f"Keep version {version} beside the live one?") else "drop"


def _tell(view: str, version: int, found: Difference, outcome: str, *, as_json: bool) -> None:
    if as_json:
        answer: dict[str, Any] = {"view": view, "version": version, "live": found.before, "outcome": outcome}
        if outcome == "apply":
            answer["live"] = version
        print_json({**answer, "difference": difference_json(found)})
        return
    said = {
        "apply": f"version {version} of {view} is live; to return: mainstem view versions {view} --use {found.before}",
        "keep": f"version {version} of {view} is kept; to use it: mainstem view versions {view} --use {version}",
        "drop": f"version {version} of {view} was dropped; version {found.before} is live",
    }
    typer.echo(said[outcome])
