"""`mainstem queue`: takes and settles messages of a topic."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.clock import SystemClock
from mainstem.errors import FellOff, MainstemError, MissedDeletions, NotFound
from mainstem.workbench.cli.command_arguments import (
    POSITION_HELP,
    HomeOption,
    OnlyTopicArgument,
    TopicArgument,
    YesOption,
    confirm,
    open_home,
    parse_position,
)
from mainstem.workbench.cli.command_tree import new_noun
from mainstem.workbench.cli.error_text import with_facts
from mainstem.workbench.cli.json_output import AllColumnsOption, JsonOption, RowsJsonOption, print_json, print_outcome
from mainstem.workbench.cli.list_entry import entries_by_topic, json_entry, table_row
from mainstem.workbench.cli.queue_messages import open_messages, show_messages
from mainstem.workbench.cli.terminal_table import (
    ALL_COLUMNS,
    LAG_COLUMNS,
    Column,
    GrowingTable,
    is_terminal,
    lag_cells,
    moment,
    show_count,
    show_facts,
    show_note,
    show_table,
)

if TYPE_CHECKING:
    from mainstem.log.queues.message import Message
    from mainstem.log.queues.queue import Queue
    from mainstem.log.queues.queue_description import QueueDescription
    from mainstem.log.topic import Topic
    from mainstem.stem import Mainstem

__all__ = ["QueueArgument", "app", "queue_json", "take"]


# `mainstem queue take`: prints messages, which are held by their lease until they are settled by receipt.


QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
NEW = "Only for a new queue"


class MessageFormat(StrEnum):
    """How messages are written."""

    TABLE = "table"
    JSON = "json"


class Growth(StrEnum):
    """How the delay grows with each delivery."""

    LINEAR = "linear"
    EXPONENTIAL = "exponential"


def take(
    topic: TopicArgument,
    queue: QueueArgument,
    *,
    count: Annotated[int, typer.Option(min=1, help="The maximum number of messages.")] = 1,
    wait: Annotated[str | None, typer.Option(help='How long to wait for the first: "5 seconds".')] = None,
    lease: Annotated[
        str | None,
        typer.Option(help='The lease: "1 minute"; default: as set for the queue.'),
    ] = None,
    form: Annotated[MessageFormat, typer.Option("--format", help="The output format.")] = MessageFormat.TABLE,
    as_json: RowsJsonOption = False,
    all_columns: AllColumnsOption = False,
    deliveries_max: Annotated[
        int | None,
        typer.Option(help=f"{NEW}: the number of deliveries before a message is rejected."),
    ] = None,
    retry: Annotated[str | None, typer.Option(help=f"{NEW}: the delay of a released message.")] = None,
    retry_max: Annotated[str | None, typer.Option(help=f"{NEW}: the maximum of that delay.")] = None,
    retry_growth: Annotated[Growth, typer.Option(help=f"{NEW}: how it grows.")] = Growth.LINEAR,
    ordered: Annotated[
        str | None, typer.Option(help=f'{NEW}: "by key" delivers one message of a key at a time.')
    ] = None,
    where: Annotated[
        str | None, typer.Option(help=f"{NEW}: SQL over the row, such as amount > 10 or routed(kind, 'lazy.#').")
    ] = None,
    expires: Annotated[str | None, typer.Option(help=f"{NEW}: reject messages not taken for this long.")] = None,
    length_max: Annotated[
        int | None,
        typer.Option(help=f"{NEW}: the maximum number of waiting messages; the oldest are rejected."),
    ] = None,
    start: Annotated[str | None, typer.Option(help=f"{NEW}: its start; default: earliest.")] = None,
    home: HomeOption = None,
) -> None:
    """Take messages, and print them with their receipts. The first take creates the queue.

    They are held until the lease ends, even after this command has ended: settle them by receipt with acknowledge,
    release or reject.

    Example: mainstem queue take orders emails --count 3 --lease "1 minute"
    """
    settings: dict[str, Any] = {
        name: value
        for name, value in [
            ("deliveries_max", deliveries_max), ("retry", _backoff(retry, retry_max, retry_growth)),
            ("ordered", ordered), ("where", where), ("expires", expires), ("length_max", length_max),
        ]
        if value is not None
    }  # fmt: skip
    with open_home(home) as stem:
        found = stem.topic(topic)
        opened = _open(found, queue, lease, settings, start)
        try:
            messages = opened.take(count, wait=wait)
        except MissedDeletions as error:
            hint = f"Discard the results so far and begin again: mainstem queue rewind {topic} {queue} --to earliest"
            raise with_facts(error, hint=hint) from error
        except FellOff as error:
            kept = found.backend.earliest(error.partition)
            hint = f"Continue with the first retained record: mainstem queue rewind {topic} {queue} --to {error.partition}:{kept}"
            raise with_facts(error, hint=hint) from error
        if lease is not None:
            for message in messages:
                message.extend(lease)
        if as_json or form is MessageFormat.JSON:
            _print_messages(messages)
        else:
            _show_messages(messages, found, all_columns=all_columns)


def _backoff(first: str | None, longest: str | None, growth: Growth) -> Any:
    if first is None:
        if longest is not None:
            raise typer.BadParameter("needs --retry, the first delay", param_hint="--retry-max")
        return None
    from mainstem.log.backoff import Backoff

    return Backoff(first, max=longest, growth=growth.value)


def _open(topic: Topic, name: str, lease: str | None, settings: dict[str, Any], start: str | None) -> Queue:
    """The queue. The lease of this take may differ from the queue's, so `lease` is not a conflict."""
    if name in topic.queues():
        if settings:
            there = topic.open_queue(name).describe().settings
            return topic.queue(name, lease=there.lease, held_by="lease", **settings)
        return topic.open_queue(name, held_by="lease")
    begin = parse_position(start or "earliest", "--start")
    made = topic.queue(name, lease=lease, start=begin, held_by="lease", **settings)
    show_note(f'queue "{name}" of topic "{topic.name}" is new')
    return made


