"""Rows from a file or from standard input, in batches: JSON lines, CSV, Parquet, Arrow.

The form is told by the name's end, or by `--format`. A batch has at most `ROWS_MAX` rows and about `BYTES_MAX` bytes,
whatever the file has, so memory is bounded; a batch also ends at every line of `cuts`.
"""

from __future__ import annotations

import io
import json
import os
import re
import select
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, Protocol, Self, cast

import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.durations import show_size
from mainstem.errors import Invalid, InvalidRows, SchemaMismatch, did_you_mean
from mainstem.log.record import RECORD
from mainstem.log.rows.row_errors import NOTHING_WRITTEN, shown, unknown_column
from mainstem.log.rows.typed_values import NotAValue, Reader, has_decimals, json_reader, parse_json, text_reader
from mainstem.log.topic_settings import TopicSettings
from mainstem.workbench.cli.terminal_table import counted

__all__ = [
    "BYTES_MAX",
    "BadLine",
    "CsvLines",
    "JsonLines",
    "LINE_BYTES_MAX",
    "Line",
    "LineForm",
    "ROWS_MAX",
    "RowBatch",
    "RowFile",
    "TextLines",
]


# Lines of a file or a pipe, numbered from 1, in bounded memory.
#
# A pipe may stand still: then `None` comes instead of a line, so that what was read so far can be appended meanwhile.


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


# JSON lines and CSV as rows: what one line says, and batches of many.
#
# A JSON line is an object with the topic's columns. A CSV file begins with a line of column names; an empty cell is null,
# `""` is an empty text, and a cell may hold line ends between quotes. Columns `record`, or in CSV `record.change` and
# `record.headers`, are used as `topic read` writes them.


# First and last line, and the bytes of them all.
Line = tuple[int, int, bytes]

_CELL = re.compile(r'(?:"((?:[^"]|"")*)"|([^",]*))(,|\Z)')


class LineForm(Protocol):
    """A form of rows as lines."""

    def records(self, lines: Iterable[tuple[int, bytes] | None]) -> Iterator[Line | None]:
        """The lines that belong together, one row each."""

    def row(self, line: Line) -> dict[str, Any] | None:
        """The row of a line, None if it has none. Raises `InvalidRows`."""


class JsonLines:
    """One JSON object a line; empty lines are passed over."""

    def __init__(self, settings: TopicSettings) -> None:
        self._readers: dict[str, Reader] = {
            field.name: json_reader(field.type, field.name) for field in settings.stored_schema
        }
        self._readers["record"] = json_reader(RECORD, "record")
        self._exact = any(has_decimals(field.type) for field in settings.stored_schema)

    def records(self, lines: Iterable[tuple[int, bytes] | None]) -> Iterator[Line | None]:
        for line in lines:
            yield None if line is None else (line[0], line[0], line[1])

    def row(self, line: Line) -> dict[str, Any] | None:
        number, _, data = line
        if not data.strip():
            return None
        text = _text(number, data)
        try:
            value = parse_json(text, exact=self._exact)
        except (ValueError, RecursionError) as error:
            raise _not_json(number, text, error) from None
        if not isinstance(value, dict):
            raise InvalidRows(
                f"line {number} is not a JSON object",
                detail=f"The line is: {shown(text)}.",
                hint="Write one object a line. A list becomes lines with jq -c '.[]'.",
                line=number,
            )
        readers = self._readers
        try:
            return {name: readers[name](item) if name in readers else item for name, item in value.items()}
        except NotAValue as error:
            raise _not_a_value(number, error, text) from None


