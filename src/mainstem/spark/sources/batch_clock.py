"""The clock of a batch of a flow with stages: watermark, processing time and append time.

It is in the batch's own offset, which Spark writes before the batch runs: a replayed batch sees the same clock.

    {"topic": "orders", ..., "watermark": 1767268800000000, "now": 1767268805123456, "appended": 1767268805000000,
     "delay": 600000000}

in microseconds; a watermark of null is unknown, a delay of null means that the stream has no watermark.

No row of a later batch has a watermark below the batch's. Without new rows a batch still runs when a timer or result is
due: the stages record that beside the checkpoint.

    stages/due.json         {"event": ..., "processing": ..., "watermark": ...}
                            when the next row of state is due, and the watermark of the batch that wrote it
    stages/now              for tests: the time, instead of the machine's clock
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, cast

from mainstem.clock import Clock
from mainstem.log.log import Log, UntimedTopic
from mainstem.log.watermark import NO_TIME
from mainstem.spark.checkpoint.checkpoint_check import topics_in
from mainstem.spark.plan.observed_times import is_silent, lowest_beside, notes_of, observed_watermark, times_in
from mainstem.spark.sources.idle_input import IdleInput, floor_of

__all__ = [
    "Clocks",
    "add_clock",
    "begin_clock",
    "clocks_of",
    "due_event",
    "due_time",
    "is_due",
    "leave_due",
    "now_of",
    "set_now",
    "watermark_of",
]


# The time of engines for "never".
NEVER = 2**63 - 1

_OWN = ("watermark", "now", "appended", "delay", "idle")


class Clocks(NamedTuple):
    """The times of a batch: its watermark, the processing time, and the append time."""

    watermark: int = NO_TIME
    now: int = NO_TIME
    # No row of a later batch was appended before this.
    appended: int = NO_TIME


def add_clock(
    offset: dict[str, Any], start: Mapping[str, Any], clocks: Clocks, delay: int | None, folder: str
) -> dict[str, Any]:
    """An offset with its clock; the start itself if there is nothing new and nothing is due."""
    before = clocks_of([start])
    # They never go back.
    reached, now, appended = (max(mine, earlier) for mine, earlier in zip(clocks, before, strict=True))
    plain = {name: value for name, value in start.items() if name not in _OWN}
    if plain == offset and not is_due(folder, reached, now, before=before.watermark):
        return dict(start)
    watermark = None if reached == NO_TIME else reached
    return {**offset, "watermark": watermark, "now": now, "appended": appended, "delay": delay}


def begin_clock(offset: dict[str, Any], delay: int | None, folder: str, clock: Clock) -> dict[str, Any]:
    """The first offset of a source. Its watermark is unknown, which holds back the other sources."""
    return {**offset, "watermark": None, "now": now_of(folder, clock), "delay": delay} if folder else offset


def clocks_of(offsets: Iterable[Mapping[str, Any]]) -> Clocks:
    """The clocks of a batch with these offsets: the lowest watermark of the sources that have one."""
    known = [offset for offset in offsets if "now" in offset]
    asked = [offset for offset in known if offset["delay"] is not None]
    watermarks = [NO_TIME if offset["watermark"] is None else offset["watermark"] for offset in asked]
    return Clocks(
        min(watermarks, default=NO_TIME),
        max((offset["now"] for offset in known), default=NO_TIME),
        # A source that has not had a batch yet may give a record of any time.
        min((offset.get("appended", NO_TIME) for offset in known), default=NO_TIME),
    )


def watermark_of(log: Log, offsets: Iterable[Mapping[str, Any]], checkpoint: str, now: int) -> int:
    """The watermark of a batch that would run now without new records after these offsets."""
    asked = [offset for offset in offsets if offset["delay"] is not None]
    reached = [_find_watermark(log, offset, checkpoint, now) for offset in asked]
    for place, offset in enumerate(asked):
        if "times" in offset and "idle" in offset and is_silent(_times(offset, checkpoint), now, offset["idle"]):
            beside = lowest_beside(zip(asked, reached, strict=True), offset["idle"])
            reached[place] = max(reached[place], beside)
    return min(reached, default=NO_TIME)


def _times(offset: Mapping[str, Any], checkpoint: str) -> list[tuple[int, int]]:
    """The latest event time and append time of each partition, as seen by the flow's batches: for a log that does not record
    them."""
    found: list[tuple[int, int]] = []
    for name, _, positions in topics_in(offset):
        notes = notes_of(checkpoint, offset["leaf"], name if "glob" in offset else "")
        found += notes.until(positions, times_in(offset, name)).values()
    return found


def _find_watermark(log: Log, offset: Mapping[str, Any], checkpoint: str, now: int) -> int:
    """The watermark of one source by itself."""
    there = {offset["topic"]} if "topic" in offset else set(log.topic_names())
    ends = {name: positions for name, _, positions in topics_in(offset) if name in there}
    topics = {name: log.open_topic(name) for name in ends}
    if "times" in offset:
        return observed_watermark(cast("Mapping[str, UntimedTopic]", topics), offset, ends, checkpoint)
    # Of several topics, an empty one does not hold back the watermark.
    written = [name for name, positions in ends.items() if "topic" in offset or any(positions.values())]
    own = min((topics[name].watermark_from(ends[name], offset["delay"]) for name in written), default=NO_TIME)
    if "idle" not in offset:
        return own
    idle = IdleInput.of(log, topics, offset["idle"])
    lanes = {(name, number): at for name, by in ends.items() for number, at in by.items()}
    return idle.watermark(lanes, floor_of(offset), own, now)


def due_event(folder: str) -> int | None:
    """The watermark at which the next row of state is due; None if none is."""
    due = _due(folder)
    return None if due is None or due["event"] == NEVER else int(due["event"])


def due_time(folder: str) -> int | None:
    """The processing time at which the next row of state is due; None if none is."""
    due = _due(folder)
    return None if due is None or due["processing"] == NEVER else int(due["processing"])


def _due(folder: str) -> dict[str, Any] | None:
    try:
        with open(f"{folder}/due.json", encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    return found


def is_due(folder: str, watermark: int, now: int, *, before: int = NO_TIME) -> bool:
    """Whether a row of state is due at this watermark or time.

    With several sources the lowest watermark counts, and a source does not know those of the others: if its own was the
    same `before`, it would start empty batches for ever.
    """
    due = _due(folder)
    if due is None:
        return False
    # What was already due when the note was written is processed by the next batch anyway.
    moved = watermark > before or due["event"] <= due.get("watermark", due["event"])
    return bool((moved and watermark >= due["event"]) or now >= due["processing"])


def leave_due(folder: str, event: int, processing: int, watermark: int) -> None:
    """Record when the next row of state is due, and the watermark of the batch. A hint: losing it costs only time."""
    path = f"{folder}/due.json"
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump({"event": event, "processing": processing, "watermark": watermark}, file)
    os.rename(f"{path}.part", path)


def set_now(folder: str, now: int) -> None:
    """Set the clock of a flow's batches, for tests."""
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/now.part", "w", encoding="utf-8") as file:
        file.write(str(now))
    os.rename(f"{folder}/now.part", f"{folder}/now")


def now_of(folder: str, clock: Clock) -> int:
    """The time for a flow's batches."""
    with suppress(FileNotFoundError), open(f"{folder}/now", encoding="utf-8") as file:
        return int(file.read())
    return clock.now()
