"""Rebuild: builds a view's next version from the log beside the live one, compares the two, and switches over.

    with stem.rebuild("revenue", flows) as rebuild:
        rebuild.wait(lambda done, rows: print(f"{done} of {rows}"))
        print(rebuild.difference())
        rebuild.apply()              # or keep_both(); if neither, the new version is dropped again

Readers see the live version until `apply`, and the new one from then on. A running flow notices the switch and
continues with the new version's checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from mainstem.arguments import checked_calls
from mainstem.errors import FlowNotFound, Invalid, Unavailable, did_you_mean
from mainstem.flows.checkpoint_fit import replayed_topics
from mainstem.flows.program import Flows, PlannedFlow, Program
from mainstem.flows.runner import RunningFlows
from mainstem.spark.checkpoint.checkpoint_location import remove_checkpoint
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.views.spark_view import SparkView
from mainstem.views.version_pair import Difference

if TYPE_CHECKING:
    from mainstem.stem import Mainstem

__all__ = ["Rebuild", "flow_into"]

# How often progress is reported.
TELL_SECONDS = 0.5


@checked_calls
class Rebuild:
    """A running rebuild. Used with `with`: at its end the new version is dropped unless it was applied or kept."""

    def __init__(self, stem: Mainstem, name: str, flows: Flows) -> None:
        self._stem = stem
        self.view = stem.view(name)
        self.before = self.view.version
        program = Program(stem, flows, rebuilt=name)
        planned = flow_into(program, name)
        self.version = self.view.new_version(planned.schema)
        self._kept = False
        sink = SparkView(
            stem.home, name, lambda: stem.spark, version=self.version, clock=stem.log.clock, backend=stem.view_backend
        )
        self._planned = replace(planned, flow=replace(planned.flow, into=sink))
        self._running = RunningFlows(stem, program, [self._planned])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def rows(self) -> int:
        """The number of records to replay."""
        return sum(sum(ends.values()) for ends in self._ends().values())

    @property
    def done(self) -> int:
        """The number of records that the new version has applied."""
        ends = self._ends()
        applied = self.view.offsets(self.version)
        return sum(
            min(applied.get(topic, {}).get(number, 0), end) for topic, by in ends.items() for number, end in by.items()
        )

    def _ends(self) -> dict[str, dict[int, int]]:
        backends = {topic: self._stem.log.open_topic(topic) for topic in replayed_topics(self._stem.log, self._planned)}
        return {
            topic: {number: backend.latest(number) for number in range(backend.settings.partitions)}
            for topic, backend in backends.items()
        }

    def wait(self, tell: Callable[[int, int], None] | None = None) -> None:
        """Return when the new version has applied all that the live one has; `tell` is called with (done, rows) at times."""
        [handle] = self._running
        while tell is not None and not self._caught_up():
            self._running.check()
            if handle.state == "stopped":
                raise Unavailable(
                    f'the rebuild of view "{self.view.name}" was stopped',
                    detail=f"{self.done:,} of {self.rows:,} records are in version {self.version}.",
                    hint="Start it again.",
                )
            tell(self.done, self.rows)
            handle.stopping.wait(TELL_SECONDS)
        while True:
            self._running.wait_until_idle()
            if self._caught_up():
                return

    def _caught_up(self) -> bool:
        applied, live, ends = self.view.offsets(self.version), self.view.offsets(self.before), self._ends()
        # A topic that was created again may never reach the offsets that the live version has applied; and a topic that the
        # flow no longer reads needs no waiting.
        return all(
            applied.get(topic, {}).get(number, 0) >= min(end, ends[topic].get(number, 0))
            for topic, by in live.items()
            if topic in ends
            for number, end in by.items()
        )

    def difference(self) -> Difference:
        """How the new version differs from the live one."""
        return self.view.difference(self.before, self.version)

    def apply(self) -> None:
        """Make the new version the live one; the old one stays, and can be used again."""
        self.keep_both()
        self.view.use(self.version)

    def keep_both(self) -> None:
        """Leave the new version beside the live one."""
        self._running.stop()
        self._kept = True

    def close(self) -> None:
        """Stop, and drop the new version unless it was applied or kept."""
        self._running.stop()
        if not self._kept:
            self._kept = True
            self.view.drop_version(self.version)
            store = FlowStore(self._stem.home, self._planned.name)
            store.forget(self.version)
            remove_checkpoint(store.checkpoint(self.version))


def flow_into(program: Program, view: str) -> PlannedFlow:
    """The flow of a program that writes a view."""
    by_view = {flow.flow.into.name: flow for flow in program.flows if flow.flow.into.kind == "view"}
    others = {flow.flow.into.name: flow.flow.into.kind for flow in program.flows if flow.flow.into.kind != "view"}
    if view not in by_view and view in others:
        raise Invalid(
            f'{others[view]} "{view}" cannot be rebuilt',
            detail="Only a view has versions, so that a new one can be built beside the live one. Readers of a topic or a "
            "folder keep what they have read.",
            hint="Run the flow under another name into another topic or folder, and switch the readers over when it "
            "has caught up.",
        )
    if view not in by_view:
        raise FlowNotFound(
            f'no flow of the program writes into view "{view}"',
            detail=f"Its flows write into the views: {', '.join(by_view) or 'none'}.",
            hint=did_you_mean(view, by_view) or "Give the program whose flow writes the view.",
        )
    return by_view[view]
