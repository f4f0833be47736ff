"""`mainstem home`: the home as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from mainstem.workbench.cli.command_arguments import HomeOption, open_home
from mainstem.workbench.cli.command_tree import new_noun
from mainstem.workbench.cli.error_text import FAILED, show_damage
from mainstem.workbench.cli.json_output import JsonOption, print_json
from mainstem.workbench.cli.terminal_table import about_size, show_count, show_progress

if TYPE_CHECKING:
    from mainstem.flows.home_verification import HomeProblem

__all__ = ["app"]

app = new_noun()


@app.command("copy")
def copy_home(
    target: Annotated[str, typer.Argument(metavar="DIR", help="The new directory: it must not exist, or be empty.")],
    *,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the home to another directory (a backup), consistently while it is in use.

    Topics are copied as of one moment, each transaction completely or not at all; each flow between two batches, with
    its checkpoint and its view. Flows pause meanwhile; appends continue. Data stored elsewhere is listed, and not
    copied. At the end every file of the copy is verified: damaged files are copied unchanged and listed, and the exit
    status is 1.

    Example: mainstem home copy /backup/shop-monday
    """
    with open_home(home) as stem, show_progress("copying") as progress:
        copied = stem.copy_to(target, step=lambda what: progress.advance_to(0, what))
    if as_json:
        print_json(asdict(copied))
        _fail_if(copied.problems)
        return
    parts = [(copied.topics, "topic"), (copied.flows, "flow"), (copied.views, "view")]
    amounts = ", ".join(show_count(len(names), noun) for names, noun in parts)
    typer.echo(f"copied to {copied.path}: {amounts}, {about_size(copied.bytes)}")
    for place in copied.elsewhere:
        typer.echo(f"not copied: {place}")
    if copied.elsewhere:
        typer.echo("Flows that run in the copy would write there too: change its settings before you run any.")
    for problem in copied.problems:
        show_damage(problem.of, problem)
    _fail_if(copied.problems)


@app.command("verify")
def verify_home(*, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Verify the home: topics, ledgers, views, flows. Damage is listed; the exit status is then 1.

    Topics, ledgers and the state of flows have checksums. In a view's file SQLite checks the structure, not the values:
    `mainstem view check` compares them with the log.

    Example: mainstem home verify
    """
    with open_home(home) as stem, show_progress("verify") as progress:
        found = stem.verify(step=lambda what: progress.advance_to(0, what))
    if as_json:
        print_json({**asdict(found), "sound": found.sound})
    else:
        parts = [(found.topics, "topic"), (found.ledgers, "ledger"), (found.views, "view"), (found.flows, "flow")]
        amounts = ", ".join(show_count(len(names), noun) for names, noun in parts)
        typer.echo(f"{'sound' if found.sound else 'NOT sound'}: {amounts}, {show_count(found.records, 'record')}")
        for problem in found.problems:
            show_damage(problem.of, problem)
    _fail_if(found.problems)


def _fail_if(problems: Sequence[HomeProblem]) -> None:
    if problems:
        raise typer.Exit(FAILED)
