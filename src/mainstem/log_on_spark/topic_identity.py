"""Whether a topic is the one that a flow has read so far: one of the same name may have been made since.

Offsets of the old one say nothing about the new one. Gone on from them, a flow would pass over the first records of the
new topic without a word, or wait for records that are never to come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mainstem.errors import BeyondEnd, Conflict
from mainstem.log.log import Log, TopicBackend

__all__ = ["check_reached", "check_same_topic", "check_topics", "topics_in"]

_HINT = "Nothing that the flow has written is lost. Stop it, and run the program again to be told what to do."


def check_same_topic(backend: TopicBackend, known: str, flow: str, *, hint: str = _HINT) -> None:
    """Raise `Conflict` if the topic has another id than the one that is known; an empty one fits every topic."""
    if known and backend.id and backend.id != known:
        raise Conflict(
            f'topic "{backend.name}" is not the one that flow "{flow}" has read so far',
            detail="It was deleted and made again since: its offsets are counted from the beginning.",
            hint=hint,
        )


def topics_in(offset: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[int, int]]]:
    """Name, id and positions of each topic in the offset of a source."""
    if "topic" in offset:
        yield offset["topic"], offset.get("id", ""), _numbered(offset["offsets"])
    for name, positions in offset.get("topics", {}).items():
        yield name, offset.get("ids", {}).get(name, ""), _numbered(positions)


def check_topics(log: Log, offset: Mapping[str, Any], flow: str, *, hint: str) -> None:
    """Raise `Conflict` if a source cannot go on from its offset: its topic is another one, or (`BeyondEnd`) holds less than was
    read.

    What was read is on disk, so a topic never gets shorter by itself: it was made again, or put back from a copy.
    """
    there = set(log.topic_names())
    for name, known, positions in topics_in(offset):
        if name not in there:
            continue
        backend = log.open_topic(name)
        check_same_topic(backend, known, flow, hint=hint)
        check_reached(backend, positions, flow, hint=hint)


def check_reached(backend: TopicBackend, positions: Mapping[int, int], flow: str, *, hint: str = _HINT) -> None:
    """Raise `BeyondEnd` if a topic ends before what a flow has read of it."""
    partitions = backend.settings.partitions
    for number, reached in positions.items():
        # The end of all that is published: a flow may begin behind a transaction that is open.
        end = backend.end(number) if number < partitions else 0
        if end < reached:
            raise BeyondEnd(
                f'topic "{backend.name}" holds less than flow "{flow}" has read of it',
                detail=f"The flow has read partition {number} up to offset {reached}; it ends at {end}: the topic was "
                "deleted and made again, or put back from an older copy.",
                hint=hint,
                topic=backend.name,
                partition=number,
                position=reached,
                end=end,
            )


def _numbered(positions: Mapping[str, int]) -> dict[int, int]:
    return {int(number): at for number, at in positions.items()}
