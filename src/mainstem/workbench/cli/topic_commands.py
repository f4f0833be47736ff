"""`mainstem topic`: create, list, describe, alter, delete, adopt, copy, seal, compact, verify; also append and read."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from mainstem.durations import show_duration, show_size
from mainstem.errors import AlreadyExists, Corrupt, Invalid
from mainstem.workbench.cli.append_command import append
from mainstem.workbench.cli.command_arguments import (
    HomeOption,
    TakeOverOption,
    TopicArgument,
    YesOption,
    confirm,
    open_home,
    split_words,
    take_over_if,
)
from mainstem.workbench.cli.command_tree import new_noun
from mainstem.workbench.cli.error_text import FAILED, show_damage
from mainstem.workbench.cli.json_output import JsonOption, print_json, print_outcome
from mainstem.workbench.cli.list_entry import Unreadable, json_entry, table_row, try_look
from mainstem.workbench.cli.read_command import read
from mainstem.workbench.cli.terminal_table import (
    LAG_COLUMNS,
    Column,
    about_size,
    lag_cells,
    moment,
    show_count,
    show_facts,
    show_note,
    show_progress,
    show_table,
)

if TYPE_CHECKING:
    from mainstem.log.lag import Lag
    from mainstem.log.topic import Topic
    from mainstem.log.upkeep_report import CompactionReport, PartitionFacts, RetentionReport
    from mainstem.stem import Mainstem

__all__ = ["SETTINGS", "TopicFacts", "app", "topic_facts", "with_settings"]

app = new_noun()


# The facts about a topic: its settings, its partitions, and its readers.


@dataclass(frozen=True)
class TopicFacts:
    """A topic as it is now."""

    topic: Topic
    partitions: tuple[PartitionFacts, ...]

    @property
    def records(self) -> int:
        return sum(partition.records for partition in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(partition.bytes for partition in self.partitions)

    @property
    def appended_at(self) -> datetime | None:
        """When the last record was appended."""
        return max((it.appended_at for it in self.partitions if it.appended_at is not None), default=None)

    @property
    def damage(self) -> list[str]:
        """The damage found in its partitions."""
        return [f"partition {it.partition}: {it.damage}" for it in self.partitions if it.damage is not None]

    def lags(self) -> dict[str, dict[str, Lag | Unreadable]]:
        """The lag of each "group" and each "queue", by its name."""
        group, queue = self.topic.group, self.topic.open_queue
        return {
            "group": {name: try_look({}, lambda it: group(it).lag(), name) for name in self.topic.groups()},
            "queue": {name: try_look({}, lambda it: queue(it).lag(), name) for name in self.topic.queues()},
        }

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        settings = self.topic.settings
        written = settings.to_json()
        return {
            "topic": self.topic.name,
            "schema": self.topic.ddl,
            **{name: written[name] for name in SETTINGS if name in written},
            "keep": str(settings.keep),
            "records": self.records,
            "bytes": self.bytes,
            "appended_at": self.appended_at,
            "partitions": self.partitions,
            "damage": self.damage,
            **{
                f"{noun}s": [
                    {noun: name, **json_entry(entry, lambda lag: {"lag": lag})} for name, entry in lags.items()
                ]
                for noun, lags in self.lags().items()
            },
        }


def topic_facts(topic: Topic) -> TopicFacts:
    """The facts of a topic."""
    return TopicFacts(topic, tuple(_facts(topic, number) for number in range(topic.settings.partitions)))


def _facts(topic: Topic, number: int) -> PartitionFacts:
    from mainstem.log.upkeep_report import PartitionFacts

    try:
        return topic.backend.partition_facts(number)
    except Corrupt as error:
        damage = error.summary
    start = end = 0
    with suppress(Corrupt):
        end = topic.backend.latest(number)
        start = topic.backend.earliest(number)
    return PartitionFacts(number, start, end, max(0, end - start), 0, damage=damage)


# The settings of a topic as options, with the names of `TopicSettings` and `Keep`.

# The help of each option, with its default; a test compares the defaults.
SETTINGS = {
    "key": "The key columns, which determine a row's partition.",
    "event_time": "The TIMESTAMP column with the event time.",
    "partitions": "Number of partitions; 1.",
    "keep": '"7 days", "10 GiB", both with a comma, "forever", or "latest per key" (a compacted topic).',
    "tombstones": "Latest per key: how long tombstones are kept; 1 day.",
    "lag_min": "Latest per key: younger records are not compacted.",
    "lag_max": "Latest per key: no record waits longer for compaction.",
    "archive": "Copy sealed segments here before they are dropped.",
    "idle_after": "A partition without appends for this long does not hold back the watermark; 1 minute.",
    "ahead_max": "Event times further ahead do not move the watermark; 1 hour.",
    "record_bytes_max": "Maximum size of a record; 16 MiB.",
    "segment_bytes_max": "Maximum size of a segment; 64 MiB.",
    "segment_age_max": "Maximum age of a segment; 1 hour.",
}
FIXED = ("key", "event_time")
TIMES_PER_KEY = ("tombstones", "lag_min", "lag_max")
METAVARS = {"key": "COLUMN,...", "event_time": "COLUMN", "archive": "DIR"}

SchemaOption = Annotated[str, typer.Option(help='The columns in the DDL of Spark: "order_id STRING, amount DOUBLE".')]
Command = TypeVar("Command", bound=Callable[..., None])


def with_settings(*names: str) -> Callable[[Command], Command]:
    """Adds an option for each of these settings to a command; they are passed as `**settings`, None if not given."""

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        *first, home, _ = signature.parameters.values()
        command.__signature__ = signature.replace(parameters=[*first, *map(_option, names), home])  # type: ignore[attr-defined]
        return command

    return decorate


def _option(setting: str) -> inspect.Parameter:
    option = typer.Option(None, metavar=METAVARS.get(setting), help=SETTINGS[setting])
    kind = int | None if setting == "partitions" else str | None
    return inspect.Parameter(setting, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind)


def _parse_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The given settings, as the log takes them."""
    from mainstem.log.keep_rule import Keep

    given = {name: value for name, value in settings.items() if value is not None}
    times = {name: given.pop(name) for name in TIMES_PER_KEY if name in given}
    if "key" in given:
        given["key"] = split_words(given["key"])
    if "keep" in given:
        given["keep"] = Keep.parse(given["keep"])
    if times:
        if "keep" not in given or not given["keep"].compacted:
            raise Invalid(
                f"--{next(iter(times)).replace('_', '-')} does not apply to this topic",
                detail="It applies to a topic that keeps the latest record per key.",
                hint='Give --keep "latest per key" with it.',
            )
        given["keep"] = Keep.latest_per_key(**times)
    return given


