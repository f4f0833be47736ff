"""Source: what a capture needs of a database. Nothing here knows a database in particular.

A source streams changes in commit order, as columns. `read` returns what happened as a list of events:

    Changes        rows of one table, in commit order
    Truncated      all rows of one table were deleted at once
    TableChanged   a table has other columns, or another key
    Committed      everything before belongs to whole transactions up to this position
    Reached        nothing that is captured happened up to this position

A large transaction comes in several pieces, before its `Committed`. Between two `Committed` the order of tables does not
matter: their rows become visible together.

A position is a text of the source, such as "0/16B3748"; only the source compares positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.capture.captured_table import CapturedTable
from mainstem.errors import Invalid, PositionLost, did_you_mean
from mainstem.log.record import ORIGIN

__all__ = [
    "Changes",
    "Chunk",
    "Committed",
    "Event",
    "Health",
    "Reached",
    "Source",
    "SourceColumn",
    "SourceConnection",
    "SourceTable",
    "SourceTransaction",
    "TableChanged",
    "TableMoved",
    "Truncated",
    "check_renamed",
    "check_types",
    "lost_position",
    "origin_array",
]


@dataclass(frozen=True)
class SourceColumn:
    """A column of a table. `number` stays the same when it is renamed. `filled`: rows that were there when the column was
    added may have a value, of which the stream says nothing. `version`: another text after each change of the column."""

    name: str
    data_type: pa.DataType
    number: int
    shown_type: str = ""
    filled: bool = False
    version: str = ""


@dataclass(frozen=True)
class SourceTable:
    """A table as it is in the source. `identity` changes when it is dropped and made again. `storage` changes when all rows
    are written anew, without an event in the stream; so it does when they are only moved or deleted. `parts`: its
    partitions, of each whether it was made as one, without rows, and its storage; the stream says nothing of those that are
    attached, detached or truncated alone. `renamed`: the next rows of the stream have a column under a name that it does not have now."""

    name: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    storage: str = ""
    identity: str = ""
    parts: Mapping[str, tuple[bool, str]] = field(default_factory=dict)
    renamed: bool = False

    def column(self, name: str) -> SourceColumn | None:
        return next((column for column in self.columns if column.name == name), None)


class SourceTransaction(NamedTuple):
    """A committed transaction of the source. `committed_at`: in microseconds. `changes`: how many, by table."""

    position: str
    id: int
    committed_at: int
    changes: Mapping[str, int]


@dataclass
class Changes:
    """Rows of one table in commit order. A deletion has only the key's columns, the others are null.

    `unchanged`: the rows whose value in a column the source did not send, because it did not change. `before`: the old
    rows, if they were asked for. `headers`: as in `record`.
    """

    table: str
    columns: dict[str, pa.Array]
    change: pa.Array
    origin: pa.StructArray
    unchanged: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    before: pa.StructArray | None = None
    headers: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.change)


@dataclass(frozen=True)
class Truncated:
    """All rows of a table were deleted at once, by this transaction."""

    table: str
    origin: Mapping[str, Any]


@dataclass(frozen=True)
class TableChanged:
    """A table as it is now. The stream may be behind: the next `Changes` have the columns that it had then."""

    table: SourceTable


class TableMoved(Exception):
    """A table is not as it was when it was last described: `table` is what it is now."""

    def __init__(self, table: SourceTable) -> None:
        super().__init__(table.name)
        self.table = table


@dataclass(frozen=True)
class Committed:
    """All events before belong to whole transactions: these."""

    position: str
    transactions: Sequence[SourceTransaction]


@dataclass(frozen=True)
class Reached:
    """Nothing that is captured happened since the last event, up to this position."""

    position: str


Event = Changes | Truncated | TableChanged | Committed | Reached


class Chunk(Protocol):
    """Rows of a table between two keys, as one moment of the source had them."""

    # In the order of the key; all columns that are captured.
    columns: dict[str, pa.Array]
    rows: int
    # The key of the last row as the source writes it, to continue after it; None if there are no more rows.
    last: tuple[str, ...] | None
    read_at: datetime

    @property
    def position(self) -> str:
        """The stream must have reached it before these rows are appended: it then has all that they show."""

    def sees(self, transaction: int) -> bool:
        """Whether the rows show the effects of a transaction."""


@dataclass(frozen=True)
class Health:
    """How much of its log the server keeps for this capture, and how much more it may; None if there is no limit."""

    held_bytes: int
    left_bytes: int | None
    position: str


class SourceConnection(Protocol):
    """An open source. Used by one thread."""

    # Text that identifies the server, its history and the place in it where changes are kept for this capture.
    identity: Mapping[str, str]

    def tables(self) -> list[SourceTable]:
        """The captured tables as they are now; raises `Invalid` for one that cannot be captured."""

    def prepare(self) -> str:
        """Make what the source needs to keep changes, unless it exists. The position from which on it has them all."""

    def check_position(
        self, position: str, identity: Mapping[str, str], appended: Callable[[], set[tuple[str, int]]]
    ) -> None:
        """Raise `PositionLost` unless the source still has every change after a position of an earlier run. `appended`
        gives the positions and ids of the last transactions in the log, which tell its history from another one."""

    def start(self, position: str) -> None:
        """Begin to stream the changes after a position."""

    def read(self, seconds: float) -> list[Event]:
        """The next events; waits for one, but at most so long."""

    def has_reached(self, position: str) -> bool:
        """Whether all changes up to a position have been read."""

    def confirm(self, position: str) -> None:
        """Let the source forget changes up to a position."""

    def now(self) -> str:
        """The position that the source has reached now."""

    def unseen(self, transactions: Sequence[int]) -> list[int]:
        """Those of these transactions, all of them streamed, that a reader of the source cannot see yet."""

    def unsettled(self) -> list[int]:
        """The transactions that may have changed a table before its changes were streamed, and are not known to have
        ended."""

    def changed_tables(self) -> list[SourceTable]:
        """The tables that are not as they were when they were last described; raises `Invalid` as `tables` does."""

    def read_chunk(self, table: str, after: tuple[str, ...] | None, rows: int, where: str | None = None) -> Chunk:
        """The next rows of a table after a key; raises `TableMoved` if it is not as it was described."""

    def find_rows(self, table: str, keys: pa.RecordBatch, columns: Sequence[str]) -> pa.Table:
        """Rows as they are now, with the key's columns and these."""

    def key_texts(self, table: str, keys: pa.RecordBatch) -> list[tuple[str, ...]]:
        """Keys of a table's topic as the source writes them, for `read_keys`. No column of the key is masked."""

    def read_keys(self, table: str, keys: Sequence[tuple[str, ...]]) -> tuple[Chunk, pa.RecordBatch]:
        """The rows with these keys, and those of the keys that no row has; all as one moment of the source had them."""

    def precedes(self, position: str, other: str) -> bool:
        """Whether a position is before another one."""

    def count_rows(self, table: str) -> int:
        """About how many rows a table has."""

    def health(self) -> Health: ...

    def drop(self, *, in_use: bool = False) -> None:
        """Remove what `prepare` made. Only with `in_use` also while another run of the capture uses it, which ends."""

    def close(self) -> None: ...


