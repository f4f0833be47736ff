"""ReadSince: how far each partition of a compacted topic was compacted when a flow began to read it.

It is in the offsets of a flow's batches, so that a flow that resumes knows whether it has missed deletions (see
`log.missed_deletions`):

    offset  {"topic": ..., "cleaned": {"0": 512}}       of the partitions that were read from

An offset without it is of a topic that was not compacted when the flow began, or of an older Mainstem: then the flow
began before all known compactions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mainstem.durations import show_duration
from mainstem.errors import MissedDeletions
from mainstem.log.log import Log, TopicBackend
from mainstem.log.missed_deletions import check_deletions

__all__ = ["ReadSince", "check_no_deletions_missed", "deletions_at_risk"]

HINT = "Nothing that the flow has written is lost. Stop it, and run the program again to be told what to do."


class ReadSince:
    """The `cleaned` of one topic in an offset. Created before the next batch is planned."""

    def __init__(self, backend: TopicBackend, noted: Mapping[str, int] | None) -> None:
        self._backend = backend
        self._noted = noted

    @classmethod
    def beginning(cls, backend: TopicBackend) -> dict[str, int] | None:
        """The value before the first batch."""
        numbers = range(backend.settings.partitions)
        return {} if any(backend.compaction(number) is not None for number in numbers) else None

    def next(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> dict[str, int] | None:
        """The value for a batch that reads from `starts` to `ends`."""
        if self._noted is None:
            return None
        noted = dict(self._noted)
        for number, end in ends.items():
            if str(number) not in noted and end > starts.get(number, 0):
                compacted = self._backend.compaction(number)
                noted[str(number)] = 0 if compacted is None else compacted.cleaned
        return noted

    def check(self, starts: Mapping[int, int], flow: str, *, hint: str = HINT) -> None:
        """Raise `MissedDeletions` if a flow must not resume from here. Call it after the records of the batch are held."""
        for number, start in starts.items():
            since = 0 if self._noted is None else self._noted.get(str(number))
            if since is not None and number < self._backend.settings.partitions:
                check_deletions(self._backend, number, start, since, reader=f'flow "{flow}"', hint=hint)


def check_no_deletions_missed(log: Log, offset: Mapping[str, Any], flow: str, *, hint: str) -> None:
    """Raise `MissedDeletions` if a source must not resume from its offset."""
    there = set(log.topic_names())
    for name, positions, noted in _topics(offset):
        if name in there:
            starts = {int(number): at for number, at in positions.items()}
            ReadSince(log.open_topic(name), noted).check(starts, flow, hint=hint)


def deletions_at_risk(log: Log, offset: Mapping[str, Any], flow: str) -> list[str]:
    """Warnings before a flow resumes from an offset: deletions that it has missed, or may have.

    On Kafka it is unknown what the broker has dropped. There, a flow whose next record is older than the topic's retention
    of tombstones may have missed some.
    """
    found = []
    there = set(log.topic_names())
    for name, positions, noted in _topics(offset):
        if name not in there:
            continue
        backend = log.open_topic(name)
        starts = {int(number): at for number, at in positions.items() if int(number) < backend.settings.partitions}
        try:
            ReadSince(backend, noted).check(starts, flow)
        except MissedDeletions as error:
            found.append(f"{error.summary}: rebuild what it has written")
        keep = backend.settings.keep
        for number, at in starts.items():
            if not keep.compacted or backend.compaction(number) is not None:
                continue
            lag = backend.behind(number, at)
            if lag.records and lag.seconds >= keep.tombstones.total_seconds():
                found.append(
                    f'flow "{flow}" is behind in "{name}" partition {number} for longer than the broker keeps tombstones '
                    f"({show_duration(keep.tombstones)}): it may keep deleted keys; rebuild what it has written"
                )
    return found


def _topics(offset: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, int], Mapping[str, int] | None]]:
    cleaned = offset.get("cleaned")
    if "topic" in offset:
        yield offset["topic"], offset["offsets"], cleaned
    for name, positions in offset.get("topics", {}).items():
        yield name, positions, (cleaned or {}).get(name)
