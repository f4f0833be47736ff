"""The clock of a batch of a flow with stages: watermark, processing time and append time.

It is in the batch's own offset, which Spark writes before the batch runs: a replayed batch sees the same clock.

    {"topic": "orders", ..., "watermark": 1767268800000000, "now": 1767268805123456, "appended": 1767268805000000,
     "delay": 600000000}

in microseconds; a watermark of null is unknown, a delay of null means that the stream has no watermark.

No row of a later batch has a watermark below the batch's. Without new rows a batch still runs when a timer or result is
due: the stages record that beside the checkpoint.

    stages/due.json         {"event": ..., "processing": ..., "watermark": ...}
                            when the next row of state wakes, and the watermark of the batch that says so
    stages/now              for tests: the time, instead of the machine's clock
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mainstem.clock import Clock
from mainstem.log.log import Log
from mainstem.log.watermark import NO_TIME
from mainstem.spark.plan.observed_times import (
    ObservedTimes,
    is_silent,
    lowest_beside,
    observed_folder,
    observed_over_topics,
    observed_watermark,
    times_in,
)
from mainstem.spark.sources.idle_input import IdleInput, floor_of

if TYPE_CHECKING:
    from mainstem.log.kafka.kafka_topic import KafkaTopic

__all__ = [
    "Clocks",
    "clocked",
    "clocks_of",
    "due_event",
    "is_due",
    "leave_due",
    "now_of",
    "set_now",
    "unread",
    "watermark_of",
]


# A time that does not come, as engines have it.
NEVER = 2**63 - 1

_OWN = ("watermark", "now", "appended", "delay", "idle")


class Clocks(NamedTuple):
    """What time it is for a batch: by the event times, by the machine, and by the append times of what is read."""

    watermark: int = NO_TIME
    now: int = NO_TIME
    # No row of a later batch was appended before.
    appended: int = NO_TIME


def clocked(
    offset: dict[str, Any], start: Mapping[str, Any], clocks: Clocks, delay: int | None, folder: str
) -> dict[str, Any]:
    """An offset with its clock; the start itself if nothing has come and nothing is due."""
    before = clocks_of([start])
    # They never go back.
    reached, now, appended = (max(mine, earlier) for mine, earlier in zip(clocks, before, strict=True))
    plain = {name: value for name, value in start.items() if name not in _OWN}
    if plain == offset and not is_due(folder, reached, now, before=before.watermark):
        return dict(start)
    watermark = None if reached == NO_TIME else reached
    return {**offset, "watermark": watermark, "now": now, "appended": appended, "delay": delay}


def unread(offset: dict[str, Any], delay: int | None, folder: str, clock: Clock) -> dict[str, Any]:
    """The first offset of a source, whose topic may hold nothing yet: of its time nothing is known, which holds the others back."""
    return {**offset, "watermark": None, "now": now_of(folder, clock), "delay": delay} if folder else offset


def clocks_of(offsets: Iterable[Mapping[str, Any]]) -> Clocks:
    """The clocks of a batch with these offsets: the lowest watermark of its sources, of those that were asked for one."""
    known = [offset for offset in offsets if "now" in offset]
    asked = [offset for offset in known if offset["delay"] is not None]
    watermarks = [NO_TIME if offset["watermark"] is None else offset["watermark"] for offset in asked]
    return Clocks(
        min(watermarks, default=NO_TIME),
        max((offset["now"] for offset in known), default=NO_TIME),
        min((offset["appended"] for offset in known if "appended" in offset), default=NO_TIME),
    )


def watermark_of(log: Log, offsets: Iterable[Mapping[str, Any]], checkpoint: str, now: int) -> int:
    """What the watermark of a batch would be that came now and read nothing more than these offsets of a checkpoint."""
    asked = [offset for offset in offsets if offset["delay"] is not None]
    reached = [_reached(log, offset, checkpoint, now) for offset in asked]
    for place, offset in enumerate(asked):
        if "times" in offset and "idle" in offset and is_silent(_times(offset, checkpoint), now, offset["idle"]):
            beside = lowest_beside(zip(asked, reached, strict=True), offset["idle"])
            reached[place] = max(reached[place], beside)
    return min(reached, default=NO_TIME)


def _times(offset: Mapping[str, Any], checkpoint: str) -> list[tuple[int, int]]:
    """The latest event time and append time of each partition of a source on Kafka, as far as its batches have seen them."""
    folder = observed_folder(checkpoint, offset["leaf"])
    found: list[tuple[int, int]] = []
    for name, ends in offset.get("topics", {"": offset.get("offsets", {})}).items():
        positions = {int(number): end for number, end in ends.items()}
        found += ObservedTimes(f"{folder}/{name}").until(positions, times_in(offset, name)).values()
    return found


def _reached(log: Log, offset: Mapping[str, Any], checkpoint: str, now: int) -> int:
    """How far one source has come by itself."""
    if "topics" in offset:
        there = set(log.topic_names())
        ends = {
            name: {int(number): end for number, end in by.items()}
            for name, by in offset["topics"].items()
            if name in there
        }
        if "times" in offset:
            topics = {name: cast("KafkaTopic", log.open_topic(name)) for name in ends}
            return observed_over_topics(topics, offset, checkpoint)
        written = [(name, positions) for name, positions in ends.items() if any(positions.values())]
        found = [log.open_topic(name).watermark_from(positions, offset["delay"]) for name, positions in written]
        return _unless_idle(log, offset, ends, min(found, default=NO_TIME), now)
    backend = log.open_topic(offset["topic"])
    if "times" in offset:
        # Only a log on Kafka writes times into its offsets.
        return observed_watermark(cast("KafkaTopic", backend), offset, checkpoint)
    positions = {int(number): end for number, end in offset["offsets"].items()}
    own = backend.watermark_from(positions, offset["delay"])
    return _unless_idle(log, offset, {offset["topic"]: positions}, own, now)


def _unless_idle(
    log: Log, offset: Mapping[str, Any], positions: Mapping[str, Mapping[int, int]], own: int, now: int
) -> int:
    """The watermark of a source that may be idle; `own`: what the log says of it by itself."""
    if "idle" not in offset:
        return own
    idle = IdleInput.of(log, {name: log.open_topic(name) for name in positions}, offset["idle"])
    lanes = {(name, number): at for name, by in positions.items() for number, at in by.items()}
    return idle.watermark(lanes, floor_of(offset), own, now)


def due_event(folder: str) -> int | None:
    """At which watermark the next row of state wakes; None if none does."""
    due = _due(folder)
    return None if due is None or due["event"] == NEVER else int(due["event"])


def _due(folder: str) -> dict[str, Any] | None:
    try:
        with open(f"{folder}/due.json", encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    return found


def is_due(folder: str, watermark: int, now: int, *, before: int = NO_TIME) -> bool:
    """Whether a row of state wakes at this watermark or time.

    A source of several does not know the others' watermarks, of which the lowest counts: where its own was the same
    `before`, a batch that comes for it would find nothing due, over and over.
    """
    due = _due(folder)
    if due is None:
        return False
    # What was due already when the note was left wakes in the next batch, whatever brings it.
    moved = watermark > before or due["event"] <= due.get("watermark", due["event"])
    return bool((moved and watermark >= due["event"]) or now >= due["processing"])


def leave_due(folder: str, event: int, processing: int, watermark: int) -> None:
    """Note when the next row of state wakes, and the watermark of the batch. It is a hint: nothing is lost with it but time."""
    path = f"{folder}/due.json"
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump({"event": event, "processing": processing, "watermark": watermark}, file)
    os.rename(f"{path}.part", path)


def set_now(folder: str, now: int) -> None:
    """Have the clock of a flow's batches stand at a time, for tests."""
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/now.part", "w", encoding="utf-8") as file:
        file.write(str(now))
    os.rename(f"{folder}/now.part", f"{folder}/now")


def now_of(folder: str, clock: Clock) -> int:
    """The time for a flow's batches."""
    with suppress(FileNotFoundError), open(f"{folder}/now", encoding="utf-8") as file:
        return int(file.read())
    return clock.now()
