"""What is said when a user's own operator raises: which key, which row, which line of the program."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from typing import Any

from mainstem.errors import FlowFailed, summary_of

__all__ = ["process_failed"]

# A row is shown so that it can be recognised, not whole.
SHOWN_MAX = 300


def process_failed(
    using: type, method: str, key: tuple[Any, ...], error: Exception, row: Mapping[str, Any] | None
) -> FlowFailed:
    """The error to raise from what user code raised."""
    shown = ", ".join(map(repr, key)) or "of all rows"
    return FlowFailed(
        f'process "{using.__name__}" failed in {method} for the key {shown}',
        detail=f"{type(error).__name__}: {summary_of(error)}{_line(error)}.{_origin(row)}",
        hint="Rows and state are safe: correct the program and start it again; it goes on with this batch.",
    )


def _line(error: Exception) -> str:
    """Where in the user's program it was: the last line there that is not ours."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if f"{os.sep}mainstem{os.sep}operators{os.sep}" not in frame.filename
    ]  # fmt: skip
    return f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""


def _origin(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    record = row.get("record")
    place = ""
    if isinstance(record, Mapping) and "offset" in record:
        place = f", partition {record['partition']}, offset {record['offset']}"
    plain = str({name: value for name, value in row.items() if name != "record"})
    return f" It was at {plain[:SHOWN_MAX]}{'...' if len(plain) > SHOWN_MAX else ''}{place}."
