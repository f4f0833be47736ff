"""The offsets in a checkpoint: the end offsets of a batch in each topic.

Spark writes `offsets/<batch>` before a batch runs and `commits/<batch>` after it: a version, metadata, then one line for
each source. Our sources name their topic in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mainstem.batch import Offsets
from mainstem.spark.checkpoint.native_history import noted_history
from mainstem.spark.real_time.real_time_note import noted_topics, own_offset

__all__ = [
    "HistoryStatus",
    "applied_offsets",
    "batch_offsets",
    "file_offset",
    "furthest",
    "history_status",
    "last_batch",
    "source_offsets",
]


def _entries(checkpoint: str, number: int) -> Iterator[dict[str, Any]]:
    try:
        with open(f"{checkpoint}/offsets/{number}", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return
    for line in lines[1:]:
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if isinstance(content, dict):
            yield content


def source_offsets(checkpoint: str, number: int) -> Iterator[dict[str, Any]]:
    """The offset of each source at the end of a batch."""
    known = noted_topics(checkpoint)
    for content in _entries(checkpoint, number):
        if known:
            # Of Spark's Kafka source, whose keys are names of topics.
            if (own := own_offset(content, known)) is not None:
                yield own
        elif "logOffset" in content and (history := noted_history(checkpoint)) is not None:
            # A batch of sealed files: the note has its offsets in the log.
            yield history.offset_at(content["logOffset"])
        elif any(kind in content for kind in ("topic", "topics", "view")):
            yield content


def file_offset(checkpoint: str, number: int) -> int | None:
    """The portion of sealed files that a batch ends with; None if it is no batch of files. See `native_history`."""
    return next((entry["logOffset"] for entry in _entries(checkpoint, number) if "logOffset" in entry), None)


def batch_offsets(checkpoint: str, number: int) -> Offsets:
    """The end offsets of a batch in each topic; for a topic that is read twice, the lower ones."""
    return furthest(
        {content["topic"]: content["offsets"]} if "topic" in content else content.get("topics", {})
        for content in source_offsets(checkpoint, number)
    )


def applied_offsets(checkpoint: str, number: int) -> Offsets:
    """The same, with the offsets applied by sources that are views or topics that flows write into."""
    return furthest(
        {**content.get("applied", {}), **content.get("topics", {})}
        | ({content["topic"]: content["offsets"]} if "topic" in content else {})
        for content in source_offsets(checkpoint, number)
    )


def furthest(sources: Iterable[Mapping[str, Mapping[Any, int]]]) -> Offsets:
    """The offsets that all of them have reached; partitions are numbers or, as in JSON, text."""
    found: dict[str, dict[int, int]] = {}
    for by_topic in sources:
        for topic, offsets in by_topic.items():
            ends = {int(partition): end for partition, end in offsets.items()}
            known = found.setdefault(topic, ends)
            found[topic] = {
                partition: min(known.get(partition, 0), ends.get(partition, 0)) for partition in {*known, *ends}
            }
    return found


def last_batch(checkpoint: str, log: str = "commits") -> int | None:
    """The last batch in `offsets` or `commits`; None if there is none."""
    try:
        names = os.listdir(f"{checkpoint}/{log}")
    except FileNotFoundError:
        return None
    return max((int(name) for name in names if name.isdigit()), default=None)


# HistoryStatus: the progress of a flow through the sealed files that it reads before it goes live.


@dataclass(frozen=True)
class HistoryStatus:
    """The number of rows in sealed files that a flow reads first, and how many of them its sink has."""

    rows: int
    rows_in: int

    @property
    def over(self) -> bool:
        return self.rows_in == self.rows


def history_status(checkpoint: str) -> HistoryStatus | None:
    """From the note beside a checkpoint and its last committed batch; None if the flow read no files."""
    history = noted_history(checkpoint)
    if history is None:
        return None
    done = last_batch(checkpoint)
    if done is None:
        return HistoryStatus(history.rows, 0)
    at = file_offset(checkpoint, done)
    # A batch of the topic source comes after all files.
    portions = history.portions if at is None else history.portions[: at + 1]
    return HistoryStatus(history.rows, sum(portion.rows for portion in portions))
