"""Reads rows from a file or from standard input, in batches: JSON lines, CSV, Parquet, Arrow.

The format follows from the file's suffix, or from `--format`. A batch has at most `ROWS_MAX` rows and about `BYTES_MAX`
bytes, so memory is bounded; a batch also ends at every line of `cuts`.

Lines are read here and not by Arrow or DuckDB: an invalid line is reported by its number and kept unchanged, the lines
around it are appended, a pipe that pauses delays nothing, and values are parsed as everywhere in Mainstem (a time has a
zone, a decimal all its digits).
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
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, Self, TypeAlias, cast

import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.durations import show_size
from mainstem.errors import Invalid, InvalidRows, SchemaMismatch, did_you_mean
from mainstem.log.record import RECORD
from mainstem.log.rows.plain_values import NotAValue, Reader, has_decimals, json_reader, parse_json, text_reader
from mainstem.log.rows.row_errors import NOTHING_WRITTEN, format_value, unknown_column
from mainstem.log.topic_settings import TopicSettings
from mainstem.workbench.cli.row_format import InputFormat
from mainstem.workbench.cli.terminal_table import show_count

__all__ = ["BYTES_MAX", "LINE_BYTES_MAX", "ROWS_MAX", "RowBatch", "RowFile", "Rows"]

ROWS_MAX = 10_000
BYTES_MAX = 16 << 20
# Longer than a record of the default limit with every character escaped.
LINE_BYTES_MAX = 128 << 20
CHUNK_BYTES = 1 << 20
# Long enough for a program that writes line by line, short enough for a user who watches.
PAUSE_SECONDS = 0.2

SUFFIXES = {
    ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".parquet": "parquet",
    ".arrow": "arrow", ".arrows": "arrow", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip
FORMATS = "|".join(InputFormat)
ARROW_FILE = b"ARROW1"
# The byte order mark at the beginning of some text files.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Rows: TypeAlias = list[dict[str, Any]] | pa.RecordBatch


@dataclass
class RowBatch:
    """Rows of a file. `numbers`: the line (in Parquet and Arrow: the row) of each, counted from 1."""

    first: int
    last: int = 0
    rows: Rows = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    # The original lines; empty for Parquet and Arrow.
    texts: list[bytes] = field(default_factory=list)
    # Invalid lines: number, bytes, and the error.
    bad: list[tuple[int, bytes, InvalidRows]] = field(default_factory=list)


class RowFile:
    """An open input of rows; used with `with`. `position`: the bytes read so far."""

    def __init__(self, path: str, given: str | None, settings: TopicSettings) -> None:
        self.path = path
        self.format = _format(path, given)
        self.unit: Literal["line", "row"] = "line" if self.format in ("json", "csv") else "row"
        self.position = 0
        self._settings = settings
        self._stack = ExitStack()
        self._source: BinaryIO = sys.stdin.buffer
        if path != "-":
            self._source = self._stack.enter_context(open(path, "rb"))  # noqa: SIM115 - by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def size(self) -> int | None:
        """The number of bytes, if known."""
        return None if self.path == "-" else os.fstat(self._source.fileno()).st_size

    def batches(
        self, *, start: int = 1, cuts: Collection[int] = (), pauses: Literal["cut", "ignore"] = "cut"
    ) -> Iterator[RowBatch]:
        """The rows from line `start` on. `pauses="cut"`: when a pipe pauses, the lines so far are a batch."""
        if self.unit == "row":
            return self._arrow_batches(start, cuts)
        return self._line_batches(start, cuts, pauses)

    def _line_batches(self, start: int, cuts: Collection[int], pauses: Literal["cut", "ignore"]) -> Iterator[RowBatch]:
        form: LineForm = JsonLines(self._settings) if self.format == "json" else CsvLines(self._settings)
        batch, size = RowBatch(start), 0
        for line in form.records(self._lines()):
            if line is None:
                full = pauses == "cut"
            elif line[1] < start:
                continue
            else:
                batch.last = line[1]
                size += len(line[2])
                _take(batch, form, line)
                # By its number, so that the batches of a file do not depend on the line where reading started.
                full = batch.last % ROWS_MAX == 0 or size >= BYTES_MAX or batch.last in cuts
            if full and batch.last:
                yield batch
                batch, size = RowBatch(batch.last + 1), 0
        if batch.last:
            yield batch

    def _lines(self) -> Iterator[tuple[int, bytes] | None]:
        """Number and bytes of each line, without its end; None when a pipe pauses, so that the lines so far can be
        appended."""
        pipe = _pipe(self._source)
        number, rest = 0, b""
        while True:
            if pipe is not None and not select.select([pipe], [], [], PAUSE_SECONDS)[0]:
                yield None
            chunk = self._source.read(CHUNK_BYTES) if pipe is None else os.read(pipe, CHUNK_BYTES)
            self.position += len(chunk)
            # The last line may have no line end.
            *lines, rest = (rest + chunk).split(b"\n") if chunk else ([rest, b""] if rest else [b""])
            for line in lines:
                number += 1
                yield number, line.removeprefix(BYTE_ORDER_MARK if number == 1 else b"").removesuffix(b"\r")
            if not chunk:
                return
            if len(rest) > LINE_BYTES_MAX:
                raise InvalidRows(
                    f"line {number + 1} is longer than {show_size(LINE_BYTES_MAX)}",
                    detail="No record of a topic can be that long; perhaps the file has no line ends, or is of another format.",
                    hint=f"Write one row per line, or name the format: --format {FORMATS}.",
                )

    def _arrow_batches(self, start: int, cuts: Collection[int]) -> Iterator[RowBatch]:
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
                detail=str(error).splitlines()[0],
                hint=f"Is it another format? --format {FORMATS}",
            ) from error

    def _record_batches(self) -> Iterator[pa.RecordBatch]:
        if self.format == "parquet":
            source = self._seekable()
            batches = pq.ParquetFile(source, page_checksum_verification=True).iter_batches(ROWS_MAX)
        else:
            source = self._source
            beginning = source.peek(len(ARROW_FILE)) if isinstance(source, io.BufferedReader) else ARROW_FILE
            if beginning.startswith(ARROW_FILE):
                source = self._seekable()
                reader = pa.ipc.open_file(source)
                batches = map(reader.get_batch, range(reader.num_record_batches))
            else:
                batches = pa.ipc.open_stream(source)
        for batch in batches:
            if source.seekable():
                self.position = source.tell()
            yield batch

    def _seekable(self) -> BinaryIO:
        """The input as a file: these formats are read from their end, so a pipe is first copied to disk."""
        source = self._source
        if source.seekable():
            return source
        copy = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - by __exit__
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
        f'the format of "{path}" is unknown',
        detail=f"Known suffixes: {', '.join(SUFFIXES)}.",
        hint=did_you_mean(suffix, SUFFIXES) or f"Name it: --format {FORMATS}",
    )


def _pipe(source: BinaryIO) -> int | None:
    """The descriptor, if more data may follow: of a pipe, a terminal or a socket."""
    try:
        descriptor = source.fileno()
        return None if stat.S_ISREG(os.fstat(descriptor).st_mode) else descriptor
    except (OSError, ValueError):
        return None


def _slices(batch: pa.RecordBatch, before: int, start: int, cuts: Collection[int]) -> Iterator[RowBatch]:
    """The batch in parts of bounded size; its first row is number `before` + 1 of the file."""
    end = before + batch.num_rows
    rows_max = max(1, min(ROWS_MAX, batch.num_rows * BYTES_MAX // max(batch.nbytes, 1)))
    first = max(before, start - 1)
    while first < end:
        last = min([end, (first // rows_max + 1) * rows_max, *(cut for cut in cuts if first < cut)])
        numbers = list(range(first + 1, last + 1))
        yield RowBatch(first + 1, last, batch.slice(first - before, last - first), numbers)
        first = last


# JSON lines and CSV as rows.
#
# A JSON line is an object with the topic's columns. A CSV file begins with a line of column names; an empty cell is
# null, `""` is an empty string, and a quoted cell may contain line ends. The columns `record`, or in CSV
# `record.change` and `record.headers`, are as `topic read` writes them.


# First and last line, and their bytes.
Line = tuple[int, int, bytes]

_CELL = re.compile(r'(?:"((?:[^"]|"")*)"|([^",]*))(,|\Z)')
_RECORD_COLUMNS = {f"record.{column.name}": column.type for column in RECORD}


class LineForm(ABC):
    """A line format."""

    @abstractmethod
    def records(self, lines: Iterable[tuple[int, bytes] | None]) -> Iterator[Line | None]:
        """The groups of lines that make one row each."""

    @abstractmethod
    def row(self, number: int, text: str) -> dict[str, Any] | None:
        """The row in a text, None if it has none. Raises `InvalidRows` and `NotAValue`."""


class JsonLines(LineForm):
    """One JSON object per line; empty lines are skipped."""

    def __init__(self, settings: TopicSettings) -> None:
        self._readers: dict[str, Reader] = {
            field.name: json_reader(field.type, field.name) for field in settings.stored_schema
        }
        self._readers["record"] = json_reader(RECORD, "record")
        self._exact = any(has_decimals(field.type) for field in settings.stored_schema)

    def records(self, lines: Iterable[tuple[int, bytes] | None]) -> Iterator[Line | None]:
        for line in lines:
            yield None if line is None else (line[0], *line)

    def row(self, number: int, text: str) -> dict[str, Any] | None:
        if not text.strip(" \t\r\v\f"):
            return None
        try:
            value = parse_json(text, exact=self._exact)
        except (ValueError, RecursionError) as error:
            raise _not_json(number, text, error) from None
        if not isinstance(value, dict):
            hint = "Write one object per line. A list becomes lines with jq -c '.[]'."
            raise _wrong(number, " is not a JSON object", f"The line is: {format_value(text)}.", hint)
        readers = self._readers
        return {name: readers[name](item) if name in readers else item for name, item in value.items()}


class CsvLines(LineForm):
    """A CSV file, its columns named by the first line."""

    def __init__(self, settings: TopicSettings) -> None:
        self._topic = settings.name
        self._known = settings.stored_schema.names
        types = {field.name: field.type for field in settings.stored_schema} | _RECORD_COLUMNS
        self._readers: dict[str, Reader] = {name: text_reader(kind, name) for name, kind in types.items()}
        self._columns: list[str] = []

    def records(self, lines: Iterable[tuple[int, bytes] | None]) -> Iterator[Line | None]:
        for line in _join_quoted(lines):
            if line is None or self._columns:
                yield line
            elif line[2]:
                self._columns = self._header(line[0], _text(line))

    def row(self, number: int, text: str) -> dict[str, Any] | None:
        if not text:
            return None
        cells = _cells(number, text)
        if len(cells) != len(self._columns):
            raise _wrong(
                number,
                f" has {show_count(len(cells), 'cell')}, not {len(self._columns)}",
                f"The columns are: {', '.join(self._columns)}.",
                'Quote a cell that contains a comma: "12,50".',
            )
        row = {name: self._readers[name](cell) for name, cell in zip(self._columns, cells, strict=True)}
        record = {name: row[f"record.{name}"] for name in ("change", "headers") if f"record.{name}" in row}
        for name in _RECORD_COLUMNS:
            row.pop(name, None)
        return {**row, "record": record} if record else row

    def _header(self, number: int, text: str) -> list[str]:
        names = [cell or "" for cell in _cells(number, text)]
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


def _take(batch: RowBatch, form: LineForm, line: Line) -> None:
    number, _, data = line
    try:
        text = _text(line)
        try:
            row = form.row(number, text)
        except NotAValue as error:
            raise _wrong(
                number, f": {error}", f"The line is: {format_value(text)}.", error.hint, column=error.path
            ) from None
    except InvalidRows as error:
        batch.bad.append((number, data, error))
        return
    if row is not None:
        assert isinstance(batch.rows, list)
        batch.rows.append(row)
        batch.numbers.append(number)
        batch.texts.append(data)


def _join_quoted(lines: Iterable[tuple[int, bytes] | None]) -> Iterator[Line | None]:
    """Lines that belong together: an open quote continues in the next line."""
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
        # A doubled quote closes and opens again, so only the parity counts.
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
    raise _wrong(
        number,
        " has a misplaced or unclosed quote",
        f"After {len(cells)} cells there is {format_value(text[position:])}.",
        'Quote the whole cell, and double the quotes inside it: "5"" pipe".',
    )


def _text(line: Line) -> str:
    number, _, data = line
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        facts = f"Byte {error.start + 1} of it is {data[error.start]:#04x}. The line is: {data[:60]!r}."
        hint = "Convert the file first, for instance with iconv -f LATIN1 -t UTF-8."
        raise _wrong(number, " is not UTF-8", facts, hint) from None


def _not_json(number: int, text: str, error: Exception) -> InvalidRows:
    if isinstance(error, json.JSONDecodeError):
        reason = f"{error.msg.removesuffix(' starting at')} at character {error.pos + 1}"
    else:
        reason = "It is nested too deeply" if isinstance(error, RecursionError) else str(error)
    whole = text.lstrip()[:1] in "[{" and text.rstrip()[-1:] not in "]}"
    hint = "Write each object on one line; jq -c . does that." if whole else "Correct the line."
    return _wrong(number, " is not JSON", f"{reason}. The line is: {format_value(text)}.", hint)


def _wrong(number: int, what: str, detail: str, hint: str, column: str = "") -> InvalidRows:
    return InvalidRows(f"line {number}{what}", detail=detail, hint=hint, line=number, column=column)
