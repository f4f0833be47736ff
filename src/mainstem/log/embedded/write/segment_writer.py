"""The write side of a partition: concurrent appends share one sync, and become blocks of a segment and index
entries."""

from __future__ import annotations

import copy
import json
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.clock import Clock
from mainstem.durable_files import Files, create_file, sync_file
from mainstem.errors import AppendConflict, Fenced, Unavailable
from mainstem.log.embedded.upkeep.manifest import Manifest, encode_manifest, first_reading
from mainstem.log.embedded.write.active_segment import (
    ENTRY,
    UNFINISHED,
    ActiveSegment,
    SegmentIndex,
    SegmentName,
    encode_entry,
    encode_preamble,
)
from mainstem.log.embedded.write.block import DATA, MARKERS, STATE, Damage, Header, encode_header
from mainstem.log.embedded.write.crash_recovery import after_block, first_end
from mainstem.log.embedded.write.heads import DELETED, HAS_STATE, End, encode_tail, new_end
from mainstem.log.embedded.write.partition_state import PartitionState, StateScan
from mainstem.log.rows.rows import CheckedRows
from mainstem.log.rows.stored_batch import by_partition, stored_batch
from mainstem.log.sequence_runs import NO_SEQUENCE
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.watermark import NO_TIME

__all__ = [
    "GroupCommit",
    "Pending",
    "SegmentWriter",
    "WrittenBlocks",
    "admit",
    "create_partition",
    "create_segment",
    "pending_blocks",
]


# Group commit: appends of many threads share one write and one fsync.
#
# The first thread that arrives when none waits becomes the next leader: it takes the lock, collects all waiting appends
# and its own, commits them together and wakes their threads, which never take the lock themselves. Under load, threads
# whose append was acknowledged append again within microseconds, so the leader waits briefly for half of them: that is
# cheaper than an fsync. A single thread never waits.


@dataclass(slots=True)
class Pending:
    """An append to one partition; after it is written, also its location."""

    payload: pa.Buffer | bytes
    count: int
    kind: int = DATA
    flags: int = 0
    schema_version: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    sequence: int = NO_SEQUENCE
    parts: int = 0
    partitions: int = 0
    dense: int = 0
    transaction: int = 0
    event_time_max: int = NO_TIME
    stated_watermark: int = NO_TIME
    expected: int | None = None  # append only if the partition ends here
    check: Callable[[], None] | None = None  # raises if the append may not be, asked under the lock
    payload_crc: int = 0

    base_offset: int = -1
    end_offset: int = -1
    appended_at: int = 0
    duplicate: bool = False
    epoch: int = 0
    settled: bool = False
    error: BaseException | None = None


# Whether an append may be written; decided under the partition's write lock.


def admit(pending: Pending, tail: End, scan: StateScan | None, title: str) -> bool:
    """False if it was written before (a repeat). Raises if it may not be written."""
    if pending.expected is not None and pending.expected != tail.offset:
        raise AppendConflict(
            f"{title} does not end at offset {pending.expected}",
            detail=f"It ends at {tail.offset}: another append came first.",
            hint="Read the new records, decide again, and append with the new end.",
        )
    if pending.check is not None:
        pending.check()
    if pending.kind in MARKERS:
        # The owner of a transaction and a process that settles it may both write its marker.
        assert scan is not None
        pending.duplicate = pending.transaction not in scan.state.open
        return not pending.duplicate
    if not pending.producer_id:
        return True
    assert scan is not None
    known = scan.state.producers.get(pending.producer_id)
    if known is None:
        return True
    if known.epoch > pending.producer_epoch:
        raise Fenced(
            f"a newer run of this producer has appended to {title}",
            detail=f"This run has epoch {pending.producer_epoch}, the newer one {known.epoch}.",
            hint="Only one run of a producer may append: stop this one, or open the producer again to fence the other.",
            epoch=pending.producer_epoch,
            current_epoch=known.epoch,
        )
    if pending.kind == DATA and pending.count and pending.sequence <= known.kept:
        pending.duplicate = True
        pending.appended_at, pending.epoch = known.appended_at, tail.epoch
        if pending.sequence == known.kept:
            pending.base_offset, pending.end_offset = known.base_offset, known.end_offset
        return False
    return True


