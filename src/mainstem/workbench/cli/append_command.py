"""`mainstem topic append`: appends rows from a file, or from standard input, to a topic."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import typer

from mainstem.workbench.cli.command_arguments import HomeOption, TakeOverOption, TopicArgument, open_home, take_over_if
from mainstem.workbench.cli.json_output import JsonOption, print_json
from mainstem.workbench.cli.row_format import InputFormat
from mainstem.workbench.cli.terminal_table import show_count, show_note, show_progress

__all__ = ["append"]


def append(
    topic: TopicArgument,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A file of rows, or - for standard input.")],
    *,
    form: Annotated[
        InputFormat | None,
        typer.Option("--format", help="The format; default: by the suffix of the file, json for -."),
    ] = None,
    rejected: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write invalid lines to this file, each with its reason, and append the rest.",
        ),
    ] = None,
    producer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The name of a producer: a repeated append of the same file appends each line once. Use one name per file.",
        ),
    ] = None,
    from_line: Annotated[
        int, typer.Option(min=1, help="Start at this line (in Parquet and Arrow: row), counted from 1.")
    ] = 1,
    take_over: TakeOverOption = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Append rows from a file: JSON lines, CSV, Parquet or Arrow (Kafka: produce).

    Rows are appended in batches of up to 10,000 rows or 16 MiB, each durable before the next. An invalid line stops the
    append: earlier batches are appended, nothing of its own batch is, and the error says how to continue.

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
                        progress.advance_to(source.position, show_count(work.rows, "row"))
            except KeyboardInterrupt:
                show_note(f"{work.progress_text()} {work.resume_hint()}".rstrip())
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
        extra = [f"{show_count(work.repeated)} were already appended"] if work.repeated else []
        extra += [f"{show_count(work.turned_away)} rejected to {rejected}"] if work.turned_away else []
        typer.echo(
            f"appended {show_count(work.rows, 'row')} to {orders.name}" + (f"; {'; '.join(extra)}" if extra else "")
        )