def _print_messages(messages: list[Message]) -> None:
    from mainstem.log.rows.plain_values import json_line, python_value

    for message in messages:
        facts = {
            "receipt": message.receipt, "partition": message.partition, "offset": message.offset,
            "key": message.key, "deliveries": message.deliveries, "redelivered": message.redelivered,
            "held_until": python_value(message.held_until), "appended_at": python_value(message.appended_at),
            "change": message.change, "headers": [[key, python_value(value)] for key, value in message.headers],
            "row": {name: python_value(value) for name, value in message.row.items()},
        }  # fmt: skip
        typer.echo(json_line(facts))


def _show_messages(messages: list[Message], topic: Topic, *, all_columns: bool) -> None:
    import pyarrow as pa

    from mainstem.workbench.cli.row_output import column_of, shown_cells, today_of

    if not messages:
        show_note("no message to take")
        return
    # A column may have been added to the topic since these rows were read.
    fields = [field for field in topic.settings.schema if field.name in messages[0].row]
    today = today_of(SystemClock()) if is_terminal() else None
    cells = [
        [message.receipt for message in messages],
        [str(message.deliveries) for message in messages],
        [moment(message.held_until) for message in messages],
        *(shown_cells(pa.array([message.row[it.name] for message in messages], it.type), today) for it in fields),
    ]
    columns = [
        Column("receipt", style="bold", firm=True), Column("delivery", "right"), Column("held until", firm=True),
        *map(column_of, fields),
    ]  # fmt: skip
    table = GrowingTable(columns, complete=all_columns)
    table.add(list(zip(*cells, strict=True)))
    table.close(ALL_COLUMNS)


app = new_noun()

ReceiptsArgument = Annotated[
    list[str], typer.Argument(metavar="RECEIPT...", help="The receipts that `queue take` printed.")
]


def _open_existing(stem: Mainstem, topic: str, queue: str) -> Queue:
    """An existing queue; only `take` creates one."""
    try:
        return stem.topic(topic).open_queue(queue, held_by="lease")
    except NotFound as error:
        if "topic" in type(error).__name__.lower():
            raise
        near = error.hint if error.hint.startswith("Did you mean") else ""
        raise with_facts(
            error, hint=near or f"The first take creates it: mainstem queue take {topic} {queue}"
        ) from error


