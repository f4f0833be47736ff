"""`mainstem console`: shows the home in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from mainstem.errors import Invalid
from mainstem.workbench.cli.command_arguments import HomeOption, open_home, split_words
from mainstem.workbench.cli.json_output import JsonOption, print_json

__all__ = ["console"]


def console(
    *,
    port: Annotated[int, typer.Option(help="The port; 0: any that is free.", min=0, max=65_535)] = 8765,
    host: Annotated[str, typer.Option(help="The address to listen on; by default only this machine.")] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST", help="A further name by which it is reached, as browsers send it; may be repeated."
        ),
    ] = None,
    tls_cert: Annotated[str | None, typer.Option(metavar="FILE", help="The certificate for TLS, in PEM.")] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="Its key.")] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy in front of it has TLS: every request needs a token.")
    ] = False,
    actions: Annotated[
        str | None,
        typer.Option(
            metavar="ACTION,...",
            help="What a token with the scope act may do: stop, restore, drop, append; kill, for demonstrations.",
        ),
    ] = None,
    walk: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Steps that the page shows and ticks off, in JSON; for demonstrations."),
    ] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show the home in a browser: what runs, how far it is, every topic, view and queue. Ctrl-C ends it.

    It needs no running flow and no Spark, and changes nothing without --actions. Only the user who runs it may read, and who has a token
    (mainstem token create). On another address than this machine's own it needs TLS or a proxy, and a token for everybody.

    Example: mainstem console --port 8765
    """
    try:
        from mainstem.workbench.console.console_server import ConsoleSettings, serve_console
        from mainstem.workbench.console.guided_walk import Walk, read_walk
    except ModuleNotFoundError as error:
        raise Invalid(
            f"the console needs the package {(error.name or 'starlette').partition('.')[0]}",
            detail="It is not installed.",
            hint='Install it: pip install "mainstem[console]"',
        ) from error
    permitted = frozenset(split_words(actions) or ())
    steps = Walk() if walk is None else read_walk(walk)
    settings = ConsoleSettings(host, port, tuple(name or ()), tls_cert, tls_key, behind_proxy, permitted, steps)
    with open_home(home) as stem:
        serve_console(
            stem, settings, lambda url: print_json({"url": url}) if as_json else typer.echo(f"console at {url}")
        )
