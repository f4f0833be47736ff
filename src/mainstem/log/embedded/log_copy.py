"""LogCopy: the log of a home as of one moment, copied into another directory while processes use it.

Three steps, so that writers and upkeep wait as little as possible:

    history      sealed files, which never change, without any lock
    captured     the ledger of transactions is locked for some milliseconds: the end of every partition and ledger is
                 noted. Nothing is decided meanwhile, so each transaction is in whole, or undecided everywhere
    copied       manifests, blocks up to the noted ends, and what was sealed since. The upkeep locks are held (`freeze`),
                 so that none of it is sealed, compacted or deleted meanwhile; appends continue

In the copy, undecided transactions are aborted: their owners write to the original. A damaged partition is copied as it
is: the same records can be read from the copy.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from mainstem.durable_files import copy_file, read_file, replace_file
from mainstem.errors import Corrupt, TopicNotFound
from mainstem.file_locks import UPKEEP
from mainstem.log.embedded.home import describe_home
from mainstem.log.embedded.ledger import open_heads
from mainstem.log.embedded.topic_store import SETTINGS, TopicStore, encode_settings
from mainstem.log.embedded.upkeep.manifest import ManifestFile
from mainstem.log.embedded.write.active_segment import SegmentName, published_segments, segments_in
from mainstem.log.embedded.write.heads import SLOT_BYTES, End, Slots, encode_end, encode_tail
from mainstem.log.embedded.write.partition import Partition

if TYPE_CHECKING:
    from mainstem.log.embedded.embedded_log import EmbeddedLog

__all__ = ["EmbeddedLogCopy"]

# Files in a partition's and in a topic's directory, besides segments and ledgers.
MANIFEST, TAIL, HEADS = "manifest", "tail", "heads"
KINDS = ("groups", "queues")


class _Captured(NamedTuple):
    """A directory with `heads` and partitions, and the end of each. None: damaged, and copied as it is."""

    folder: str
    ends: list[End | None]


class EmbeddedLogCopy:
    """Copies one embedded log. Not thread-safe."""

    def __init__(self, log: EmbeddedLog, target: str) -> None:
        self._log = log
        self._files = log.files
        self._home = log.home.path
        self._target = target
        self.bytes = 0

    # The three steps

    def copy_history(self) -> None:
        """Copy what is sealed now; no writer waits."""
        for name in self._log.topic_names():
            # Dropped, compacted or deleted meanwhile: the last step copies the replacement.
            with suppress(FileNotFoundError, TopicNotFound, Corrupt):
                for number in range(self._log.open_topic(name).settings.partitions):
                    self._copy_sealed(f"{self._home}/topics/{name}/{number}")

    @contextmanager
    def freeze(self) -> Iterator[None]:
        """Blocks sealing, compaction, retention and deletion in all processes."""
        with ExitStack() as stack:
            stack.enter_context(self._log.home.lock_topics())
            for store in self._stores():
                for partition in store.partitions:
                    stack.enter_context(partition.lock.hold_patiently(UPKEEP))
            yield

    def copy(self) -> None:
        """Copy everything as of one moment; called inside `freeze`."""
        with self._no_decisions():
            captured = [self._ledger(folder) for folder in self._ledger_folders()]
            topics = self._stores()
            captured += [_Captured(store.folder, [_end_of(it) for it in store.partitions]) for store in topics]
        for each in captured:
            self._copy_captured(each)
        for store in topics:
            self._copy_settings(store)
            self._copy_tree(f"{store.folder}/holds")
        opened = {store.name for store in topics}
        for name in self._log.topic_names():
            if name not in opened:
                self._copy_tree(f"{self._home}/topics/{name}")
        self._remove_unnamed(set(self._log.topic_names()))

    def finish(self) -> None:
        """Make a home of the copied files; the last step."""
        for folder in ("topics", "ledgers"):
            self._files.make_directory(f"{self._target}/{folder}")
        self._files.close(self._files.create(f"{self._target}/lock"))
        replace_file(self._files, f"{self._target}/mainstem.json", describe_home(uuid.uuid4().hex))
        copied = self.open_copy()
        try:
            for name in copied.topic_names():
                # Indexes are rebuilt when a partition is opened.
                with suppress(Corrupt):
                    copied.open_topic(name)
            with suppress(Corrupt):
                copied.transactions.abort_undecided()
        finally:
            copied.close()

    def open_copy(self) -> EmbeddedLog:
        return type(self._log)(self._target, files=self._files, clock=self._log.clock)

    # One moment

    def _stores(self) -> list[TopicStore]:
        """The topics that can be opened; a topic with damaged settings is copied file by file."""
        found = []
        for name in self._log.topic_names():
            with suppress(Corrupt):
                found.append(self._log.open_topic(name).store)
        return found

    @contextmanager
    def _no_decisions(self) -> Iterator[None]:
        with ExitStack() as stack:
            # With a damaged ledger nothing can be decided.
            with suppress(Corrupt):
                stack.enter_context(self._log.transactions.freeze())
            yield

    def _ledger_folders(self) -> Iterator[str]:
        parents = [f"{self._home}/ledgers"]
        parents += [f"{self._home}/topics/{name}/{kind}" for name in self._log.topic_names() for kind in KINDS]
        for parent in parents:
            if self._files.exists(parent):
                yield from (f"{parent}/{name}" for name in self._files.list(parent) if not name.startswith("."))

    def _ledger(self, folder: str) -> _Captured:
        heads = open_heads(self._files, folder)
        try:
            end = heads.read(0)
            if end is None:
                with suppress(Corrupt):
                    end = self._mend(folder, heads)
        finally:
            heads.close()
        return _Captured(folder, [end])

    def _mend(self, folder: str, heads: Slots) -> End:
        partition = Partition(
            self._files, f"{folder}/0", heads, 0, self._log.clock, title=f'ledger "{folder}"', segment_bytes_max=1 << 62
        )
        try:
            return partition.published_end()
        finally:
            partition.close()

    # Files

    def _in_target(self, path: str) -> str:
        return self._target + path.removeprefix(self._home)

    def _copy(self, path: str, size: int | None = None) -> None:
        self.bytes += copy_file(self._files, path, self._in_target(path), size)

    def _copy_captured(self, captured: _Captured) -> None:
        folder = captured.folder
        for number, end in enumerate(captured.ends):
            self._copy_partition(f"{folder}/{number}", end)
        heads = read_file(self._files, f"{folder}/{HEADS}")
        slots = [
            heads[number * SLOT_BYTES : (number + 1) * SLOT_BYTES] if end is None else encode_end(end)
            for number, end in enumerate(captured.ends)
        ]
        replace_file(self._files, self._in_target(f"{folder}/{HEADS}"), b"".join(slots))

    def _copy_partition(self, folder: str, end: End | None) -> None:
        self._files.make_directory(self._in_target(folder))
        with suppress(Corrupt):
            self._copy_sealed(folder)
        if end is None:
            for name in self._files.list(folder):
                with suppress(FileNotFoundError):
                    self._copy(f"{folder}/{name}")
            return
        with suppress(FileNotFoundError):  # a missing file is damage in the copy too
            self._copy(f"{folder}/{MANIFEST}")
        last = SegmentName(end.segment, end.epoch)
        for segment in published_segments(self._files.list(folder), end.segment, end.epoch):
            try:
                self._copy(segment.path(folder), end.position if segment == last else None)
            except FileNotFoundError:
                if segment == last and not self._is_lost(folder, last):
                    raise
                # Lost before; or an old segment of a ledger, trimmed meanwhile: every later one begins with the
                # complete state.
        # Indexes are rebuilt when the partition is opened.
        replace_file(self._files, self._in_target(f"{folder}/{TAIL}"), encode_tail(end))

    def _is_lost(self, folder: str, last: SegmentName) -> bool:
        """Whether the file was removed, and not abandoned in a take-over just now."""
        return segments_in(self._files.list(folder))[-1:] <= [last]

    def _copy_sealed(self, folder: str) -> None:
        self._files.make_directory(self._in_target(folder))
        for entry in ManifestFile(self._files, folder).read().segments:
            path = f"{folder}/{entry.file}"
            there = self._in_target(path)
            # Copied before; a name is never reused for other content.
            if not self._files.exists(there) or self._files.identity(there)[2] != entry.bytes:
                with suppress(FileNotFoundError):
                    self._copy(path)

    def _copy_settings(self, store: TopicStore) -> None:
        """An archive inside the home is copied with it, and the copied topic uses the copied archive."""
        settings, path = store.settings, self._in_target(f"{store.folder}/{SETTINGS}")
        if settings.archive is not None and settings.archive.startswith(f"{self._home}/"):
            settings = settings.alter(archive=self._in_target(settings.archive))
            replace_file(self._files, path, encode_settings(settings, store.id))
        else:
            self._copy(f"{store.folder}/{SETTINGS}")
        self._files.sync_directory(os.path.dirname(path))

    def _copy_tree(self, folder: str) -> None:
        for inside, _, names in os.walk(folder):
            self._files.make_directory(self._in_target(inside))
            for name in names:
                with suppress(FileNotFoundError):  # a hold that was removed meanwhile
                    self._copy(f"{inside}/{name}")

    def _remove_unnamed(self, topics: set[str]) -> None:
        """Remove files that were compacted or dropped, and topics that were deleted, after their history was copied."""
        parent = f"{self._target}/topics"
        for name in self._files.list(parent) if self._files.exists(parent) else []:
            if name not in topics:
                shutil.rmtree(f"{parent}/{name}")
                continue
            for number in filter(str.isdigit, self._files.list(f"{parent}/{name}")):
                folder = f"{parent}/{name}/{number}"
                with suppress(Corrupt):
                    named = {entry.file for entry in ManifestFile(self._files, folder).read().segments}
                    for file in self._files.list(folder):
                        if file.endswith(".parquet") and file not in named:
                            self._files.remove(f"{folder}/{file}")


def _end_of(partition: Partition) -> End | None:
    try:
        return partition.published_end()
    except Corrupt:
        return None
