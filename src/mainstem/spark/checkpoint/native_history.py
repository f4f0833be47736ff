"""NativeHistory: the sealed files that a flow reads with Spark's own file source before it goes live, recorded beside its
checkpoint before the first of them is read.

    <checkpoint>/history/note               the portions, as JSON with a checksum
    <checkpoint>/history/<random>/waiting/  hard links of sealed segments, created once, before the note
                                  read/     the folder of Spark's file source: portions are moved here one by one

A portion is the files of one batch. Spark's file source numbers its batches from 0 ({"logOffset": n}), and finds one
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
from typing import Any, NamedTuple

import google_crc32c

from mainstem.crash_points import reach
from mainstem.durable_files import REAL_FILES, replace_file, sync_file
from mainstem.errors import CorruptHome, NewerFormat
from mainstem.log.log import SealedFile, SealedFiles, TopicBackend
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
    """The files of one batch, and the end offset of each partition after it."""

    files: tuple[str, ...]
    rows: int
    ends: Mapping[int, int]


@dataclass(frozen=True)
class NativeHistory:
    """The portions in their order. `folder` is the path that Spark has recorded for their files."""

    topic: str
    topic_id: str
    folder: str
    portions: tuple[Portion, ...]
    # How far each partition of a compacted topic was compacted when the files were linked: see `read_since`.
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
        """The offset at which the topic source continues, in its own format."""
        return self.offset_at(self.last)

    def offset_at(self, number: int) -> dict[str, Any]:
        """The end offset of a portion, in the format of the topic source."""
        ends = {str(partition): end for partition, end in self.portions[number].ends.items()}
        offset: dict[str, Any] = {"topic": self.topic, "id": self.topic_id, "offsets": ends}
        if self.cleaned is not None:
            offset["cleaned"] = {str(partition): at for partition, at in self.cleaned.items()}
        return offset

    def place(self, number: int) -> None:
        """Move a portion to where Spark finds it. Idempotent."""
        for name in self.portions[number].files:
            with suppress(FileNotFoundError):
                os.rename(f"{self.waiting}/{name}", f"{self.read}/{name}")

    def find_missing(self, number: int) -> list[str]:
        """The files of a portion that Spark would not find."""
        return [name for name in self.portions[number].files if not os.path.exists(f"{self.read}/{name}")]

    def let_go(self, number: int) -> None:
        """Remove the links of the portions up to a number, which are not read again."""
        for portion in self.portions[: max(0, number + 1)]:
            for name in portion.files:
                with suppress(FileNotFoundError):
                    os.remove(f"{self.read}/{name}")

    def remove(self) -> None:
        """Remove all links, also those of runs that died before they wrote the note; the note stays."""
        parent = os.path.dirname(self.folder)
        for name in os.listdir(parent):
            if name != "note":
                shutil.rmtree(f"{parent}/{name}", ignore_errors=True)

    def note(self, checkpoint: str) -> None:
        """Write the note, durable when this returns. If two runs do so at once, the first note counts."""
        for folder in (self.waiting, self.read, self.folder):
            REAL_FILES.sync_directory(folder)
        path = _path(checkpoint)
        own = f"{path}.{uuid.uuid4().hex[:12]}"
        replace_file(REAL_FILES, own, self._encode())
        with suppress(FileExistsError):
            os.link(own, path)
        os.remove(own)
        sync_file(REAL_FILES, path)
        for folder in (os.path.dirname(path), checkpoint, os.path.dirname(checkpoint)):
            REAL_FILES.sync_directory(folder)

    def copy_to(self, checkpoint: str) -> NativeHistory:
        """The same for a copy of its checkpoint, with the note written there."""
        moved = replace(self, folder=f"{checkpoint}/history/{os.path.basename(self.folder)}")
        replace_file(REAL_FILES, _path(checkpoint), moved._encode())
        return moved

    def _encode(self) -> bytes:
        body = json.dumps({"format": FORMAT, **asdict(self)}).encode() + b"\n"
        return body + json.dumps({"crc32c": google_crc32c.value(body)}).encode() + b"\n"


def _path(checkpoint: str) -> str:
    return f"{checkpoint}/history/note"


def noted_history(checkpoint: str) -> NativeHistory | None:
    """The note beside a checkpoint; None if there is none."""
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
        raise NewerFormat.of(f'"{path}"', known["format"], FORMAT)
    portions = tuple(
        Portion(tuple(each["files"]), each["rows"], {int(number): end for number, end in each["ends"].items()})
        for each in known["portions"]
    )
    cleaned = known.get("cleaned")  # an older Mainstem did not record it
    if cleaned is not None:
        cleaned = {int(number): at for number, at in cleaned.items()}
    return NativeHistory(known["topic"], known["topic_id"], known["folder"], portions, cleaned)


# Sealed segments of a topic, linked beside a checkpoint and divided into portions.
#
# The links stay when compaction or retention removes the files from the log, so every replay reads the same bytes. Each
# file is verified completely before it is linked.


# A sealed file may be compacted away or dropped before it is linked; then linking starts over.
TRIES = 10

# No hard links, or a topic on another file system: copying everything first would not pay.
NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)


@dataclass(frozen=True)
class HistoryLimits:
    """From how many rows on files are read natively, and how much at a time."""

    # In all; with fewer rows a second query does not pay.
    rows_min: int
    # Of a portion. A file is not divided: a larger one is a portion of its own, up to `file_rows_max`.
    rows_max: int
    file_rows_max: int
    # Of a portion. A file counts with the maximal size of a segment.
    bytes_max: int
    # Spark reads the files of a batch in any order, the rows of one file in theirs: if the order of a partition's rows
    # matters, a portion has one file of each partition.
    ordered: bool


def link_history(topic: TopicBackend, checkpoint: str, limits: HistoryLimits) -> NativeHistory | None:
    """Link the currently sealed files. None if they are too few or there are none (on Kafka)."""
    for left in reversed(range(TRIES)):
        folder = f"{checkpoint}/history/{uuid.uuid4().hex[:12]}"
        try:
            return _link_files(topic, folder, limits)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            if error.errno in NO_LINKS:
                return None
            if not left or not isinstance(error, FileNotFoundError):
                raise
    raise AssertionError


class Sealed(NamedTuple):
    """The currently sealed files of a topic, in portions."""

    files: SealedFiles
    portions: tuple[Portion, ...]

    @property
    def rows(self) -> int:
        """The number of rows that are read from files."""
        return sum(portion.rows for portion in self.portions)


def sealed_history(topic: TopicBackend, limits: HistoryLimits) -> Sealed | None:
    """What `link_history` would link now; None if the files are too few or there are none (on Kafka)."""
    files = topic.sealed_files()
    # Retention drops whole segments; if a segment is cut, only the topic source can read it.
    if files is None or any(
        entries and entries[0].base < files.starts[number] for number, entries in files.segments.items()
    ):
        return None
    entries = [entry for segments in files.segments.values() for entry in segments]
    if (
        sum(entry.rows for entry in entries) < limits.rows_min
        or max(entry.rows for entry in entries) > limits.file_rows_max
    ):
        return None
    portions = _portions(files, limits, max(1, limits.bytes_max // topic.settings.segment_bytes_max))
    return None if portions is None else Sealed(files, portions)


def _portions(files: SealedFiles, limits: HistoryLimits, files_max: int) -> tuple[Portion, ...] | None:
    """The portions. None ends inside a transaction; None is returned if that makes them too large."""
    portions = portions_of(files.segments, files.starts, limits, files_max)
    if not any(entry.transactions for entries in files.segments.values() for entry in entries):
        return portions
    spans = {number: files.spans(number, start, portions[-1].ends[number]) for number, start in files.starts.items()}
    # One file each, to be combined.
    single = portions_of(files.segments, files.starts, replace(limits, rows_max=0), files_max)
    return whole_portions(single, TransactionCut(files.starts, spans), limits, files_max)


def whole_portions(
    single: Sequence[Portion], cut: TransactionCut[int], limits: HistoryLimits, files_max: int
) -> tuple[Portion, ...] | None:
    """Portions of single files combined, such that none ends inside a transaction, up to the last possible boundary.

    None if the first of them is too large, or there are too few rows.
    """
    found: list[Portion] = []
    files: tuple[str, ...] = ()
    rows = 0
    for portion in single:
        files, rows = (*files, *portion.files), rows + portion.rows
        if cut.find_split(portion.ends):
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


def _link_files(topic: TopicBackend, folder: str, limits: HistoryLimits) -> NativeHistory | None:
    topic_id = topic.id
    sealed = sealed_history(topic, limits)
    if sealed is None:
        return None
    history = NativeHistory(topic.name, topic_id, folder, sealed.portions, sealed.files.cleaned)
    os.makedirs(history.waiting)
    os.makedirs(history.read)
    wanted = {name for portion in sealed.portions for name in portion.files}
    for number, segments in sealed.files.segments.items():
        for entry in segments:
            if _name(number, entry) in wanted:
                os.link(sealed.files.path(number, entry), f"{history.waiting}/{_name(number, entry)}")
    reach("history_linked")
    return history


def _name(partition: int, entry: SealedFile) -> str:
    return f"{partition}-{entry.file}"


def portions_of(
    sealed: Mapping[int, Sequence[SealedFile]], starts: Mapping[int, int], limits: HistoryLimits, files_max: int
) -> tuple[Portion, ...]:
    """All segments of all partitions: those of a partition in order, across partitions by append time."""
    left = {number: list(reversed(entries)) for number, entries in sealed.items()}
    ends = dict(starts)
    portions: list[Portion] = []
    files: list[str] = []
    within: set[int] = set()
    rows = 0
    while waiting := [number for number, entries in left.items() if entries]:
        number = min(waiting, key=lambda each: (left[each][-1].appended_first, each))
        entry = left[number][-1]
        # A segment without rows (all aborted or compacted away) goes into any portion.
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
