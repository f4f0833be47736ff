"""`mainstem flow plot`: event time against processing time, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mainstem.workbench.cli.amounts import counted
from mainstem.workbench.cli.home_option import HomeOption, open_home

__all__ = ["plot"]


def plot(
    flow: Annotated[str, typer.Argument(metavar="FLOW", help="The flow's name.", show_default=False)],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The SVG file to write.", dir_okay=False)],
    home: HomeOption = None,
) -> None:
    """Plot a flow: when its records happened and when they came, the watermark, the ideal line, and each pane it put out.

    Example: mainstem flow plot totals -o totals.svg
    """
    from mainstem.workbench.cli.flow_plot import plot_of
    from mainstem.workbench.cli.flow_plot_svg import svg_of

    with open_home(home) as stem:
        found = plot_of(stem, flow)
        output.write_text(svg_of(found), encoding="utf-8")
    typer.echo(f"{output}: {counted(len(found.points), 'record')}, {counted(len(found.panes), 'pane')}")
