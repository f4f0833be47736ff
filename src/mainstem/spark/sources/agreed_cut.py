"""AgreedCut: all sources of a flow end a batch where it splits no transaction.

Spark asks the sources of a query for their next offsets one after the other, each once for every batch, and each source is
a separate process. The first one that is asked plans for all of them and writes the plan into a folder beside the
checkpoint; the others read their part of it.

    <checkpoint>/cut/<random>/sources           the requests of all sources, written before the query starts
    <checkpoint>/cut/<random>/plan              {"round": 3, "ends": {"0": {"orders": {"0": 17, ...}}, "1": ...}, ...}
    <checkpoint>/cut/<random>/start-<leaf>      {"round": 2, "ends": ...}   the position of a source, if no plan has it

Each start of a query has its own folder, so a plan is never that of an earlier start. A source that was given its part of
a round is the first one of the next. After a restart the positions of the other sources are unknown: then each source
reports its own once, and gives no rows before the next round.

    <checkpoint>/cut/note           transactions that delayed or were split by batches, for `mainstem flow describe`
                                    {"waits": [[12, "orders", 3, 4711], ...], "torn": 0, "last_torn": []}
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any, NamedTuple

from mainstem.errors import Unavailable
from mainstem.log.flow_cut import FlowCut, FlowEnds, Holder, Positions, SourcePart, readable_ends
from mainstem.log.log import Log
from mainstem.spark.checkpoint.flow_store import check_epoch
from mainstem.spark.sources.topic_glob import match_topics
from mainstem.spark.sources.topic_request import TopicRequest

__all__ = ["AgreedCut", "CutNote", "cut_note", "nest_positions", "new_agreement", "positions", "write_sources"]

TORN_SHOWN = 10

Nested = dict[str, dict[str, int]]


def positions(by_topic: Mapping[str, Mapping[str, int]]) -> Positions:
    return {(name, int(number)): at for name, by in by_topic.items() for number, at in by.items()}


def nest_positions(at: Mapping[tuple[str, int], int]) -> Nested:
    found: Nested = {}
    for (name, number), offset in sorted(at.items()):
        found.setdefault(name, {})[str(number)] = offset
    return found


def _between(starts: Positions, ends: Positions) -> int:
    """The number of offsets from one to the other."""
    return sum(max(0, end - starts.get(lane, 0)) for lane, end in ends.items())


def new_agreement(checkpoint: str) -> str:
    """A folder for the sources of a query that is about to start; those of earlier ones are removed."""
    parent = f"{checkpoint}/cut"
    folder = f"{parent}/{uuid.uuid4().hex[:12]}"
    os.makedirs(parent, exist_ok=True)
    for name in os.listdir(parent):
        shutil.rmtree(f"{parent}/{name}", ignore_errors=True)
    with suppress(FileNotFoundError):
        os.remove(f"{parent}/note")
    os.mkdir(folder)
    return folder


def write_sources(folder: str, requests: Sequence[TopicRequest]) -> None:
    """Write the requests of all sources, before the query starts."""
    _write(f"{folder}/sources", {"sources": [asdict(request) for request in requests]})


def _write(path: str, value: Any) -> None:
    """Overwrite in place: there are no concurrent readers, and after a crash it is not read again."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        data = json.dumps(value).encode()
        os.pwrite(handle, data, 0)
        os.ftruncate(handle, len(data))
    finally:
        os.close(handle)


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
    except (FileNotFoundError, ValueError):
        return {}
    return found


class CutNote(NamedTuple):
    """Transactions that delayed the batches of a flow or were split by them, since its start."""

    # The transactions that it waits for.
    waits: tuple[Holder, ...] = ()
    # The number of split transactions, and the last of them.
    torn: int = 0
    last_torn: tuple[int, ...] = ()


def cut_note(checkpoint: str) -> CutNote:
    """The note of the last run of a flow."""
    known = _read(f"{checkpoint}/cut/note")
    waits = tuple(Holder(*wait) for wait in known.get("waits", ()))
    return CutNote(waits, known.get("torn", 0), tuple(known.get("last_torn", ())))


