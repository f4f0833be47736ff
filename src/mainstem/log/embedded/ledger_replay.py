"""Walks the entries of a ledger and keeps the state they add up to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from mainstem.errors import CorruptHome
from mainstem.log.embedded.active_segment import PREAMBLE_BYTES, ActiveSegment, SegmentName, segments_in
from mainstem.log.embedded.block import ENTRIES, Block
from mainstem.log.embedded.files import Files
from mainstem.log.embedded.heads import End
from mainstem.log.state_ledger import Entry, MachineState

S = TypeVar("S", bound=MachineState)

SNAPSHOT = "snapshot"


class LedgerReplay(Generic[S]):
    """A place in a ledger and the state there. For one thread at a time."""

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
        # Which segment it stands in; open until it is let go.
        self._segment: ActiveSegment | None = None
        self._name: SegmentName | None = None
        self._segment_id = 0
        self._position = 0
        self._reached: End | None = None

    @property
    def is_open(self) -> bool:
        return self._segment is not None

    def close(self) -> None:
        """Close its segment; it is opened again where something is to be read."""
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
                # Another ledger of this name, made after the one that was read here was deleted.
                self._name = None
        if self._segment is None or self._name is None:
            self._begin(head, None)
        assert self._segment is not None
        target = SegmentName(head.segment, head.epoch)
        while self._segment.name != target:
            # Rolled since: what is left here, then the next segment.
            following = [name for name in self._names() if name > self._segment.name]
            if not following:
                break
            self._apply_until(self._segment.size(), following[0].base, None)
            self._enter(following[0])
        self._apply_until(self._size(head), None, None)

    def advance_to_time(self, head: End, at: int) -> None:
        """From nothing to the state as it was at an append time."""
        self._begin(head, at)
        assert self._segment is not None
        names = [name for name in self._names() if self._segment.name <= name and name.base <= head.offset]
        for name, after in zip(names, [*names[1:], None], strict=True):
            if self._segment.name != name:
                self._enter(name)
            self._apply_until(self._size(head), after.base if after else None, at)

    def _begin(self, head: End, at: int | None) -> None:
        """Start at the last segment that begins with a snapshot (made before `at`), or at the first one of all."""
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
            detail="Its first segments are gone" + (" for that time." if at is not None else "."),
            hint="Look back less far." if at is not None else "Restore the directory from a copy.",
        )

    def _foreign(self, block: Block, error: Exception) -> CorruptHome:
        """The error of an entry that is sound and makes no sense here."""
        assert self._segment is not None
        path = self._segment.path
        return CorruptHome(
            f'ledger "{self._folder}" has an entry that does not fit the ones before it',
            detail=f'It is at byte {block.position} of "{path}", and its checksum fits: the file may be that of another '
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
        """What tells a segment from another one of its name; 0 if it is damaged."""
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
