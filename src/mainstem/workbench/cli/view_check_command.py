"""`mainstem view check`: whether the rows of a view match its program and the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.workbench.cli.command_arguments import HomeOption, SparkOption, ViewArgument, open_home
from mainstem.workbench.cli.json_output import JsonOption, print_json
from mainstem.workbench.cli.program_file import load_program
from mainstem.workbench.cli.rebuild_command import value_text
from mainstem.workbench.cli.terminal_table import Column, show_count, show_note, show_progress, show_table

if TYPE_CHECKING:
    from mainstem.batch import Offsets
    from mainstem.flows.view_check import CheckedView, FirstWrong, WrongRow

__all__ = ["check"]

SHOWN_MAX = 10


def check(
    view: ViewArgument,
    *,
    program: Annotated[str, typer.Option(metavar="PROGRAM.py", help="The program that has the view's flow.")],
    sample: Annotated[int, typer.Option(metavar="ROWS", min=1, help="About how many rows to recompute.")] = 1000,
    seed: Annotated[int | None, typer.Option(help="Check the same rows as an earlier check with this seed.")] = None,
    spark: SparkOption = "local[*]",
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Recompute rows of a view from the log and compare them; the exit status is 1 if one is wrong.

    For wrong rows it finds the first offset at which one went wrong. Nothing is changed. The flow need not be stopped:
    a snapshot of the view is compared, and a running flow only makes the check slower.

    Example: mainstem view check revenue --program shop.py --sample 1000
    """
    from mainstem.workbench.cli.before_spark import check_before_spark

    file = load_program(program)
    with open_home(home, upkeep="manual", spark=spark) as stem:
        check_before_spark(stem, file, view=view)
        with show_progress("start Spark"):
            _ = stem.spark
        with file.locate_errors(), show_progress(f"check {view}"):
            found = stem.check_view(view, file.flows, sample=sample, seed=seed)
        key = stem.view(view).key
    if as_json:
        print_json(_json(found))
    else:
        _show(found, key)
    raise typer.Exit(0 if found.right else 1)


def _show(found: CheckedView, key: tuple[str, ...]) -> None:
    if found.running is not None:
        show_note(
            f"Flow {found.flow} runs in process {found.running}: the view is compared as it was when the check began; "
            "later changes are not checked."
        )
    outcome = "all are correct" if found.right else f"{show_count(len(found.wrong))} wrong"
    of = "" if found.compared >= found.rows else f" of {show_count(found.rows)} (seed {found.seed})"
    typer.echo(
        f"view {found.view}, version {found.version}: {show_count(found.compared, 'row')}{of} compared with the log up to "
        f"{found.token}: {outcome}"
    )
    if found.right:
        return
    typer.echo()
    _show_rows(found.wrong, key)
    assert found.first is not None
    typer.echo()
    typer.echo(_first(found.first, key))
    if found.depends:
        show_note(
            f"{', '.join(found.depends)} is Spark's own and evicts state by a watermark: which rows are too late depends on the "
            "batches, so a difference may not be an error."
        )


def _show_rows(wrong: Any, key: tuple[str, ...]) -> None:
    rows = []
    for row in wrong[:SHOWN_MAX]:
        shown, expected = row.shown or {}, row.expected or {}
        for name in dict.fromkeys([*shown, *expected]):
            if name not in key and (row.shown is None or row.expected is None or shown.get(name) != expected.get(name)):
                cells = [_cell(side, name) for side in (row.shown, row.expected)]
                rows.append([*(value_text(value) for value in row.key), name, *cells])
    columns = [Column(name, style="bold") for name in key]
    show_table([*columns, Column("column"), Column("is"), Column("should be")], rows)
    if len(wrong) > SHOWN_MAX:
        typer.echo(f"... and {show_count(len(wrong) - SHOWN_MAX)} more")


def _cell(row: dict[str, Any] | None, name: str) -> str:
    return "no row" if row is None else value_text(row.get(name))


def _first(first: FirstWrong, key: tuple[str, ...]) -> str:
    row = ", ".join(map(value_text, first.row.key))
    record = "" if first.record is None else f"{first.record[0]}[{first.record[1]}] offset {first.record[2]}"
    if first.start is None:
        known = f"by {_span(None, first.end)}; the view has no earlier changes"
    elif not record:
        known = f"with the batch of {_span(first.start, first.end)}, no record of which should have changed it"
    else:
        known = f"with {record}, in the batch of {_span(first.start, first.end)}"
    if first.cause == "store":
        return f"first wrong: {row}, changed in the store itself and not by a batch, after it was written {known}"
    return f"first wrong: {row}, {known}"


def _span(start: Offsets | None, end: Offsets) -> str:
    """Offsets of a batch, both ends inclusive."""
    parts = []
    for topic, ends in sorted(end.items()):
        for partition, upto in sorted(ends.items()):
            first = 0 if start is None else start.get(topic, {}).get(partition, 0)
            if upto > first:
                parts.append(f"{topic}[{partition}] {first}-{upto - 1}")
    return ", ".join(parts)


def _json(found: CheckedView) -> dict[str, Any]:
    first = found.first
    return {
        "view": found.view,
        "version": found.version,
        "right": found.right,
        "rows": found.rows,
        "compared": found.compared,
        "seed": found.seed,
        "upto": found.token,
        "running": found.running,
        "wrong": [_row_json(row) for row in found.wrong],
        "first": None
        if first is None
        else {
            **_row_json(first.row),
            "record": None
            if first.record is None
            else dict(zip(("topic", "partition", "offset"), first.record, strict=True)),
            "start": first.start,
            "end": first.end,
            "cause": first.cause,
        },
        "depends": found.depends,
    }


def _row_json(row: WrongRow) -> dict[str, Any]:
    from mainstem.log.rows.plain_values import python_value

    def plain(side: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if side is None else {name: python_value(value) for name, value in side.items()}

    return {
        "key": [python_value(value) for value in row.key],
        "shown": plain(row.shown),
        "expected": plain(row.expected),
    }
