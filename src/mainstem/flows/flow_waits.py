"""What a flow waits for: the partitions that hold its watermark back, and the transactions that hide records from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mainstem.clock import as_datetime
from mainstem.log.flow_cut import Holder
from mainstem.log.watermark import NO_TIME
from mainstem.operators.stage.state_runs import StageManifests
from mainstem.spark.checkpoint.checkpoint_offsets import last_batch, source_offsets
from mainstem.spark.plan.observed_times import times_in
from mainstem.spark.sources.batch_clock import clocks_of, due_event

if TYPE_CHECKING:
    from mainstem.log.log import Log
    from mainstem.stem import Mainstem

__all__ = [
    "EMPTY_VIEW_PAGE",
    "HolderFacts",
    "offsets_by_topic",
    "reached_times",
    "waits_for",
    "watermark_holders",
    "way_to_learn_more",
]

# The page on views that are empty or old: by its title too, since an installed package has no docs.
EMPTY_VIEW_PAGE = 'the guide "My view is empty, or old" (docs/guides/empty_view.md)'


def way_to_learn_more(flow: str) -> str:
    """Where a user finds out why a flow has no output."""
    return f"mainstem flow describe {flow} shows more; {EMPTY_VIEW_PAGE} says what to do"


@dataclass(frozen=True)
class HolderFacts:
    """The event time that one partition has reached, minus the flow's delay."""

    source: str
    partition: int
    watermark: datetime | None
    # The open transaction that hides its next records; empty if there is none.
    behind: str = ""

    def __str__(self) -> str:
        if self.behind:
            return self.behind
        at = "where no record has a time yet" if self.watermark is None else f"at {self.watermark:%Y-%m-%d %H:%M:%SZ}"
        return f"{self.source}, partition {self.partition}, {at}"


def watermark_holders(stem: Mainstem, checkpoint: str) -> list[HolderFacts]:
    """The partitions of a flow with stages in ascending order of event time: the first holds the watermark back."""
    batch = last_batch(checkpoint)
    found = []
    for offset in () if batch is None else source_offsets(checkpoint, batch):
        if offset.get("delay") is None:
            continue
        for topic in offsets_by_topic(offset):
            held = reached_times(stem.log, offset, topic, offset["delay"])
            # An idle input does not hold back what the flow has passed; one without records holds back everything.
            passed = offset["watermark"] if "idle" in offset and offset["watermark"] is not None else NO_TIME
            found += [(max(at, passed), topic, number) for number, at in (held or {0: NO_TIME}).items()]
    return [
        HolderFacts(topic, number, None if at == NO_TIME else as_datetime(at)) for at, topic, number in sorted(found)
    ]


def reached_times(log: Log, offset: dict[str, Any], topic: str, delay: int) -> dict[int, int]:
    """The event time that each partition of a topic has reached at an offset of its source, minus a delay."""
    if "times" in offset:
        return {number: event - delay for number, (event, _) in times_in(offset, topic).items()}
    positions = {int(number): end for number, end in offsets_by_topic(offset)[topic].items()}
    return log.open_topic(topic).watermark_holders(positions, delay)


def waits_for(stem: Mainstem, checkpoint: str) -> HolderFacts | None:
    """The partition whose event time must advance before kept rows are due; None if no row waits for time. If a
    transaction is open in it, that one blocks it."""
    batch = last_batch(checkpoint)
    offsets = [] if batch is None else [offset for offset in source_offsets(checkpoint, batch) if "now" in offset]
    due = due_event(StageManifests(checkpoint).folder)
    if not offsets or due is None or due <= clocks_of(offsets).watermark:
        return None
    first = next(iter(watermark_holders(stem, checkpoint)), None)
    if first is None:
        return None
    backend = stem.log.open_topic(first.source)
    ends = {topic: by for offset in offsets for topic, by in offsets_by_topic(offset).items()}
    if int(ends[first.source].get(str(first.partition), 0)) < backend.latest(first.partition):
        # There are unread records before it.
        return first
    return replace(first, behind=next(map(str, Holder.all_in(backend, first.partition)), ""))


def offsets_by_topic(offset: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The next offset of each partition of each topic of a source."""
    return {offset["topic"]: offset["offsets"]} if "topic" in offset else offset.get("topics", {})