@app.command("list")
def list_queues(
    topic: OnlyTopicArgument = None,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List the queues of a topic, or of all topics.

    Example: mainstem queue list orders
    """
    with open_home(home) as stem:
        found = entries_by_topic(
            stem, topic, "queue", lambda topic: topic.queues(), lambda topic, name: topic.open_queue(name).describe()
        )
        if as_json:
            print_json([json_entry(it, queue_json) for it in found])
            return
        show_table(
            [
                Column("topic"), Column("queue", style="bold"), Column("held", "right"), Column("returned", "right"),
                Column("parked", "right"), Column("rejected", "right"), *LAG_COLUMNS,
            ],
            (table_row(it, _list_row) for it in found),
            empty="no queues yet",
        )  # fmt: skip


def _list_row(it: QueueDescription) -> list[str]:
    return [
        it.topic, it.name, show_count(it.held), show_count(it.returned), show_count(it.parked), show_count(it.rejected),
        *lag_cells(it.lag),
    ]  # fmt: skip


def queue_json(it: QueueDescription) -> dict[str, Any]:
    return {
        "topic": it.topic,
        "queue": it.name,
        "rejected_topic": it.rejected_topic,
        "settings": it.settings.to_json(),
        "waiting": it.waiting,
        "held": it.held,
        "returned": it.returned,
        "due": it.due,
        "delayed": it.returned - it.due,
        "parked": it.parked,
        "rejecting": it.rejecting,
        "rejected": it.rejected,
        "cursors": it.cursors,
        "counts": it.counts,
        "lag": it.lag,
    }


@app.command()
def describe(
    topic: TopicArgument, queue: QueueArgument, *, as_json: JsonOption = False, home: HomeOption = None
) -> None:
    """Describe a queue: its settings, its counters, and its held, delayed, parked and rejected messages.

    Of each kind up to 100 messages are shown: of the rejected ones the last, of the others the oldest.

    Example: mainstem queue describe orders emails
    """
    with open_home(home) as stem:
        found = _open_existing(stem, topic, queue)
        facts, messages = found.describe(), open_messages(found)
        if as_json:
            print_json({**queue_json(facts), "messages": messages})
            return
        _show(facts)
        show_messages(messages)


def _show(facts: QueueDescription) -> None:
    given = facts.settings.to_json()
    retry = "at once" if facts.settings.retry is None else f"after {facts.settings.retry}"
    show_facts(
        [
            ("queue", facts.name),
            ("topic", facts.topic),
            ("rejected go to", facts.rejected_topic),
            ("lease", str(given["lease"])),
            (
                "deliveries",
                "without limit" if given["deliveries_max"] is None else f"at most {given['deliveries_max']}",
            ),
            ("again", retry),
            ("ordered", facts.settings.ordered or "as they come"),
            ("where", facts.settings.where or "every record"),
            ("expires", str(given["expires"] or "never")),
            ("length", "without limit" if given["length_max"] is None else f"at most {given['length_max']}"),
            ("read up to", ", ".join(f"{partition}:{cursor}" for partition, cursor in facts.cursors.items())),
            ("so far", ", ".join(f"{show_count(n)} {name}" for name, n in facts.counts.items()) or "nothing"),
        ]
    )
    typer.echo()
    show_table(
        [Column("waiting", "right"), Column("held", "right"), Column("returned", "right"), Column("of them due", "right"),
         Column("parked", "right"), Column("rejected", "right"), *LAG_COLUMNS],
        [[show_count(facts.waiting), show_count(facts.held), show_count(facts.returned), show_count(facts.due), show_count(facts.parked), show_count(facts.rejected), *lag_cells(facts.lag)]],
    )  # fmt: skip


app.command("take")(take)


def _each(
    topic: str, queue: str, receipts: list[str], done: str, settle: Callable[[str], None], *, as_json: bool
) -> None:
    """Settle receipts one after another. Stops at an invalid one, and says how many were settled before."""
    wanted = list(dict.fromkeys(receipts))
    for number, receipt in enumerate(wanted):
        try:
            settle(receipt)
        except MainstemError as error:
            facts = f"{error.detail} Of {show_count(len(wanted), 'receipt')}, {number} were {done} before this one."
            raise with_facts(error, detail=facts) from error
    _settled(topic, queue, wanted, done, as_json=as_json)


def _settled(topic: str, queue: str, receipts: list[str], done: str, *, as_json: bool) -> None:
    said = f"{done} {show_count(len(receipts), 'message')}"
    print_outcome(done, said, as_json=as_json, topic=topic, queue=queue, receipts=receipts)


@app.command()
def acknowledge(
    topic: TopicArgument,
    queue: QueueArgument,
    receipts: ReceiptsArgument,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Acknowledge messages (ack): they are done and not delivered again.

    Example: mainstem queue acknowledge orders emails 0-17-1
    """
    with open_home(home) as stem:
        found = _open_existing(stem, topic, queue)
        found.acknowledge(receipts)
        _settled(topic, queue, list(dict.fromkeys(receipts)), "acknowledged", as_json=as_json)


@app.command()
def release(
    topic: TopicArgument,
    queue: QueueArgument,
    receipts: ReceiptsArgument,
    *,
    delay: Annotated[
        str | None,
        typer.Option(help='The delay: "10 seconds"; default: by the retry of the queue.'),
    ] = None,
    error: Annotated[str | None, typer.Option(help="The error, stored with the message.")] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Return messages, to be delivered again (nack).

    Example: mainstem queue release orders emails 0-17-1 --delay "10 seconds" --error "mail server is down"
    """
    with open_home(home) as stem:
        found = _open_existing(stem, topic, queue)
        _each(
            topic,
            queue,
            receipts,
            "released",
            lambda receipt: found.release(receipt, delay=delay, error=error),
            as_json=as_json,
        )


@app.command()
def reject(
    topic: TopicArgument,
    queue: QueueArgument,
    receipts: ReceiptsArgument,
    *,
    reason: Annotated[str, typer.Option(help="Why it can never be processed.")],
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Send messages to TOPIC.QUEUE.rejected (the dead letter topic), with the reason.

    Example: mainstem queue reject orders emails 0-17-1 --reason "no such address"
    """
    with open_home(home) as stem:
        found = _open_existing(stem, topic, queue)
        _each(topic, queue, receipts, "rejected", lambda receipt: found.reject(receipt, reason), as_json=as_json)


PositionsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[POSITION...]", help="Their positions, as `queue describe` shows them: 0:17."),
]
AllOption = Annotated[bool, typer.Option("--all", help="All rejected messages.")]


@app.command()
def restore(
    topic: TopicArgument,
    queue: QueueArgument,
    positions: PositionsArgument = None,
    *,
    every: AllOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Deliver rejected messages again (redrive), as if never delivered. A message is restored once.

    Example: mainstem queue restore orders emails 0:17
    """
    with open_home(home) as stem:
        found = _open_existing(stem, topic, queue)
        wanted = _rejected_positions(found, positions, "Restore", every=every, yes=yes)
        found.restore(wanted)
        _print_settled(topic, queue, wanted, "restored", as_json=as_json)


@app.command()
def drop(
    topic: TopicArgument,
    queue: QueueArgument,
    positions: PositionsArgument = None,
    *,
    every: AllOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Drop rejected messages: they cannot be restored any more. Their rows stay in TOPIC.QUEUE.rejected.

    Example: mainstem queue drop orders emails 0:17
    """
    with open_home(home) as stem:
        found = _open_existing(stem, topic, queue)
        wanted = _rejected_positions(found, positions, "Drop", every=every, yes=yes)
        found.drop(wanted)
        _print_settled(topic, queue, wanted, "dropped", as_json=as_json)


def _rejected_positions(queue: Queue, given: list[str] | None, done: str, *, every: bool, yes: bool) -> list[str]:
    if every == bool(given):
        raise typer.BadParameter("give positions, or --all for every rejected message", param_hint="POSITION")
    if given:
        return list(dict.fromkeys(given))
    found = [f"{partition}:{offset}" for partition, offset in queue.rejected_positions()]
    if found and not yes:
        confirm(f'{done} {show_count(len(found), "rejected message")} of queue "{queue.name}"?')
    return found


def _print_settled(topic: str, queue: str, positions: list[str], done: str, *, as_json: bool) -> None:
    said = f"{done} {show_count(len(positions), 'message')}"
    print_outcome(done, said, as_json=as_json, topic=topic, queue=queue, positions=positions)


@app.command()
def rewind(
    topic: TopicArgument,
    queue: QueueArgument,
    *,
    to: Annotated[str, typer.Option(help=f"The position: {POSITION_HELP}.")],
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Rewind a queue: to a time, as it was then; to another position, as if no message from there on was delivered.

    Example: mainstem queue rewind orders emails --to earliest
    """
    with open_home(home) as stem:
        found = _open_existing(stem, topic, queue)
        found.rewind(parse_position(to, "--to"))
        said = f"rewound queue {queue} of {topic} to {to}"
        print_outcome("rewound", said, as_json=as_json, **(queue_json(found.describe()) if as_json else {}))


@app.command()
def delete(
    topic: TopicArgument,
    queue: QueueArgument,
    *,
    yes: YesOption = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Delete a queue. Its topic and its rejected messages are kept.

    Example: mainstem queue delete orders emails --yes
    """
    with open_home(home) as stem:
        found = _open_existing(stem, topic, queue)
        if not yes:
            facts = found.describe()
            confirm(
                f'Delete queue "{queue}" of topic "{topic}", with {show_count(facts.held, "message")} held '
                f"and {show_count(facts.lag.records, 'record')} not settled?"
            )
        found.delete()
        print_outcome("deleted", f"deleted queue {queue} of {topic}", as_json=as_json, topic=topic, queue=queue)
