"""What there is to say of a flow's stages from outside: what they keep, what came too late, what holds the watermark back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mainstem.clock import as_datetime
from mainstem.log.watermark import NO_TIME
from mainstem.log_on_spark.batch_clock import clocks_of, due_event
from mainstem.log_on_spark.checkpoint_offsets import last_batch, source_offsets
from mainstem.log_on_spark.flow_cut import Holder
from mainstem.log_on_spark.observed_times import times_in
from mainstem.operators.stage.stage_manifest import StageManifests
from mainstem.workbench.cli.amounts import moment

if TYPE_CHECKING:
    from mainstem.stem import Mainstem

__all__ = ["HolderFacts", "StageFacts", "stage_facts", "waits_for", "watermark_holders"]


@dataclass(frozen=True)
class StageFacts:
    """One stage after the last batch: its state, what it counted, and what came too late in the unit of each aggregate."""

    stage: str
    operator: str
    rows: int
    bytes: int
    runs: int
    late: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class HolderFacts:
    """How far one partition has come in event time, less the delay that the flow asked for."""

    source: str
    partition: int
    watermark: datetime | None
    # The transaction behind which its next records lie; empty if none is open there.
    behind: str = ""

    def __str__(self) -> str:
        if self.behind:
            return self.behind
        at = "where no record has a time yet" if self.watermark is None else f"at {moment(self.watermark)}"
        return f"{self.source}, partition {self.partition}, {at}"


def stage_facts(checkpoint: str) -> list[StageFacts]:
    """The stages of a flow; none if it has none, or no batch yet."""
    manifest = StageManifests(checkpoint).last()
    return [] if manifest is None else list(_stages(manifest["stages"]))


def _stages(content: dict[str, Any]) -> Iterator[StageFacts]:
    for name, stage in content.items():
        states = stage["state"].values()
        runs = [run for state in states for run in state["runs"]]
        yield StageFacts(
            name, stage["operator"], sum(state["live"] for state in states), sum(run["bytes"] for run in runs), len(runs),
            stage["late"], stage["counts"],
        )  # fmt: skip


def watermark_holders(stem: Mainstem, checkpoint: str) -> list[HolderFacts]:
    """The partitions of a flow with stages by how far they have come, the one that holds the watermark back first."""
    batch = last_batch(checkpoint)
    found = []
    for offset in () if batch is None else source_offsets(checkpoint, batch):
        if offset.get("delay") is None:
            continue
        for topic, ends in offsets_by_topic(offset).items():
            positions = {int(number): end for number, end in ends.items()}
            if "times" in offset:
                held = {number: event - offset["delay"] for number, (event, _) in times_in(offset, topic).items()}
            else:
                held = stem.log.open_topic(topic).watermark_holders(positions, offset["delay"])
            # An input that is idle holds nothing back that the flow has passed; one without records holds everything back.
            passed = offset["watermark"] if "idle" in offset and offset["watermark"] is not None else NO_TIME
            found += [(max(at, passed), topic, number) for number, at in (held or {0: NO_TIME}).items()]
    return [
        HolderFacts(topic, number, None if at == NO_TIME else as_datetime(at)) for at, topic, number in sorted(found)
    ]


def waits_for(stem: Mainstem, checkpoint: str) -> HolderFacts | None:
    """What a flow with stages waits for: the partition whose time must go on before anything that is kept is due; None if
    nothing waits for time. Where a transaction is open in it, that is what holds it."""
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
        # There is more to be read before it.
        return first
    return replace(first, behind=next(map(str, Holder.all_in(backend, first.partition)), ""))


def offsets_by_topic(offset: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The next offset of each partition of each topic of a source."""
    return {offset["topic"]: offset["offsets"]} if "topic" in offset else offset.get("topics", {})
