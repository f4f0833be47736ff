"""`mainstem queue`: messages of a topic, taken and settled one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.errors import MainstemError, NotFound
from mainstem.workbench.cli.amounts import counted
from mainstem.workbench.cli.error_text import with_facts
from mainstem.workbench.cli.home_option import HomeOption, open_home
from mainstem.workbench.cli.json_output import JsonOption, lag_json, print_json
from mainstem.workbench.cli.lag_columns import LAG_COLUMNS, lag_cells
from mainstem.workbench.cli.list_entry import entries_by_topic, json_entry, table_row
from mainstem.workbench.cli.position_text import POSITION_HELP, parse_position
from mainstem.workbench.cli.take_command import QueueArgument, take
from mainstem.workbench.cli.terminal_table import Column, show_facts, show_table
from mainstem.workbench.cli.topic_argument import OnlyTopicArgument, TopicArgument, YesOption, confirm

if TYPE_CHECKING:
    from mainstem.log.queue import Queue
    from mainstem.log.queue_description import QueueDescription
    from mainstem.stem import Mainstem

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

ReceiptsArgument = Annotated[
    list[str], typer.Argument(metavar="RECEIPT...", help="What `queue take` printed with each message.")
]


def _opened(stem: Mainstem, topic: str, queue: str) -> Queue:
    """A queue that is there; no command but `take` makes one."""
    try:
        return stem.topic(topic).open_queue(queue, held_by="lease")
    except NotFound as error:
        if "topic" in type(error).__name__.lower():
            raise
        near = error.hint if error.hint.startswith("Did you mean") else ""
        raise with_facts(error, hint=near or f"Its first take makes it: mainstem queue take {topic} {queue}") from error


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
            print_json([json_entry(it, _list_json) for it in found])
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
        it.topic, it.name, counted(it.held), counted(it.returned), counted(it.parked), counted(_rejected(it)),
        *lag_cells(it.lag),
    ]  # fmt: skip


def _list_json(it: QueueDescription) -> dict[str, Any]:
    return {
        "topic": it.topic, "queue": it.name, "held": it.held, "returned": it.returned, "parked": it.parked,
        "rejected": _rejected(it), "lag": lag_json(it.lag),
    }  # fmt: skip


_NOT_REJECTED = frozenset({"delivered", "redelivered", "acknowledged", "released"})


def _rejected(facts: QueueDescription) -> int:
    """All that went to the rejected, for whatever cause: those are the counts that are left."""
    return sum(count for name, count in facts.counts.items() if name not in _NOT_REJECTED)


@app.command()
def describe(
    topic: TopicArgument, queue: QueueArgument, *, as_json: JsonOption = False, home: HomeOption = None
) -> None:
    """Describe a queue: its settings, how its messages stand, and what became of those before.

    Example: mainstem queue describe orders emails
    """
    with open_home(home) as stem:
        facts = _opened(stem, topic, queue).describe()
        if as_json:
            print_json(
                {
                    "topic": facts.topic,
                    "queue": facts.name,
                    "rejected_topic": facts.rejected_topic,
                    "settings": facts.settings.to_json(),
                    "held": facts.held,
                    "returned": facts.returned,
                    "due": facts.due,
                    "parked": facts.parked,
                    "rejecting": facts.rejecting,
                    "cursors": facts.cursors,
                    "counts": facts.counts,
                    "lag": lag_json(facts.lag),
                }
            )
            return
        _show(facts)


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
            ("looked at up to", ", ".join(f"{partition}:{cursor}" for partition, cursor in facts.cursors.items())),
            ("so far", ", ".join(f"{counted(n)} {name}" for name, n in facts.counts.items()) or "nothing"),
        ]
    )
    typer.echo()
    show_table(
        [Column("held", "right"), Column("returned", "right"), Column("of them due", "right"),
         Column("parked", "right"), *LAG_COLUMNS],
        [[counted(facts.held), counted(facts.returned), counted(facts.due), counted(facts.parked), *lag_cells(facts.lag)]],
    )  # fmt: skip


app.command("take")(take)


def _each(receipts: list[str], done: str, settle: Callable[[str], None]) -> None:
    """Settle one after another. At one that no longer counts it stops, and says how many were settled before."""
    wanted = list(dict.fromkeys(receipts))
    for number, receipt in enumerate(wanted):
        try:
            settle(receipt)
        except MainstemError as error:
            facts = f"{error.detail} Of {counted(len(wanted), 'receipt')}, {number} were {done} before this one."
            raise with_facts(error, detail=facts) from error
    typer.echo(f"{done} {counted(len(wanted), 'message')}")


@app.command()
def acknowledge(
    topic: TopicArgument, queue: QueueArgument, receipts: ReceiptsArgument, *, home: HomeOption = None
) -> None:
    """Say that messages are done (in the field: ack). Nobody gets them again.

    Example: mainstem queue acknowledge orders emails 0-17-1
    """
    with open_home(home) as stem:
        _opened(stem, topic, queue).acknowledge(receipts)
        typer.echo(f"acknowledged {counted(len(set(receipts)), 'message')}")


@app.command()
def release(
    topic: TopicArgument,
    queue: QueueArgument,
    receipts: ReceiptsArgument,
    *,
    delay: Annotated[
        str | None, typer.Option(help='Not before: "10 seconds"; else as the queue retries.', show_default=False)
    ] = None,
    error: Annotated[str | None, typer.Option(help="What went wrong; kept with it.", show_default=False)] = None,
    home: HomeOption = None,
) -> None:
    """Give messages back, to be given out again (in the field: nack).

    Example: mainstem queue release orders emails 0-17-1 --delay "10 seconds" --error "mail server is down"
    """
    with open_home(home) as stem:
        found = _opened(stem, topic, queue)
        _each(receipts, "released", lambda receipt: found.release(receipt, delay=delay, error=error))


@app.command()
def reject(
    topic: TopicArgument,
    queue: QueueArgument,
    receipts: ReceiptsArgument,
    *,
    reason: Annotated[str, typer.Option(help="Why it can never be done.")],
    home: HomeOption = None,
) -> None:
    """Send messages to TOPIC.QUEUE.rejected, with the reason (in the field: to the dead letters).

    Example: mainstem queue reject orders emails 0-17-1 --reason "no such address"
    """
    with open_home(home) as stem:
        found = _opened(stem, topic, queue)
        _each(receipts, "rejected", lambda receipt: found.reject(receipt, reason))


@app.command()
def rewind(
    topic: TopicArgument,
    queue: QueueArgument,
    *,
    to: Annotated[str, typer.Option(help=f"Where to: {POSITION_HELP}.")],
    home: HomeOption = None,
) -> None:
    """Put a queue back: to a time, as it was then; to any other position, as if nothing from there on was given out.

    Example: mainstem queue rewind orders emails --to earliest
    """
    with open_home(home) as stem:
        _opened(stem, topic, queue).rewind(parse_position(to, "--to"))
        typer.echo(f"rewound queue {queue} of {topic} to {to}")


@app.command()
def delete(topic: TopicArgument, queue: QueueArgument, *, yes: YesOption = False, home: HomeOption = None) -> None:
    """Delete a queue. Its topic stays, and so do its rejected messages.

    Example: mainstem queue delete orders emails --yes
    """
    with open_home(home) as stem:
        found = _opened(stem, topic, queue)
        if not yes:
            facts = found.describe()
            confirm(
                f'Delete queue "{queue}" of topic "{topic}", with {counted(facts.held, "message")} held '
                f"and {counted(facts.lag.records, 'record')} not done with?"
            )
        found.delete()
        typer.echo(f"deleted queue {queue} of {topic}")
