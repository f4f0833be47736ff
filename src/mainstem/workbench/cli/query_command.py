"""`mainstem query`: a question in SQL."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mainstem.workbench.cli.home_option import HomeOption, open_home
from mainstem.workbench.cli.row_format import RowFormat

__all__ = ["query"]


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL|-", help="The question, or - for standard input.")],
    *,
    parameter: Annotated[
        list[str] | None,
        typer.Option(metavar="VALUE", help="What the next ? stands for; may be given again.", show_default=False),
    ] = None,
    form: Annotated[RowFormat, typer.Option("--format", help="How to write the answer.")] = RowFormat.TABLE,
    home: HomeOption = None,
) -> None:
    """Ask in SQL, which is DuckDB's. Topics are tables; of a compacted one it sees the latest record of each key.

    Example: mainstem query "SELECT store, sum(amount) FROM orders WHERE store = ? GROUP BY store" --parameter Berlin
    """
    from mainstem.workbench.cli.row_output import row_writer

    question = sys.stdin.read() if sql == "-" else sql
    with open_home(home) as stem:
        answer = stem.query(question, parameter or [])
        writer = row_writer(form, answer.schema)
        for batch in answer.to_batches():
            writer.write(batch)
        writer.close()
