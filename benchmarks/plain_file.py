"""A bare file, written and synced: what an append is held against."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Self


class PlainFile:
    """A file that grows by what is written, each piece followed by an fdatasync."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._position = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)
        os.unlink(self._path)

    def write_synced(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self._position += os.pwrite(self._handle, piece, self._position)
            os.fdatasync(self._handle)