# Long enough for about ten threads to pass the interpreter lock, short compared with an fsync under load.
GATHER_SECONDS_MAX = 0.002

# An interrupted thread may have left without waking another: waiting threads check this often.
LOOK_SECONDS = 0.1


class Settling(Protocol):
    """An item to be committed: when settled it has a result, or the error to raise."""

    settled: bool
    error: BaseException | None


P = TypeVar("P", bound=Settling)

_all: weakref.WeakSet[GroupCommit] = weakref.WeakSet()  # type: ignore[type-arg]


class _Waiter(Generic[P]):
    """A waiting thread and its append: the bell rings when the append is settled, or when the thread becomes leader."""

    __slots__ = ("bell", "pending")

    def __init__(self, pending: P) -> None:
        self.pending = pending
        self.bell: threading.Lock | None = None

    def ring(self) -> None:
        if self.bell is not None:
            with suppress(RuntimeError):  # it rang already
                self.bell.release()


class GroupCommit(Generic[P]):
    """One per partition and process. Thread-safe."""

    def __init__(self, commit: Callable[[list[P]], None]) -> None:
        self._commit = commit
        self.renew_in_child()
        _all.add(self)

    def renew_in_child(self) -> None:
        """Reset: a forked child has none of its parent's threads, so none of their appends."""
        self._guard = threading.Lock()
        self._turn = threading.Lock()
        self._waiting: list[_Waiter[P]] = []
        # About how many threads append at present; the leader waits for half as many.
        self._company = 1
        self._wanted = 0
        self._gathered: threading.Lock | None = None
        self._refusal: Callable[[], Exception] | None = None

    def close(self, refusal: Callable[[], Exception]) -> None:
        """Wait for appends in progress, and refuse new ones."""
        with self._turn:
            self._refusal = refusal

    def submit(self, pending: P) -> None:
        """Returns when `pending` is committed; raises when it could not be."""
        waiter = _Waiter(pending)
        try:
            with self._guard:
                if self._waiting:
                    waiter.bell = _new_bell()
                self._waiting.append(waiter)
                if self._gathered is not None and len(self._waiting) >= self._wanted:
                    self._gathered.release()
                    self._gathered = None
            if waiter.bell is not None:
                waiter.bell.acquire(timeout=LOOK_SECONDS)
            if not pending.settled:
                # Held by `with` and never passed on, so that an interrupted thread releases it.
                with self._turn:
                    if self._refusal is not None and not pending.settled:
                        raise self._refusal()
                    if not pending.settled:
                        self._lead(pending)
        except BaseException:
            self._leave(waiter)
            raise
        if pending.error is not None:
            raise pending.error

    def _lead(self, own: P) -> None:
        in_time = self._gather()
        with self._guard:
            group, self._waiting = self._waiting, []
        try:
            self._commit_group([waiter.pending for waiter in group], own)
        finally:
            for waiter in group:
                waiter.ring()
        with self._guard:
            present = len(group) + len(self._waiting)
            # Reduced by one each time: some of the missing threads may come back.
            self._company = max(present, self._company - 1) if in_time else present

    def _gather(self) -> bool:
        """Wait briefly for half of the appending threads; whether they arrived."""
        with self._guard:
            self._wanted = self._company // 2
            if len(self._waiting) >= self._wanted:
                return True
            gathered = self._gathered = _new_bell()
        came = gathered.acquire(timeout=GATHER_SECONDS_MAX)
        with self._guard:
            self._gathered = None
        return came

    def _commit_group(self, group: list[P], own: P) -> None:
        # Not waiting and not settled: the leader that had taken it was interrupted.
        own.error = None if any(pending is own for pending in group) else _copy_error(KeyboardInterrupt())
        try:
            if group:
                self._commit(group)
        except BaseException as error:
            for pending in group:
                if not pending.settled:
                    pending.error = error if pending is own else _copy_error(error)
            if not isinstance(error, Exception):
                raise
        finally:
            for pending in (own, *group):
                pending.settled = True

    def _leave(self, waiter: _Waiter[P]) -> None:
        """Interrupted: withdraw an append that no leader has taken, and pass the leadership on."""
        with self._guard:
            self._waiting = [other for other in self._waiting if other is not waiter]
            if self._waiting:
                self._waiting[0].ring()


