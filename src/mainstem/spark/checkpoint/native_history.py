"""NativeHistory: the sealed files that a flow reads with Spark's own file source before it goes live, recorded beside its
checkpoint before the first of them is read.

    <checkpoint>/history/note               what follows, as JSON, and the checksum of it
    <checkpoint>/history/<random>/waiting/  hard links of sealed segments, made once, before the note
                                  read/     where Spark looks: a portion is moved here when it is its turn

A portion is what one batch reads. Spark's file source numbers what it finds from 0 ({"logOffset": n}), and it finds one
portion at a time: so n is the number of a portion, and the note has its end offsets in the log. This holds for every
run of the checkpoint, however often it was killed. The note never changes; the links are
removed once the first batch after them is committed.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import google_crc32c

from mainstem.crash_points import reach
from mainstem.durable_files import REAL_FILES, replace_file, sync_file
from mainstem.errors import CorruptHome, NewerFormat
from mainstem.log.embedded.embedded_topic import EmbeddedTopic
from mainstem.log.embedded.upkeep.manifest import SealedEntry
from mainstem.log.log import TopicBackend
from mainstem.log.transaction_cut import TransactionCut

__all__ = [
    "HistoryLimits",
    "NativeHistory",
    "Portion",
    "Sealed",
    "link_history",
    "noted_history",
    "portions_of",
    "sealed_history",
    "whole_portions",
]

FORMAT = 1


@dataclass(frozen=True)
class Portion:
    """The files of one batch, and up to where each partition is in when they are."""

    files: tuple[str, ...]
    rows: int
    ends: Mapping[int, int]


@dataclass(frozen=True)
class NativeHistory:
    """The portions in their order. `folder` is where they lie, by the name that Spark noted down."""

    topic: str
    topic_id: str
    folder: str
    portions: tuple[Portion, ...]
    # Of a compacted topic how far each partition was compacted when the files were linked: see `read_since`.
    cleaned: Mapping[int, int] | None = None

    @property
    def waiting(self) -> str:
        return f"{self.folder}/waiting"

    @property
    def read(self) -> str:
        return f"{self.folder}/read"

    @property
    def rows(self) -> int:
        return sum(portion.rows for portion in self.portions)

    @property
    def last(self) -> int:
        """The number of the last portion."""
        return len(self.portions) - 1

    @property
    def end(self) -> dict[str, Any]:
        """Where the topic source goes on, as it would have noted it."""
        return self.offset_at(self.last)

    def offset_at(self, number: int) -> dict[str, Any]:
        """What is in when a portion is, as the topic source would have noted it."""
        ends = {str(partition): end for partition, end in self.portions[number].ends.items()}
        offset: dict[str, Any] = {"topic": self.topic, "id": self.topic_id, "offsets": ends}
        if self.cleaned is not None:
            offset["cleaned"] = {str(partition): at for partition, at in self.cleaned.items()}
        return offset

    def place(self, number: int) -> None:
        """Have a portion found by Spark. May be done again."""
        for name in self.portions[number].files:
            with suppress(FileNotFoundError):
                os.rename(f"{self.waiting}/{name}", f"{self.read}/{name}")

    def missing(self, number: int) -> list[str]:
        """The files of a portion that Spark would look for in vain."""
        return [name for name in self.portions[number].files if not os.path.exists(f"{self.read}/{name}")]

    def let_go(self, number: int) -> None:
        """Remove the links of the portions up to a number, which nobody reads again."""
        for portion in self.portions[: max(0, number + 1)]:
            for name in portion.files:
                with suppress(FileNotFoundError):
                    os.remove(f"{self.read}/{name}")

    def remove(self) -> None:
        """Remove all links, also those of runs that died before they noted them; the note stays."""
        parent = os.path.dirname(self.folder)
        for name in os.listdir(parent):
            if name != "note":
                shutil.rmtree(f"{parent}/{name}", ignore_errors=True)

    def note(self, checkpoint: str) -> None:
        """Write it down, on disk when this returns. Of two runs that do so at once, what the first one wrote counts."""
        for folder in (self.waiting, self.read, self.folder):
            REAL_FILES.sync_directory(folder)
        path = _path(checkpoint)
        own = f"{path}.{uuid.uuid4().hex[:12]}"
        replace_file(REAL_FILES, own, self._encoded())
        with suppress(FileExistsError):
            os.link(own, path)
        os.remove(own)
        sync_file(REAL_FILES, path)
        for folder in (os.path.dirname(path), checkpoint, os.path.dirname(checkpoint)):
            REAL_FILES.sync_directory(folder)

    def moved_to(self, checkpoint: str) -> NativeHistory:
        """The same beside a copy of its checkpoint, noted there."""
        moved = replace(self, folder=f"{checkpoint}/history/{os.path.basename(self.folder)}")
        replace_file(REAL_FILES, _path(checkpoint), moved._encoded())
        return moved

    def _encoded(self) -> bytes:
        body = json.dumps({"format": FORMAT, **asdict(self)}).encode() + b"\n"
        return body + json.dumps({"crc32c": google_crc32c.value(body)}).encode() + b"\n"


def _path(checkpoint: str) -> str:
    return f"{checkpoint}/history/note"


def noted_history(checkpoint: str) -> NativeHistory | None:
    """What was noted beside a checkpoint; None if nothing was."""
    path = _path(checkpoint)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    body, _, last = content.rstrip(b"\n").rpartition(b"\n")
    try:
        sound = json.loads(last)["crc32c"] == google_crc32c.value(body + b"\n")
    except (ValueError, KeyError, TypeError):
        sound = False
    if not sound:
        raise CorruptHome(
            f'"{path}" is damaged',
            detail="Its checksum does not match. It records which files of the log the flow has read, and where it resumes.",
            hint="Restore it from a copy. Or start over: delete the checkpoint together with what the flow has written; "
            "the next run rebuilds both from the log.",
            path=path,
        )
    known = json.loads(body)
    if known["format"] > FORMAT:
        raise NewerFormat(
            f'"{path}" has format {known["format"]}',
            detail=f"This version of Mainstem reads formats up to {FORMAT}.",
            hint="Run the program with a newer Mainstem.",
        )
    portions = tuple(
        Portion(tuple(each["files"]), each["rows"], {int(number): end for number, end in each["ends"].items()})
        for each in known["portions"]
    )
    cleaned = known.get("cleaned")  # an older Mainstem did not note it
    if cleaned is not None:
        cleaned = {int(number): at for number, at in cleaned.items()}
    return NativeHistory(known["topic"], known["topic_id"], known["folder"], portions, cleaned)


# Sealed segments of a topic, linked beside a checkpoint and put into portions: the history that is read natively.
#
# Linked, not copied: compaction and retention may take them out of the log meanwhile, and every replay reads the same
# bytes. Each file is checked whole before it is linked.


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


def link_history(topic: TopicBackend, checkpoint: str, limits: HistoryLimits) -> NativeHistory | None:
    """Link what is sealed now. None if that is not worth it, or cannot be: on Kafka nothing is sealed."""
    if not isinstance(topic, EmbeddedTopic):
        return None
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
    portions: tuple[Portion, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows are read from files."""
        return sum(portion.rows for portion in self.portions)


