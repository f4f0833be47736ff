"""PassedTokens: the offsets that the flows into a topic have read of their own topics, so that tokens of these are valid
for readers of the topic too.

    orders  --flow-->  big_orders  --flow-->  view          view.get(key, after=<token of an append to orders>)

A flow commits a batch when its rows are in its topic. So a reader that reads first the committed offsets, then the end of
the topic, and then the topic up to there, has all output of these offsets, even if there is none. Nothing is stored for
this: the checkpoints of the flows have it.

Of several flows into one topic that read the same topic, the one that has read least counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from mainstem.batch import Offsets
from mainstem.log.log import Log, Promise, TopicBackend
from mainstem.spark.checkpoint.checkpoint_offsets import applied_offsets, furthest, last_batch
from mainstem.spark.checkpoint.flow_store import FlowStore, flow_names

__all__ = ["Applied", "Passed", "PassedTokens"]

# Topic -> partition, as text -> the applied offset.
Applied = dict[str, dict[str, int]]


class Passed(NamedTuple):
    """The offsets of other topics that are applied for a reader that has read a topic up to `ends`."""

    applied: Applied
    ends: dict[int, int]

    def reached(self, positions: dict[int, int]) -> bool:
        return all(positions.get(number, 0) >= end for number, end in self.ends.items())


class PassedTokens:
    """For one topic of a home. For one thread."""

    def __init__(self, open_log: Callable[[], Log], home: str, topic: str) -> None:
        self._open_log = open_log
        self._home = home
        self._topic = topic
        self._known: tuple[int, list[FlowStore]] = (-1, [])

    def find(self, backend: TopicBackend) -> Passed:
        """As of now; empty if no flow writes into the topic, or its log does not account for every offset (Kafka)."""
        if Promise.DENSE_OFFSETS not in self._open_log().promises:
            return Passed({}, {})
        found = []
        for store in self._flows(backend.id):
            # A flow into a topic has only version 1.
            checkpoint = store.checkpoint(1)
            if (done := last_batch(checkpoint)) is not None:
                found.append(applied_offsets(checkpoint, done))
        others: Offsets = {topic: ends for topic, ends in furthest(found).items() if topic != self._topic}
        if not others:
            return Passed({}, {})
        applied = {
            topic: {str(number): end for number, end in sorted(ends.items())} for topic, ends in sorted(others.items())
        }
        # The end of the log, not of the readable records: a flow's commit may lie behind an open transaction.
        ends = {number: backend.end(number) for number in range(backend.settings.partitions)}
        return Passed(applied, ends)

    def _flows(self, topic_id: str) -> list[FlowStore]:
        """The flows that ever wrote into the topic; updated when a flow is added or removed."""
        folder = f"{self._home}/flows"
        try:
            changed = os.stat(folder).st_mtime_ns
        except FileNotFoundError:
            return []
        if changed != self._known[0]:
            names = flow_names(self._home)
            found = [
                store for store in (FlowStore(self._home, name) for name in names) if self._writes(store, topic_id)
            ]
            if len(names) < sum(not name.startswith(".") for name in os.listdir(folder)):
                # A flow that is being created: its sink is known at the next call.
                return found
            self._known = (changed, found)
        return self._known[1]

    def _writes(self, store: FlowStore, topic_id: str) -> bool:
        run = store.of_version(1)
        return run.get("sink") == f"topic {self._topic}" and run.get("sink_id", "") in ("", topic_id)
