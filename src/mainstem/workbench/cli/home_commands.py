"""`mainstem home`: the home as a whole."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mainstem.workbench.cli.amounts import about_size, counted
from mainstem.workbench.cli.home_option import HomeOption, open_home
from mainstem.workbench.cli.json_output import JsonOption, print_json
from mainstem.workbench.cli.progress import show_progress

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)


@app.command("copy")
def copy_home(
    target: Annotated[str, typer.Argument(metavar="DIR", help="The new directory: it must not exist, or be empty.")],
    *,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the home to another directory (in the field: a backup), consistent while it is in use.

    Topics are copied as of one moment, with each transaction whole or not at all; each flow as it is between two batches,
    with its checkpoint and its view. Flows wait for it; appends go on. What lies elsewhere is named, and not copied.

    Example: mainstem home copy /backup/shop-monday
    """
    with open_home(home) as stem, show_progress("copying") as progress:
        copied = stem.copy_to(target, step=lambda what: progress.reached(0, what))
    if as_json:
        print_json(asdict(copied))
        return
    parts = [(copied.topics, "topic"), (copied.flows, "flow"), (copied.views, "view")]
    amounts = ", ".join(counted(len(names), noun) for names, noun in parts)
    typer.echo(f"copied to {copied.path}: {amounts}, {about_size(copied.bytes)}")
    for place in copied.elsewhere:
        typer.echo(f"not copied: {place}")
    if copied.elsewhere:
        typer.echo("Flows that run in the copy would write there too: change its settings before you run any.")
