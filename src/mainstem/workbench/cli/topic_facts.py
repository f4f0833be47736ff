"""What there is to say of a topic: its settings, its partitions, and who reads it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mainstem.clock import as_datetime
from mainstem.durations import show_duration
from mainstem.errors import Corrupt
from mainstem.log.embedded.embedded_topic import EmbeddedTopic
from mainstem.log.embedded.write.active_segment import segments_in
from mainstem.log.embedded.write.block import DATA
from mainstem.log.lag import Lag
from mainstem.log.topic import Topic
from mainstem.workbench.cli.list_entry import Unreadable, json_entry, looked_at
from mainstem.workbench.cli.row_output import lag_json

__all__ = ["PartitionFacts", "TopicFacts", "topic_facts"]


@dataclass(frozen=True)
class PartitionFacts:
    """One partition. `records` counts those that a reader would be given now. `segments` and `appended_at` are None where
    the log does not tell."""

    partition: int
    start: int
    end: int
    records: int
    bytes: int
    segments: int | None = None
    sealed: int | None = None
    appended_at: datetime | None = None
    # What is wrong with it, if anything was found: then the numbers are those that could be told.
    damage: str | None = None


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
        """When the last record came."""
        return max((it.appended_at for it in self.partitions if it.appended_at is not None), default=None)

    @property
    def damage(self) -> list[str]:
        """What is wrong with its partitions, as far as it was looked at."""
        return [f"partition {it.partition}: {it.damage}" for it in self.partitions if it.damage is not None]

    def group_lags(self) -> dict[str, Lag | Unreadable]:
        """How far each reader group is behind."""
        return {
            name: looked_at({"group": name}, lambda name: self.topic.group(name).lag(), name)
            for name in self.topic.groups()
        }

    def queue_lags(self) -> dict[str, Lag | Unreadable]:
        """How far each queue is behind."""
        return {
            name: looked_at({"queue": name}, lambda name: self.topic.open_queue(name).lag(), name)
            for name in self.topic.queues()
        }

    def to_json(self) -> dict[str, Any]:
        """Everything, for a program."""
        settings = self.topic.settings
        return {
            "topic": self.topic.name,
            "schema": self.topic.ddl,
            "key": list(settings.key),
            "event_time": settings.event_time,
            "keep": str(settings.keep),
            "archive": settings.archive,
            "idle_after": show_duration(settings.idle_after),
            "ahead_max": show_duration(settings.ahead_max),
            "record_bytes_max": settings.record_bytes_max,
            "segment_bytes_max": settings.segment_bytes_max,
            "segment_age_max": show_duration(settings.segment_age_max),
            "records": self.records,
            "bytes": self.bytes,
            "appended_at": self.appended_at,
            "partitions": list(self.partitions),
            "damage": self.damage,
            "groups": [_lag_entry("group", name, lag) for name, lag in self.group_lags().items()],
            "queues": [_lag_entry("queue", name, lag) for name, lag in self.queue_lags().items()],
        }


def _lag_entry(noun: str, name: str, entry: Lag | Unreadable) -> dict[str, Any]:
    return json_entry(entry, lambda lag: {noun: name, "lag": lag_json(lag)})


def topic_facts(topic: Topic) -> TopicFacts:
    """The facts of a topic."""
    return TopicFacts(topic, tuple(_facts(topic, number) for number in range(topic.settings.partitions)))


def _facts(topic: Topic, number: int) -> PartitionFacts:
    try:
        return _partition_facts(topic, number)
    except Corrupt as error:
        damage = error.summary
    start = end = 0
    with suppress(Corrupt):
        end = topic.backend.latest(number)
        start = topic.backend.earliest(number)
    return PartitionFacts(number, start, end, max(0, end - start), 0, damage=damage)


def _partition_facts(topic: Topic, number: int) -> PartitionFacts:
    backend = topic.backend
    start, end = backend.earliest(number), backend.latest(number)
    behind = backend.behind(number, start)
    if not isinstance(backend, EmbeddedTopic):
        return PartitionFacts(number, start, end, behind.records, behind.bytes)
    partition = backend.store.partitions[number]
    manifest = partition.manifest_file.read()
    blocks = [name for name in segments_in(partition.files.list(partition.folder)) if name.base >= manifest.end]
    appended_at = partition.published().appended_at
    return PartitionFacts(
        number,
        start,
        end,
        records=sum(entry.rows for entry in manifest.segments) + _unsealed(backend, number, manifest.end),
        bytes=behind.bytes,
        segments=len(manifest.segments) + len(blocks),
        sealed=len(manifest.segments),
        # A partition has an append time from its first moment; without a record it means nothing.
        appended_at=as_datetime(appended_at) if partition.published().offset else None,
        damage=None if (found := partition.damage()) is None else found.summary,
    )


def _unsealed(backend: EmbeddedTopic, number: int, start: int) -> int:
    """How many records there are from an offset on, by the headers of their blocks: markers and what was aborted, or is
    not decided, are none."""
    visible = backend.moment().visible(number)
    count = 0
    # Sealed since we looked: what is left of it then is counted by offsets.
    with suppress(FileNotFoundError):
        while start < visible.end:
            found, reached = 0, start
            for header in backend.store.readers[number].headers_from(start):
                low, high = max(start, header.base_offset), min(visible.end, header.end_offset)
                if header.kind == DATA and low < high:
                    hidden = sum(max(0, min(high, until) - max(low, since)) for since, until in visible.hidden)
                    found += high - low - hidden
                reached = max(reached, header.end_offset)
            if reached == start:
                break
            count, start = count + found, reached
    return count + max(0, visible.end - start)
