"""ObservedTimes: the event times that a flow has seen of a topic whose log does not record them.

Kafka records when a record was appended, not its event time. So each task writes the latest times that it read beside the
flow's checkpoint, and the next batch's offset has the latest times of all batches before it:

    <checkpoint>/observed/<leaf>/<partition>-<start>-<end>.json     {"event": ..., "appended": ..., "crc32c": ...}

    offset      {..., "leaf": 0, "times": {"0": [event, appended], ...}, "known": watermark or null}

A watermark that a producer declares (`producer.declare_watermark`) is effective from the first batch that starts after it.
A record's watermark is the one known when its batch was planned, and is in the batch's offset: a replayed batch
finds the same records late. A different split into batches may not; such a log cannot guarantee more.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from mainstem.durable_files import decode_checked, encode_checked
from mainstem.log.log import UntimedTopic
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.watermark import NO_TIME
from mainstem.spark.checkpoint.checkpoint_location import damaged_note

__all__ = [
    "LaneTimes",
    "ObservedTimes",
    "Times",
    "as_offset",
    "is_silent",
    "lanes_watermark",
    "lowest_beside",
    "notes_of",
    "observed_watermark",
    "times_in",
]

MICROSECOND = timedelta(microseconds=1)

# Of each partition with records: its latest event time, NO_TIME if none has one, and its latest append time.
Times = dict[int, tuple[int, int]]
# The same for the partitions of several topics.
LaneTimes = dict[tuple[str, int], tuple[int, int]]


class ObservedTimes:
    """The notes of one source of a flow."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def note(self, partition: int, start: int, end: int, event: int, appended: int) -> None:
        """Record the times that a task read in a range of offsets. Idempotent."""
        os.makedirs(self._folder, exist_ok=True)
        path = f"{self._folder}/{partition}-{start}-{end}.json"
        part = f"{path}.{os.getpid()}.part"
        with open(part, "wb") as file:
            file.write(encode_checked({"event": event, "appended": appended}))
        os.rename(part, path)

    def until(self, positions: Mapping[int, int], before: Times) -> Times:
        """The times of the records before some offsets, including those in an earlier offset (`before`)."""
        found = dict(before)
        for partition, (_, end), path in self._notes():
            if end <= positions.get(partition, 0):
                with open(path, "rb") as file:
                    data = file.read()
                try:
                    # An older Mainstem wrote it without a checksum.
                    seen = decode_checked(data, since=1)
                except ValueError as error:
                    raise damaged_note(path, error) from error
                event, appended = found.get(partition, (NO_TIME, NO_TIME))
                found[partition] = (max(event, seen["event"]), max(appended, seen["appended"]))
        return found

    def forget(self, positions: Mapping[int, int]) -> None:
        """Remove the notes of records before some offsets; they are in an offset that Spark has written."""
        for partition, (_, end), path in self._notes():
            if end <= positions.get(partition, 0):
                os.unlink(path)

    def _notes(self) -> list[tuple[int, tuple[int, int], str]]:
        found = []
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        for name in names:
            if name.endswith(".json"):
                partition, start, end = (int(part) for part in name.removesuffix(".json").split("-"))
                found.append((partition, (start, end), f"{self._folder}/{name}"))
        return found


def lanes_watermark(times: LaneTimes, settings: Mapping[str, TopicSettings], delay: int) -> int:
    """The lowest of the latest event times, less the delay, over partitions that are not idle; NO_TIME if none is known.

    A partition is idle, by the setting of its topic, if others had appends that much later: so a replay gives the same as the
    first read.
    """
    latest = max((appended for _, appended in times.values()), default=NO_TIME)
    lowest = min(
        (
            event
            for (topic, _), (event, appended) in times.items()
            if topic in settings and latest - appended <= settings[topic].idle_after // MICROSECOND
        ),
        default=NO_TIME,
    )
    return NO_TIME if lowest == NO_TIME else lowest - delay


def is_silent(times: Iterable[tuple[int, int]], coming: int, idle: Mapping[str, Any]) -> bool:
    """Whether an input is idle (see `idle_input`) at the append time `coming`."""
    last = max((appended for _, appended in times), default=NO_TIME)
    return last != NO_TIME and coming - last > idle["after"]


def lowest_beside(reached: Iterable[tuple[Mapping[str, Any], int | None]], idle: Mapping[str, Any]) -> int:
    """The lowest watermark of the inputs beside an idle one, from offsets with the watermark of each."""
    names = {topic for topic, _ in idle["beside"]}
    found = [
        NO_TIME if at is None else at
        for offset, at in reached
        if names & ({offset["topic"]} if "topic" in offset else {*offset.get("topics", {})})
    ]
    return min(found, default=NO_TIME)


def notes_of(checkpoint: str, leaf: int, topic: str = "") -> ObservedTimes:
    """The notes of a source; those of one `topic` if it reads several."""
    return ObservedTimes(f"{checkpoint}/observed/{leaf}/{topic}".rstrip("/"))


def observed_watermark(
    topics: Mapping[str, UntimedTopic],
    offset: Mapping[str, Any],
    positions: Mapping[str, Mapping[int, int]],
    checkpoint: str,
) -> int:
    """The watermark of a batch that would run now without new records, from topics that still exist."""
    times: LaneTimes = {}
    for name in topics:
        notes = notes_of(checkpoint, offset["leaf"], name if "glob" in offset else "")
        times |= {(name, at): pair for at, pair in notes.until(positions[name], times_in(offset, name)).items()}
    declared = [topic.declared_watermark(positions[name]) for name, topic in topics.items()]
    known = lanes_watermark(times, {name: topic.settings for name, topic in topics.items()}, offset["delay"])
    before = NO_TIME if offset["known"] is None else offset["known"]
    return max(known, before, min(declared, default=NO_TIME))


def times_in(offset: Mapping[str, Any], topic: str = "") -> Times:
    """The times in an offset; those of one `topic` if it has several."""
    known = offset.get("times", {})
    pairs = known.get(topic, {}) if topic and "glob" in offset else known
    return {int(number): (event, appended) for number, (event, appended) in pairs.items()}


def as_offset(times: Times) -> dict[str, list[int]]:
    return {str(number): list(pair) for number, pair in sorted(times.items())}
