"""The forms in which rows come and go. Apart from what reads and writes them, so that help needs no Arrow."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["InputFormat", "RowFormat"]


class InputFormat(StrEnum):
    """How rows are read."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


class RowFormat(StrEnum):
    """How rows are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"