def _new_bell() -> threading.Lock:
    """A locked lock: acquiring it waits until another thread releases it once."""
    bell = threading.Lock()
    bell.acquire()
    return bell


def _copy_error(error: BaseException) -> Exception:
    """A copy of the error for another thread: raising an exception modifies it."""
    if not isinstance(error, Exception):
        return Unavailable(
            "the thread that committed this append was interrupted",
            detail=f"That thread raised {type(error).__name__}. The append was not acknowledged.",
            hint="Append again.",
        )
    try:
        other = copy.copy(error)
    except Exception:  # noqa: BLE001 - a foreign error that cannot be copied is better shared than lost
        return error
    other.__cause__ = error.__cause__
    return other


def _renew_in_child() -> None:
    for group in list(_all):
        group.renew_in_child()


os.register_at_fork(after_in_child=_renew_in_child)


# Splits checked rows into one block per partition.


def pending_blocks(
    rows: CheckedRows, keyless: int, now: int, partition: int | None = None, *, over: int | None = None
) -> dict[int, Pending]:
    """The blocks of an append. Rows without a key all go to `keyless`; with `partition` all rows go there.

    With `over`, keys are placed as if the topic had that many partitions.
    """
    settings = rows.settings
    batch, flags = stored_batch(rows)
    placed = by_partition(batch, settings, keyless, over) if partition is None else {partition: batch}
    return {
        number: Pending(
            part.serialize(),
            part.num_rows,
            flags=flags,
            schema_version=settings.schema_version,
            event_time_max=_event_time_max(part, settings, now),
        )
        for number, part in placed.items()
    }


def _event_time_max(batch: pa.RecordBatch, settings: TopicSettings, now: int) -> int:
    """The highest event time of a block, without those too far ahead of the clock."""
    if settings.event_time is None:
        return NO_TIME
    times = batch.column(settings.event_time)
    # For one value, Arrow's functions cost ten times as much.
    highest = times[0].value if batch.num_rows == 1 else pc.max(times).value
    if highest is not None and highest > now:
        limit = now + settings.ahead_max // timedelta(microseconds=1)
        if highest > limit:
            times = times.view(pa.int64())
            highest = pc.max(times.filter(pc.less_equal(times, limit))).as_py()
    return NO_TIME if highest is None else int(highest)


# Creation of segments and partitions.


def create_partition(files: Files, folder: str, clock: Clock) -> End:
    """Create a partition's directory with an empty manifest and a first segment; synced when this returns.

    The caller syncs the parent directory.
    """
    files.make_directory(folder)
    create_file(files, f"{folder}/manifest", encode_manifest(Manifest(clock=first_reading(clock))))
    end = create_segment(files, folder, new_end(0, 0, 0, 0, epoch=1), PartitionState(), now=clock.now(), synced=0)
    sync_file(files, SegmentName(end.segment, end.epoch).path(folder))
    create_file(files, f"{folder}/tail", encode_tail(end))
    files.sync_directory(folder)
    return end


def create_segment(files: Files, folder: str, before: End, state: PartitionState, *, now: int, synced: int) -> End:
    """Create a segment at the end `before`, with its epoch; not synced: the fsync of the first append does that.

    It is renamed when it is complete, so a segment with its final name is complete. `synced` is the end offset known to
    be synced.
    """
    name = SegmentName(before.offset, before.epoch)
    preamble, crc = encode_preamble(name, now)
    snapshot = {
        **state.to_json(),
        "event_time_max": before.event_time_max,
        "transactions_end": before.transactions_end,
    }
    payload = json.dumps(snapshot).encode()
    header, _ = encode_header(
        STATE, 0, len(payload), google_crc32c.value(payload), crc, 0, 0, 0, before.offset, 0, NO_SEQUENCE, 0,
        before.appended_at, before.event_time_max, before.observed_up_to, before.stated_watermark, synced,
        before.epoch, crc, 0, 0, 0,
    )  # fmt: skip
    path = name.path(folder)
    handle = files.create(path + UNFINISHED)
    try:
        files.pwritev(handle, [preamble, header, payload], 0)
    finally:
        files.close(handle)
    files.rename(path + UNFINISHED, path)
    files.close(files.create(name.index_path(folder)))
    segment = ActiveSegment(files, folder, name)
    try:
        end = first_end(segment)
    finally:
        segment.close()
    assert end is not None
    return end._replace(flags=before.flags & (DELETED | HAS_STATE))


