"""`mainstem topic`: create, list, describe, alter, delete. The other verbs are in files of their own."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.errors import Corrupt, Invalid
from mainstem.workbench.cli import adopt_command, append_command, copy_command, read_command, upkeep_commands
from mainstem.workbench.cli.command_arguments import (
    HomeOption,
    TopicArgument,
    YesOption,
    confirm,
    open_home,
    split_words,
)
from mainstem.workbench.cli.list_entry import Unreadable, json_entry, looked_at, table_row
from mainstem.workbench.cli.row_output import JsonOption, print_json
from mainstem.workbench.cli.terminal_table import (
    LAG_COLUMNS,
    Column,
    about_size,
    counted,
    lag_cells,
    moment,
    show_facts,
    show_note,
    show_table,
)

if TYPE_CHECKING:
    from mainstem.log.keep_rule import Keep
    from mainstem.log.lag import Lag
    from mainstem.stem import Mainstem
    from mainstem.workbench.cli.topic_facts import TopicFacts

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

Text = Annotated[str | None, typer.Option(show_default=False)]
KeepOption = Annotated[
    str | None,
    typer.Option(
        help='"7 days", "10 GiB", both with a comma, "forever", or "latest per key" (a compacted topic).',
        show_default=False,
    ),
]
TombstonesOption = Annotated[
    str | None,
    typer.Option(help="Latest per key: how long a deleted key is still told of; 1 day.", show_default=False),
]
LagMinOption = Annotated[
    str | None, typer.Option(help="Latest per key: younger records are left alone.", show_default=False)
]
LagMaxOption = Annotated[
    str | None, typer.Option(help="Latest per key: no record waits longer for compaction.", show_default=False)
]
ArchiveOption = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Copy sealed segments here before they are dropped.", show_default=False),
]
IdleOption = Annotated[
    str | None,
    typer.Option(help="A partition silent for so long does not hold the watermark back; 1 minute.", show_default=False),
]
AheadOption = Annotated[
    str | None,
    typer.Option(help="Event times further ahead do not move the watermark; 1 hour.", show_default=False),
]
RecordBytesOption = Annotated[
    str | None, typer.Option(help="The largest record that is taken; 16 MiB.", show_default=False)
]
SegmentBytesOption = Annotated[str | None, typer.Option(help="How large a segment grows; 64 MiB.", show_default=False)]
SegmentAgeOption = Annotated[str | None, typer.Option(help="How old a segment grows; 1 hour.", show_default=False)]


@app.command()
def create(
    topic: TopicArgument,
    *,
    schema: Annotated[str, typer.Option(help='The columns as Spark writes them: "order_id STRING, amount DOUBLE".')],
    key: Annotated[
        str | None, typer.Option(metavar="COLUMN,...", help="What decides a row's partition.", show_default=False)
    ] = None,
    event_time: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="When a row happened; a TIMESTAMP.", show_default=False)
    ] = None,
    partitions: Annotated[int, typer.Option(help="Number of partitions.")] = 1,
    keep: KeepOption = None,
    tombstones: TombstonesOption = None,
    lag_min: LagMinOption = None,
    lag_max: LagMaxOption = None,
    archive: ArchiveOption = None,
    idle_after: IdleOption = None,
    ahead_max: AheadOption = None,
    record_bytes_max: RecordBytesOption = None,
    segment_bytes_max: SegmentBytesOption = None,
    segment_age_max: SegmentAgeOption = None,
    home: HomeOption = None,
) -> None:
    """Create a topic, and the home if there is none. One that is there with the same settings is left as it is.

    Example: mainstem topic create orders --schema "order_id STRING, amount DOUBLE" --key order_id --keep "7 days"
    """
    settings = _given(
        key=split_words(key), event_time=event_time, partitions=partitions,
        keep=_keep(keep, tombstones, lag_min, lag_max), archive=archive, idle_after=idle_after, ahead_max=ahead_max,
        record_bytes_max=record_bytes_max, segment_bytes_max=segment_bytes_max, segment_age_max=segment_age_max,
    )  # fmt: skip
    with open_home(home, missing="make") as stem:
        there = topic in stem.topics()
        made = stem.create_topic(topic, schema=schema, **settings)
        typer.echo(
            f"topic {made.name} was there already, with these settings" if there else f"created topic {made.name}"
        )


@app.command("list")
def list_topics(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the topics.

    Example: mainstem topic list
    """
    with open_home(home) as stem:
        found = [looked_at({"topic": name}, _listed, stem, name) for name in stem.topics()]
        if as_json:
            print_json([json_entry(it, lambda it: it) for it in found])
            return
        columns = [
            Column("topic", style="bold"), Column("partitions", "right"), Column("records", "right"),
            Column("size", "right"), Column("keep"), Column("last append"), Column("groups", "right"),
            Column("queues", "right"),
        ]  # fmt: skip
        if any(isinstance(it, Unreadable) or it["damage"] for it in found):
            columns.append(Column("damage"))
        rows = [_list_row(it)[: len(columns)] for it in found]
        show_table(columns, rows, empty="no topics yet")


