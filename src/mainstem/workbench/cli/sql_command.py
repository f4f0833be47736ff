"""`mainstem sql`: an SQL shell."""

from __future__ import annotations

from typing import Annotated

import typer

from mainstem.log.query_limits import ROWS_MAX
from mainstem.workbench.cli.command_arguments import HomeOption, open_home
from mainstem.workbench.cli.json_output import AllColumnsOption, RowsJsonOption
from mainstem.workbench.cli.row_format import RowFormat, chosen_format

__all__ = ["sql"]


def sql(
    *,
    form: Annotated[RowFormat, typer.Option("--format", help="The output format.")] = RowFormat.TABLE,
    as_json: RowsJsonOption = False,
    all_columns: AllColumnsOption = False,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="The timeout of a statement.")] = "60 seconds",
    rows_max: Annotated[
        int, typer.Option(metavar="NUMBER", help="The maximum number of rows of a result.", min=1)
    ] = ROWS_MAX,
    home: HomeOption = None,
) -> None:
    """An SQL shell (DuckDB): statements end with a semicolon, Tab completes names, .help shows the rest.

    Without a terminal it runs the statements of standard input; the exit status is 1 if one of them failed.

    Example: mainstem sql < report.sql
    """
    form = chosen_format(form, as_json=as_json)
    with open_home(home) as stem:
        from mainstem.workbench.cli.sql_shell import SqlShell

        shell = SqlShell(
            stem,
            form=form,
            all_columns=all_columns,
            timeout=timeout,
            rows_max=rows_max,
        )
        status = shell.run()
    raise typer.Exit(status)
