"""Deliberately broken builds of the log: a fault test that does not notice them notices nothing.

    with mutant("no fsync"): ...

Each is a patch of one function; processes that are forked inside inherit it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any
from unittest import mock

import google_crc32c

from mainstem.durable_files import RealFiles
from mainstem.file_locks import PartitionLock
from mainstem.log.embedded.upkeep import manifest
from mainstem.log.embedded.write import block, crash_recovery, heads, partition, publisher
from mainstem.log.embedded.write import publisher as interrupted_sync
from mainstem.log.embedded.write.active_segment import ActiveSegment, SegmentIndex
from mainstem.log.embedded.write.crash_recovery import _Recovery
from mainstem.log.embedded.write.heads import End, Slots
from mainstem.log.embedded.write.partition import Partition
from mainstem.log.embedded.write.publisher import Publisher
from tests.log.embedded.memory_files import MemoryFiles

Patch = tuple[object, str, object]


def _nothing(*_: object, **__: object) -> None:
    """In place of what should have been done."""


def _no_fsync() -> list[Patch]:
    return [(RealFiles, "sync", _nothing), (MemoryFiles, "sync", _nothing)]


def _no_directory_fsync() -> list[Patch]:
    return [(RealFiles, "sync_directory", _nothing), (MemoryFiles, "sync_directory", _nothing)]


def _publish_before_fsync() -> list[Patch]:
    make_durable = Publisher.make_durable

    def broken(self: Publisher, head: End | None, end: End, segment: ActiveSegment | None = None) -> None:
        self._heads.write(self._slot, end)
        make_durable(self, head, end, segment)

    return [(Publisher, "make_durable", broken)]


def _acknowledge_before_fsync() -> list[Patch]:
    return [(Publisher, "_sync", _nothing)]


def _no_epoch_check() -> list[Patch]:
    return [(Publisher, "_refuse_if_older", _nothing)]


def _retry_fsync() -> list[Patch]:
    def again(sync: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        def broken(self: object, handle: int) -> None:
            try:
                sync(self, handle)
            except OSError:
                sync(self, handle)

        return broken

    return [(RealFiles, "sync", again(RealFiles.sync)), (MemoryFiles, "sync", again(MemoryFiles.sync))]


def _no_fence() -> list[Patch]:
    return [(Publisher, "fence", _nothing)]


def _no_note_of_fsync() -> list[Patch]:
    """Neither the fence nor the note before it: what a process that dies in a failing fsync would leave."""

    def broken(self: Publisher, head: End | None, end: End, segment: ActiveSegment | None = None) -> None:
        self._sync(head, end, segment)

    return [(Publisher, "make_durable", broken)]


def _no_chain_check() -> list[Patch]:
    walk = block.walk

    def broken(*arguments: Any, previous: int | None = None, **others: Any) -> Iterator[Any]:
        return walk(*arguments, **others)

    return [(crash_recovery.ActiveSegment, "walk", _walk_with(broken))]


def _walk_with(walk: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def broken(self: ActiveSegment, position: int, end: int, offset: int, previous: int | None = None) -> Iterator[Any]:
        return walk(self._files, self.handle, position, end, offset=offset)

    return broken


def _no_payload_check() -> list[Patch]:
    return [(block, "sound", lambda header, payload: len(payload) == header.length)]


def _no_header_check() -> list[Patch]:
    def broken(data: Any, position: int = 0) -> block.Header | None:
        packed = bytes(data[position : position + block.HEADER_BYTES])
        if len(packed) < block.HEADER_BYTES or packed[:4] != block.MAGIC:
            return None
        return block.Header(*block.HEADER.unpack_from(packed)[2:], block.CHECKSUM.unpack_from(packed, 124)[0])

    return [
        (block, "decode_header", broken),
        (crash_recovery.ActiveSegment.headers.__globals__, "decode_header", broken),
    ]


def _cut_whatever_is_unsound() -> list[Patch]:
    """Damage taken for a torn end, acknowledged or not."""
    return [
        (_Recovery, "_refuse_if_acknowledged", _nothing),
        (_Recovery, "_refuse_if_lost", _nothing),
        (ActiveSegment, "sound_after", lambda *_: iter(())),
    ]


def _no_cut() -> list[Patch]:
    return [(_Recovery, "_cut", _nothing)]


def _forget_what_was_not_published() -> list[Patch]:
    """Recovery that believes `heads`, which a power cut may make older than what was acknowledged."""
    recover = crash_recovery.recover

    def broken(files: Any, folder: str, published: End | None) -> End:
        return recover(files, folder, published) if published is None else published

    return [(partition, "recover", broken)]


def _no_mark_while_a_segment_is_begun() -> list[Patch]:
    return [(partition, "MENDING", 0)]


def _no_old_epoch_mark() -> list[Patch]:
    """A take-over that leaves the tail as it is until the new segment is there."""
    write = Slots.write

    def broken(self: Slots, slot: int, end: End) -> None:
        if not end.flags & partition.MENDING:
            write(self, slot, end)

    return [(Slots, "write", broken)]


def _believe_the_index() -> list[Patch]:
    def broken(self: SegmentIndex, segment: ActiveSegment, before: Callable[[Any], bool]) -> tuple[int, int] | None:
        with suppress(FileNotFoundError):
            handle = self._files.open(self._path)
            try:
                entry = self._bisect(handle, before)
            finally:
                self._files.close(handle)
            return None if entry is None else (entry[1], entry[0])
        return None

    return [(SegmentIndex, "_find", broken)]


def _no_slot_check() -> list[Patch]:
    def broken(data: bytes) -> End | None:
        if len(data) != heads.SLOT_BYTES:
            return None
        _, flags, epoch, _, *rest = heads.SLOT.unpack_from(data)
        return End(flags, epoch, *rest)

    return [(heads, "decode_end", broken)]


def _no_manifest_check() -> list[Patch]:
    def broken(data: bytes, path: str) -> manifest.Manifest:
        text = b"\n".join(data.split(b"\n")[:-2]) + b"\n"
        decoded = text.decode("latin-1").encode()
        return decode(decoded + json.dumps({"crc32c": google_crc32c.value(decoded)}).encode() + b"\n", path)

    decode = manifest.decode_manifest
    return [(manifest, "decode_manifest", broken)]


def _no_lock() -> list[Patch]:
    return [(PartitionLock, "hold", lambda self, byte: nullcontext())]


def _no_second_writing() -> list[Patch]:
    return [(publisher, "write_again", _nothing), (interrupted_sync, "write_again", _nothing)]


def _lost_group() -> list[Patch]:
    """Only the first append of a group is written, and all are acknowledged."""
    write = Partition._write
    return [(Partition, "_write", lambda self, group: write(self, group[:1]))]


MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    name.removeprefix("_").replace("_", " "): made
    for name, made in list(globals().items())
    if callable(made) and getattr(made, "__annotations__", {}).get("return") == "list[Patch]"
}


@contextmanager
def mutant(name: str) -> Iterator[None]:
    """The log, broken in one way, inside."""
    with ExitStack() as stack:
        for target, attribute, broken in MUTANTS[name]():
            if isinstance(target, dict):
                stack.enter_context(mock.patch.dict(target, {attribute: broken}))
            else:
                stack.enter_context(mock.patch.object(target, attribute, broken))
        yield