def _listed(stem: Mainstem, name: str) -> dict[str, Any]:
    from mainstem.workbench.cli.topic_facts import topic_facts

    it = topic_facts(stem.topic(name))
    return {
        "topic": name,
        "partitions": len(it.partitions),
        "records": it.records,
        "bytes": it.bytes,
        "keep": str(it.topic.settings.keep),
        "appended_at": it.appended_at,
        "groups": len(it.topic.groups()),
        "queues": len(it.topic.queues()),
        "damage": it.damage,
    }


def _list_row(it: dict[str, Any] | Unreadable) -> list[str]:
    if isinstance(it, Unreadable):
        return [it.names["topic"], "", "", "", "", "", "", "", f"cannot be read: {it.error}"]
    return [
        it["topic"], str(it["partitions"]), counted(it["records"]), about_size(it["bytes"]), it["keep"],
        moment(it["appended_at"]), str(it["groups"]), str(it["queues"]),
        "; ".join(it["damage"]),
    ]  # fmt: skip


def _list_json(name: str, facts: TopicFacts | Corrupt) -> dict[str, object]:
    if isinstance(facts, Corrupt):
        return {"topic": name, "damage": [facts.summary]}
    return {
        "topic": name,
        "partitions": len(facts.partitions),
        "records": facts.records,
        "bytes": facts.bytes,
        "keep": str(facts.topic.settings.keep),
        "appended_at": facts.appended_at,
        "groups": len(facts.topic.groups()),
        "queues": len(facts.topic.queues()),
        "damage": facts.damage,
    }


