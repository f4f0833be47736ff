"""SqliteTypes: columns of SQLite as columns of a topic.

SQLite stores any value in any column; the declared type only says which it prefers. The declared type decides the type in
the topic, and a value of another kind stops the capture with an error that names it.

    declared as              in the topic     values
    ...BOOL...               BOOLEAN          0, 1
    DATE                     DATE             text: 2026-01-31
    TIME                     TIME             text: 09:00:00
    ...TIMESTAMP...ZONE, TIMESTAMPTZ          TIMESTAMP        text with a zone
    DATETIME, TIMESTAMP      TIMESTAMP_NTZ    text without a zone: 2026-01-31 09:00:00
    DECIMAL(p, s), NUMERIC(p, s)              DECIMAL(p, s)    numbers with no more digits, as SQLite shows them
    ...INT...                BIGINT           whole numbers
    ...CHAR..., CLOB, TEXT   STRING           text
    BLOB                     BINARY           bytes; text as UTF-8
    REAL, FLOA..., DOUB...   DOUBLE           numbers
    others, or none          STRING           text; a number as text
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from mainstem.log.rows.column_types import SCALARS, kind_of
from mainstem.log.rows.plain_values import NotAValue, text_reader
from mainstem.log.rows.row_errors import format_value
from mainstem.log.rows.schema_ddl import type_to_ddl

__all__ = ["DamagedText", "Unfit", "arrow_array", "arrow_type", "decode_text"]

_DECIMAL = re.compile(r"(?:DECIMAL|NUMERIC)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_DIGITS_MAX = 38
# In the order of SQLite's own rules; the first that is found decides.
_AFFINITIES = [
    ("INT", "BIGINT"), ("CHAR", "STRING"), ("CLOB", "STRING"), ("TEXT", "STRING"), ("BLOB", "BINARY"), ("REAL", "DOUBLE"),
    ("FLOA", "DOUBLE"), ("DOUB", "DOUBLE"),
]  # fmt: skip

# Kind -> the types of values that Arrow takes as they are.
_AS_THEY_ARE: dict[str, set[type]] = {
    "integer": {int},
    "floating": {int, float},
    "string": {str},
    "binary": {bytes},
}


class DamagedText(bytes):
    """Text in the file that is not UTF-8."""


def decode_text(data: bytes) -> str | DamagedText:
    """For `sqlite3.Connection.text_factory`: text that is damaged is no reason to lose the rows around it."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return DamagedText(data)


class Unfit(Exception):
    """A value does not fit its column: its `index` in the values given, and the `reason`."""

    def __init__(self, index: int, value: Any, reason: str) -> None:
        super().__init__(f"value {index}, {format_value(value)}: {reason}")
        self.index = index
        self.value = value
        self.reason = reason


def arrow_type(declared: str) -> pa.DataType:
    """The type of a topic's column for a column declared so.

    >>> arrow_type("VARCHAR(20)"), arrow_type("decimal(10, 2)"), arrow_type("")
    (DataType(string), Decimal128Type(decimal128(10, 2)), DataType(string))
    """
    name = declared.upper().strip()
    if found := _DECIMAL.fullmatch(name):
        precision, scale = int(found[1]), int(found[2] or 0)
        return pa.decimal128(precision, scale) if 0 < precision <= _DIGITS_MAX and scale <= precision else pa.string()
    if "BOOL" in name:
        return SCALARS["BOOLEAN"]
    word = re.sub(r"\(.*", "", name).strip()
    if word in ("DATE", "TIME"):
        return SCALARS[word]
    if word == "TIMESTAMPTZ" or ("TIMESTAMP" in name and "ZONE" in name and "WITHOUT" not in name):
        return SCALARS["TIMESTAMP"]
    if word.startswith(("DATETIME", "TIMESTAMP")):
        return SCALARS["TIMESTAMP_NTZ"]
    return SCALARS[next((found for part, found in _AFFINITIES if part in name), "STRING")]


def arrow_array(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """Values as SQLite has them (None, int, float, str, bytes) as an array; raises `Unfit`.

    >>> arrow_array([1, None, 0], pa.bool_()).to_pylist()
    [True, None, False]
    >>> arrow_array([1, "two"], pa.int64())
    Traceback (most recent call last):
    mainstem.capture.sqlite_types.Unfit: value 1, 'two': BIGINT takes whole numbers
    """
    kind = kind_of(data_type)
    if {*map(type, values)} - {type(None)} <= _AS_THEY_ARE.get(kind, set()):
        try:
            return pa.array(values, data_type)
        except (ValueError, OverflowError, TypeError):
            # Found below: a number out of range.
            pass
    convert = _converter(kind, data_type)
    found = []
    for index, value in enumerate(values):
        try:
            found.append(None if value is None else convert(value))
            pa.scalar(found[-1], data_type)
        except (ValueError, OverflowError, TypeError, ArithmeticError, NotAValue) as error:
            raise Unfit(index, value, _reason(value, kind, data_type)) from error
    return pa.array(found, data_type)


def _converter(kind: str, data_type: pa.DataType) -> Callable[[Any], Any]:
    read_text = text_reader(data_type, "value")

    def convert(value: Any) -> Any:
        if isinstance(value, DamagedText):
            raise ValueError("not UTF-8")
        if isinstance(value, int):
            if kind == "boolean":
                return {0: False, 1: True}[value] if value in (0, 1) else _no()
            if kind in ("integer", "floating"):
                return value
            return Decimal(value) if kind == "decimal" else str(value) if kind == "string" else _no()
        if isinstance(value, float):
            if kind == "floating":
                return value
            # The shortest text that is read back as the same number.
            return Decimal(repr(value)) if kind == "decimal" else repr(value) if kind == "string" else _no()
        if isinstance(value, bytes):
            return value if kind == "binary" else _no()
        if kind == "string":
            return value
        if kind == "binary":
            return value.encode()
        return _no() if kind in ("boolean", "integer", "floating") else read_text(value)

    return convert


def _no() -> Any:
    raise ValueError("another kind of value")


_TAKES = {
    "boolean": "takes 0 and 1",
    "integer": "takes whole numbers",
    "floating": "takes numbers",
    "decimal": "takes numbers with no more digits",
    "string": "takes text and numbers",
    "binary": "takes bytes and text",
    "date": "takes text as 2026-01-31",
    "time": "takes text as 09:00:00",
    "timestamp": "takes text with a zone, as 2026-01-31 09:00:00Z",
    "timestamp_ntz": "takes text without a zone, as 2026-01-31 09:00:00",
}


def _reason(value: Any, kind: str, data_type: pa.DataType) -> str:
    if isinstance(value, DamagedText):
        return "the text is not UTF-8"
    return f"{type_to_ddl(data_type)} {_TAKES.get(kind, 'takes JSON')}"
