"""What a checkpoint says about a batch: up to where it reads each topic.

Spark writes `offsets/<batch>` before a batch runs and `commits/<batch>` after it: a version, metadata, then one line for
each source. Our sources name their topic in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from mainstem.log_on_spark.flow_run import Offsets

__all__ = ["batch_offsets", "last_batch", "source_offsets"]


def source_offsets(checkpoint: str, number: int) -> Iterator[dict[str, Any]]:
    """The offset of each source at the end of a batch."""
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
        if isinstance(content, dict) and any(kind in content for kind in ("topic", "topics", "view")):
            yield content


def batch_offsets(checkpoint: str, number: int) -> Offsets:
    """Up to where a batch reads each topic; one that is read twice counts up to where both have come."""
    found: dict[str, dict[int, int]] = {}
    for content in source_offsets(checkpoint, number):
        by_topic = {content["topic"]: content["offsets"]} if "topic" in content else content.get("topics", {})
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
