"""Lines of a file or a pipe, numbered from 1, in bounded memory.

A pipe may stand still: then `None` comes instead of a line, so that what was read so far can be appended meanwhile.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator
from typing import BinaryIO

from mainstem.durations import show_size
from mainstem.errors import InvalidRows

__all__ = ["LINE_BYTES_MAX", "TextLines"]

# A record of the usual limit, every character of it escaped, is shorter than this.
LINE_BYTES_MAX = 128 << 20
CHUNK_BYTES = 1 << 20
# Long enough for a program that writes line by line, short enough for a person who watches.
PAUSE_SECONDS = 0.2


class TextLines:
    """The lines of one input; read once, from the start. `position`: how many bytes have been read."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self.position = 0
        # A file has all it will have; only of a pipe, a terminal or a socket more may come later.
        self._descriptor = _live(source)

    def __iter__(self) -> Iterator[tuple[int, bytes] | None]:
        """Number and bytes of each line, without its end; None when nothing came for a moment."""
        number, rest, idle = 0, b"", False
        while True:
            if (
                self._descriptor is not None
                and not idle
                and not select.select([self._descriptor], [], [], PAUSE_SECONDS)[0]
            ):
                idle = True
                yield None
            chunk = self._read()
            idle = False
            if not chunk:
                break
            self.position += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                number += 1
                yield number, _stripped(line, number)
            if len(rest) > LINE_BYTES_MAX:
                raise _too_long(number + 1, LINE_BYTES_MAX)
        if rest:
            yield number + 1, _stripped(rest, number + 1)

    def _read(self) -> bytes:
        if self._descriptor is not None:
            return os.read(self._descriptor, CHUNK_BYTES)
        return self._source.read(CHUNK_BYTES)


def _live(source: BinaryIO) -> int | None:
    try:
        descriptor = source.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError):
        return None
    return None if stat.S_ISREG(mode) else descriptor


def _stripped(line: bytes, number: int) -> bytes:
    if number == 1:
        # Some programs begin a file of text with this mark.
        line = line.removeprefix(b"\xef\xbb\xbf")
    return line.removesuffix(b"\r")


def _too_long(number: int, limit: int) -> InvalidRows:
    return InvalidRows(
        f"line {number} is longer than {show_size(limit)}",
        detail="No record of a topic can be that long; perhaps the file has no line ends, or is of another format.",
        hint="Give one row a line, or say what the file is: --format json|csv|parquet|arrow.",
    )
