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
from typing import TYPE_CHECKING, Any

from mainstem.durable_files import decode_checked, encode_checked
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.watermark import NO_TIME
from mainstem.spark.checkpoint.checkpoint_location import damaged_note

if TYPE_CHECKING:
    from mainstem.log.kafka.kafka_topic import KafkaTopic

__all__ = [
    "LaneTimes",
    "ObservedTimes",
    "Times",
    "as_offset",
    "is_silent",
    "known_watermark",
    "lanes_watermark",
    "lowest_beside",
    "observed_folder",
    "observed_over_topics",
    "observed_watermark",
    "times_in",
]

MICROSECOND = timedelta(microseconds=1)

# Of each partition that has had a record: its latest event time, NO_TIME if none had one, and its latest append time.
Times = dict[int, tuple[int, int]]
# The same for the partitions of several topics.
LaneTimes = dict[tuple[str, int], tuple[int, int]]


class ObservedTimes:
    """The notes of one source of a flow."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def note(self, partition: int, start: int, end: int, event: int, appended: int) -> None:
        """Note what a task saw in a range of offsets. One that runs twice notes the same."""
        os.makedirs(self._folder, exist_ok=True)
        path = f"{self._folder}/{partition}-{start}-{end}.json"
        part = f"{path}.{os.getpid()}.part"
        with open(part, "wb") as file:
            file.write(encode_checked({"event": event, "appended": appended}))
        os.rename(part, path)

    def until(self, positions: Mapping[int, int], before: Times) -> Times:
        """What was seen of the records before some offsets, those included that an earlier offset knew of."""
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
        """Remove the notes of records before some offsets; an offset that Spark has written down knows of them."""
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


def known_watermark(times: Times, settings: TopicSettings, delay: int) -> int:
    """The lowest of the latest event times, less the delay, over partitions that are not idle; NO_TIME if none is known.

    A partition is idle if others had appends so much later: so history is read as it was when it was new.
    """
    idle = settings.idle_after // MICROSECOND
    latest = max((appended for _, appended in times.values()), default=NO_TIME)
    lowest = min((event for event, appended in times.values() if latest - appended <= idle), default=NO_TIME)
    return NO_TIME if lowest == NO_TIME else lowest - delay


def lanes_watermark(times: LaneTimes, settings: Mapping[str, TopicSettings], delay: int) -> int:
    """The same over the partitions of several topics, each idle by its own topic's rule."""
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
    """Whether an input was idle (see `idle_input`) when a record is appended at a time, or none is until then."""
    last = max((appended for _, appended in times), default=NO_TIME)
    return last != NO_TIME and coming - last > idle["after"]


def lowest_beside(reached: Iterable[tuple[Mapping[str, Any], int | None]], idle: Mapping[str, Any]) -> int:
    """How far the inputs beside an idle one have come, of offsets with how far each has."""
    names = {topic for topic, _ in idle["beside"]}
    found = [
        NO_TIME if at is None else at
        for offset, at in reached
        if names & ({offset["topic"]} if "topic" in offset else {*offset.get("topics", {})})
    ]
    return min(found, default=NO_TIME)


def observed_folder(checkpoint: str, leaf: int) -> str:
    return f"{checkpoint}/observed/{leaf}"


def observed_watermark(topic: KafkaTopic, offset: Mapping[str, Any], checkpoint: str) -> int:
    """The watermark of a batch that came now and read nothing more than this offset."""
    positions = {int(number): end for number, end in offset["offsets"].items()}
    times = ObservedTimes(observed_folder(checkpoint, offset["leaf"])).until(positions, times_in(offset))
    known = known_watermark(times, topic.settings, offset["delay"])
    before = NO_TIME if offset["known"] is None else offset["known"]
    return max(known, before, topic.stated_watermark(positions))


def observed_over_topics(topics: Mapping[str, KafkaTopic], offset: Mapping[str, Any], checkpoint: str) -> int:
    """The same for an offset of several topics, those of them that are still there."""
    folder = observed_folder(checkpoint, offset["leaf"])
    times: LaneTimes = {}
    declared = []
    for name, topic in topics.items():
        positions = {int(number): end for number, end in offset["topics"].get(name, {}).items()}
        seen = ObservedTimes(f"{folder}/{name}").until(positions, times_in(offset, name))
        times |= {(name, number): pair for number, pair in seen.items()}
        declared.append(topic.stated_watermark(positions))
    known = lanes_watermark(times, {name: topic.settings for name, topic in topics.items()}, offset["delay"])
    before = NO_TIME if offset["known"] is None else offset["known"]
    return max(known, before, min(declared, default=NO_TIME))


def times_in(offset: Mapping[str, Any], topic: str = "") -> Times:
    """The times in an offset; of one `topic`, where it is of several."""
    known = offset.get("times", {})
    pairs = known.get(topic, {}) if topic and "glob" in offset else known
    return {int(number): (event, appended) for number, (event, appended) in pairs.items()}


def as_offset(times: Times) -> dict[str, list[int]]:
    return {str(number): list(pair) for number, pair in sorted(times.items())}
