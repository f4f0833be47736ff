"""`mainstem topic copy`: a topic from one log to another, checked when it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mainstem.workbench.cli.command_arguments import TopicArgument, open_home
from mainstem.workbench.cli.row_output import JsonOption, print_json
from mainstem.workbench.cli.terminal_table import Column, counted, show_progress, show_table

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mainstem.stem import Mainstem

__all__ = ["copy"]


def copy(
    topic: TopicArgument,
    *,
    source: Annotated[str, typer.Option("--from", metavar="HOME|kafka://...", help="The log that has the topic.")],
    target: Annotated[str, typer.Option("--to", metavar="HOME|kafka://...", help="The log that gets it.")],
    codec: Annotated[
        str | None, typer.Option(help='On Kafka: "json" (else), "raw" or "arrow".', show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a topic to another log: its settings and its records as they are now. What was copied before is not again.

    In the end both are read and compared: count and checksum of each partition.

    Example: mainstem topic copy orders --from data/shop --to kafka://broker1:9092
    """
    from mainstem.log.topic_copy import copy_topic

    with _opened(source, "refuse") as here, _opened(target, "make") as there:
        original = here.topic(topic)
        numbers = range(original.settings.partitions)
        total = sum(original.backend.behind(number, original.backend.earliest(number)).records for number in numbers)
        with show_progress(f"copying {topic}", total=total) as progress:
            parts = copy_topic(
                original, there.log, codec=codec, progress=lambda done: progress.reached(done, str(done))
            )
    if as_json:
        print_json([{name: getattr(part, name) for name in part.__slots__} for part in parts])
        return
    columns = (Column("partition", "right"), Column("records", "right"), Column("checksum"), Column("offsets"))
    show_table(
        columns,
        [
            [str(part.partition), str(part.records), part.checksum, "the same" if part.same_offsets else "new ones"]
            for part in parts
        ],
    )
    records = counted(sum(part.records for part in parts), "record")
    typer.echo(f"copied topic {topic}: {records}, equal in {counted(len(parts), 'partition')}")


def _opened(place: str, missing: Literal["refuse", "make"]) -> AbstractContextManager[Mainstem]:
    if place.startswith("kafka://"):
        from mainstem.log.kafka.kafka_log import KafkaLog
        from mainstem.stem import Mainstem

        # Only topics are needed; what else a home holds is not.
        return Mainstem(KafkaLog(place))
    return open_home(place, missing=missing)
