"""Fills a store again from the log by hand, beside what readers see, and switches when it has caught up.

The flow that keeps the store current goes on meanwhile, in this process or another one; after the switch it continues with
the new version's checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from mainstem.errors import FlowNotFound, Unavailable, did_you_mean
from mainstem.flows.program import Flows, PlannedFlow, Program
from mainstem.flows.runner import RunningFlows
from mainstem.flows.store_fill import check_complete, log_ends
from mainstem.sinks.store import Store, StoreStatus
from mainstem.spark.checkpoint.checkpoint_location import remove_checkpoint
from mainstem.spark.checkpoint.flow_store import FlowStore

if TYPE_CHECKING:
    from mainstem.stem import Mainstem

__all__ = ["rebuild_store"]

# How often progress is looked at.
LOOK_SECONDS = 0.2


def rebuild_store(
    stem: Mainstem, name: str, flows: Flows, *, incomplete: bool = False, tell: Callable[[int, int], None] | None = None
) -> StoreStatus:
    """Returns when readers see the new version. `incomplete`: also if retention has removed records; `tell` is called with
    the number of records that are applied, and of all."""
    program = Program(stem, flows, rebuilt=name)
    planned = _flow_into(program, name)
    store = planned.flow.into
    assert isinstance(store, Store)
    if not incomplete:
        check_complete(planned, stem.log)
    known = max((fence.version for fence in store.backend.fences() if fence is not None), default=0)
    version = store.record.new_version(known)
    following = store.at_version(version)
    running = RunningFlows(stem, program, [replace(planned, flow=replace(planned.flow, into=following))])
    done = False
    try:
        _wait(stem, running, planned, following, tell)
        running.stop()
        store.record.change(
            lambda facts: replace(facts, version=version, until={}, location=store.location, flow=planned.name)
        )
        done = True
    finally:
        running.stop()
        if not done:
            _forget(stem, planned.name, store, version)
    return store.status


def _wait(
    stem: Mainstem, running: RunningFlows, planned: PlannedFlow, store: Store, tell: Callable[[int, int], None] | None
) -> None:
    [handle] = running
    while True:
        running.check()
        fences = store.backend.fences()
        if fences.live is not None and fences.live.version == store.version and not fences.live.filling:
            return
        if handle.state == "stopped":
            raise Unavailable(
                f'the rebuild of store "{store.name}" was stopped',
                detail=f"Readers see what they saw before, in {store.location}.",
                hint="Start it again.",
            )
        if tell is not None:
            ends = log_ends(planned, stem)
            applied = {} if fences.beside is None else fences.beside.offsets
            pairs = [
                (applied.get(topic, {}).get(number, 0), end) for topic, by in ends.items() for number, end in by.items()
            ]
            tell(sum(min(reached, end) for reached, end in pairs), sum(end for _, end in pairs))
        handle.stopping.wait(LOOK_SECONDS)


def _forget(stem: Mainstem, flow: str, store: Store, version: int) -> None:
    """Remove what a rebuild that was not finished has left."""
    fences = store.backend.fences()
    if fences.live is not None and fences.live.version == version:
        return  # it was interrupted after the switch: the flow's next run finds that
    if fences.beside is not None and fences.beside.version == version:
        store.backend.drop("beside")
    checkpoints = FlowStore(stem.home, flow)
    checkpoints.forget(version)
    remove_checkpoint(checkpoints.checkpoint(version))


def _flow_into(program: Program, name: str) -> PlannedFlow:
    by_store = {flow.flow.into.name: flow for flow in program.flows if flow.flow.into.kind == "store"}
    if name not in by_store:
        raise FlowNotFound(
            f'no flow of the program writes into store "{name}"',
            detail=f"Its flows write into the stores: {', '.join(by_store) or 'none'}.",
            hint=did_you_mean(name, by_store) or "Give the program whose flow writes the store.",
        )
    return by_store[name]
