"""Rows from a file or from standard input, in batches: JSON lines, CSV, Parquet, Arrow.

The form is told by the name's end, or by `--format`. A batch has at most `ROWS_MAX` rows and about `BYTES_MAX` bytes,
whatever the file has, so memory is bounded; a batch also ends at every line of `cuts`.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, Self, cast

import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.errors import Invalid, InvalidRows, did_you_mean
from mainstem.log.topic_settings import TopicSettings
from mainstem.workbench.cli.row_lines import CsvLines, JsonLines, Line, LineForm
from mainstem.workbench.cli.text_lines import TextLines

__all__ = ["BYTES_MAX", "ROWS_MAX", "BadLine", "RowBatch", "RowFile"]

ROWS_MAX = 10_000
BYTES_MAX = 16 << 20

SUFFIXES = {
    ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".parquet": "parquet",
    ".arrow": "arrow", ".arrows": "arrow", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip
FORMATS = ("json", "csv", "parquet", "arrow")
ARROW_FILE = b"ARROW1"


@dataclass(frozen=True)
class BadLine:
    """A line that is no row."""

    number: int
    data: bytes
    error: InvalidRows


@dataclass
class RowBatch:
    """Some rows of a file. `numbers`: the line (in Parquet and Arrow: the row) of each, counted from 1."""

    first: int
    last: int = 0
    rows: list[dict[str, Any]] | pa.RecordBatch = field(default_factory=list)
    numbers: Sequence[int] = field(default_factory=list)
    # The lines as they stand in the file; of Parquet and Arrow there are none.
    texts: list[bytes] = field(default_factory=list)
    bad: list[BadLine] = field(default_factory=list)


class RowFile:
    """An input of rows, open; to be used with `with`."""

    def __init__(self, path: str, given: str | None, settings: TopicSettings) -> None:
        self.path = path
        self.format = _format(path, given)
        self.unit: Literal["line", "row"] = "line" if self.format in ("json", "csv") else "row"
        self._settings = settings
        self._stack = ExitStack()
        self._source: BinaryIO = sys.stdin.buffer if path == "-" else open(path, "rb")  # noqa: SIM115 - by __exit__
        if path != "-":
            self._stack.callback(self._source.close)
        self._position: Callable[[], int] = lambda: 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def size(self) -> int | None:
        """The bytes there are to read, if that is known."""
        return None if self.path == "-" else os.fstat(self._source.fileno()).st_size

    @property
    def position(self) -> int:
        """The bytes read so far."""
        return self._position()

    def batches(
        self, *, start: int = 1, cuts: Collection[int] = (), pauses: Literal["cut", "ignore"] = "cut"
    ) -> Iterator[RowBatch]:
        """The rows from line `start` on. `pauses="cut"`: when a pipe stands still, what came so far is a batch."""
        if self.unit == "line":
            lines = TextLines(self._source)
            self._position = lambda: lines.position
            form = JsonLines(self._settings) if self.format == "json" else CsvLines(self._settings)
            return _line_batches(lines, form, start, frozenset(cuts), pauses)
        return self._arrow_batches(start, frozenset(cuts))

    # Lines: _line_batches below. Parquet and Arrow:

    def _arrow_batches(self, start: int, cuts: frozenset[int]) -> Iterator[RowBatch]:
        try:
            done = 0
            for batch in self._record_batches():
                yield from _slices(batch, done, start, cuts)
                done += batch.num_rows
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise Invalid(
                f'"{self.path}" cannot be read as {self.format}',
                detail=f"{str(error).splitlines()[0]}",
                hint=f"Is it another format? --format {'|'.join(FORMATS)}",
            ) from error

    def _record_batches(self) -> Iterator[pa.RecordBatch]:
        if self.format == "parquet":
            source = self._seekable()
            self._position = source.tell
            yield from pq.ParquetFile(source, page_checksum_verification=True).iter_batches(ROWS_MAX)
            return
        source = self._source
        beginning = source.peek(len(ARROW_FILE)) if isinstance(source, io.BufferedReader) else ARROW_FILE
        if not beginning.startswith(ARROW_FILE):
            self._position = (lambda: 0) if self.path == "-" else source.tell
            yield from pa.ipc.open_stream(source)
            return
        source = self._seekable()
        self._position = source.tell
        reader = pa.ipc.open_file(source)
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)

    def _seekable(self) -> BinaryIO:
        """The input as a file: these formats are read from their end, so a pipe is first copied to the disk."""
        source = self._source
        if source.seekable():
            return source
        copy = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._stack.callback(copy.close)
        shutil.copyfileobj(source, copy)
        copy.seek(0)
        return cast(BinaryIO, copy)


def _format(path: str, given: str | None) -> str:
    if given is not None:
        return given
    if path == "-":
        return "json"
    suffix = os.path.splitext(path)[1].lower()
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    raise Invalid(
        f'the format of "{path}" is not known',
        detail=f"Names end in: {', '.join(SUFFIXES)}.",
        hint=did_you_mean(suffix, SUFFIXES) or f"Say it: --format {'|'.join(FORMATS)}",
    )


def _line_batches(
    lines: TextLines, form: LineForm, start: int, cuts: frozenset[int], pauses: Literal["cut", "ignore"]
) -> Iterator[RowBatch]:
    batch, size = RowBatch(start), 0
    for line in form.records(lines):
        if line is None:
            if pauses == "cut" and batch.last:
                yield batch
                batch, size = RowBatch(batch.last + 1), 0
            continue
        _, last, data = line
        if last < start:
            continue
        _take(batch, form, line)
        batch.last = last
        size += len(data)
        # By its number, so that the batches of a file do not depend on where one started to read it.
        if last % ROWS_MAX == 0 or size >= BYTES_MAX or last in cuts:
            yield batch
            batch, size = RowBatch(last + 1), 0
    if batch.last:
        yield batch


def _take(batch: RowBatch, form: LineForm, line: Line) -> None:
    try:
        row = form.row(line)
    except InvalidRows as error:
        batch.bad.append(BadLine(line[0], line[2], error))
        return
    if row is not None:
        assert isinstance(batch.rows, list)
        assert isinstance(batch.numbers, list)
        batch.rows.append(row)
        batch.numbers.append(line[0])
        batch.texts.append(line[2])


def _slices(batch: pa.RecordBatch, before: int, start: int, cuts: frozenset[int]) -> Iterator[RowBatch]:
    """The batch in parts of a bounded size; its first row is number `before` + 1 of the file."""
    end = before + batch.num_rows
    rows_max = max(1, min(ROWS_MAX, batch.num_rows * BYTES_MAX // max(batch.nbytes, 1)))
    first = max(before, start - 1)
    while first < end:
        last = min([end, (first // rows_max + 1) * rows_max, *(cut for cut in cuts if first < cut)])
        yield RowBatch(first + 1, last, batch.slice(first - before, last - first), range(first + 1, last + 1))
        first = last
