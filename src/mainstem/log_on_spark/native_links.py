"""Sealed segments of a topic, linked beside a checkpoint and put into portions: the history that is read natively.

Linked, not copied: compaction and retention may take them out of the log meanwhile, and every replay reads the same
bytes. Each file is checked whole before it is linked.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mainstem.crash_points import reach
from mainstem.log.embedded.embedded_topic import EmbeddedTopic
from mainstem.log.embedded.manifest import SealedEntry
from mainstem.log.transaction_cut import TransactionCut
from mainstem.log_on_spark.native_history import NativeHistory, Portion

__all__ = ["HistoryLimits", "Sealed", "link_history", "portions_of", "sealed_history"]

# A sealed file may be compacted away or dropped between the look and the link; then all of it is done again.
TRIES = 10

# File systems without hard links, or a topic that was moved to another one: to copy all of it first would not pay.
NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)


EVERY_NUMBER = (0, 1 << 62)


@dataclass(frozen=True)
class HistoryLimits:
    """What is worth to be read natively, and how much of it at a time."""

    # In all; less is done sooner without a second query.
    rows_min: int
    # In a portion. A file is not divided, so one that is larger is a portion of its own, up to the other limit.
    rows_max: int
    file_rows_max: int
    # A segment that is sealed had at most so many bytes, whatever is left of them in the file.
    bytes_max: int
    # Spark reads the files of a batch in any order, but the rows of one in theirs: where the order of a partition's rows
    # counts, there is one file of each partition in a portion.
    ordered: bool


def link_history(topic: EmbeddedTopic, checkpoint: str, limits: HistoryLimits) -> NativeHistory | None:
    """Link what is sealed now. None if that is not worth it, or cannot be."""
    for left in reversed(range(TRIES)):
        folder = f"{checkpoint}/history/{uuid.uuid4().hex[:12]}"
        try:
            return _linked(topic, folder, limits)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            if error.errno in NO_LINKS:
                return None
            if not left or not isinstance(error, FileNotFoundError):
                raise
    raise AssertionError


@dataclass(frozen=True)
class Sealed:
    """What is sealed of a topic now, by partition, and where each partition begins."""

    segments: Mapping[int, Sequence[SealedEntry]]
    starts: Mapping[int, int]
    # Of a compacted topic: how far each partition is compacted.
    cleaned: Mapping[int, int] | None = None

    @property
    def rows(self) -> int:
        return sum(entry.rows for entries in self.segments.values() for entry in entries)


def sealed_history(topic: EmbeddedTopic, limits: HistoryLimits) -> Sealed | None:
    """What `link_history` would link now; None if that is not worth it, or cannot be."""
    manifests = [partition.manifest_file.read() for partition in topic.store.partitions]
    found = Sealed(
        {number: manifest.segments for number, manifest in enumerate(manifests)},
        {number: manifest.start for number, manifest in enumerate(manifests)},
        {number: manifest.cleaned for number, manifest in enumerate(manifests)}
        if topic.settings.keep.compacted
        else None,
    )
    # What is dropped is dropped by whole segments; should one be cut, the topic source knows how to read it.
    if any(entries and entries[0].base < found.starts[number] for number, entries in found.segments.items()):
        return None
    entries = [entry for segments in found.segments.values() for entry in segments]
    if found.rows < limits.rows_min or max(entry.rows for entry in entries) > limits.file_rows_max:
        return None
    return None if _cuts_transactions(topic, found, limits) else found


def _portions(topic: EmbeddedTopic, sealed: Sealed, limits: HistoryLimits) -> tuple[Portion, ...]:
    files_max = max(1, limits.bytes_max // topic.settings.segment_bytes_max)
    return portions_of(sealed.segments, sealed.starts, limits, files_max)


def _cuts_transactions(topic: EmbeddedTopic, sealed: Sealed, limits: HistoryLimits) -> bool:
    """Whether a portion would end inside a transaction: files are not divided, but the topic source finds such a place."""
    if not any(entry.transactions for entries in sealed.segments.values() for entry in entries):
        return False
    ends = {
        number: entries[-1].end if entries else sealed.starts[number] for number, entries in sealed.segments.items()
    }
    spans = {
        number: topic.transaction_spans(number, sealed.starts[number], end, EVERY_NUMBER)
        for number, end in ends.items()
    }
    cut = TransactionCut(sealed.starts, spans)
    return any(cut.torn(portion.ends) for portion in _portions(topic, sealed, limits))


def _linked(topic: EmbeddedTopic, folder: str, limits: HistoryLimits) -> NativeHistory | None:
    topic_id, store = topic.id, topic.store
    sealed = sealed_history(topic, limits)
    if sealed is None:
        return None
    history = NativeHistory(topic.name, topic_id, folder, _portions(topic, sealed, limits), sealed.cleaned)
    os.makedirs(history.waiting)
    os.makedirs(history.read)
    for number, segments in sealed.segments.items():
        for entry in segments:
            if entry.rows:
                source = store.readers[number].whole_sealed_path(entry)
                os.link(source, f"{history.waiting}/{_name(number, entry)}")
    reach("history_linked")
    return history


def _name(partition: int, entry: SealedEntry) -> str:
    return f"{partition}-{entry.file}"


def portions_of(
    sealed: Mapping[int, Sequence[SealedEntry]], starts: Mapping[int, int], limits: HistoryLimits, files_max: int
) -> tuple[Portion, ...]:
    """All segments of all partitions: each partition's in order, and of all partitions first what was appended first."""
    left = {number: list(reversed(entries)) for number, entries in sealed.items()}
    ends = dict(starts)
    portions: list[Portion] = []
    files: list[str] = []
    within: set[int] = set()
    rows = 0
    while waiting := [number for number, entries in left.items() if entries]:
        number = min(waiting, key=lambda each: (left[each][-1].appended_first, each))
        entry = left[number][-1]
        # One without rows (all of it aborted, or compacted away) is accounted for by whichever portion comes.
        full = rows + entry.rows > limits.rows_max or len(files) == files_max
        if files and entry.rows and (full or (limits.ordered and number in within)):
            portions.append(Portion(tuple(files), rows, dict(ends)))
            files, within, rows = [], set(), 0
        left[number].pop()
        ends[number] = entry.end
        if entry.rows:
            files.append(_name(number, entry))
            within.add(number)
            rows += entry.rows
    if files:
        portions.append(Portion(tuple(files), rows, dict(ends)))
    return tuple(portions)
