"""The formats of rows that commands read and write."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["InputFormat", "RowFormat"]


class InputFormat(StrEnum):
    """Formats of input."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


class RowFormat(StrEnum):
    """Formats of output."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"
