"""`mainstem topic read`: prints the records of a topic."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from mainstem.errors import FellOff
from mainstem.workbench.cli.command_arguments import (
    POSITION_HELP,
    HomeOption,
    TopicArgument,
    open_home,
    parse_position,
    split_words,
)
from mainstem.workbench.cli.error_text import with_facts
from mainstem.workbench.cli.json_output import AllColumnsOption, RowsJsonOption
from mainstem.workbench.cli.row_format import RowFormat, chosen_format

if TYPE_CHECKING:
    import pyarrow as pa

    from mainstem.log.topic import Topic

__all__ = ["read"]


class RecordColumn(StrEnum):
    """Whether `record` is among the columns."""

    SHOW = "show"
    HIDE = "hide"


def read(
    topic: TopicArgument,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Follow new records, until Ctrl-C or --limit.")] = False,
    start: Annotated[
        str | None,
        typer.Option(help=f"{POSITION_HELP}; default: earliest, with --follow latest."),
    ] = None,
    stop: Annotated[str | None, typer.Option(help="The same; default: latest.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The maximum number of records.")] = None,
    columns: Annotated[str | None, typer.Option(metavar="COLUMN,...", help="Only these columns.")] = None,
    form: Annotated[RowFormat, typer.Option("--format", help="The output format.")] = RowFormat.TABLE,
    as_json: RowsJsonOption = False,
    all_columns: AllColumnsOption = False,
    record: Annotated[
        RecordColumn, typer.Option(help="Partition, offset, append time, change and headers of each.")
    ] = RecordColumn.SHOW,
    archive: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Read records that are no longer retained from this archive."),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Read records (Kafka: consume), partition by partition; with --follow also new ones.

    Example: mainstem topic read orders --start 2026-01-01T09:00:00Z --limit 10 --format json
    """
    from mainstem.workbench.cli.row_output import write_rows

    form = chosen_format(form, as_json=as_json)
    if follow and (stop is not None or archive is not None):
        raise typer.BadParameter("never ends, so it has no --stop and no --archive", param_hint="--follow")
    with open_home(home) as stem:
        found = stem.topic(topic)
        begin = parse_position(start or ("latest" if follow else "earliest"), "--start")
        only = split_words(columns)
        if follow:
            batches = found.follow(start=begin, columns=only, rows_max=min(limit or 65_536, 65_536))
        else:
            end = parse_position(stop or "latest", "--stop")
            batches = found.batches(start=begin, stop=end, columns=only, archive=archive)
        hidden = record is RecordColumn.HIDE
        shown = (batch.drop_columns(["record"]) for batch in batches) if hidden else batches
        try:
            write_rows(
                form,
                shown,
                _schema(found, only, hidden=hidden),
                limit=limit,
                all_columns=all_columns,
            )
        except FellOff as error:
            raise _fell_off(error, found) from error


def _schema(topic: Topic, columns: list[str] | None, *, hidden: bool) -> pa.Schema:
    import pyarrow as pa

    wanted = [
        field
        for field in topic.settings.record_schema
        if (field.name == "record" and not hidden)
        or (field.name != "record" and (columns is None or field.name in columns))
    ]
    return pa.schema(wanted)


def _fell_off(error: FellOff, topic: Topic) -> FellOff:
    kept = ",".join(f"{number}:{topic.backend.earliest(number)}" for number in range(topic.settings.partitions))
    ways = f"Start at the first retained records: --start {kept}"
    if topic.settings.archive is not None:
        ways += f". Dropped records may be in the archive: --archive {topic.settings.archive}"
    changed = with_facts(error, hint=ways)
    assert isinstance(changed, FellOff)
    return changed
