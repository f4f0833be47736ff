"""`mainstem console`: shows the home in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from mainstem.errors import Invalid
from mainstem.workbench.cli.command_arguments import HomeOption, open_home

__all__ = ["console"]


def console(
    *,
    port: Annotated[int, typer.Option(help="The port; 0: any that is free.", min=0, max=65_535)] = 8765,
    host: Annotated[str, typer.Option(help="The address to listen on; by default only this machine.")] = "127.0.0.1",
    home: HomeOption = None,
) -> None:
    """Show the home in a browser: what runs, how far it is, every topic, view and queue. Ctrl-C ends it.

    It needs no running flow and no Spark, and changes nothing.

    Example: mainstem console --port 8765
    """
    try:
        from mainstem.workbench.console.console_server import ConsoleSettings, serve_console
    except ModuleNotFoundError as error:
        raise Invalid(
            f"the console needs the package {(error.name or 'starlette').partition('.')[0]}",
            detail="It is not installed.",
            hint='Install it: pip install "mainstem[console]"',
        ) from error
    with open_home(home) as stem:
        serve_console(stem, ConsoleSettings(host, port), lambda url: typer.echo(f"console at {url}"))