class CsvLines:
    """A CSV file, its columns named by the first line."""

    def __init__(self, settings: TopicSettings) -> None:
        self._topic = settings.name
        self._known = settings.stored_schema.names
        self._readers: dict[str, Reader] = {
            field.name: text_reader(field.type, field.name) for field in settings.stored_schema
        }
        self._readers |= {f"record.{field.name}": text_reader(field.type, f"record.{field.name}") for field in RECORD}
        self._columns: list[str] = []

    def records(self, lines: Iterable[tuple[int, bytes] | None]) -> Iterator[Line | None]:
        for line in _joined(lines):
            if line is None or self._columns:
                yield line
            elif line[2]:
                self._columns = self._header(line)

    def row(self, line: Line) -> dict[str, Any] | None:
        first, _, data = line
        if not data:
            return None
        text = _text(first, data)
        cells = _cells(first, text)
        if len(cells) != len(self._columns):
            raise InvalidRows(
                f"line {first} has {counted(len(cells), 'cell')}, not {len(self._columns)}",
                detail=f"The columns are: {', '.join(self._columns)}.",
                hint='A cell with a comma in it stands between quotes: "12,50".',
                line=first,
            )
        try:
            return self._row(dict(zip(self._columns, cells, strict=True)))
        except NotAValue as error:
            raise _not_a_value(first, error, text) from None

    def _row(self, cells: dict[str, str | None]) -> dict[str, Any]:
        readers = self._readers
        row = {name: readers[name](cell) if name in readers else cell for name, cell in cells.items()}
        record = {name: row.pop(f"record.{name}") for name in ("change", "headers") if f"record.{name}" in row}
        for column in RECORD:
            row.pop(f"record.{column.name}", None)
        return {**row, "record": record} if record else row

    def _header(self, line: Line) -> list[str]:
        number, _, data = line
        names = [cell or "" for cell in _cells(number, _text(number, data))]
        if len(set(names)) < len(names) or "" in names:
            raise InvalidRows(
                f"line {number} names a column twice, or not at all",
                detail=f"The first line of a CSV file names its columns; here: {', '.join(names)}. {NOTHING_WRITTEN}",
                hint="Give each column a name of its own.",
            )
        if unknown := [name for name in names if name not in self._readers]:
            error = unknown_column(unknown[0], self._known, self._topic, None)
            raise SchemaMismatch(f"line {number}: {error.summary}", detail=error.detail, hint=error.hint)
        return names


def _joined(lines: Iterable[tuple[int, bytes] | None]) -> Iterator[Line | None]:
    """Lines with those they belong to: a quote that is not closed goes on in the next one."""
    first, size = 0, 0
    parts: list[bytes] = []
    opened = False
    for line in lines:
        if line is None:
            yield None
            continue
        number, data = line
        first = first if parts else number
        parts.append(data)
        size += len(data)
        # A doubled quote closes and opens again, so only their number counts.
        opened ^= data.count(b'"') % 2 == 1
        if not opened or size > LINE_BYTES_MAX:
            yield first, number, b"\n".join(parts)
            parts, size, opened = [], 0, False
    if parts:
        yield first, first + len(parts) - 1, b"\n".join(parts)


def _cells(number: int, text: str) -> list[str | None]:
    if '"' not in text:
        return [cell or None for cell in text.split(",")]
    cells: list[str | None] = []
    position = 0
    while found := _CELL.match(text, position):
        inside, plain, end = found.groups()
        cells.append(plain or None if inside is None else inside.replace('""', '"'))
        position = found.end()
        if not end:
            return cells
    raise InvalidRows(
        f"line {number} has a quote where none can be, or one that is not closed",
        detail=f"After {len(cells)} cells there is {shown(text[position:])}.",
        hint='Quotes stand around a whole cell, and double inside of it: "5"" pipe".',
        line=number,
    )


def _text(number: int, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRows(
            f"line {number} is not UTF-8",
            detail=f"Byte {error.start + 1} of it is {data[error.start]:#04x}. The line is: {data[:60]!r}.",
            hint="Convert the file first, for instance with iconv -f LATIN1 -t UTF-8.",
            line=number,
        ) from None


def _not_json(number: int, text: str, error: Exception) -> InvalidRows:
    if isinstance(error, json.JSONDecodeError):
        reason = f"{error.msg} at character {error.pos + 1}"
    else:
        reason = "It is nested too deeply" if isinstance(error, RecursionError) else str(error)
    whole = text.lstrip()[:1] in "[{" and text.rstrip()[-1:] not in "]}"
    return InvalidRows(
        f"line {number} is not JSON",
        detail=f"{reason}. The line is: {shown(text)}.",
        hint="Write each object on one line; jq -c . does that." if whole else "Correct the line.",
        line=number,
    )


def _not_a_value(number: int, error: NotAValue, text: str) -> InvalidRows:
    facts = f"The line is: {shown(text)}."
    return InvalidRows(f"line {number}: {error}", detail=facts, hint=error.hint, line=number, column=error.path)


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
