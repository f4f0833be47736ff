"""What `--json` prints: the same facts for a program, indented so that a person can read them too."""

from __future__ import annotations

import dataclasses
import json
import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from mainstem.log.lag import Lag

__all__ = ["JsonOption", "lag_json", "print_json"]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def print_json(value: Any) -> None:
    """Print a value: times in ISO 8601, durations in seconds."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def lag_json(lag: Lag) -> dict[str, Any]:
    """A lag; `until_dropped_seconds` is null if nothing is going to be dropped."""
    until = None if lag.until_dropped is None else lag.until_dropped.total_seconds()
    return {"records": lag.records, "bytes": lag.bytes, "seconds": lag.seconds, "until_dropped_seconds": until}
