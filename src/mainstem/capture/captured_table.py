"""CapturedTable: which columns and rows of a table are captured, and into which topic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import pyarrow as pa

from mainstem.arguments import check_choice, checked_calls, column_names
from mainstem.errors import Invalid, did_you_mean
from mainstem.log.keep_rule import Keep
from mainstem.log.rows.schema_ddl import schema_from_ddl
from mainstem.names import check_name

__all__ = ["CapturedTable", "captured_tables", "changed_key", "check_columns", "column_types", "is_wanted"]

# Names that a topic's rows have already; the last one with `before` only.
RESERVED = ("record", "origin", "before")

_NAME = re.compile(r'(?:"((?:[^"]|"")+)"|([^".]+))(?:\.(?:"((?:[^"]|"")+)"|([^".]+)))?')


@checked_calls
@dataclass(frozen=True, init=False)
class CapturedTable:
    """A table of a source with its settings; a name alone is a table with the default settings.

    `name`: as in SQL, with its schema if that is not the default one: "orders", "sales.orders", '"odd.name"'.
    `into`: the topic, by default `<capture>.<table>`. `columns`: capture only these, the key is always captured.
    `where`: capture only rows that meet this SQL condition. `masked`: columns whose values are replaced by a keyed hash:
    equal values stay equal. `before="row"`: also the row before each change, in the column `before`.
    `partitions`, `event_time`, `keep`: settings of the topic; by default it keeps the latest record per key.

    >>> CapturedTable("sales.orders", event_time="placed_at").schema
    'sales'
    """

    name: str
    into: str | None
    partitions: int
    event_time: str | None
    columns: tuple[str, ...] | None
    where: str | None
    masked: tuple[str, ...]
    keep: Keep
    before: str | None

    def __init__(
        self,
        name: str,
        *,
        into: str | None = None,
        partitions: int = 1,
        event_time: str | None = None,
        columns: str | Sequence[str] | None = None,
        where: str | None = None,
        masked: str | Sequence[str] = (),
        keep: str | timedelta | Keep = "latest per key",
        before: str | None = None,
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise Invalid(
                f"{name!r} is not the name of a table",
                detail="A name is a table, or a schema and a table with a point between them.",
                hint='For example: "orders", "sales.orders", or with quotes as in SQL: \'"Order Items"\'.',
            )
        if into is not None:
            check_name(into, "topic")
        if before is not None:
            check_choice(before, "before", ("row",))
        given = locals()
        for one in fields(self):
            object.__setattr__(self, one.name, given[one.name])
        object.__setattr__(self, "columns", None if columns is None else column_names(columns, "columns"))
        object.__setattr__(self, "keep", Keep.parse(keep))
        object.__setattr__(self, "masked", column_names(masked, "masked") if masked else ())

    @property
    def _parts(self) -> tuple[str | None, str]:
        found = _NAME.fullmatch(self.name)
        assert found is not None
        first, second = found[1] or found[2], found[3] or found[4]
        parts = [part.replace('""', '"') for part in (first, second) if part is not None]
        return (None, parts[0]) if len(parts) == 1 else (parts[0], parts[1])

    @property
    def schema(self) -> str | None:
        """The schema; None for the default one."""
        return self._parts[0]

    @property
    def table(self) -> str:
        """The table's name alone."""
        return self._parts[1]

    def topic(self, capture: str) -> str:
        """The name of its topic."""
        if self.into is not None:
            return self.into
        name = ".".join([capture, *([self.schema] if self.schema else []), self.table])
        try:
            return check_name(name, "topic")
        except Invalid as error:
            raise Invalid(
                f'table "{self.name}" has a name that a topic cannot have',
                detail=f"{error.summary}.",
                hint=f'Name the topic: CapturedTable({self.name!r}, into="...").',
            ) from error

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {one.name: getattr(self, one.name) for one in fields(self)} | {"keep": self.keep.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CapturedTable:
        """From JSON."""
        return cls(**{**value, "keep": Keep.from_json(value["keep"])})


def captured_tables(tables: Iterable[str | CapturedTable]) -> tuple[CapturedTable, ...]:
    """The tables that a user named; each once."""
    if isinstance(tables, str) or not isinstance(tables, Iterable):
        raise Invalid(
            f"tables is {tables!r}, not a list",
            detail="It lists the tables to capture.",
            hint=f"Write tables=[{tables!r}]." if isinstance(tables, str) else 'For example: tables=["orders"].',
        )
    found = tuple(one if isinstance(one, CapturedTable) else CapturedTable(one) for one in tables)
    names = [(one.schema, one.table) for one in found]
    if twice := next((one for one in found if names.count((one.schema, one.table)) > 1), None):
        raise Invalid(
            f'tables names "{twice.name}" twice',
            detail=f"The tables given are: {', '.join(one.name for one in found)}.",
            hint="Name each table once.",
        )
    return found


def column_types(types: Mapping[str, str] | None, tables: Sequence[CapturedTable]) -> dict[str, pa.DataType]:
    """The types that a user gave to columns, by table and column."""
    given = {name: schema_from_ddl(f"value {one}").field(0).type for name, one in (types or {}).items()}
    if unknown := next((name for name in given if not any(name.startswith(f"{one.name}.") for one in tables)), None):
        raise Invalid(
            f'types names "{unknown}", which is not a column of a captured table',
            detail=f"The tables are: {', '.join(one.name for one in tables)}.",
            hint='Write table and column with a point: types={"orders.until": "STRING"}.',
        )
    return given


def is_wanted(captured: CapturedTable, column: str, key: Sequence[str]) -> bool:
    """Whether a column is captured."""
    return captured.columns is None or column in captured.columns or column in key


def check_columns(captured: CapturedTable, names: Sequence[str], key: Sequence[str]) -> None:
    """Raise `Invalid` if a setting names a column that the table lacks, or a captured one has a reserved name."""
    for setting, given in (("columns", captured.columns or ()), ("masked", captured.masked),
                           ("event_time", (captured.event_time,) if captured.event_time else ())):  # fmt: skip
        if unknown := next((one for one in given if one not in names), None):
            raise Invalid(
                f'table "{captured.name}" has no column "{unknown}"',
                detail=f"{setting} names it. The columns are: {', '.join(names)}.",
                hint=did_you_mean(unknown, names) or "Name some of these.",
            )
    reserved = RESERVED[: 3 if captured.before else 2]
    if taken := next((one for one in names if one in reserved and is_wanted(captured, one, key)), None):
        raise Invalid(
            f'column "{taken}" of table "{captured.name}" has a reserved name',
            detail=f'Rows of a captured topic have a column "{taken}" of their own.',
            hint="Capture the other columns: CapturedTable(..., columns=[...]); or rename it in the database.",
        )


def changed_key(captured: CapturedTable, before: Sequence[str], now: Sequence[str]) -> Invalid:
    """The error of a table that has another key now."""
    return Invalid(
        f'the key of table "{captured.name}" changed',
        detail=f"It was ({', '.join(before)}), now it is ({', '.join(now)}). Nothing after the change was captured.",
        hint=f"Capture it into a new topic: CapturedTable({captured.name!r}, into=...). Rows before the change stay in the "
        "old one.",
    )
