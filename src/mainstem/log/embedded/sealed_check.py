"""Whether a sealed file is as it was written, before anything in it is believed.

Pages of Parquet have checksums of their own, but what tells where they lie has none, and DuckDB does not look at them. So
a file is checked by ours: as a whole (`check_sealed`, and `check_once` for each process), or its footer at once and then
those blocks of it that are read (`check_frame_once`), which is why two columns of ten cost two tenths of the file. Files
that were sealed before blocks had checksums are checked as a whole.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.errors import CorruptSegment
from mainstem.log.embedded.block_checksums import BlockChecksums
from mainstem.log.embedded.files import Files

# The first offset of a segment, and the one behind its last.
Span = tuple[int, int]

# In the file's own metadata.
BLOCKS = b"mainstem.blocks"
# Behind the footer: its length, and "PAR1".
ENDING_BYTES = 8
# Most footers are read at once with so much.
FOOTER_BYTES = 1 << 16
# Read in pieces of this size to check the whole file.
CHECK_BYTES = 8 << 20
# How many checked files a process remembers; then it begins anew.
CHECKED_MAX = 65_536


class _Checked(NamedTuple):
    """What a process knows of a file: what it was when it was looked at, and the blocks to check when they are read; none
    if all of it was checked."""

    identity: tuple[int, int, int]
    crc32c: int
    blocks: BlockChecksums | None
    span: Span | None = None


_checked: WeakKeyDictionary[Files, dict[str, _Checked]] = WeakKeyDictionary()
_checked_guard = threading.Lock()


def checksum(files: Files, handle: int, size: int) -> int:
    crc = 0
    for position in range(0, size, CHECK_BYTES):
        crc = google_crc32c.extend(crc, files.pread(handle, min(CHECK_BYTES, size - position), position))
    return crc


def check_sealed(files: Files, path: str, size: int, crc32c: int, span: Span) -> None:
    """Read every byte, and stop loudly if one is not as it was written."""
    handle = files.open(path)
    try:
        found = files.size(handle)
        sound = found == size and checksum(files, handle, size) == crc32c
    finally:
        files.close(handle)
    if not sound:
        raise corrupt_segment(path, span)


def was_checked(files: Files, path: str, crc32c: int) -> bool:
    """Whether this process has found the whole file sound, and nobody touched it since."""
    known = _known(files, path, crc32c)
    return known is not None and known.blocks is None


def check_once(files: Files, path: str, size: int, crc32c: int, span: Span) -> None:
    """Check a whole file, if this process has not done so since it was last touched.

    Bits that rot after that are found in pages as they are read, and all of them by the next process.
    """
    if was_checked(files, path, crc32c):
        return
    identity = files.identity(path)
    check_sealed(files, path, size, crc32c, span)
    _remember(files, path, _Checked(identity, crc32c, None, span))


def check_frame_once(files: Files, path: str, size: int, crc32c: int, span: Span) -> None:
    """Check what tells where everything lies in a file; `check_ranges` then checks what is read of it."""
    if _known(files, path, crc32c) is not None:
        return
    identity = files.identity(path)
    blocks = _frame(files, path, size, crc32c)
    if blocks is None:
        check_once(files, path, size, crc32c, span)
    else:
        _remember(files, path, _Checked(identity, crc32c, blocks, span))


def check_ranges(files: Files, path: str, ranges: Iterable[tuple[int, int]]) -> None:
    """Check these ranges of bytes of a file whose frame was checked, if nothing more was."""
    with _checked_guard:
        known = _checked.get(files, {}).get(path)
    if known is not None and known.blocks is not None and not known.blocks.sound(files, path, ranges):
        raise corrupt_segment(path, known.span)


def span_of(files: Files, path: str) -> Span | None:
    """The offsets of a file that was checked; None if it was not."""
    with _checked_guard:
        known = _checked.get(files, {}).get(path)
    return None if known is None else known.span


def corrupt_segment(path: str, span: Span | None, what: Literal["damaged", "missing"] = "damaged") -> CorruptSegment:
    """The error that names the file, and the records in it."""
    records = "its records" if span is None else f"records {span[0]} to {span[1] - 1}"
    reason = "Its bytes are not the ones that were written" if what == "damaged" else "The file is not there"
    return CorruptSegment(
        f'sealed segment "{os.path.basename(path)}" is {what}',
        detail=f'{reason}, so {records} cannot be read. File: "{path}".',
        hint="Nothing was changed. Restore the file from a copy or from the archive, or read on after these records by "
        "giving a start behind them.",
        path=path,
        first_offset=None if span is None else span[0],
        last_offset=None if span is None else span[1] - 1,
    )


def _known(files: Files, path: str, crc32c: int) -> _Checked | None:
    identity = files.identity(path)
    with _checked_guard:
        known = _checked.setdefault(files, {}).get(path)
    return known if known is not None and known[:2] == (identity, crc32c) else None


def _remember(files: Files, path: str, found: _Checked) -> None:
    with _checked_guard:
        known = _checked.setdefault(files, {})
        if len(known) >= CHECKED_MAX:
            known.clear()  # most of them were compacted away or dropped long ago
        known[path] = found


def _frame(files: Files, path: str, size: int, crc32c: int) -> BlockChecksums | None:
    """The checksums of a file's blocks, if its footer has them and is sound."""
    handle = files.open(path)
    try:
        if files.size(handle) != size or size <= ENDING_BYTES:
            return None
        ending = files.pread(handle, min(size, FOOTER_BYTES), max(0, size - FOOTER_BYTES))
        rest = int.from_bytes(ending[-ENDING_BYTES:-4], "little") + ENDING_BYTES
        if rest > size:
            return None
        if rest > len(ending):
            ending = files.pread(handle, rest, size - rest)
    finally:
        files.close(handle)
    footer = ending[-rest:]
    try:
        # Parquet begins as it ends.
        text = pq.read_metadata(pa.BufferReader(footer[-4:] + footer)).metadata
    except Exception:  # noqa: BLE001 - a damaged footer may be anything; the whole file tells
        return None
    found = None if text is None or BLOCKS not in text else BlockChecksums.from_text(text[BLOCKS], size - rest)
    return found if found is not None and found.with_rest(footer) == crc32c else None
