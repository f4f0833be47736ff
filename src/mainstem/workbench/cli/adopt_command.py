"""`mainstem topic adopt`: a topic that other programs made on Kafka becomes one of this log."""

from __future__ import annotations

from typing import Annotated

import typer

from mainstem.workbench.cli.command_arguments import HomeOption, TopicArgument, open_home, split_words
from mainstem.workbench.cli.terminal_table import counted

__all__ = ["adopt"]


def adopt(
    topic: TopicArgument,
    *,
    schema: Annotated[str, typer.Option(help='The columns as Spark writes them: "order_id STRING, amount DOUBLE".')],
    key: Annotated[
        str | None, typer.Option(metavar="COLUMN,...", help="What decides a row's partition.", show_default=False)
    ] = None,
    event_time: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="When a row happened; a TIMESTAMP.", show_default=False)
    ] = None,
    codec: Annotated[str, typer.Option(help='What the values are: "json" or "raw".')] = "json",
    home: HomeOption = None,
) -> None:
    """Adopt a topic of other programs on Kafka; nothing of it is changed. The home's kafka.toml names the brokers.

    A value that does not fit the schema goes to the topic NAME.unreadable, with its bytes and the reason.

    Example: mainstem topic adopt clicks --schema "page STRING, clicked_at TIMESTAMP" --home data/shop
    """
    with open_home(home) as stem:
        settings = {"key": split_words(key), "event_time": event_time}
        given = {name: value for name, value in settings.items() if value is not None}
        adopted = stem.adopt_topic(topic, schema=schema, codec=codec, **given)
        typer.echo(f"adopted topic {adopted.name}, {counted(adopted.settings.partitions, 'partition')}")
