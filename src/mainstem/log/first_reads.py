"""FirstReads: how far a flow's first batch must reach in a topic of a captured table.

The records of a snapshot, and those that compaction left, show the table as it was only when all of them are read: before
that some rows are missing. So the first batch of a flow ends after them, however many they are, and waits for a snapshot
that is not complete. A capture notes the end of its first snapshot in its state, under `read:<topic>`.
"""

from __future__ import annotations

import json
import re

from mainstem.log.log import Log, TopicBackend
from mainstem.log.record import is_origin
from mainstem.log.topic import Topic
from mainstem.log.topic_settings import TopicSettings

__all__ = ["FirstReads", "is_captured"]

_STATE = re.compile(r"mainstem\.capture\..+\.state")


def is_captured(settings: TopicSettings) -> bool:
    """Whether a capture writes this topic: each row has its origin."""
    return any(is_origin(field) for field in settings.schema)


class FirstReads:
    """Asks the states of the captures. For one thread."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def end(self, topic: TopicBackend, partition: int) -> int | None:
        """The offset that a first batch must reach in a partition; None if its snapshot is not complete."""
        end = 0
        noted = self._noted(topic.name)
        if noted is not None:
            reached = noted.get(str(partition), 0)
            if reached is None:
                return None
            end = reached
        compacted = topic.compaction(partition)
        return max(end, 0 if compacted is None else compacted.cleaned)

    def _noted(self, topic: str) -> dict[str, int | None] | None:
        for name in self._log.topic_names():
            if not _STATE.fullmatch(name):
                continue
            found = None
            for row in Topic(self._log, self._log.open_topic(name)).to_arrow().to_pylist():
                if row["name"] == f"read:{topic}":
                    found = None if row["record"]["change"] == "delete" else json.loads(row["value"])
            if found is not None:
                noted: dict[str, int | None] = found
                return noted
        return None
