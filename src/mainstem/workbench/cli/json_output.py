"""`--json`: one value as indented JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from mainstem.log.lag import Lag

__all__ = ["AllColumnsOption", "JsonOption", "RowsJsonOption", "json_value", "print_json", "print_outcome"]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

AllColumnsOption = Annotated[
    bool, typer.Option("--all-columns", help="On a terminal, show all columns in full, however wide the lines are.")
]
RowsJsonOption = Annotated[
    bool, typer.Option("--json", help="Print a line of JSON for each row, for programs: as --format json.")
]


def print_outcome(outcome: str, said: str, *, as_json: bool, **facts: Any) -> None:
    """Say what was done: a sentence, or the names and facts with the `outcome` in a word."""
    if as_json:
        print_json({**facts, "outcome": outcome})
    else:
        typer.echo(said)


def print_json(value: Any) -> None:
    """Print a value as JSON: times in ISO 8601, durations in seconds, dataclasses as objects."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=json_value) + "\n")


def json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Lag):
        # In seconds; null if nothing is going to be dropped.
        return {
            "records": value.records,
            "bytes": value.bytes,
            "seconds": value.seconds,
            "until_dropped_seconds": value.until_dropped,
        }
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no form in JSON")