def sealed_history(topic: TopicBackend, limits: HistoryLimits) -> Sealed | None:
    """What `link_history` would link now; None if that is not worth it, or cannot be."""
    if not isinstance(topic, EmbeddedTopic):
        return None
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
    if (
        sum(entry.rows for entry in entries) < limits.rows_min
        or max(entry.rows for entry in entries) > limits.file_rows_max
    ):
        return None
    portions = _portions(topic, found, limits)
    return None if portions is None else replace(found, portions=portions)


def _portions(topic: EmbeddedTopic, sealed: Sealed, limits: HistoryLimits) -> tuple[Portion, ...] | None:
    """What is read at a time. A portion ends where no transaction is cut; None if that is too far apart."""
    files_max = max(1, limits.bytes_max // topic.settings.segment_bytes_max)
    portions = portions_of(sealed.segments, sealed.starts, limits, files_max)
    if not any(entry.transactions for entries in sealed.segments.values() for entry in entries):
        return portions
    spans = {
        number: topic.transaction_spans(number, start, portions[-1].ends[number], EVERY_NUMBER)
        for number, start in sealed.starts.items()
    }
    # Each file by itself, to be put together.
    single = portions_of(sealed.segments, sealed.starts, replace(limits, rows_max=0), files_max)
    return whole_portions(single, TransactionCut(sealed.starts, spans), limits, files_max)


def whole_portions(
    single: Sequence[Portion], cut: TransactionCut[int], limits: HistoryLimits, files_max: int
) -> tuple[Portion, ...] | None:
    """Portions of single files put together, such that none ends inside a transaction, up to the last place where none is cut.

    None if what must be together is too large from the beginning, or all of it is not worth it.
    """
    found: list[Portion] = []
    files: tuple[str, ...] = ()
    rows = 0
    for portion in single:
        files, rows = (*files, *portion.files), rows + portion.rows
        if cut.torn(portion.ends):
            continue
        if len(files) > 1 and (rows > limits.file_rows_max or not _may_be_one(files, limits, files_max)):
            break
        before = found[-1] if found else Portion((), 0, {})
        if (
            before.files
            and before.rows + rows <= limits.rows_max
            and _may_be_one((*before.files, *files), limits, files_max)
        ):
            found[-1] = Portion((*before.files, *files), before.rows + rows, portion.ends)
        else:
            found.append(Portion(files, rows, portion.ends))
        files, rows = (), 0
    return tuple(found) if sum(portion.rows for portion in found) >= limits.rows_min else None


def _may_be_one(files: Sequence[str], limits: HistoryLimits, files_max: int) -> bool:
    """Whether these files may be read in one batch."""
    partitions = {name.partition("-")[0] for name in files}
    return len(files) <= files_max and (not limits.ordered or len(partitions) == len(files))


def _linked(topic: EmbeddedTopic, folder: str, limits: HistoryLimits) -> NativeHistory | None:
    topic_id, store = topic.id, topic.store
    sealed = sealed_history(topic, limits)
    if sealed is None:
        return None
    history = NativeHistory(topic.name, topic_id, folder, sealed.portions, sealed.cleaned)
    os.makedirs(history.waiting)
    os.makedirs(history.read)
    wanted = {name for portion in sealed.portions for name in portion.files}
    for number, segments in sealed.segments.items():
        for entry in segments:
            if _name(number, entry) in wanted:
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
