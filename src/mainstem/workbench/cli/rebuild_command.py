"""`mainstem view rebuild`: a view once more from the log, beside the live one; compared, then put to use or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.workbench.cli.amounts import about_duration, counted
from mainstem.workbench.cli.home_option import HomeOption, SparkOption, open_home
from mainstem.workbench.cli.json_output import JsonOption, print_json
from mainstem.workbench.cli.program_file import load_program
from mainstem.workbench.cli.progress import show_progress
from mainstem.workbench.cli.terminal_table import show_note
from mainstem.workbench.cli.topic_argument import asked, somebody_is_there

if TYPE_CHECKING:
    from mainstem.flows.rebuild import Rebuild
    from mainstem.stem import Mainstem
    from mainstem.views.version_pair import Difference

__all__ = ["rebuild"]


def rebuild(
    view: Annotated[str, typer.Argument(metavar="VIEW", help="The view's name.", show_default=False)],
    *,
    program: Annotated[str, typer.Option(metavar="PROGRAM.py", help="The program that has the view's flow.")],
    apply: Annotated[bool, typer.Option("--apply", help="Put the new version to use without asking.")] = False,
    keep_both: Annotated[
        bool, typer.Option("--keep-both", help="Keep the new version beside the live one, without asking.")
    ] = False,
    spark: SparkOption = "local[*]",
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Replay the log into a new version beside the live one, show how they differ, then ask which one is to be live.

    Readers see the live version all the while, and then the new one: never a gap. The old version stays until it is
    dropped; `mainstem view versions VIEW --use N` goes back to it.

    Example: mainstem view rebuild revenue --program shop.py
    """
    if apply and keep_both:
        raise typer.BadParameter(
            "puts the new version to use, so it does not go with --keep-both", param_hint="--apply"
        )
    if not apply and not keep_both and not somebody_is_there():
        raise typer.BadParameter("one of them is needed where nobody can be asked", param_hint="--apply, --keep-both")
    from mainstem.workbench.cli.before_spark import check_before_spark, check_writable

    file = load_program(program)
    with open_home(home, upkeep="background", spark=spark) as stem:
        check_writable(stem.home)
        check_before_spark(stem, file, view=view)
        with show_progress("start Spark"):
            _ = stem.spark
        with file.building():
            made = stem.rebuild(view, file.flows)
        with made:
            _replay(view, made, stem)
            found = made.difference()
            if not as_json:
                _show(stem, view, found)
            outcome = "apply" if apply else "keep" if keep_both else _decided(view, made.version, found)
            if outcome == "apply":
                made.apply()
            elif outcome == "keep":
                made.keep_both()
        _tell(view, made.version, found, outcome, as_json=as_json)


def _replay(view: str, made: Rebuild, stem: Mainstem) -> None:
    clock = stem.log.clock
    began = clock.monotonic()
    with show_progress(f"rebuild {view}", total=100) as shown:

        def reached(done: int, total: int) -> None:
            seconds = (clock.monotonic() - began) / 1_000_000
            left = about_duration(seconds * (total - done) / done) if done else "unknown"
            shown.reached(100 * done // max(1, total), f"{counted(done)} of {counted(total, 'row')}, {left} left")

        made.wait(reached)


def _show(stem: Mainstem, view: str, found: Difference) -> None:
    from mainstem.workbench.cli.version_difference import show_difference
    from mainstem.workbench.cli.view_argument import opened_view

    with opened_view(stem, view) as opened:
        show_difference(found, opened.key)


def _decided(view: str, version: int, found: Difference) -> str:
    """What a person wants done with the new version."""
    if not found.changed + found.added + found.removed:
        show_note("The new version holds the same rows.")
    if asked(f'Make version {version} of view "{view}" the live one?'):
        return "apply"
    return "keep" if asked(f"Keep version {version} beside the live one?") else "drop"


def _tell(view: str, version: int, found: Difference, outcome: str, *, as_json: bool) -> None:
    if as_json:
        from mainstem.workbench.cli.version_difference import difference_json

        answer: dict[str, Any] = {"view": view, "version": version, "live": found.before, "outcome": outcome}
        if outcome == "apply":
            answer["live"] = version
        print_json({**answer, "difference": difference_json(found)})
        return
    said = {
        "apply": f"version {version} of {view} is live; back with: mainstem view versions {view} --use {found.before}",
        "keep": f"version {version} of {view} is kept; to use it: mainstem view versions {view} --use {version}",
        "drop": f"version {version} of {view} was dropped; version {found.before} is live",
    }
    typer.echo(said[outcome])
