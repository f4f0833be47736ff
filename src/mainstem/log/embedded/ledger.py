"""A ledger: an ordered list of JSON entries, shared by any number of processes, and the state computed from it.

    <ledger>/heads    one slot
    <ledger>/0/       a partition whose blocks hold entries (a JSON array each), and from time to time a snapshot

Every process applies the entries in order and so has the same state. An entry is added only directly after the last one
its author has read: otherwise the append is refused, and the author catches up and decides again. So a decision is made
once for all processes and survives any crash, without a server. When a segment is full, a new one begins with a
snapshot, so that opening a ledger reads little; the older ones are kept to read past states. Thread-safe.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from mainstem.clock import Clock
from mainstem.durable_files import Files, closed_error
from mainstem.errors import AppendConflict, CorruptHome
from mainstem.log.embedded.write.active_segment import PREAMBLE_BYTES, ActiveSegment, SegmentName, segments_in
from mainstem.log.embedded.write.block import ENTRIES, Block
from mainstem.log.embedded.write.heads import End, Slots, create_slots
from mainstem.log.embedded.write.partition import Partition, Pending, create_partition
from mainstem.log.state_ledger import Entry, MachineState

__all__ = ["Ledger", "create_ledger", "open_heads"]


# Replays the entries of a ledger into a state.


S = TypeVar("S", bound=MachineState)

SNAPSHOT = "snapshot"


class LedgerReplay(Generic[S]):
    """A position in a ledger and the state there. Not thread-safe."""

    def __init__(
        self, files: Files, folder: str, new_state: Callable[[], S], restore: Callable[[dict[str, Any]], S]
    ) -> None:
        self.state = new_state()
        self.offset = 0
        self.at = 0
        self._new_state = new_state
        self._restore = restore
        self._files = files
        self._folder = folder
        # The current segment; open until the replay is closed.
        self._segment: ActiveSegment | None = None
        self._name: SegmentName | None = None
        self._segment_id = 0
        self._position = 0
        self._reached: End | None = None

    @property
    def is_open(self) -> bool:
        return self._segment is not None

    def close(self) -> None:
        """Close its segment; it is opened again on the next read."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()

    def advance(self, head: End) -> None:
        """Apply everything up to the published end."""
        if head != self._reached:
            self._advance(head)
            self._reached = head

    def _advance(self, head: End) -> None:
        if self._segment is None and self._name is not None:
            self._segment = ActiveSegment(self._files, self._folder, self._name)
            if self._id() != self._segment_id:
                # Another ledger of this name, created after the one read here was deleted.
                self._name = None
        if self._segment is None or self._name is None:
            self._begin(head, None)
        assert self._segment is not None
        target = SegmentName(head.segment, head.epoch)
        while self._segment.name != target:
            # Rolled since: read the rest of this segment, then the next one.
            following = [name for name in self._names() if name > self._segment.name]
            if not following:
                break
            self._apply_until(self._segment.size(), following[0].base, None)
            self._enter(following[0])
        self._apply_until(self._size(head), None, None)

    def advance_to_time(self, head: End, at: int) -> None:
        """From the beginning to the state at an append time."""
        self._begin(head, at)
        assert self._segment is not None
        names = [name for name in self._names() if self._segment.name <= name and name.base <= head.offset]
        for name, after in zip(names, [*names[1:], None], strict=True):
            if self._segment.name != name:
                self._enter(name)
            self._apply_until(self._size(head), after.base if after else None, at)

    def _begin(self, head: End, at: int | None) -> None:
        """Start at the last segment that begins with a snapshot (made before `at`), or at the first segment."""
        for name in reversed([name for name in self._names() if name.base <= head.offset]):
            self._enter(name)
            first = next(self._entries(self._size(head)), None)
            if first is not None and first[1][0]["kind"] == SNAPSHOT:
                if at is None or first[0].header.appended_at <= at:
                    return
            elif name.base == 0:
                self.state = self._new_state()
                return
        raise CorruptHome(
            f'ledger "{self._folder}" has no snapshot to start from',
            detail="Its first segments were removed" + (", so that time cannot be read." if at is not None else "."),
            hint="Choose a later time." if at is not None else "Restore the directory from a copy.",
        )

    def _foreign(self, block: Block, error: Exception) -> CorruptHome:
        """The error for an entry that has a valid checksum and cannot be applied."""
        assert self._segment is not None
        path = self._segment.path
        return CorruptHome(
            f'ledger "{self._folder}" has an entry that is inconsistent with those before it',
            detail=f'It is at byte {block.position} of "{path}", and its checksum is valid: the file may be that of another '
            f"ledger. {type(error).__name__}: {error}.",
            hint="Restore the directory from a copy.",
            path=path,
            position=block.position,
        )

    def _names(self) -> list[SegmentName]:
        return segments_in(self._files.list(self._folder))

    def _size(self, head: End) -> int:
        assert self._segment is not None
        return head.position if self._segment.name == (head.segment, head.epoch) else self._segment.size()

    def _enter(self, name: SegmentName) -> None:
        segment = ActiveSegment(self._files, self._folder, name)
        self.close()
        self._segment, self._name, self._position, self.offset = segment, name, PREAMBLE_BYTES, name.base
        self._segment_id = self._id()

    def _id(self) -> int:
        """Identifies a segment among those of its name; 0 if it is damaged."""
        assert self._segment is not None
        preamble = self._segment.preamble()
        return 0 if preamble is None else preamble.crc

    def _entries(self, end: int) -> Iterator[tuple[Block, list[Entry]]]:
        assert self._segment is not None
        for block in self._segment.blocks(self._position, end, self.offset):
            if block.header.kind == ENTRIES:
                yield block, json.loads(block.payload.to_pybytes())

    def _apply_until(self, end: int, until: int | None, at: int | None) -> None:
        for block, entries in self._entries(end):
            header = block.header
            if (until is not None and header.base_offset >= until) or (at is not None and header.appended_at > at):
                return
            try:
                for entry in entries:
                    if entry["kind"] == SNAPSHOT:
                        self.state = self._restore(entry["state"])
                    else:
                        self.state.apply(entry, header.appended_at)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise self._foreign(block, error) from error
            self.at = max(self.at, header.appended_at)
            self._position = block.position + header.size
            self.offset = header.end_offset