@app.command()
@with_settings(*SETTINGS)
def create(
    topic: TopicArgument, *, schema: SchemaOption, as_json: JsonOption = False, home: HomeOption = None, **settings: Any
) -> None:
    """Create a topic, and the home if it does not exist. A topic that exists with the same settings is not changed.

    Example: mainstem topic create orders --schema "order_id STRING, amount DOUBLE" --key order_id --keep "7 days"
    """
    given = _parse_settings(settings)
    with open_home(home, missing="make") as stem:
        there = topic in stem.topics()
        if not there and topic in stem.views():
            raise AlreadyExists(
                f'"{topic}" is the name of a view',
                detail="In SQL a topic hides the view of the same name.",
                hint="Give the topic another name.",
            )
        made = stem.create_topic(topic, schema=schema, **given)
        said = f"topic {made.name} exists already, with these settings" if there else f"created topic {made.name}"
        _tell(made, "exists" if there else "created", said, as_json=as_json)


def _tell(topic: Topic, outcome: str, said: str, *, as_json: bool) -> None:
    print_outcome(outcome, said, as_json=as_json, **(topic_facts(topic).to_json() if as_json else {}))


@app.command("list")
def list_topics(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the topics.

    Example: mainstem topic list
    """
    with open_home(home) as stem:
        found = [try_look({"topic": name}, _find, stem, name) for name in stem.topics()]
        if as_json:
            print_json([json_entry(it, TopicFacts.to_json) for it in found])
            return
        columns = [
            Column("topic", style="bold"), Column("partitions", "right"), Column("records", "right"),
            Column("size", "right", spared=2), Column("keep"), Column("last append", firm=True, spared=1), Column("groups", "right"),
            Column("queues", "right"),
        ]  # fmt: skip
        if any(isinstance(it, Unreadable) or it.damage for it in found):
            columns.append(Column("damage"))
        rows = [_list_row(it)[: len(columns)] for it in found]
        show_table(columns, rows, empty="no topics yet")


def _find(stem: Mainstem, name: str) -> TopicFacts:
    return topic_facts(stem.topic(name))


def _list_row(it: TopicFacts | Unreadable) -> list[str]:
    if isinstance(it, Unreadable):
        return [it.names["topic"], "", "", "", "", "", "", "", f"cannot be read: {it.error}"]
    return [
        it.topic.name, str(len(it.partitions)), show_count(it.records), about_size(it.bytes), str(it.topic.settings.keep),
        moment(it.appended_at), str(len(it.topic.groups())), str(len(it.topic.queues())), "; ".join(it.damage),
    ]  # fmt: skip


@app.command()
def describe(topic: TopicArgument, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Describe a topic: its settings, its partitions, and the lag of its groups and queues.

    Example: mainstem topic describe orders
    """
    from mainstem.workbench.cli.schema_history import schema_history

    with open_home(home) as stem:
        facts = topic_facts(stem.topic(topic))
        schemas = schema_history(stem, facts.topic)
        if as_json:
            print_json({**facts.to_json(), "schemas": schemas})
            return
        _show(facts)
        if len(schemas) > 1:
            typer.echo()
            show_table(
                [Column("schema", "right", style="bold"), Column("since", firm=True), Column("changed")],
                (
                    [str(it["version"]), "" if it["since"] is None else moment(it["since"]), "; ".join(it["changes"])]
                    for it in schemas
                ),
            )


def _show(facts: TopicFacts) -> None:
    topic, settings = facts.topic, facts.topic.settings
    show_facts(
        [
            ("topic", topic.name),
            ("schema", topic.ddl.replace(", ", ",\n") if len(topic.ddl) > 80 and "<" not in topic.ddl else topic.ddl),
            ("key", ", ".join(settings.key) or "none"),
            ("event time", settings.event_time or "none"),
            ("keep", str(settings.keep)),
            ("archive", settings.archive or "none"),
            ("records", f"{show_count(facts.records)} in {about_size(facts.bytes)}"),
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
            Column("size", "right", spared=2), Column("segments", "right"), Column("sealed", "right"), Column("last append", firm=True, spared=1),
        ],
        (
            [
                str(it.partition), show_count(it.start), show_count(it.end), show_count(it.records), about_size(it.bytes),
                "" if it.segments is None else str(it.segments), "" if it.sealed is None else str(it.sealed),
                moment(it.appended_at),
            ]
            for it in facts.partitions
        ),
    )  # fmt: skip
    for damage in facts.damage:
        typer.echo(f"damaged: {damage}")
    for noun, lags in facts.lags().items():
        typer.echo()
        rows = ([name, *table_row(entry, lag_cells)] for name, entry in lags.items())
        show_table([Column(noun, style="bold"), *LAG_COLUMNS], rows, empty=f"no {noun}s")


@app.command()
@with_settings(*(name for name in SETTINGS if name not in (*FIXED, "partitions")))
def alter(
    topic: TopicArgument,
    *,
    add_column: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help='A column to add: "note STRING"; may be repeated.'),
    ] = None,
    schema: Annotated[str | None, typer.Option(help="All columns, some of them new or of a wider type.")] = None,
    partitions: Annotated[int | None, typer.Option(help="The new number of partitions.")] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
    **settings: Any,
) -> None:
    """Change a topic's settings: its retention, new columns, wider types, more partitions.

    Example: mainstem topic alter orders --keep "30 days" --add-column "note STRING"
    """
    if add_column and schema is not None:
        raise typer.BadParameter("give the whole schema, or columns to add", param_hint="--add-column")
    changes = _parse_settings({"schema": schema, "partitions": partitions, **settings})
    if not changes and not add_column:
        raise typer.BadParameter("say what is to change, for instance --keep", param_hint="alter")
    with open_home(home) as stem:
        there = stem.topic(topic)
        if add_column:
            changes["schema"] = ", ".join([there.ddl, *add_column])
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            there.alter(**changes)
        _tell(there, "altered", f"altered topic {there.name}", as_json=as_json)
        for warning in warned:
            show_note(f"Warning: {warning.message}")


