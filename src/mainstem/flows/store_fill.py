"""Filling a store from the log: the first time, after it has lost data, or by hand.

    the fence of the store      version 1, batch 57
    the checkpoint of the flow  version 1, batch 59 is committed: the store has lost batches 58 and 59

The flow then writes version 2, with a checkpoint of its own, from the beginning of the log. What the store still has stays
readable until version 2 has applied everything that version 1 had; then the store switches in one step. So keys that the
log no longer has are gone, and readers never see a mixture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from mainstem.batch import Offsets
from mainstem.errors import Conflict, FellOff, MainstemError, Unavailable
from mainstem.flows.checkpoint_fit import replayed_topics
from mainstem.log.activity import note_activity
from mainstem.sinks.store import Store, offsets_reached
from mainstem.sinks.store_backend import Fence
from mainstem.sinks.store_record import StoreFacts
from mainstem.sinks.store_writer import StoreWriter
from mainstem.spark.arrow_writer import ArrowWriter
from mainstem.spark.checkpoint.checkpoint_offsets import last_batch
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.views.view import View

if TYPE_CHECKING:
    from mainstem.flows.program import PlannedFlow
    from mainstem.log.log import Log
    from mainstem.sinks.sink import BatchWriter
    from mainstem.stem import Mainstem

__all__ = ["StoreFill", "begin_again_if_lost", "check_complete", "log_ends"]


def begin_again_if_lost(planned: PlannedFlow, checkpoint: str, stem: Mainstem) -> str:
    """Why the flow has to go on with another version of its store; empty if it does not. The store lacks batches that the
    flow has committed, and is filled again; or a rebuild was interrupted after its switch."""
    store = planned.flow.into
    if not isinstance(store, Store):
        return ""
    _check_flow(planned, store)
    version, live = store.version, store.backend.fences().live
    if store.follows_record and live is not None and live.version > version and live.home == stem.log.identity:
        of_live = FlowStore(stem.home, planned.name).checkpoint(live.version)
        if last_batch(of_live, "offsets") is not None:
            store.record.use(live.version, until={})
            return "" if store.version == version else f'version {live.version} of store "{store.name}" is live'
    committed, reached = last_batch(checkpoint, "commits"), store.reached(version)
    if committed is None or reached >= committed:
        return ""
    if not store.follows_record:
        raise Conflict(
            f'the new version of store "{store.name}" is gone before it was complete',
            detail="The flow itself fills the store again, another rebuild has begun, or the store has lost it.",
            hint="Wait until the store is current, then start the rebuild again.",
        )
    _check_place(planned, store, live)
    check_complete(planned, stem.log)
    store.record.use(store.record.new_version(version))
    if store.version == version:
        return ""
    lost = (
        "everything"
        if reached < 0
        else f"batch {committed}"
        if reached + 1 == committed
        else f"batches {reached + 1} to {committed}"
    )
    return f'store "{store.name}" has lost {lost}: version {store.version} is filled from the log'


def _check_flow(planned: PlannedFlow, store: Store) -> None:
    """Raise `Conflict` if another flow of this home writes a store of this name: they would share a version."""
    known = store.record.read()
    if store.follows_record and known.flow not in ("", planned.name):
        raise Conflict(
            f'another flow of this home, "{known.flow}", writes a store named "{store.name}"',
            detail=f"That one is in {known.location}; this one is in {store.location}.",
            hint='Give this store another name: name="...". If the flow was renamed, give it its old name, or fill the store '
            f"again: mainstem store rebuild {store.name} --program FILE",
        )


def _check_place(planned: PlannedFlow, store: Store, live: Fence | None) -> None:
    """Raise `Conflict` if the store was elsewhere so far, and is empty here: most likely the place is wrong."""
    before = store.record.read().location
    if live is None and before not in ("", store.location):
        raise Conflict(
            f'flow "{planned.name}" has written into another place so far: {before}',
            detail=f"The place given now, {store.location}, has nothing of it.",
            hint="Give the place as before; a relative path depends on the working directory. If it was changed on purpose, fill "
            f"the new one: mainstem store rebuild {store.name} --program FILE",
        )


def check_complete(planned: PlannedFlow, log: Log) -> None:
    """Raise `FellOff` if the log no longer has everything from which the store was filled."""
    for name in replayed_topics(log, planned):
        topic = log.open_topic(name)
        for number in range(topic.settings.partitions):
            if (first := topic.earliest(number)) > 0:
                raise FellOff(
                    f'store "{planned.flow.into.name}" has lost rows, and the log no longer has all of them',
                    detail=f'Retention has removed the offsets 0 to {first - 1} of topic "{name}", partition {number}.',
                    hint="Restore the store from a newer backup. Or fill it with what the log still has: mainstem store rebuild "
                    f"{planned.flow.into.name} --program FILE --incomplete",
                    topic=name,
                    partition=number,
                    first_lost=0,
                    last_lost=first - 1,
                )


class StoreFill:
    """The store of a running flow: shows readers its version when that is complete, and notices that it was changed."""

    def __init__(
        self, store: Store, writer: StoreWriter, until: Offsets, log: Log, tell: Callable[[str], None]
    ) -> None:
        self._store = store
        self._log = log
        self._tell = tell
        self._writer = writer
        self._until = until
        self.batch_over(writer.fence.offsets)

    @classmethod
    def of(
        cls, planned: PlannedFlow, writer: BatchWriter, checkpoint: str, stem: Mainstem, tell: Callable[[str], None]
    ) -> StoreFill | None:
        """For a flow into a store; None for any other. `tell` is told when a later version is live."""
        store = planned.flow.into
        if not isinstance(store, Store):
            return None
        assert isinstance(writer, ArrowWriter)
        assert isinstance(writer.writer, StoreWriter)
        committed = last_batch(checkpoint, "commits")
        if committed is not None and writer.committed_batch < committed:
            # Since `begin_again_if_lost`, which finds it the next time.
            raise Unavailable(
                f'store "{store.name}" has lost rows while flow "{planned.name}" was starting',
                detail=f"It has batch {writer.committed_batch}, and the flow has committed batch {committed}.",
                hint="The flow starts again, and fills the store from the log.",
            )
        known = store.record.read() if store.follows_record else StoreFacts()
        until = known.until
        if writer.writer.filling and until is None:
            until = log_ends(planned, stem)
        if store.follows_record and known != (
            now := replace(known, until=until, location=store.location, flow=planned.name)
        ):
            # Also where it was moved to.
            store.record.change(lambda facts: replace(facts, until=now.until, location=now.location, flow=now.flow))
        return cls(store, writer.writer, until or {}, stem.log, tell)

    def batch_over(self, offsets: Offsets) -> None:
        """After each batch: if the version is complete, readers see it from now on."""
        if self._writer.filling and offsets_reached(self._until, offsets):
            shown, version = self._writer.finish(), self._writer.fence.version
            if shown:
                text = f'version {version} of store "{self._store.name}" is live'
                note_activity(self._log, "store", self._store.name, "version used", text, version=version)
                if version > 1:
                    self._tell(text)

    def find_change(self) -> MainstemError | None:
        """Why the flow has to start again or to end: the store was set back, emptied, switched to another version, or taken
        over by a newer run or another program."""
        try:
            return self._writer.find_change()
        except Unavailable:
            return None  # the next batch will tell
        except MainstemError as error:
            return error


def log_ends(planned: PlannedFlow, stem: Mainstem) -> dict[str, dict[int, int]]:
    """The offsets that the log has now, of everything that the flow reads."""
    ends: dict[str, dict[int, int]] = {}
    for name in replayed_topics(stem.log, planned):
        topic = stem.log.open_topic(name)
        ends[name] = {number: topic.latest(number) for number in range(topic.settings.partitions)}
    for source in planned.sources:
        if source.startswith("view "):
            view: View = stem.view(source.removeprefix("view "))
            for name, applied in (view.offsets() if view.exists else {}).items():
                known = ends.setdefault(name, {})
                for number, end in applied.items():
                    known[number] = max(end, known.get(number, 0))
    return ends
