"""`mainstem search`: the rows of a search index that have some words."""

from __future__ import annotations

from typing import Annotated

import typer

from mainstem.workbench.cli.command_arguments import HomeOption, open_home
from mainstem.workbench.cli.json_output import AllColumnsOption, RowsJsonOption
from mainstem.workbench.cli.row_format import RowFormat, chosen_format

__all__ = ["search"]


def search(
    name: Annotated[str, typer.Argument(metavar="INDEX", help="The search index's name.")],
    words: Annotated[str, typer.Argument(metavar="WORDS", help="The words, all of which a row must have.")],
    *,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="The maximum number of rows.")] = 10,
    offset: Annotated[int, typer.Option(metavar="N", min=0, help="Skip so many of the best rows.")] = 0,
    form: Annotated[RowFormat, typer.Option("--format", help="The output format.")] = RowFormat.TABLE,
    as_json: RowsJsonOption = False,
    all_columns: AllColumnsOption = False,
    home: HomeOption = None,
) -> None:
    """Search an index for words: the rows that have all of them in their text columns, best first, with their score.

    Example: mainstem search products "red shoes" --limit 5
    """
    from mainstem.workbench.cli.row_output import write_rows

    form = chosen_format(form, as_json=as_json)
    with open_home(home) as stem:
        found = stem.search_index(name).search_table(words, limit=limit, offset=offset)
        write_rows(form, found.to_batches(), found.schema, all_columns=all_columns)
