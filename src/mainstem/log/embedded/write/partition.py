"""A partition: an ordered run of segments, to which any number of processes append.

    <partition>/tail                          the written end (see `heads`); its bytes serve as locks
    <partition>/manifest                      the list of sealed segments
    <partition>/<base>-<end>.parquet          sealed
    <partition>/<base>-<epoch>.blocks         of blocks, the last one active; `.index` beside each

An append takes the write lock, writes its block after the last one and notes the new end in `tail`; then, without
that lock, it syncs the segment, unless another process's fsync covered it meanwhile, and publishes the end in
`heads` (see `publisher`). Only then is it acknowledged. After a failed fsync the partition is fenced for every process
until it is taken over, which begins a new segment, with a new epoch, after the last published block.

A segment is begun in three steps: the tail is marked, the segment made, the tail moved into it. A writer that finds
the mark reads the segments themselves, so an interrupted step does no harm.

Between appends two handles are kept, of the tail and of the segment, until others need them (see `durable_files`).
Thread-safe.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import google_crc32c

from mainstem.clock import Clock
from mainstem.durable_files import Files, closed_error, translate_error
from mainstem.errors import CorruptBlock, Fenced, LockHeld, MainstemError, Unavailable
from mainstem.file_locks import SYNC, UPKEEP, WRITE, release_lock, share_lock
from mainstem.log.embedded.upkeep.manifest import ManifestFile
from mainstem.log.embedded.write.active_segment import ActiveSegment, SegmentName, segments_in
from mainstem.log.embedded.write.crash_recovery import is_complete, make_missing_indexes, recover, sweep
from mainstem.log.embedded.write.heads import DELETED, HAS_STATE, MENDING, SYNCING, WRITTEN, End, Slots, TailSlots
from mainstem.log.embedded.write.partition_state import PartitionState, ProducerState, StateScan
from mainstem.log.embedded.write.partition_take_over import take_over
from mainstem.log.embedded.write.publisher import Publisher, deleted_error
from mainstem.log.embedded.write.segment_writer import (
    GroupCommit,
    Pending,
    SegmentWriter,
    WrittenBlocks,
    admit,
    create_partition,
    create_segment,
)

__all__ = ["Partition", "Pending", "create_partition"]

_all: weakref.WeakSet[Partition] = weakref.WeakSet()


class Partition:
    """One partition, open in this process."""

    def __init__(
        self,
        files: Files,
        folder: str,
        heads: Slots,
        slot: int,
        clock: Clock,
        *,
        title: str,
        segment_bytes_max: int,
        observe: Callable[[int, int, int], int] | None = None,
        synced: Callable[[], None] | None = None,
    ) -> None:
        self.folder = folder
        self.title = title
        self.slot = slot
        self.segment_bytes_max = segment_bytes_max
        self.files = files
        self.clock = clock
        self.heads = heads
        self.manifest_file = ManifestFile(files, folder)
        self.group: GroupCommit[Pending] = GroupCommit(self._commit)
        self._observe = observe
        try:
            self.lock = share_lock(files, f"{folder}/tail")
        except OSError as error:
            raise self._open_error(error) from error
        self._tail = TailSlots(files, self.lock)
        self._publisher = Publisher(files, folder, heads, slot, self._tail, self.lock, title=title, synced=synced)
        # These are guarded by the write lock.
        self._writer: SegmentWriter | None = None
        self._scan: StateScan | None = None
        self._checked = False
        # Whether the writer has unsynced writes. Then it stays open: only a handle that was open when the disk failed
        # is sure to report the error.
        self._unsynced = False
        self.recent = False
        self._damage: tuple[End | None, CorruptBlock] | None = None
        _all.add(self)
        try:
            self._open_check()
        except CorruptBlock as error:
            # Raised by appends, and by reads at the damage; records before it and other partitions stay readable.
            self._damage = (heads.read(slot), error)
        except OSError as error:
            self.close()
            raise self._open_error(error) from error
        except BaseException:
            self.close()
            raise

    # Opening and closing

    def _open_error(self, error: OSError) -> Exception:
        """A missing partition is for the caller to judge: the topic may have been deleted."""
        return error if isinstance(error, FileNotFoundError) else translate_error(error, self.title, self.folder)

    def _open_check(self) -> None:
        """After a crash `heads` may be older than the acknowledged records: publish them before any read."""
        head = self.heads.read(self.slot)
        if is_complete(self.files, self.folder, head) and not self._is_contradicted(head):
            return
        names = segments_in(self.files.list(self.folder))
        try:
            with self.lock.hold(WRITE):
                end = self._mend_tail()
                make_missing_indexes(self.files, self.folder, names[:-1], end)
            if not end.flags & DELETED:
                self._publisher.publish(end)
        except LockHeld:
            # The lock holder opened the partition after recovery, so all acknowledged records are published: a reader
            # needs no lock.
            if head is None:
                raise
        except Fenced:
            return  # taken over just now, and so published
        except Unavailable:
            # Fenced: it can be read up to the safe end, and taken over.
            if self.heads.read(self.slot) is None or not self.fenced():
                raise

    def _is_contradicted(self, head: End | None) -> bool:
        """Whether the tail has another block at the published end: `heads` may belong to another topic."""
        tail = self._tail.read(WRITTEN)
        return head is not None and tail is not None and tail.place == head.place and tail.crc != head.crc

    def close(self) -> None:
        """Waits for the work of other threads: a handle is a number, and refers to another file once it is closed."""
        self.group.close(lambda: closed_error(self.title))
        with self.lock.exclude_threads():
            self._forget()
        release_lock(self.lock)

    def _forget(self) -> None:
        """Close and drop everything cached; it is read again when needed."""
        self._close_writer()
        self._scan = None

    def _close_writer(self) -> int:
        writer, self._writer, self._unsynced = self._writer, None, False
        if writer is None:
            return 0
        self.files.kept.count_handles(self, 0)
        writer.close()
        return 1

    def close_idle(self) -> int:
        """Close the segment, if no thread of this process writes to it and all its writes are synced."""
        turn = self.lock.turns[WRITE]
        if not turn.acquire(blocking=False):
            return 0
        try:
            return 0 if self._unsynced else self._close_writer()
        finally:
            turn.release()

    def renew_in_child(self) -> None:
        """Reset in a forked child: another thread of the parent may have been at any point."""
        self._writer, self._scan, self._checked, self._unsynced = None, None, False, False
        self.files.kept.count_handles(self, 0)

    # Where it ends

    def published_end(self) -> End:
        """The end up to which records may be read."""
        head = self.heads.read(self.slot)
        if head is None:
            with self._translate_errors():
                with self.lock.hold(WRITE):
                    end = self._mend_tail()
                try:
                    self._publisher.publish(end)
                except Unavailable:
                    # Fenced: the safe end was published, if it is known.
                    if self.heads.read(self.slot) is None:
                        raise
                head = self.heads.read(self.slot)
        assert head is not None
        return head

    def settle_appends(self) -> bool:
        """Whether all that was written until now can be read: then later records have a later time than the clock had before
        this call. Publishes what a dead process left."""
        if self._is_busy(WRITE):
            return False
        tail, head = self._tail.read(WRITTEN), self.heads.read(self.slot)
        if tail is None or head is None:
            return False
        if tail.place <= head.place or self.fenced():
            return True
        if self._is_busy(SYNC):
            return False
        try:
            with self._translate_errors():
                self._publisher.publish(tail)
        except MainstemError:
            return False
        return True

    def _is_busy(self, byte: int) -> bool:
        """Whether another thread or process holds a lock."""
        return self.lock.turns[byte].locked() or self.lock.holder(byte) is not None

    def fenced(self) -> bool:
        """Whether an fsync failed, so that appends are refused until a take-over."""
        with self._translate_errors():
            mark = self._tail.read(SYNCING)
        return mark is not None and mark.fenced

    def damage(self) -> CorruptBlock | None:
        """The damage found at its end when it was opened, unless a take-over has continued elsewhere since."""
        return self._damage[1] if self._damage is not None and self._damage[0] == self.heads.read(self.slot) else None

    def start_offset(self) -> int:
        """The first offset that still exists."""
        return self.manifest_file.read().start

    # Appending

    def append(self, pending: Pending) -> None:
        """Append one block; synced when this returns."""
        pending.payload_crc = google_crc32c.value(pending.payload)
        self.group.submit(pending)

    def _commit(self, group: list[Pending]) -> None:
        segment: ActiveSegment | None = None
        try:
            with self._translate_errors():
                with self.lock.hold(WRITE):
                    end = self._write(group)
                    if end is None or self._writer is None:
                        return
                    # Another thread may close the writer meanwhile.
                    segment = self._writer.segment.share()
                self._publisher.publish(end, segment)
                self._unsynced = False
        finally:
            if segment is not None:
                segment.close()

    def _write(self, group: list[Pending]) -> End | None:
        """Write the blocks of a group after the tail; returns the end to publish. The caller holds the write lock."""
        tail = self._tail_to_write()
        if tail.position >= self.segment_bytes_max and tail.offset > tail.segment:
            tail = self._roll(tail)
        writer = self._writer_of(tail)
        head = self.heads.read(self.slot)
        scan = self._state_for(group, tail)
        now = max(self.clock.now(), tail.appended_at)
        blocks = WrittenBlocks(tail, writer.segment_id, self.slot, now, head.offset if head is not None else 0)
        try:
            for pending in group:
                try:
                    if admit(pending, blocks.end, scan, self.title):
                        header = blocks.add(pending, self._observe)
                        if scan is not None:
                            scan.apply(header, blocks.end.position)
                except Exception as error:  # noqa: BLE001 - each waits for its own answer
                    pending.error = translate_error(error, self.title, self.folder)
                    pending.settled = True
            if not blocks.buffers:
                return tail if any(pending.duplicate for pending in group) else None
            self._unsynced = True
            writer.write(blocks)
            self._tail.write(WRITTEN, blocks.end)
        except BaseException:
            # The scan may include blocks that were not written, and the tail may have moved: read both again.
            self._scan = None
            self._checked = False
            raise
        return blocks.end

    def _state_for(self, group: list[Pending], tail: End) -> StateScan | None:
        if self._scan is None and not any(pending.producer_id or pending.transaction for pending in group):
            return None
        return self.state_scan(tail)

    def state_scan(self, end: End) -> StateScan:
        """The producers and transactions of this partition up to `end`. The caller holds the write lock."""
        if self._scan is None:
            self._scan = StateScan(self.files, self.folder)
        self._scan.catch_up(end)
        return self._scan

    def producer_state(self, producer_id: int) -> ProducerState | None:
        """The state of a producer in this partition."""
        with self._translate_errors(), self.lock.hold(WRITE):
            known = self.state_scan(self._tail_to_write()).state.producers.get(producer_id)
            return known.copy() if known is not None else None

    # The tail

    def _tail_to_write(self) -> End:
        tail, mark = self._tail.read_all(2)
        if tail is not None and tail.flags & DELETED:
            raise deleted_error(self.title)
        if mark is not None and mark.fenced:
            raise self._publisher.fenced_error(mark)
        if tail is not None and self._checked and not tail.flags & MENDING:
            with suppress(FileNotFoundError):
                if self._writer_of(tail).size() == tail.position:
                    return tail
        tail = self._mend_tail()
        self._checked = True
        return tail

    def _mend_tail(self) -> End:
        """The written end according to the segments, whatever a killed writer left. The caller holds the write lock."""
        self._forget()
        tail = self._tail.read(WRITTEN)
        end = recover(self.files, self.folder, self.heads.read(self.slot))
        flags = (end.flags & HAS_STATE) | (tail.flags & DELETED if tail is not None else 0)
        end = end._replace(flags=flags)
        if tail != end:
            self._tail.write(WRITTEN, end)
        return end

    def _writer_of(self, tail: End) -> SegmentWriter:
        name = SegmentName(tail.segment, tail.epoch)
        writer = self._writer
        if writer is None or writer.name != name:
            scan = self._scan
            self._forget()
            writer = self._writer = SegmentWriter(self.files, self.folder, name, tail.position)
            if scan is not None and scan.segment_id == writer.segment_id:
                self._scan = scan  # only the handle was closed
            self.files.kept.count_handles(self, 1)
        self.recent = True
        return writer

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raises `OSError` as one of our errors."""
        try:
            yield
        except OSError as error:
            if isinstance(error, MainstemError):
                raise
            if isinstance(error, FileNotFoundError):
                self.check_there()
            raise translate_error(error, self.title, self.folder) from error

    def check_there(self) -> None:
        """Raises if the partition was deleted, even if another one replaced it."""
        try:
            self._tail.check_there()
        except FileNotFoundError as error:
            raise deleted_error(self.title) from error

    # Publishing

    def publish(self, end: End) -> None:
        """Make everything written up to `end` durable and visible."""
        with self._translate_errors():
            self._publisher.publish(end)

    def publish_written(self) -> None:
        """Make everything that any process has written so far durable and visible."""
        with self._translate_errors():
            tail = self._tail.read(WRITTEN)
            if tail is None or tail.flags & MENDING:
                with self.lock.hold(WRITE):
                    tail = self._tail_to_write()
            self._publisher.publish(tail)

    @contextmanager
    def freeze(self) -> Iterator[End]:
        """Blocks appends; everything written is published."""
        with self._translate_errors(), self.lock.hold(WRITE):
            tail = self._tail_to_write()
            self._publisher.publish(tail)
            yield tail

    # Rolling, take-over, deletion

    def _roll(self, tail: End) -> End:
        """Create a new segment at the tail. The caller holds the write lock; it is not synced here, so no append waits
        for it."""
        state = PartitionState()
        if tail.flags & HAS_STATE:
            state = self.state_scan(tail).state
            state.forget_below(self.manifest_file.read().end)
        if self._unsynced:
            # An append was interrupted before its fsync: sync it now, while the handle that wrote it is open.
            self._publisher.publish(tail, self._writer_of(tail).segment)
            self._unsynced = False
        # The last chance: no later writer updates this index.
        self._writer_of(tail).mend_index(tail.indexes, tail.position)
        head = self.heads.read(self.slot)
        self._tail.write(WRITTEN, tail._replace(flags=tail.flags | MENDING))
        if head is not None and head.epoch == tail.epoch:
            sweep(self.files, self.folder)
        now = max(self.clock.now(), tail.appended_at)
        synced = head.offset if head is not None else 0
        end = create_segment(self.files, self.folder, tail, state, now=now, synced=synced)
        self._tail.write(WRITTEN, end)
        return end

    def roll(self) -> bool:
        """Close the active segment, if it has records, so that it can be sealed."""
        with self._translate_errors():
            with self.lock.hold(WRITE):
                tail = self._tail_to_write()
                rolled = tail.offset > tail.segment
                if rolled:
                    tail = self._roll(tail)
            # Also if another process rolled it, and died before it published that.
            self._publisher.publish(tail)
        return rolled

    def take_over(self, ended: list[str] | None = None) -> None:
        """Raise the epoch and create a new segment after the safe records; unfinished appends are fenced.

        A stopped process that holds the partition's locks is killed, and added to `ended`.
        """
        ended = [] if ended is None else ended
        with self._translate_errors(), self.lock.take_over(WRITE, ended), self.lock.take_over(SYNC, ended):
            take_over(self, self._tail, self._publisher, self._mend_tail, self._forget)

    def refuse_if_deleted(self) -> None:
        """Raises if the partition was deleted."""
        tail = self._tail.read(WRITTEN)
        if tail is not None and tail.flags & DELETED:
            raise deleted_error(self.title)

    def mark_deleted(self) -> None:
        """Refuse every later append, also by processes that have the topic open."""
        with self._translate_errors(), self.lock.hold(UPKEEP), self.lock.hold(WRITE):
            tail = self._tail.read(WRITTEN) or self._mend_tail()
            self._tail.write(WRITTEN, tail._replace(flags=tail.flags | DELETED))


def _renew_in_child() -> None:
    for partition in list(_all):
        partition.renew_in_child()


os.register_at_fork(after_in_child=_renew_in_child)