T = TypeVar("T")

# A new segment begins after this much: opening a ledger reads at most one segment.
SEGMENT_BYTES_MAX = 1 << 20


def create_ledger(files: Files, folder: str, clock: Clock) -> None:
    """Create the ledger's directory; complete when its `heads` exists."""
    end = create_partition(files, f"{folder}/0", clock)
    create_slots(files, f"{folder}/heads.new", [end])
    files.rename(f"{folder}/heads.new", f"{folder}/heads")
    files.sync_directory(folder)


def open_heads(files: Files, folder: str) -> Slots:
    """The `heads` of a ledger; rebuilt from the segments if it is lost, since it is never synced."""
    path = f"{folder}/heads"
    if not files.exists(path) and files.exists(f"{folder}/0"):
        create_slots(files, path, [])
    return Slots(files, path)


@contextmanager
def _refuse_incomplete(files: Files, folder: str, title: str) -> Iterator[None]:
    """A missing file is damage, unless the whole ledger was deleted."""
    try:
        yield
    except FileNotFoundError as error:
        if not files.exists(folder):
            raise
        raise CorruptHome(
            f"a file of the ledger of {title} is missing",
            detail=f'"{error.filename or folder}" was removed after the ledger was created.',
            hint="Restore the file from a copy while no process has the home open, or copy the home (mainstem home copy): the "
            "copy is complete.",
            path=str(error.filename or folder),
        ) from error


