"""The formats of rows that commands read and write."""

from __future__ import annotations

from enum import StrEnum

import typer

__all__ = ["InputFormat", "RowFormat", "chosen_format"]


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


def chosen_format(form: RowFormat, *, as_json: bool) -> RowFormat:
    """The format of the options --format and --json, which is short for --format json."""
    if as_json and form not in (RowFormat.TABLE, RowFormat.JSON):
        raise typer.BadParameter(f"is --format json, so it excludes --format {form}", param_hint="--json")
    return RowFormat.JSON if as_json else form