@app.command()
def delete(
    topic: TopicArgument, *, yes: YesOption = False, as_json: JsonOption = False, home: HomeOption = None
) -> None:
    """Delete a topic with its records, groups and queues.

    Example: mainstem topic delete orders --yes
    """
    with open_home(home) as stem:
        facts = topic_facts(stem.topic(topic))
        groups, queues = len(facts.topic.groups()), len(facts.topic.queues())
        if not yes:
            holds = f"{show_count(facts.records, 'record')}, {show_count(groups, 'group')} and {show_count(queues, 'queue')}"
            confirm(f'Delete topic "{topic}" with {holds}?')
        stem.delete_topic(topic)
        print_outcome("deleted", f"deleted topic {topic}", as_json=as_json, topic=topic)


app.command("append")(append)


@app.command()
@with_settings(*FIXED)
def adopt(
    topic: TopicArgument,
    *,
    schema: SchemaOption,
    codec: Annotated[str, typer.Option(help='The format of the values: "json", "raw" or "debezium".')] = "json",
    as_json: JsonOption = False,
    home: HomeOption = None,
    **settings: Any,
) -> None:
    """Adopt a Kafka topic of other programs, without changing it. The home's kafka.toml names the brokers.

    A value that does not match the schema goes to the topic NAME.unreadable, with its bytes and the reason.

    Example: mainstem topic adopt clicks --schema "page STRING, clicked_at TIMESTAMP" --home data/shop
    """
    with open_home(home) as stem:
        adopted = stem.adopt_topic(topic, schema=schema, codec=codec, **_parse_settings(settings))
        said = f"adopted topic {adopted.name}, {show_count(adopted.settings.partitions, 'partition')}"
        _tell(adopted, "adopted", said, as_json=as_json)