class AgreedCut:
    """The part of one source. For one thread."""

    def __init__(self, request: TopicRequest, open_log: Callable[[], Log]) -> None:
        self._request = request
        self._folder = request.together
        self._open_log = open_log
        self._round = 0
        self._asked = False
        # The topics that this source has reported to the others.
        self._told: set[str] = set()
        self._note_left = CutNote()
        self._held: list[Holder] = []
        # Whether the last batch that this source planned is empty because of an open transaction.
        self.waits = False
        # Whether the limits of the last batch that this source planned left at least as many records as it took.
        self.behind = False
        # Whether it took all records that could be read, of all sources.
        self.took_all = False

    @cached_property
    def _cut(self) -> FlowCut:
        return self._open_log().flow_cut()

    def close(self) -> None:
        if "_cut" in self.__dict__:
            self._cut.close()

    @property
    def noted(self) -> int | None:
        """The value to store in an offset, for `begin_at` after a restart; None if none is needed."""
        return self._cut.noted

    def begin_at(self, noted: int) -> None:
        """Resume from the value in the last run's offset."""
        self._cut.begin_at(noted)

    @cached_property
    def _alone(self) -> bool:
        return not self._folder or not os.path.exists(f"{self._folder}/sources")

    def take_planned_ends(self, starts: Positions) -> Positions | None:
        """The ends that another source has planned for this one; None if this one plans, with `ends`."""
        self.waits = False
        if self._alone:
            return None
        plan = _read(f"{self._folder}/plan")
        first, self._asked = not self._asked, True
        if not plan and first:
            # The positions of the others are unknown. Each reports its own, and one of them plans the next round.
            self.stand_at(starts)
            return starts
        if plan.get("round", 0) <= self._round:
            return None
        self._round = plan["round"]
        self._check_at(starts, plan["starts"])
        if plan.get("noted") is not None:
            self._cut.begin_at(plan["noted"])
        return {**starts, **positions(plan["ends"][str(self._request.leaf)])}

    def stand_at(self, at: Positions, topics: Iterable[str] = ()) -> None:
        """Report the position of this source, if no plan has it; and the topics that it knows, if it reads a pattern."""
        if not self._alone and (not topics or set(topics) != self._told):
            self._told = set(topics)
            value = {"round": self._round, "ends": nest_positions(at), "topics": sorted(self._told)}
            self._leave(f"start-{self._request.leaf}", value)

    def beginnings(self, parts: Mapping[int, SourcePart]) -> dict[int, Positions]:
        """The start offsets of sources, by leaf, such that none is inside a transaction; see `FlowCut`."""
        return self._cut.beginnings(parts)

    def begin(self, at: Mapping[int, Positions]) -> None:
        """Record the start offsets of all sources, by leaf: the first source that is asked determines them for all."""
        if not self._alone and not os.path.exists(f"{self._folder}/plan"):
            ends = {str(leaf): nest_positions(starts) for leaf, starts in at.items()}
            self._leave("plan", {"round": 0, "starts": ends, "ends": ends})

    def take_planned_starts(self) -> Positions | None:
        """The start offsets of this source, if another one was asked before it."""
        plan = {} if self._alone else _read(f"{self._folder}/plan")
        return positions(plan["starts"][str(self._request.leaf)]) if plan else None

    @cached_property
    def peers(self) -> list[TopicRequest]:
        """The other sources, each once."""
        found = [] if self._alone else _read(f"{self._folder}/sources")["sources"]
        requests = [TopicRequest(**{**known, "columns": tuple(known["columns"])}) for known in found]
        return [request for request in requests if request.leaf != self._request.leaf]

    def ends(self, topics: Mapping[str, Any], starts: Positions, ends: Positions, *, rows: bool = True) -> Positions:
        """The end offsets of this source's next batch; the others find theirs in the plan.

        `ends`: the ends of the readable records, taken before anything else of this batch. `rows`: whether it may have rows.
        """
        parts = {self._request.leaf: SourcePart(self._request, topics, starts, ends)}
        plan: dict[str, Any] = {}
        if not self._alone:
            plan = _read(f"{self._folder}/plan")
            self._check_at(starts, plan.get("ends", {}))
            parts |= {peer.leaf: self._part(peer, plan) for peer in self.peers}
        if not rows or any(self._unknown(part) for part in parts.values()):
            # The source itself finds them when it is asked: until then a transaction may write to them.
            parts = {leaf: replace(part, ends={}) for leaf, part in parts.items()}
        found = self._cut.ends(parts)
        self._note(found)
        if rows:
            taken = sum(_between(part.starts, found.ends[leaf]) for leaf, part in parts.items())
            left = sum(_between(found.ends[leaf], part.ends) for leaf, part in parts.items())
            self.behind, self.took_all = 0 < taken <= left, not left
        if not self._alone:
            self._round = plan.get("round", 0) + 1
            at = {leaf: {**part.starts, **found.ends[leaf]} for leaf, part in parts.items()}
            begun = {str(leaf): nest_positions(part.starts) for leaf, part in parts.items()}
            planned = {str(leaf): nest_positions(ends) for leaf, ends in at.items()}
            noted = {} if self._cut.noted is None else {"noted": self._cut.noted}
            self._leave("plan", {"round": self._round, "starts": begun, "ends": planned, **noted})
        return {**starts, **found.ends[self._request.leaf]}

    def limits(self, topics: Mapping[str, Any], starts: Positions, ends: Positions) -> Positions:
        """The end offsets of this source's next batch by its limits alone: for a replay, whose boundaries are given."""
        return self._cut.limits(SourcePart(self._request, topics, starts, ends))

    def _unknown(self, part: SourcePart) -> bool:
        """Whether another source has not found all its topics yet."""
        if not part.request.pattern or part.request.leaf == self._request.leaf:
            return False
        known = _read(f"{self._folder}/start-{part.request.leaf}").get("topics", [])
        names = match_topics(part.request.topic, self._open_log().topic_names())
        return not {*part.topics, *known}.issuperset(names)

    def _leave(self, name: str, value: Any) -> None:
        try:
            _write(f"{self._folder}/{name}", value)
        except FileNotFoundError:
            # A newer run removed it.
            if self._request.run is not None:
                check_epoch(self._request.home, self._request.run)
            raise

    def _part(self, peer: TopicRequest, plan: Mapping[str, Any]) -> SourcePart:
        """The current part of another source."""
        known = _read(f"{self._folder}/start-{peer.leaf}")
        if plan and (not known or known["round"] < plan["round"]):
            starts = positions(plan["ends"][str(peer.leaf)])
        elif known:
            starts = positions(known["ends"])
        else:
            raise self._disagreement(f'Source "{peer.topic}" has not reported its position.')
        log = self._open_log()
        names = {name for name, _ in starts} & set(log.topic_names()) if peer.pattern else {peer.topic}
        topics = {name: log.open_topic(name) for name in sorted(names)}
        ends = {(name, number): end for name, topic in topics.items() for number, end in readable_ends(topic).items()}
        return SourcePart(peer, topics, starts, ends)

    def _note(self, found: FlowEnds) -> None:
        self.waits = bool(found.held)
        before = self._note_left
        last = tuple(found.torn[-TORN_SHOWN:]) or before.last_torn
        # Every transaction is open for a moment between two markers: reported are those that are still open at the next call.
        waits = tuple(holder for holder in found.held if holder in self._held)
        self._held = found.held
        note = CutNote(waits, before.torn + len(found.torn), last)
        if note != before and self._folder:
            self._note_left = note
            # The note is for display; a failed write never stops the flow.
            with suppress(OSError):
                _write(f"{os.path.dirname(self._folder)}/note", note._asdict())

    def _check_at(self, starts: Positions, planned: Mapping[str, Nested]) -> None:
        """Raise `Unavailable` if this source's position differs between the plan and Spark."""
        known = positions(planned.get(str(self._request.leaf), {}))
        if any(starts.get(lane, 0) != at for lane, at in known.items()):
            raise self._disagreement(
                f'Source "{self._request.topic}" was planned from a different offset than Spark has for it.'
            )

    def _disagreement(self, detail: str) -> Unavailable:
        return Unavailable(
            f'the sources of flow "{self._request.flow}" do not agree on the start of a batch',
            detail=f"{detail} Nothing was read.",
            hint="The flow restarts by itself. If the error persists, report it together with the folder "
            f'"{self._folder}".',
        )
