"""The facts about a flow, from outside: its process and its progress. Without Spark.

Its position is in its checkpoint, and the records appended since are in the log: so the lag is exact at any moment,
even for a flow that does not run. Facts about its batches are in the last rows of the topic `mainstem.progress`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from mainstem.clock import as_datetime, as_us
from mainstem.errors import FlowNotFound, InvalidName, TopicNotFound, did_you_mean
from mainstem.flows.flow_description import read_description
from mainstem.flows.flow_waits import HolderFacts, waits_for, watermark_holders
from mainstem.flows.progress_rows import PROGRESS_TOPIC
from mainstem.log.lag import Lag
from mainstem.log.topic import Topic
from mainstem.operators.stage.state_runs import StageManifests
from mainstem.sinks.store_record import StoreRecord
from mainstem.spark.checkpoint.checkpoint_offsets import (
    HistoryStatus,
    batch_offsets,
    history_status,
    last_batch,
    source_offsets,
)
from mainstem.spark.checkpoint.flow_store import FlowStore, find_process, flow_names
from mainstem.spark.sources.agreed_cut import CutNote, cut_note
from mainstem.workbench.cli.terminal_table import moment

if TYPE_CHECKING:
    from mainstem.stem import Mainstem

__all__ = [
    "FillFacts",
    "FlowFacts",
    "PROGRESS_TOPIC",
    "SourceFacts",
    "StageFacts",
    "WaitFacts",
    "flow_facts",
    "flow_lag",
    "flow_sources",
    "known_flows",
    "last_progress",
    "stage_facts",
]


# The facts about a flow's stages: their state, and late rows.


@dataclass(frozen=True)
class StageFacts:
    """One stage after the last batch: its state, its counters, and the rows that were too late, in each aggregate's
    unit."""

    stage: str
    operator: str
    rows: int
    bytes: int
    runs: int
    late: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


def stage_facts(checkpoint: str) -> list[StageFacts]:
    """The stages of a flow; empty if it has none, or no batch yet."""
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


# Enough of the end of a topic with a week of batches to find the last ones of every running flow.
PROGRESS_ROWS = 2_000

# The prefix of a source that is a view.
VIEW = "view "

State = Literal["running", "waiting", "stopped", "failed", "killed"]


@dataclass(frozen=True)
class SourceFacts:
    """A flow's position in one partition of a topic: its next offset, and its lag from there.

    For a view it is the position after the last change read; a view has one partition.
    """

    source: str
    partition: int
    offset: int
    lag: Lag


@dataclass(frozen=True)
class WaitFacts:
    """Why a flow waits before it tries again, most often since its store cannot be reached."""

    sink: str
    reason: str
    since: datetime

    def __str__(self) -> str:
        return f"{self.sink}: {self.reason}, since {moment(self.since)}"


@dataclass(frozen=True)
class FillFacts:
    """The version of a store that a flow fills: how many of its records are applied."""

    version: int
    applied: int
    records: int

    def __str__(self) -> str:
        return f"version {self.version}: {self.applied:,} of {self.records:,} records are applied"


@dataclass(frozen=True)
class FlowFacts:
    """A flow as it is now. `batch` is its last committed one; `progress` the last rows about it, oldest first.

    A flow is `killed` if its process died without recording an exit, and `waiting` if its process waits before it tries
    again.
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
    # In ascending order of event time: the first holds the watermark back.
    holders: tuple[HolderFacts, ...] = ()
    # The one that must advance before the flow has more output; None if no row waits for time.
    waits_for: HolderFacts | None = None
    # The sealed files that it read before live data; None if it read none.
    history: HistoryStatus | None = None
    # Why its run builds the program for every batch; empty if it does not.
    built: str = ""
    # How far its rows travel as columns: "from orders to windowed-0", or "no: " and the reason.
    columns: str = ""
    # The least time between the begins of two batches, in microseconds; None for the default.
    every_us: int | None = None
    # The transactions that its run waits for, and those that it had to split.
    transactions: CutNote = field(default_factory=CutNote)
    # What it does: sources, operators and sink, as its last run wrote it; None if that is not known.
    does: dict[str, Any] | None = None
    # Why it waits before it tries again; None if it does not.
    retries: WaitFacts | None = None
    # The version of its store that it fills; None if readers see all that it has written.
    fills: FillFacts | None = None

    @property
    def waits(self) -> str:
        """What the flow waits for; empty if it waits for nothing."""
        if self.retries is not None:
            return str(self.retries)
        if self.state != "running" or not self.transactions.waits:
            return "" if self.waits_for is None else str(self.waits_for)
        first, *others = self.transactions.waits
        return f"{first} and {len(others)} more" if others else str(first)

    @property
    def late(self) -> int:
        """Late rows of its last run that were counted, as far as `progress` goes."""
        return sum(row["late"] for row in self.progress if row["epoch"] == self.epoch)

    @property
    def too_late(self) -> int:
        """Rows of its last run that were too late, and dropped."""
        return sum(row.get("too_late") or 0 for row in self.progress if row["epoch"] == self.epoch)

    @property
    def lag(self) -> Lag:
        return Lag.total(source.lag for source in self.sources)