class Source(Protocol):
    """A database and which of its tables are captured: a value, made by `postgres(...)` or `sqlite(...)`."""

    @property
    def kind(self) -> str: ...

    @property
    def shown(self) -> str:
        """Its address without a password."""

    @property
    def tables(self) -> tuple[CapturedTable, ...]: ...

    @property
    def outbox(self) -> str | None:
        """The table of its outbox."""

    def setup_sql(self, capture: str) -> str:
        """What an administrator can run, so that fewer rights suffice."""

    def open(self, capture: str, home: str) -> SourceConnection: ...

    def to_json(self) -> dict[str, Any]:
        """For another process of the same program; it has the password if the address has."""


def origin_array(
    positions: pa.Array, transactions: pa.Array, numbers: pa.Array, committed_at: pa.Array, *, snapshot: bool
) -> pa.StructArray:
    """The `origin` of rows."""
    return pa.StructArray.from_arrays(
        [positions, transactions, numbers, committed_at, pa.repeat(pa.scalar(snapshot), len(positions))],
        fields=list(ORIGIN),
    )


def check_types(types: Mapping[str, pa.DataType], tables: Sequence[SourceTable]) -> None:
    """Raise `Invalid` if a type is given to a column that is not captured."""
    columns = {f"{table.name}.{column.name}": table for table in tables for column in table.columns}
    for name in types:
        if name not in columns:
            near = [one for one, table in columns.items() if name.startswith(f"{table.name}.")]
            raise Invalid(
                f'types names "{name}", which is not a captured column',
                detail=f"Captured are: {', '.join(near)}. Nothing was changed.",
                hint=did_you_mean(name, near) or "Name some of these, or leave it out.",
            )


def check_renamed(table: SourceTable, names: Mapping[int, str]) -> None:
    """Raise `Invalid` if a column has not the name that it had, by its number."""
    for column in table.columns:
        former = names.get(column.number, column.name)
        if former != column.name:
            raise Invalid(
                f'column "{former}" of table "{table.name}" was renamed to "{column.name}"',
                detail="Rows in the topic have the old name. Nothing after the change was captured.",
                hint=f'Rename it back; or capture the table into a new topic: CapturedTable("{table.name}", into=...).',
            )


def lost_position(capture: str, source: str, position: str, why: str) -> PositionLost:
    """The error of a source that may lack changes after a position."""
    return PositionLost(
        f'capture "{capture}" cannot continue after {position} of "{source}"',
        detail=f"There {why}. Changes after that position may be missing.",
        hint='Read the tables again: Capture(..., when_lost="snapshot"). What is in the topics stays.',
        position=position,
    )