# The blocks of one group of appends, ready to be written at the end of a partition.


class WrittenBlocks:
    """Bytes to write at `begin`, their index entries, and the end after them."""

    def __init__(self, tail: End, segment_id: int, slot: int, now: int, synced: int) -> None:
        self.begin = tail.position
        self.first_entry = tail.indexes
        self.end = tail
        self.buffers: list[bytes | pa.Buffer] = []
        self.entries: list[bytes] = []
        self._segment_id = segment_id
        self._slot = slot
        self._now = now
        self._synced = synced

    def add(self, pending: Pending, observe: Callable[[int, int, int], int] | None) -> Header:
        """Add the block of one append, and set its location."""
        end = self.end
        observed = end.observed_up_to
        if observe is not None:
            # Without the times of this append: rows of one append do not make each other late.
            observed = max(observed, observe(self._slot, end.event_time_max, self._now))
        packed, header = encode_header(
            pending.kind, pending.flags, len(pending.payload), pending.payload_crc, end.crc, pending.count,
            pending.schema_version, pending.producer_epoch, end.offset, pending.producer_id, pending.sequence,
            pending.transaction, self._now, pending.event_time_max, observed,
            max(pending.stated_watermark, end.stated_watermark), self._synced, end.epoch, self._segment_id,
            pending.parts, pending.partitions, pending.dense,
        )  # fmt: skip
        self.buffers.append(packed)
        self.buffers.append(pending.payload)
        pending.base_offset, pending.end_offset = end.offset, header.end_offset
        pending.appended_at, pending.epoch = self._now, end.epoch
        self.end = after_block(end, header, end.position)
        if self.end.indexes > end.indexes:
            self.entries.append(encode_entry(header, end.position))
        return header


class SegmentWriter:
    """The active segment, open in this process; for the holder of the partition's write lock."""

    def __init__(self, files: Files, folder: str, name: SegmentName, end: int) -> None:
        self.name = name
        self._files = files
        self._index_path = name.index_path(folder)
        self.segment = ActiveSegment(files, folder, name)
        try:
            preamble = self.segment.preamble()
            if preamble is None:
                raise self.segment.corrupt(Damage(0, name.base), end)
            self.segment_id = preamble.crc
        except BaseException:
            self.segment.close()
            raise

    def size(self) -> int:
        return self.segment.size()

    def close(self) -> None:
        self.segment.close()

    def write(self, blocks: WrittenBlocks) -> None:
        """Write all blocks, or restore the segment and raise."""
        try:
            self._files.pwritev(self.segment.handle, blocks.buffers, blocks.begin)
        except OSError:
            # Truncate a partial block, so that the next append need not; if that fails too, recovery does it.
            with suppress(OSError):
                self._files.truncate(self.segment.handle, blocks.begin)
            raise
        if blocks.entries:
            self.mend_index(blocks.first_entry, blocks.begin)
            # Missing entries make reads slower; the next writer detects them by the file size.
            with suppress(OSError):
                handle = self._files.open(self._index_path)
                try:
                    self._files.pwrite(handle, b"".join(blocks.entries), blocks.first_entry * ENTRY.size)
                finally:
                    self._files.close(handle)

    def mend_index(self, entries: int, end: int) -> None:
        """Rewrite the index if it does not have this many entries, for the blocks up to `end`."""
        with suppress(OSError):
            if not self._has_entries(entries):
                SegmentIndex(self._files, self._index_path).rewrite(self.segment, end)

    def _has_entries(self, entries: int) -> bool:
        try:
            return self._files.identity(self._index_path)[2] == entries * ENTRY.size
        except FileNotFoundError:
            return False
