"""JSON that a browser reads without loss: whole numbers beyond 2^53 and decimals are text, times are ISO 8601 in UTC."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from mainstem.log.rows.plain_values import python_value
from mainstem.workbench.cli.json_output import json_value

__all__ = ["encode_json", "exact_json", "time_text"]

# Beyond this a number of JavaScript is not exact.
NUMBER_MAX = 2**53


def exact_json(value: Any) -> Any:
    """A value of the facts as plain JSON values.

    >>> exact_json({"offset": 2**60, "at": datetime(2026, 1, 1, tzinfo=UTC), "lag": float("inf"), 7: (1,)})
    {'offset': '1152921504606846976', 'at': '2026-01-01T00:00:00Z', 'lag': 'Infinity', '7': [1]}
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if -NUMBER_MAX < value < NUMBER_MAX else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else python_value(value)
    if isinstance(value, Mapping):
        return {str(name): exact_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [exact_json(inner) for inner in value]
    try:
        return exact_json(json_value(value))
    except TypeError:
        return python_value(value)


def encode_json(value: Any) -> bytes:
    """The bytes of plain JSON values."""
    return msgspec.json.encode(value)


def time_text(moment: datetime) -> str:
    """A time in UTC.

    >>> time_text(datetime(2026, 1, 1, 9, tzinfo=UTC))
    '2026-01-01T09:00:00Z'
    """
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
