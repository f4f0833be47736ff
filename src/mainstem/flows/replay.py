"""Replay: what a flow makes of the log up to some positions, in a place of its own that nobody else sees.

    checks/<flow>/          a view with history: what it was at each cut can be asked; removed at the end
    flows/<flow>.check/     the checkpoint; removed at the end

The flow runs as it always does, under a name of its own: its late and rejected rows go to topics of that name, which are
deleted with the rest. Its batches end at the cuts, one after the other, and behind the last one nothing is read. Should the
process be killed, the next replay of the flow removes what it left.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mainstem.errors import Conflict, TopicNotFound, Unavailable
from mainstem.flows.flow import Flow
from mainstem.flows.late_topic import late_topic_of
from mainstem.flows.program import Flows, PlannedFlow, Program
from mainstem.flows.runner import RunningFlows
from mainstem.log.placed import token_of
from mainstem.log_on_spark.flow_run import Offsets
from mainstem.log_on_spark.flow_store import FlowStore, running_in
from mainstem.log_on_spark.rejected_rows import rejected_topic_of
from mainstem.views.spark_view import SparkView

if TYPE_CHECKING:
    from mainstem.stem import Mainstem

__all__ = ["Replay"]

# However old: nothing of a replay is trimmed.
HISTORY = "36500 days"


class Replay:
    """One replay. Used with `with`: everything it made is removed at the end."""

    def __init__(
        self, stem: Mainstem, view: SparkView, planned: PlannedFlow, flows: Flows, cuts: Sequence[Offsets]
    ) -> None:
        flow = planned.name
        self._stem = stem
        self._topics = planned.topics
        self._cuts = cuts
        self._program = flows
        self._into = view.name
        self._store = FlowStore(stem.home, f"{flow}.check")
        self._folder = f"{stem.home}/checks/{flow}"
        self._check_alone()
        self._remove()
        os.makedirs(self._folder, mode=0o700)
        self._sink = SparkView(
            self._folder, view.name, lambda: stem.spark, key=view.key, history=HISTORY, clock=stem.log.clock
        )
        self._running: RunningFlows | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is not None:
            self._running.stop()
        self._sink.close()
        self._remove()

    def run(self) -> SparkView:
        """Replay all of it; the view as it is then."""
        # Of a topic that a cut does not name, nothing was in yet.
        cuts = {topic: [_written(cut.get(topic, {})) for cut in self._cuts] for topic in self._topics}
        program = Program(self._stem, self._flows, cuts=cuts)
        self._running = RunningFlows(self._stem, program, program.only([self._store.name]))
        [handle] = self._running
        handle.wait_until_idle()
        self._running.stop()
        self._running.check()
        self._check_complete()
        return self._sink

    def _flows(self, stem: Mainstem) -> Iterator[Flow]:
        made: Iterable[Any] = self._program(stem)
        for flow in made:
            if isinstance(flow, Flow) and (flow.into.kind, flow.into.name) == ("view", self._into):
                yield replace(flow, into=self._sink, name=self._store.name)
            else:
                yield flow

    def _check_complete(self) -> None:
        applied = self._sink.offsets() if self._sink.exists else {}
        for topic, ends in self._cuts[-1].items():
            for number, end in ends.items():
                if applied.get(topic, {}).get(number, 0) < end:
                    raise Unavailable(
                        f'the replay for view "{self._into}" ended too early',
                        detail=f"It has applied {token_of(applied) or 'nothing'}, and was to reach "
                        f"{token_of(self._cuts[-1])}.",
                        hint="Begin again. If somebody stopped it (mainstem flow stop), that is why.",
                    )

    def _check_alone(self) -> None:
        for run in self._store.read().get("runs", {}).values():
            if (process := running_in(run)) is not None:
                raise Conflict(
                    f'view "{self._into}" is being checked',
                    detail=f"Process {process['pid']} does so.",
                    hint="Wait until it is done.",
                )

    def _remove(self) -> None:
        self._store.drop()
        shutil.rmtree(self._folder, ignore_errors=True)
        for topic in (late_topic_of(self._store.name), rejected_topic_of(self._store.name)):
            with suppress(TopicNotFound):
                self._stem.log.delete_topic(topic)


def _written(ends: Any) -> dict[str, int]:
    """As it travels in a request."""
    return {str(number): end for number, end in ends.items()}