class Ledger(Generic[S]):
    """One ledger, open in this process."""

    def __init__(
        self,
        files: Files,
        folder: str,
        clock: Clock,
        new_state: Callable[[], S],
        restore: Callable[[dict[str, Any]], S],
        *,
        title: str,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
    ) -> None:
        self.heads_path = f"{folder}/heads"
        self._files = files
        self._clock = clock
        self._guard = threading.RLock()
        self._segment_bytes_max = segment_bytes_max
        with _refuse_incomplete(files, folder, title):
            self._heads = open_heads(files, folder)
            try:
                self.partition = Partition(
                    # The partition itself never rolls: the ledger does, so that a segment begins with a snapshot.
                    files, f"{folder}/0", self._heads, 0, clock, title=title, segment_bytes_max=1 << 62,
                )  # fmt: skip
            except BaseException:
                self._heads.close()
                raise
        self._heads.check = self.partition.check_there
        if (damage := self.partition.damage()) is not None:
            # An incomplete ledger is not opened: a lost decision would be made again, perhaps differently.
            self.partition.close()
            self._heads.close()
            raise damage
        self._new_state = new_state
        self._restore = restore
        self._replay = self._new_replay()
        self._closed = False
        self._advancing = False
        self.recent = False

    def _new_replay(self) -> LedgerReplay[S]:
        return LedgerReplay(self._files, self.partition.folder, self._new_state, self._restore)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            self._close_replay()
            self.partition.close()
            self._heads.close()

    def current(self) -> S:
        """The state after everything any process has appended so far. Not to be changed by the caller."""
        with self._guard:
            return self._catch_up()

    @property
    def version(self) -> tuple[int, int]:
        """A value that changes with every entry; cheap to read."""
        end = self.partition.published_end()
        return end.segment, end.position

    def _catch_up(self) -> S:
        if self._closed:
            raise closed_error(self.partition.title)
        try:
            self._advance(self.partition.published_end())
        except FileNotFoundError:
            # The current segment was trimmed: start at the last snapshot.
            self._replay.close()
            self._replay = self._new_replay()
            self._advance(self.partition.published_end())
        return self._replay.state

    def _advance(self, head: End) -> None:
        self.recent = True
        was_open = self._replay.is_open
        self._advancing = True
        try:
            self._replay.advance(head)
        finally:
            self._advancing = False
        if self._replay.is_open and not was_open:
            self._files.kept.count_handles(self, 1)

    def close_idle(self) -> int:
        """Close the segment that was read last, if no thread reads it now, not even this one."""
        if not self._guard.acquire(blocking=False):
            return 0
        try:
            return 0 if self._advancing else self._close_replay()
        finally:
            self._guard.release()

    def _close_replay(self) -> int:
        kept = self._replay.is_open
        self._replay.close()
        self._files.kept.count_handles(self, 0)
        return int(kept)

    def decide(self, decision: Callable[[S, int], tuple[list[Entry], T]]) -> T:
        """Append the entries that `decision(state, now)` returns, durably, and only if nothing was appended meanwhile.

        On a conflict `decision` is called again with the newer state, so it may run several times and must have no side
        effects. Without entries nothing is written. If it raises, its error is raised here, and nothing is written.
        """
        while True:
            with self._guard:
                state = self._catch_up()
                entries, result = decision(state, max(self._clock.now(), self._replay.at))
                if not entries:
                    return result
                try:
                    self._append(entries)
                except AppendConflict:
                    # The author of the newer entries may not have synced yet, or has died: publish what is written.
                    self.partition.publish_written()
                    continue
                self._begin_segment_if_due()
                return result

    def _append(self, entries: list[Entry]) -> None:
        payload = json.dumps(entries, separators=(",", ":")).encode()
        self.partition.append(Pending(payload, len(entries), kind=ENTRIES, expected=self._replay.offset))

    def _begin_segment_if_due(self) -> None:
        """Close a full segment and begin the next with a snapshot; if another process appends first, a later one
        will."""
        if self.partition.published_end().position < self._segment_bytes_max:
            return
        self.partition.roll()
        self.write_snapshot()

    def write_snapshot(self) -> None:
        """Append the state at the beginning of a new segment; omitted if another process appends first."""
        with self._guard, suppress(AppendConflict):
            self._append([{"kind": SNAPSHOT, "state": self._catch_up().snapshot()}])

    def state_at(self, at: int) -> S:
        """The state at that append time, as a copy."""
        self.current()
        replay = self._new_replay()
        try:
            replay.advance_to_time(self.partition.published_end(), at)
            return replay.state
        finally:
            replay.close()

    @contextmanager
    def freeze(self) -> Iterator[S]:
        """Blocks new entries; yields the state after all entries."""
        with self._guard, self.partition.freeze():
            yield self._catch_up()
