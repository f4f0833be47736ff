"""JSON lines and CSV as rows: what one line says, and batches of many.

A JSON line is an object with the topic's columns. A CSV file begins with a line of column names; an empty cell is null,
`""` is an empty text, and a cell may hold line ends between quotes. Columns `record`, or in CSV `record.change` and
`record.headers`, are used as `topic read` writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from mainstem.errors import InvalidRows, SchemaMismatch
from mainstem.log.record import RECORD
from mainstem.log.row_errors import NOTHING_WRITTEN, shown, unknown_column
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.typed_values import (
    NotAValue,
    Reader,
    has_decimals,
    json_reader,
    parse_json,
    text_reader,
)
from mainstem.workbench.cli.amounts import counted
from mainstem.workbench.cli.text_lines import LINE_BYTES_MAX

__all__ = ["CsvLines", "JsonLines", "Line", "LineForm"]

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
        for field in RECORD:
            row.pop(f"record.{field.name}", None)
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
