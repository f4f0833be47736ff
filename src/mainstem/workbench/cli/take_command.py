"""`mainstem queue take`: messages on the terminal, held by their lease alone until they are settled by receipt."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.errors import FellOff, MissedDeletions
from mainstem.workbench.cli.amounts import moment
from mainstem.workbench.cli.error_text import with_facts
from mainstem.workbench.cli.home_option import HomeOption, open_home
from mainstem.workbench.cli.position_text import parse_position
from mainstem.workbench.cli.terminal_table import Column, GrowingTable, show_note
from mainstem.workbench.cli.topic_argument import TopicArgument

if TYPE_CHECKING:
    from mainstem.log.message import Message
    from mainstem.log.queue import Queue
    from mainstem.log.topic import Topic

__all__ = ["QueueArgument", "take"]

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.", show_default=False)]
NEW = "Only for a queue that is not there yet"


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
    count: Annotated[int, typer.Option(min=1, help="How many messages at most.")] = 1,
    wait: Annotated[
        str | None, typer.Option(help='How long to wait for the first: "5 seconds".', show_default=False)
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(help='How long to hold them: "1 minute"; else as the queue has it.', show_default=False),
    ] = None,
    form: Annotated[MessageFormat, typer.Option("--format", help="How to write them.")] = MessageFormat.TABLE,
    deliveries_max: Annotated[
        int | None,
        typer.Option(help=f"{NEW}: give a message out so often, then reject it.", show_default=False),
    ] = None,
    retry: Annotated[
        str | None, typer.Option(help=f"{NEW}: the delay of a released message.", show_default=False)
    ] = None,
    retry_max: Annotated[
        str | None, typer.Option(help=f"{NEW}: up to where that delay grows.", show_default=False)
    ] = None,
    retry_growth: Annotated[Growth, typer.Option(help=f"{NEW}: how it grows.")] = Growth.LINEAR,
    ordered: Annotated[
        str | None, typer.Option(help=f'{NEW}: "by key" gives out one message of a key at a time.', show_default=False)
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            help=f"{NEW}: SQL over the row, such as amount > 10 or routed(kind, 'lazy.#').", show_default=False
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help=f"{NEW}: reject what was not taken for so long.", show_default=False)
    ] = None,
    length_max: Annotated[
        int | None, typer.Option(help=f"{NEW}: with more waiting, reject the oldest.", show_default=False)
    ] = None,
    start: Annotated[str | None, typer.Option(help=f"{NEW}: where it begins; earliest.", show_default=False)] = None,
    home: HomeOption = None,
) -> None:
    """Take messages, and print them with their receipts. The first take makes the queue.

    They are held until the lease ends, also when this command has ended: settle them by receipt with acknowledge,
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
            hint = f"Begin again, without what was made of the messages so far: mainstem queue rewind {topic} {queue} --to earliest"
            raise with_facts(error, hint=hint) from error
        except FellOff as error:
            kept = found.backend.earliest(error.partition)
            hint = f"Go on with the first record that is kept: mainstem queue rewind {topic} {queue} --to {error.partition}:{kept}"
            raise with_facts(error, hint=hint) from error
        if lease is not None:
            for message in messages:
                message.extend(lease)
        _show(messages, form)


def _backoff(first: str | None, longest: str | None, growth: Growth) -> Any:
    if first is None:
        if longest is not None:
            raise typer.BadParameter("needs --retry, the first delay", param_hint="--retry-max")
        return None
    from mainstem.log.backoff import Backoff

    return Backoff(first, max=longest, growth=growth.value)


def _open(topic: Topic, name: str, lease: str | None, settings: dict[str, Any], start: str | None) -> Queue:
    """The queue. How long this take holds is not what the queue was made with, so `lease` is no conflict."""
    if name in topic.queues():
        if settings:
            there = topic.open_queue(name).describe().settings
            return topic.queue(name, lease=there.lease, held_by="lease", **settings)
        return topic.open_queue(name, held_by="lease")
    begin = parse_position(start or "earliest", "--start")
    made = topic.queue(name, lease=lease, start=begin, held_by="lease", **settings)
    show_note(f'queue "{name}" of topic "{topic.name}" is new')
    return made


def _show(messages: list[Message], form: MessageFormat) -> None:
    from mainstem.log.plain_values import cell_text, json_line, python_value

    rows = [{name: python_value(value) for name, value in message.row.items()} for message in messages]
    if form is MessageFormat.JSON:
        for message, row in zip(messages, rows, strict=True):
            facts = {
                "receipt": message.receipt, "partition": message.partition, "offset": message.offset,
                "key": message.key, "deliveries": message.deliveries, "redelivered": message.redelivered,
                "held_until": python_value(message.held_until), "appended_at": python_value(message.appended_at),
                "change": message.change, "headers": [[key, python_value(value)] for key, value in message.headers],
                "row": row,
            }  # fmt: skip
            typer.echo(json_line(facts))
        return
    if not messages:
        show_note("no message to take")
        return
    names = list(rows[0])
    firm = [Column("receipt", style="bold", firm=True), Column("delivery", "right", firm=True)]
    table = GrowingTable([*firm, Column("held until", firm=True), *map(Column, names)])
    table.add(
        [
            [message.receipt, str(message.deliveries), moment(message.held_until)]
            + ["null" if row[name] is None else cell_text(row[name]) for name in names]
            for message, row in zip(messages, rows, strict=True)
        ]
    )