def known_flows(stem: Mainstem) -> list[str]:
    """The flows that ever ran in this home."""
    return flow_names(stem.home)


def flow_facts(stem: Mainstem, name: str, progress: dict[str, list[dict[str, Any]]] | None = None) -> FlowFacts:
    """The facts of a flow; `progress` are the last rows of all flows, if read already."""
    # The folder is not listed for each flow of a list.
    if not FlowStore(stem.home, name).exists():
        known = known_flows(stem)
        raise FlowNotFound(
            f'flow "{name}" never ran in this home',
            detail=f"These did: {', '.join(known)}." if known else f'No flow ever ran in "{stem.home}".',
            hint=did_you_mean(name, known) or "Run a program that has it: mainstem run PROGRAM.py",
        )
    store = FlowStore(stem.home, name)
    version = _shown_version(stem, store)
    run = store.of_version(version)
    process, ended = find_process(run), run.get("ended", {})
    waits = store.read().get("waits", {})
    waiting = find_process(waits)
    checkpoint = store.checkpoint(version)
    rows = (last_progress(stem) if progress is None else progress).get(name, [])
    return FlowFacts(
        flow=name,
        state="waiting"
        if waiting
        else "running"
        if process
        else ended.get("state", "killed" if run or waits else "stopped"),
        pid=waiting["pid"] if waiting else process["pid"] if process else None,
        version=version,
        epoch=run.get("epoch", 0),
        sink=run.get("sink", waits.get("sink", "")),
        batch=last_batch(checkpoint),
        sources=tuple(flow_sources(stem, checkpoint, run.get("sources", []))),
        error=tuple(ended.get("error", ())),
        progress=tuple(row for row in rows if row["version"] == version),
        checkpoint=checkpoint,
        stages=tuple(stage_facts(checkpoint)),
        holders=tuple(watermark_holders(stem, checkpoint)),
        waits_for=waits_for(stem, checkpoint),
        history=history_status(checkpoint),
        every_us=run.get("every_us"),
        built=run.get("built", ""),
        columns=run.get("columns", ""),
        transactions=cut_note(checkpoint),
        does=read_description(store, version),
        retries=WaitFacts(waits["sink"], waits["reason"], as_datetime(waits["since"])) if waiting else None,
        fills=_fills(stem, run.get("sink", ""), version, checkpoint),
    )


def _fills(stem: Mainstem, sink: str, version: int, checkpoint: str) -> FillFacts | None:
    kind, _, name = sink.partition(" ")
    if kind != "store" or (known := StoreRecord(stem.home, name).read()).version != version or not known.until:
        return None
    batch = last_batch(checkpoint)
    applied = {} if batch is None else batch_offsets(checkpoint, batch)
    wanted = [(topic, number, end) for topic, ends in known.until.items() for number, end in ends.items()]
    done = sum(min(end, applied.get(topic, {}).get(number, 0)) for topic, number, end in wanted)
    records = sum(end for _, _, end in wanted)
    return FillFacts(version, done, records) if done < records else None


def _shown_version(stem: Mainstem, store: FlowStore) -> int:
    """The version of the flow's sink: for a view the live one, even while another is built."""
    last = store.last_version()
    kind, _, name = store.of_version(last).get("sink", "").partition(" ")
    if kind == "view" and (view := stem.view(name)).exists:
        live = view.version
        return live if store.of_version(live) else last
    return last


def flow_lag(stem: Mainstem, checkpoint: str, sources: Sequence[str]) -> Lag:
    """The current lag of a flow behind its sources."""
    return Lag.total(source.lag for source in flow_sources(stem, checkpoint, sources))


def flow_sources(stem: Mainstem, checkpoint: str, sources: Sequence[str]) -> list[SourceFacts]:
    """A flow's position in each source: after its last committed batch, or the beginning."""
    batch = last_batch(checkpoint)
    offsets = {} if batch is None else batch_offsets(checkpoint, batch)
    found = []
    for name in dict.fromkeys([*offsets, *sources]):
        try:
            backend = stem.log.open_topic(name)
        except (TopicNotFound, InvalidName):
            # Deleted meanwhile, or not a topic: views follow below, and topics of a pattern are in the offsets.
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


def last_progress(stem: Mainstem, until: datetime | None = None) -> dict[str, list[dict[str, Any]]]:
    """The last rows of `mainstem.progress` by flow, oldest first, of those appended up to a time; empty if no program ever
    ran."""
    if PROGRESS_TOPIC not in stem.topics():
        return {}
    topic: Topic = stem.topic(PROGRESS_TOPIC)
    backend, numbers = topic.backend, range(topic.settings.partitions)
    stop = {
        number: backend.latest(number) if until is None else backend.at_time(number, as_us(until) + 1)
        for number in numbers
    }
    start = {number: max(backend.earliest(number), stop[number] - PROGRESS_ROWS) for number in numbers}
    found: dict[str, list[dict[str, Any]]] = {}
    for row in topic.to_arrow(start=start, stop=stop).drop_columns(["record"]).to_pylist():
        found.setdefault(row["flow"], []).append(row)
    return found
