"""What there is to say of a flow from outside: who runs it, and how far it has come. Without Spark.

How far it is stands in its checkpoint, and what was appended since in the log: so both are right at any moment, also of a
flow that stands still. What a batch was like is told by the last rows of the topic `mainstem.progress`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from mainstem.clock import as_datetime
from mainstem.errors import FlowNotFound, InvalidName, TopicNotFound, did_you_mean
from mainstem.log.lag import Lag
from mainstem.log.topic import Topic
from mainstem.log.watermark import NO_TIME
from mainstem.operators.stage.state_runs import StageManifests
from mainstem.spark.checkpoint.checkpoint_offsets import (
    HistoryStatus,
    batch_offsets,
    history_status,
    last_batch,
    source_offsets,
)
from mainstem.spark.checkpoint.flow_store import FlowStore, flow_names, running_in
from mainstem.spark.plan.observed_times import times_in
from mainstem.spark.sources.agreed_cut import CutNote, cut_note
from mainstem.spark.sources.batch_clock import clocks_of, due_event
from mainstem.spark.sources.flow_cut import Holder
from mainstem.workbench.cli.terminal_table import moment

if TYPE_CHECKING:
    from mainstem.stem import Mainstem

__all__ = [
    "FlowFacts",
    "HolderFacts",
    "PROGRESS_TOPIC",
    "SourceFacts",
    "StageFacts",
    "flow_facts",
    "flow_lag",
    "flow_sources",
    "known_flows",
    "last_progress",
    "stage_facts",
    "waits_for",
    "watermark_holders",
]


# What there is to say of a flow's stages from outside: what they keep, what came too late, what holds the watermark back.


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


PROGRESS_TOPIC = "mainstem.progress"
# Of a topic that may hold a week of batches, enough of the end to find the last ones of every flow that is at work.
PROGRESS_ROWS = 2_000

# What a source that is a view is called.
VIEW = "view "

State = Literal["running", "stopped", "failed", "killed"]


@dataclass(frozen=True)
class SourceFacts:
    """Where a flow stands in one partition of a topic: the offset it reads next, and what is there from it on.

    Of a view it is the position behind the last change that it has read; a view has one partition.
    """

    source: str
    partition: int
    offset: int
    lag: Lag


@dataclass(frozen=True)
class FlowFacts:
    """A flow as it is now. `batch` is its last complete one; `progress` the last rows about it, oldest first.

    A flow is `killed` when its process is gone and could not say what became of it.
    """

    flow: str
    state: State
    pid: int | None
    version: int
    epoch: int
    sink: str
    batch: int | None
    sources: tuple[SourceFacts, ...]
    error: tuple[str, ...] = ()
    progress: tuple[dict[str, Any], ...] = field(default_factory=tuple)
    checkpoint: str = ""
    stages: tuple[StageFacts, ...] = ()
    # By how far they have come, the one that holds the watermark back first.
    holders: tuple[HolderFacts, ...] = ()
    # The one of them that must go on before the flow has more to give; None if nothing that it keeps waits for time.
    waits_for: HolderFacts | None = None
    # The sealed files that it read before it went live; None if it read none.
    history: HistoryStatus | None = None
    # Why its run builds the program for every batch; empty if it does not.
    built: str = ""
    # Which transactions its run waits for, and which ones it had to cut.
    transactions: CutNote = field(default_factory=CutNote)

    @property
    def waits(self) -> str:
        """What must happen before the flow has more to give; empty if it waits for nothing."""
        if self.state != "running" or not self.transactions.waits:
            return "" if self.waits_for is None else str(self.waits_for)
        first, *others = self.transactions.waits
        return f"{first} and {len(others)} more" if others else str(first)

    @property
    def late(self) -> int:
        """Rows of its last run that came late and count, as far as `progress` goes."""
        return sum(row["late"] for row in self.progress if row["epoch"] == self.epoch)

    @property
    def too_late(self) -> int:
        """Those that count nowhere."""
        return sum(row.get("too_late") or 0 for row in self.progress if row["epoch"] == self.epoch)

    @property
    def lag(self) -> Lag:
        return Lag.total(source.lag for source in self.sources)


def known_flows(stem: Mainstem) -> list[str]:
    """The flows that ever ran in this home."""
    return flow_names(stem.home)


def flow_facts(stem: Mainstem, name: str, progress: dict[str, list[dict[str, Any]]] | None = None) -> FlowFacts:
    """The facts of a flow; `progress` are the last rows of all flows, if they were read already."""
    if name not in (known := known_flows(stem)):
        raise FlowNotFound(
            f'flow "{name}" never ran in this home',
            detail=f"These did: {', '.join(known)}." if known else f'No flow ever ran in "{stem.home}".',
            hint=did_you_mean(name, known) or "Run a program that has it: mainstem run PROGRAM.py",
        )
    store = FlowStore(stem.home, name)
    version = _shown_version(stem, store)
    run = store.of_version(version)
    process, ended = running_in(run), run.get("ended", {})
    checkpoint = store.checkpoint(version)
    rows = (last_progress(stem) if progress is None else progress).get(name, [])
    return FlowFacts(
        flow=name,
        state="running" if process else ended.get("state", "killed"),
        pid=process["pid"] if process else None,
        version=version,
        epoch=run.get("epoch", 0),
        sink=run.get("sink", ""),
        batch=last_batch(checkpoint),
        sources=tuple(flow_sources(stem, checkpoint, run.get("sources", []))),
        error=tuple(ended.get("error", ())),
        progress=tuple(row for row in rows if row["version"] == version),
        checkpoint=checkpoint,
        stages=tuple(stage_facts(checkpoint)),
        holders=tuple(watermark_holders(stem, checkpoint)),
        waits_for=waits_for(stem, checkpoint),
        history=history_status(checkpoint),
        built=run.get("built", ""),
        transactions=cut_note(checkpoint),
    )


def _shown_version(stem: Mainstem, store: FlowStore) -> int:
    """The version that the flow is about: of one into a view the live one, also while another is made beside it."""
    last = store.last_version()
    kind, _, name = store.of_version(last).get("sink", "").partition(" ")
    if kind == "view" and (view := stem.view(name)).exists:
        live = view.version
        return live if store.of_version(live) else last
    return last


def flow_lag(stem: Mainstem, checkpoint: str, sources: Sequence[str]) -> Lag:
    """How far a flow is behind its sources, now."""
    return Lag.total(source.lag for source in flow_sources(stem, checkpoint, sources))


def flow_sources(stem: Mainstem, checkpoint: str, sources: Sequence[str]) -> list[SourceFacts]:
    """Where a flow stands in each source: behind its last complete batch, before the first one at the beginning."""
    batch = last_batch(checkpoint)
    offsets = {} if batch is None else batch_offsets(checkpoint, batch)
    found = []
    for name in dict.fromkeys([*offsets, *sources]):
        try:
            backend = stem.log.open_topic(name)
        except (TopicNotFound, InvalidName):
            # Deleted meanwhile, or not a topic: views come below, and of several topics each one is in the offsets.
            continue
        for number in range(backend.settings.partitions):
            offset = offsets.get(name, {}).get(number, backend.earliest(number))
            found.append(SourceFacts(name, number, offset, backend.behind(number, offset)))
    return found + _views(stem, checkpoint, batch, sources)


def _views(stem: Mainstem, checkpoint: str, batch: int | None, sources: Sequence[str]) -> list[SourceFacts]:
    positions = {source.removeprefix(VIEW): 0 for source in sources if source.startswith(VIEW)}
    for content in () if batch is None else source_offsets(checkpoint, batch):
        if "view" in content:
            positions[content["view"]] = content["position"]
    found = []
    for name, position in positions.items():
        with closing(stem.view(name)) as view:
            behind = max(0, view.last_position() - position)
        found.append(SourceFacts(f"{VIEW}{name}", 0, position, Lag(records=behind)))
    return found


def last_progress(stem: Mainstem) -> dict[str, list[dict[str, Any]]]:
    """The last rows of `mainstem.progress` by flow, oldest first; none if no program ever ran."""
    if PROGRESS_TOPIC not in stem.topics():
        return {}
    topic: Topic = stem.topic(PROGRESS_TOPIC)
    backend = topic.backend
    start = {
        number: max(backend.earliest(number), backend.latest(number) - PROGRESS_ROWS)
        for number in range(topic.settings.partitions)
    }
    found: dict[str, list[dict[str, Any]]] = {}
    for row in topic.to_arrow(start=start).drop_columns(["record"]).to_pylist():
        found.setdefault(row["flow"], []).append(row)
    return found