@app.command()
def copy(
    topic: TopicArgument,
    *,
    source: Annotated[str, typer.Option("--from", metavar="HOME|kafka://...", help="The source log.")],
    target: Annotated[str, typer.Option("--to", metavar="HOME|kafka://...", help="The target log.")],
    codec: Annotated[str | None, typer.Option(help='On Kafka: "json" (default), "raw" or "arrow".')] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a topic to another log: its settings and its existing records. A repeated copy continues where it ended.

    At the end both are read and compared: the number of records and the checksum of each partition.

    Example: mainstem topic copy orders --from data/shop --to kafka://broker1:9092
    """
    from mainstem.log.topic_copy import copy_topic

    with _open_log(source, "refuse") as here, _open_log(target, "make") as there:
        original = here.topic(topic)
        numbers = range(original.settings.partitions)
        total = sum(original.backend.behind(number, original.backend.earliest(number)).records for number in numbers)
        with show_progress(f"copying {topic}", total=total) as progress:
            parts = copy_topic(
                original, there.log, codec=codec, progress=lambda done: progress.advance_to(done, str(done))
            )
    if as_json:
        print_json([{name: getattr(part, name) for name in part.__slots__} for part in parts])
        return
    columns = (
        Column("partition", "right"),
        Column("records", "right"),
        Column("checksum"),
        Column("offsets"),
    )
    show_table(
        columns,
        [
            [str(part.partition), str(part.records), part.checksum, "the same" if part.same_offsets else "new ones"]
            for part in parts
        ],
    )
    records = show_count(sum(part.records for part in parts), "record")
    typer.echo(f"copied topic {topic}: {records}, equal in {show_count(len(parts), 'partition')}")


def _open_log(place: str, missing: Literal["refuse", "make"]) -> AbstractContextManager[Mainstem]:
    if place.startswith("kafka://"):
        from mainstem.stem import Mainstem, open_brokers

        # Only topics are needed, not the rest of a home.
        return Mainstem(open_brokers(place))
    return open_home(place, missing=missing)


app.command("read")(read)


# The files of a topic.


@app.command()
def seal(
    topic: TopicArgument, *, take_over: TakeOverOption = False, as_json: JsonOption = False, home: HomeOption = None
) -> None:
    """Seal everything appended so far into Parquet files; also done in the background for large or old segments.

    Example: mainstem topic seal orders
    """
    with open_home(home) as stem:
        found = stem.topic(topic)
        take_over_if(found, asked=take_over)
        with show_progress(f"seal {topic}"):
            made = found.seal()
        said = f"sealed {show_count(made, 'segment')} of {topic}" if made else f"nothing to seal in {topic}"
        print_outcome("sealed" if made else "nothing to seal", said, as_json=as_json, topic=topic, segments=made)


@app.command()
def compact(
    topic: TopicArgument, *, take_over: TakeOverOption = False, as_json: JsonOption = False, home: HomeOption = None
) -> None:
    """Remove the records that a topic need not keep: with the latest record per key, older records of each key;
    otherwise expired ones. Also done in the background while a program has the home open.

    With the latest record per key only sealed records are compacted: seal first to include all of them.

    Example: mainstem topic compact customers
    """
    from mainstem.log.keep_rule import Keep
    from mainstem.log.upkeep_report import CompactionReport

    with open_home(home) as stem:
        found = stem.topic(topic)
        keep = found.settings.keep
        if keep == Keep.forever():
            raise Invalid(
                f'topic "{topic}" keeps every record',
                detail="There is nothing to remove.",
                hint=f'Alter it first, for instance: mainstem topic alter {topic} --keep "7 days"',
            )
        take_over_if(found, asked=take_over)
        with show_progress(f"compact {topic}"):
            report = found.compact() if keep.compacted else found.drop_expired()
        if as_json:
            print_json({"topic": found.name, **dataclasses.asdict(report)})
        else:
            typer.echo(
                f"{found.name}: {_show_compaction(report) if isinstance(report, CompactionReport) else _show_retention(report)}"
            )
        if report.clock_jump is not None:
            show_note(
                f"Warning: the wall clock moved by {report.clock_jump} against the boot clock; "
                "nothing was dropped because of that."
            )


def _show_compaction(report: CompactionReport) -> str:
    return (
        f"{show_count(report.records_after)} of {show_count(report.records_before, 'record')} are left: "
        f"{show_count(report.removed)} replaced, {show_count(report.tombstones)} expired tombstones; "
        f"{about_size(report.bytes_before)} became {about_size(report.bytes_after)}"
    )


def _show_retention(report: RetentionReport) -> str:
    if not report.segments:
        return "nothing exceeds the retention"
    archived = f", {show_count(report.archived)} of them archived" if report.archived else ""
    return (
        f"dropped {show_count(report.segments, 'segment')} with {show_count(report.records, 'record')} and "
        f"{about_size(report.bytes)}{archived}"
    )


@app.command()
def verify(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="The topic; default: all.")] = None,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Read every byte and verify the checksums. The exit status is 1 if there is damage; its range is shown.

    Example: mainstem topic verify orders
    """
    with open_home(home) as stem:
        names = stem.topics() if topic is None else [topic]
        reports = []
        with show_progress("verify", total=len(names)) as progress:
            for number, name in enumerate(names):
                progress.advance_to(number, name)
                reports.append(stem.topic(name).verify())
        if as_json:
            print_json([{**dataclasses.asdict(report), "sound": report.sound} for report in reports])
        else:
            show_table(
                [
                    Column("topic", style="bold"), Column("sound"), Column("records", "right"), Column("size", "right", spared=2),
                    Column("sealed", "right"), Column("not sealed", "right"),
                ],
                (
                    [
                        report.topic, "yes" if report.sound else "NO", show_count(report.records), about_size(report.bytes),
                        str(report.sealed_segments), str(report.block_segments),
                    ]
                    for report in reports
                ),
                empty="no topics yet",
            )  # fmt: skip
            for report in reports:
                for problem in report.problems:
                    show_damage(report.topic, problem)
        if not all(report.sound for report in reports):
            raise typer.Exit(FAILED)
