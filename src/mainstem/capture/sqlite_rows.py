"""SqliteRows: what the rows of a SQLite file become in topics: their types, their masks, their keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from mainstem.capture.captured_table import CapturedTable
from mainstem.capture.source import Changes, origin_array
from mainstem.capture.sqlite_triggers import Shape
from mainstem.capture.sqlite_types import Unfit, arrow_array, arrow_type
from mainstem.errors import Invalid
from mainstem.log.record import HEADERS
from mainstem.log.rows.row_errors import format_value

__all__ = ["NotedRow", "SqliteRows"]


@dataclass
class NotedRow:
    """A change as it was noted, converted to what is appended."""

    change: str
    new: Sequence[Any]
    old: Sequence[Any]
    number: int
    at: int
    header: tuple[str, bytes] | None = None


class SqliteRows:
    """Converts rows of captured tables and of the outbox. Changes are numbered within a transaction."""

    def __init__(
        self,
        captured: Mapping[str, CapturedTable],
        types: Mapping[str, pa.DataType],
        mask: Callable[[bytes], bytes],
    ) -> None:
        self._captured = captured
        self._types = types
        self._mask = mask
        self._number = 0

    def begin_transaction(self) -> None:
        """Number changes from one again."""
        self._number = 0

    def type_of(self, shape: Shape, name: str, declared: str) -> pa.DataType:
        """The type of a column in its topic."""
        if shape.name in self._captured and name in self._captured[shape.name].masked:
            return pa.string()
        return self._types.get(f"{shape.name}.{name}") or arrow_type(declared)

    def changes(
        self, shape: Shape, change: str, old: Sequence[Any], new: Sequence[Any], at: int, gone: bool  # noqa: FBT001
    ) -> Iterator[NotedRow]:  # fmt: skip
        """A noted change as what is appended: a changed key is a deletion and an insertion. `gone`: a replaced row is not left."""
        nothing: list[Any] = [None] * len(shape.columns)
        places = [place for place, (name, _) in enumerate(shape.columns) if name in shape.key]
        if change in ("delete", "replaced"):
            if change == "delete" or gone:
                key = [value if place in places else None for place, value in enumerate(old)]
                yield self._row("delete", key, old, at)
        elif change == "insert":
            yield self._row("insert", new, nothing, at)
        elif all(type(old[place]) is type(new[place]) and old[place] == new[place] for place in places):
            yield self._row("update", new, old, at)
        else:
            key = [value if place in places else None for place, value in enumerate(old)]
            yield self._row("delete", key, old, at, ("new_key", self._key_json(shape, new)))
            yield self._row("insert", new, nothing, at, ("old_key", self._key_json(shape, old)))

    def message(self, shape: Shape, values: Sequence[Any], at: int) -> NotedRow:
        """A row of the outbox. Its table takes any bytes; the relay rejects those that are no text."""
        bad = next((name for (name, _), one in zip(shape.columns, values, strict=True) if isinstance(one, bytes)), None)
        shown = [one.decode("utf-8", "backslashreplace") if isinstance(one, bytes) else one for one in values]
        header = None if bad is None else ("refused", f"the {bad} is not text, but a BLOB or damaged".encode())
        return self._row("insert", shown, [None] * len(values), at, header)

    def _row(
        self, change: str, new: Sequence[Any], old: Sequence[Any], at: int, header: tuple[str, bytes] | None = None
    ) -> NotedRow:
        self._number += 1
        return NotedRow(change, new, old, self._number, at, header)

    def _key_json(self, shape: Shape, values: Sequence[Any]) -> bytes:
        shown = {name: _text(self._masked(shape, name, value)) for (name, _), value in
                 zip(shape.columns, values, strict=True) if name in shape.key}  # fmt: skip
        return json.dumps({name: shown[name] for name in shape.key}, ensure_ascii=False).encode("utf-8", "replace")

    def _masked(self, shape: Shape, name: str, value: Any) -> Any:
        if value is None or shape.name not in self._captured or name not in self._captured[shape.name].masked:
            return value
        data = value if isinstance(value, bytes) else str(value).encode()
        return self._mask(data).decode()

    def event(self, shape: Shape, rows: Sequence[NotedRow], sequence: int) -> Changes:
        """Changes of one table, in the transaction that ends with this sequence number."""
        count = len(rows)
        columns = self.arrays(shape, [row.new for row in rows], rows)
        origin = origin_array(
            pa.repeat(pa.scalar(str(sequence)), count),
            pa.repeat(pa.scalar(sequence, pa.int64()), count),
            pa.array([row.number for row in rows], pa.int64()),
            pa.array([row.at * 1000 for row in rows], pa.timestamp("us", "UTC")),
            snapshot=False,
        )
        before = None
        if shape.name in self._captured and self._captured[shape.name].before == "row":
            arrays = self.arrays(shape, [row.old for row in rows], rows)
            missing = pa.array([row.change == "insert" for row in rows])
            before = pa.StructArray.from_arrays(list(arrays.values()), names=list(arrays), mask=missing)
        headers = None
        if any(row.header is not None for row in rows):
            found = [
                None if row.header is None else [dict(zip(("key", "value"), row.header, strict=True))] for row in rows
            ]
            headers = pa.array(found, HEADERS)
        return Changes(
            shape.name, columns, pa.array([row.change for row in rows], pa.string()), origin, {}, before, headers
        )

    def arrays(
        self, shape: Shape, values: Sequence[Sequence[Any]], rows: Sequence[NotedRow] | None = None
    ) -> dict[str, pa.Array]:
        """The columns of rows of a table; of noted rows, with their keys checked."""
        found = {}
        for place, (name, declared) in enumerate(shape.columns):
            given: list[Any] = [row[place] for row in values]
            if shape.name in self._captured and name in self._captured[shape.name].masked:
                given = [self._masked(shape, name, value) for value in given]
            try:
                found[name] = arrow_array(given, self.type_of(shape, name, declared))
            except Unfit as error:
                raise self._refuse(shape, name, values[error.index], error) from None
            if name in shape.key and rows is not None and found[name].null_count:
                self._check_key(shape, name, values, rows)
        return found

    def key_arrays(self, shape: Shape, keys: Sequence[Sequence[Any]]) -> list[pa.Array]:
        """Keys of a table as columns."""
        declared = dict(shape.columns)
        return [
            arrow_array([key[place] for key in keys], self.type_of(shape, name, declared[name]))
            for place, name in enumerate(shape.key)
        ]

    def _check_key(self, shape: Shape, name: str, values: Sequence[Sequence[Any]], rows: Sequence[NotedRow]) -> None:
        place = [one for one, _ in shape.columns].index(name)
        for row, given in zip(rows, values, strict=True):
            if given[place] is None and given is row.new:
                raise self.null_key(shape, name)

    def null_key(self, shape: Shape, name: str) -> Invalid:
        """The error for a row whose key is null."""
        return Invalid(
            f'table "{shape.name}" has a row without a key',
            detail=f'Column "{name}" of its primary key is null, which SQLite allows unless it is declared NOT NULL.',
            hint="Delete the row or give it a key, and start the capture again.",
        )

    def _refuse(self, shape: Shape, column: str, row: Sequence[Any], error: Unfit) -> Invalid:
        key = {name: _text(value) for (name, _), value in zip(shape.columns, row, strict=True) if name in shape.key}
        return Invalid(
            f'column "{column}" of table "{shape.name}" has a value that the topic cannot hold',
            detail=f"The row with key {key} has {format_value(error.value)}: {error.reason}. Nothing after it was captured.",
            hint=f'Choose a type that holds all values of the column: sqlite(..., types={{"{shape.name}.{column}": "STRING"}}), '
            "into a new topic or one whose column has it.",
        )


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.hex() if isinstance(value, bytes) else str(value)
