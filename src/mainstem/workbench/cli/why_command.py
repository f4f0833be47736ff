"""`mainstem view why`: the records that a row of a view was made of, and the values it had."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.errors import NotFound
from mainstem.workbench.cli.command_arguments import (
    AsOfOption,
    HomeOption,
    ViewArgument,
    open_home,
    open_view,
    parse_as_of,
)
from mainstem.workbench.cli.json_output import JsonOption, print_json
from mainstem.workbench.cli.terminal_table import Column, is_terminal, moment, show_count, show_table

if TYPE_CHECKING:
    from datetime import date

    import pyarrow as pa

    from mainstem.views.row_explanation import RowExplanation, ShownRow

__all__ = ["range_sentences", "sentence_of_why", "why", "why_json"]


def why(
    view: ViewArgument,
    key: Annotated[list[str], typer.Argument(metavar="KEY...", help="A value for each column of the key.")],
    *,
    as_of: AsOfOption = None,
    limit: Annotated[int, typer.Option(min=1, help="The maximum number of records.")] = 50,
    after: Annotated[
        str | None, typer.Option(metavar="POSITION", help="Begin after this record: topic/partition/offset.")
    ] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show why a row is as it is: the records it was made of, and each value that was shown.

    The key is written as for `view get`. The records are exact if the flow over just these gives that row; where that cannot
    be said, the offsets of the batch that changed the row are shown instead, and why. With --as-of, for a view with history,
    the row as it was.

    Example: mainstem view why revenue Berlin 12:20
    """
    from mainstem.workbench.cli.key_arguments import find_key
    from mainstem.workbench.cli.row_output import today_of

    with open_home(home) as stem, open_view(stem, view) as opened:
        at = parse_as_of(as_of)
        found = opened.why(find_key(opened, key, at), as_of=at, limit=limit, after=after)
        if found.row is None and not found.shown and not as_json:
            raise NotFound(
                f'view "{view}" has no row with the key {", ".join(key)}',
                detail=f"Its key is {', '.join(opened.key)}.",
                hint=f"List its rows: mainstem view read {view} --limit 10",
            )
        schema = opened.schema
        today = today_of(stem.log.clock) if is_terminal() else None
    if as_json:
        print_json(why_json(found, schema))
    else:
        _show(found, schema, today)
    raise typer.Exit(0 if found.row is not None else 1)


def why_json(found: RowExplanation, schema: pa.Schema) -> dict[str, Any]:
    """As JSON; a row with the values of `view get --json`."""
    from mainstem.log.rows.plain_values import column_values, plain_writer

    writers = {field.name: plain_writer(field.type) for field in schema}

    def row(given: Any) -> Any:
        return None if given is None else {name: write(given[name]) for name, write in writers.items() if name in given}

    return {
        "view": found.view,
        "flow": found.flow,
        "key": row(found.key),
        "row": row(found.row),
        "exact": found.exact,
        "because": found.because or None,
        "shown": [{"at": it.at, "batch": it.batch, "change": it.change, "row": row(it.row)} for it in found.shown],
        "records": {
            topic: [
                dict(zip(table.column_names, values, strict=True))
                for values in zip(
                    *(column_values(column, plain_writer(column.type)) for column in table.columns), strict=True
                )
            ]
            for topic, table in found.records.items()
        },
        "ranges": {
            topic: [{"partition": number, "from": first, "to": stop} for number, (first, stop) in sorted(spans.items())]
            for topic, spans in found.ranges.items()
        },
        "total": found.total,
        "after": found.after,
    }


def sentence_of_why(found: RowExplanation) -> str:
    """Whether the records are exact, in a sentence."""
    if found.exact:
        return f"It was made of {show_count(found.total, 'record')}: the flow over just these gives this row."
    return found.because


def range_sentences(found: RowExplanation) -> list[str]:
    """The offsets of the batch, if the records cannot be said."""
    return [
        f"{topic}, partition {number}: offsets {first} to {stop - 1}"
        if stop > first
        else f"{topic}, partition {number}: none"
        for topic, spans in found.ranges.items()
        for number, (first, stop) in sorted(spans.items())
    ]


def _show(found: RowExplanation, schema: pa.Schema, today: date | None) -> None:
    from mainstem.workbench.cli.row_output import write_rows

    typer.echo(sentence_of_why(found))
    for line in range_sentences(found):
        typer.echo(f"  {line}")
    if found.shown:
        typer.echo()
        names = [name for name in schema.names if name not in found.key]
        show_table(
            [
                Column("shown at", firm=True),
                Column("batch", "right"),
                Column("change"),
                *(Column(name) for name in names),
            ],
            [_shown_row(it, names, schema, today) for it in found.shown],
        )
    for topic, table in found.records.items():
        typer.echo()
        typer.echo(f"records of {topic}")
        write_rows("table", iter(table.to_batches()), table.schema, limit=None, all_columns=False)
    if found.after is not None:
        typer.echo()
        typer.echo(f"more records follow: --after {found.after}")


def _shown_row(it: ShownRow, names: list[str], schema: pa.Schema, today: date | None) -> list[str]:
    import pyarrow as pa

    from mainstem.workbench.cli.row_output import shown_cells

    values = [""] * len(names)
    if it.row is not None:
        values = [shown_cells(pa.array([it.row[name]], schema.field(name).type), today)[0] for name in names]
    return [moment(it.at, none=""), "" if it.batch is None else str(it.batch), it.change, *values]
