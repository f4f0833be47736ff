"""`mainstem query`: an SQL query."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mainstem.log.query_limits import ROWS_MAX
from mainstem.workbench.cli.command_arguments import HomeOption, open_home
from mainstem.workbench.cli.json_output import AllColumnsOption, RowsJsonOption
from mainstem.workbench.cli.row_format import RowFormat, chosen_format

__all__ = ["query"]


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL|-", help="The SQL query, or - for standard input.")],
    *,
    parameter: Annotated[
        list[str] | None,
        typer.Option(metavar="VALUE", help="The value of the next ?; may be repeated."),
    ] = None,
    form: Annotated[RowFormat, typer.Option("--format", help="The output format.")] = RowFormat.TABLE,
    as_json: RowsJsonOption = False,
    all_columns: AllColumnsOption = False,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="The timeout.")] = "60 seconds",
    rows_max: Annotated[
        int, typer.Option(metavar="NUMBER", help="The maximum number of rows of the result.", min=1)
    ] = ROWS_MAX,
    home: HomeOption = None,
) -> None:
    """Run an SQL query (DuckDB): one SELECT. Topics and views are tables; a compacted topic has the latest record of
    each key. Ctrl-C ends it.

    Example: mainstem query "SELECT store, sum(amount) FROM orders WHERE store = ? GROUP BY store" --parameter Berlin
    """
    from mainstem.workbench.cli.row_output import write_rows

    form = chosen_format(form, as_json=as_json)
    question = sys.stdin.read() if sql == "-" else sql
    with open_home(home) as stem:
        answer = stem.query(question, parameter or [], rows_max=rows_max, timeout=timeout)
        write_rows(form, answer.to_batches(), answer.schema, all_columns=all_columns)
