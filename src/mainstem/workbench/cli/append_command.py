"""`mainstem topic append`: rows from a file, or from standard input, into a topic."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import typer

from mainstem.workbench.cli.amounts import counted
from mainstem.workbench.cli.home_option import HomeOption, open_home
from mainstem.workbench.cli.json_output import JsonOption, print_json
from mainstem.workbench.cli.progress import show_progress
from mainstem.workbench.cli.row_format import InputFormat
from mainstem.workbench.cli.terminal_table import show_note
from mainstem.workbench.cli.topic_argument import TakeOverOption, TopicArgument, take_over_if

__all__ = ["append"]


def append(
    topic: TopicArgument,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A file of rows, or - for standard input.")],
    *,
    form: Annotated[
        InputFormat | None,
        typer.Option(
            "--format", help="What the file is; else told by its name, and of - it is json.", show_default=False
        ),
    ] = None,
    rejected: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Lines that do not fit go here, each with its reason, and the rest goes in.",
            show_default=False,
        ),
    ] = None,
    producer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Append each line once, however often the same file is given. A name is for one file.",
            show_default=False,
        ),
    ] = None,
    from_line: Annotated[
        int, typer.Option(min=1, help="Start at this line (of Parquet and Arrow: row), counted from 1.")
    ] = 1,
    take_over: TakeOverOption = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Append rows from a file: JSON lines, CSV, Parquet or Arrow (in the field: produce).

    Rows go in by batches of up to 10,000 rows or 16 MiB, each on disk before the next. At a line that does not fit the append
    stops: all batches before are in, nothing of its own batch is, and the error says how to go on.

    Example: mainstem topic append orders orders.csv --rejected bad_orders.jsonl
    """
    from mainstem.workbench.cli.row_append import RejectedFile, RowAppend
    from mainstem.workbench.cli.row_files import RowFile

    with open_home(home, upkeep="background") as stem:
        orders = stem.topic(topic)
        take_over_if(orders, asked=take_over)
        with (
            RowFile(file, form, orders.settings) as source,
            RejectedFile(rejected) if rejected is not None else nullcontext() as rejected_file,
        ):
            run = None if producer is None else stem.producer(producer)
            work = RowAppend(orders, source, run, rejected_file, from_line)
            try:
                with show_progress(f"append to {topic}", total=source.size) as progress:
                    for _ in work.steps():
                        progress.reached(source.position, counted(work.rows, "row"))
            except KeyboardInterrupt:
                show_note(f"{work.so_far()} {work.how_to_go_on()}".rstrip())
                raise
        if as_json:
            print_json(
                {
                    "topic": orders.name,
                    "rows": work.rows,
                    "repeated": work.repeated,
                    "rejected": work.turned_away,
                    "token": work.token or None,
                }
            )
            return
        extra = [f"{counted(work.repeated)} were there already"] if work.repeated else []
        extra += [f"{counted(work.turned_away)} rejected to {rejected}"] if work.turned_away else []
        typer.echo(
            f"appended {counted(work.rows, 'row')} to {orders.name}" + (f"; {'; '.join(extra)}" if extra else "")
        )
