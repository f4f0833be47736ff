"""ObservedTimes: which event times a flow has seen of a topic whose log does not tell them.

Kafka knows when a record was appended, not when it happened. So each task notes the latest times of what it read beside the
flow's checkpoint, and the next batch's offset carries what all batches before it have seen:

    <checkpoint>/observed/<leaf>/<partition>-<start>-<end>.json     {"event": ..., "appended": ...}     microseconds

    offset      {..., "leaf": 0, "times": {"0": [event, appended], ...}, "known": watermark or null}

A record's watermark is what was known when its batch was planned, so it stands in the batch's offset: a batch that is done
again finds the same records late. Another cut into batches may not; that is what such a log can promise.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from mainstem.log.log import TopicBackend
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.watermark import NO_TIME

__all__ = [
    "ObservedTimes",
    "Times",
    "as_offset",
    "known_watermark",
    "observed_folder",
    "observed_watermark",
    "times_in",
]

MICROSECOND = timedelta(microseconds=1)

# Of each partition that has had a record: its latest event time, NO_TIME if none had one, and its latest append time.
Times = dict[int, tuple[int, int]]


class ObservedTimes:
    """The notes of one source of a flow."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def note(self, partition: int, start: int, end: int, event: int, appended: int) -> None:
        """Note what a task saw in a range of offsets. One that runs twice notes the same."""
        os.makedirs(self._folder, exist_ok=True)
        path = f"{self._folder}/{partition}-{start}-{end}.json"
        part = f"{path}.{os.getpid()}.part"
        with open(part, "w", encoding="utf-8") as file:
            json.dump({"event": event, "appended": appended}, file)
        os.rename(part, path)

    def until(self, positions: Mapping[int, int], before: Times) -> Times:
        """What was seen of the records before some offsets, those included that an earlier offset knew of."""
        found = dict(before)
        for partition, (_, end), path in self._notes():
            if end <= positions.get(partition, 0):
                with open(path, encoding="utf-8") as file:
                    seen = json.load(file)
                event, appended = found.get(partition, (NO_TIME, NO_TIME))
                found[partition] = (max(event, seen["event"]), max(appended, seen["appended"]))
        return found

    def missing(self, before: Mapping[int, int], positions: Mapping[int, int]) -> list[int]:
        """The partitions of which a batch between two positions was read, and nothing was noted."""
        noted = {partition for partition, (_, end), _ in self._notes() if end == positions.get(partition)}
        return [
            number for number, at in sorted(positions.items()) if at > before.get(number, 0) and number not in noted
        ]

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


def observed_folder(checkpoint: str, leaf: int) -> str:
    return f"{checkpoint}/observed/{leaf}"


def observed_watermark(topic: TopicBackend, offset: Mapping[str, Any], checkpoint: str) -> int:
    """The watermark of a batch that came now and read nothing more than this offset."""
    positions = {int(number): end for number, end in offset["offsets"].items()}
    times = ObservedTimes(observed_folder(checkpoint, offset["leaf"])).until(positions, times_in(offset))
    known = known_watermark(times, topic.settings, offset["delay"])
    return max(known, NO_TIME if offset["known"] is None else offset["known"])


def times_in(offset: Mapping[str, Any]) -> Times:
    return {int(number): (event, appended) for number, (event, appended) in offset.get("times", {}).items()}


def as_offset(times: Times) -> dict[str, list[int]]:
    return {str(number): list(pair) for number, pair in sorted(times.items())}