@app.command()
def describe(topic: TopicArgument, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Describe a topic: its settings, its partitions, and how far its groups and queues are behind.

    Example: mainstem topic describe orders
    """
    from mainstem.workbench.cli.topic_facts import topic_facts

    with open_home(home) as stem:
        facts = topic_facts(stem.topic(topic))
        if as_json:
            print_json(facts.to_json())
        else:
            _show(facts)


def _show(facts: TopicFacts) -> None:
    from mainstem.durations import show_duration, show_size

    topic, settings = facts.topic, facts.topic.settings
    show_facts(
        [
            ("topic", topic.name),
            ("schema", topic.ddl.replace(", ", ",\n") if len(topic.ddl) > 80 and "<" not in topic.ddl else topic.ddl),
            ("key", ", ".join(settings.key) or "none"),
            ("event time", settings.event_time or "none"),
            ("keep", str(settings.keep)),
            ("archive", settings.archive or "none"),
            ("records", f"{counted(facts.records)} in {about_size(facts.bytes)}"),
            ("last append", moment(facts.appended_at)),
            ("segments", f"up to {show_size(settings.segment_bytes_max)} or {show_duration(settings.segment_age_max)}"),
            ("largest record", show_size(settings.record_bytes_max)),
            (
                "watermark",
                f"idle after {show_duration(settings.idle_after)}, at most {show_duration(settings.ahead_max)} ahead",
            ),
        ]
    )
    typer.echo()
    show_table(
        [
            Column("partition", "right"), Column("start", "right"), Column("end", "right"), Column("records", "right"),
            Column("size", "right"), Column("segments", "right"), Column("sealed", "right"), Column("last append"),
        ],
        (
            [
                str(it.partition), counted(it.start), counted(it.end), counted(it.records), about_size(it.bytes),
                "" if it.segments is None else str(it.segments), "" if it.sealed is None else str(it.sealed),
                moment(it.appended_at),
            ]
            for it in facts.partitions
        ),
    )  # fmt: skip
    for damage in facts.damage:
        typer.echo(f"damaged: {damage}")
    for noun, lags in (("group", facts.group_lags()), ("queue", facts.queue_lags())):
        typer.echo()
        rows = [_lag_row(name, lag) for name, lag in lags.items()]
        show_table([Column(noun, style="bold"), *LAG_COLUMNS], rows, empty=f"no {noun}s")


def _lag_row(name: str, entry: Lag | Unreadable) -> list[str]:
    return table_row(entry, lambda lag: [name, *lag_cells(lag)])


@app.command()
def alter(
    topic: TopicArgument,
    *,
    add_column: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help='A column to add: "note STRING"; may be given again.', show_default=False),
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="All columns, some of them new or of a wider type.", show_default=False)
    ] = None,
    partitions: Annotated[int | None, typer.Option(help="More partitions than now.", show_default=False)] = None,
    keep: KeepOption = None,
    tombstones: TombstonesOption = None,
    lag_min: LagMinOption = None,
    lag_max: LagMaxOption = None,
    archive: ArchiveOption = None,
    idle_after: IdleOption = None,
    ahead_max: AheadOption = None,
    record_bytes_max: RecordBytesOption = None,
    segment_bytes_max: SegmentBytesOption = None,
    segment_age_max: SegmentAgeOption = None,
    home: HomeOption = None,
) -> None:
    """Change a topic's settings: how long it keeps, added columns, wider types, more partitions.

    Example: mainstem topic alter orders --keep "30 days" --add-column "note STRING"
    """
    if add_column and schema is not None:
        raise typer.BadParameter("give the whole schema, or columns to add", param_hint="--add-column")
    changes = _given(
        schema=schema, partitions=partitions, keep=_keep(keep, tombstones, lag_min, lag_max), archive=archive,
        idle_after=idle_after, ahead_max=ahead_max, record_bytes_max=record_bytes_max,
        segment_bytes_max=segment_bytes_max, segment_age_max=segment_age_max,
    )  # fmt: skip
    if not changes and not add_column:
        raise typer.BadParameter("say what is to change, for instance --keep", param_hint="alter")
    with open_home(home) as stem:
        there = stem.topic(topic)
        if add_column:
            changes["schema"] = ", ".join([there.ddl, *add_column])
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            there.alter(**changes)
        typer.echo(f"altered topic {there.name}")
        for warning in warned:
            show_note(f"Warning: {warning.message}")


@app.command()
def delete(topic: TopicArgument, *, yes: YesOption = False, home: HomeOption = None) -> None:
    """Delete a topic with its records, groups and queues.

    Example: mainstem topic delete orders --yes
    """
    from mainstem.workbench.cli.topic_facts import topic_facts

    with open_home(home) as stem:
        facts = topic_facts(stem.topic(topic))
        groups, queues = len(facts.topic.groups()), len(facts.topic.queues())
        if not yes:
            holds = f"{counted(facts.records, 'record')}, {counted(groups, 'group')} and {counted(queues, 'queue')}"
            confirm(f'Delete topic "{topic}" with {holds}?')
        stem.delete_topic(topic)
        typer.echo(f"deleted topic {topic}")


def _given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _keep(keep: str | None, tombstones: str | None, lag_min: str | None, lag_max: str | None) -> Keep | None:
    from mainstem.log.keep_rule import Keep

    times = _given(tombstones=tombstones, lag_min=lag_min, lag_max=lag_max)
    rule = None if keep is None else Keep.parse(keep)
    if not times:
        return rule
    if rule is None or not rule.compacted:
        raise Invalid(
            f"--{next(iter(times)).replace('_', '-')} says nothing about this topic",
            detail="It belongs to a topic that keeps the latest record per key.",
            hint='Give --keep "latest per key" with it.',
        )
    return Keep.latest_per_key(**times)


app.command("append")(append_command.append)
app.command("adopt")(adopt_command.adopt)
app.command("copy")(copy_command.copy)
app.command("read")(read_command.read)
app.command("seal")(upkeep_commands.seal)
app.command("compact")(upkeep_commands.compact)
app.command("verify")(upkeep_commands.verify)
