"""Captures: changes of databases become records. The public names, each resolved on first use.

>>> from mainstem import Capture
>>> from mainstem.capture import postgres
>>> Capture("shop", postgres("postgresql://reader@db/shop", tables=["orders"])).topics
{'orders': 'shop.orders'}
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mainstem.errors import NotFound

if TYPE_CHECKING:
    # For type checkers and editors only.
    from mainstem.capture.captured_table import CapturedTable
    from mainstem.capture.postgresql.postgres_source import postgres
    from mainstem.capture.sqlite_source import sqlite
    from mainstem.capture.transactional_outbox import outbox

__all__ = ["CapturedTable", "outbox", "postgres", "sqlite"]

_DEFINED_IN = {
    "CapturedTable": "mainstem.capture.captured_table",
    "outbox": "mainstem.capture.transactional_outbox",
    "postgres": "mainstem.capture.postgresql.postgres_source",
    "sqlite": "mainstem.capture.sqlite_source",
}


def __getattr__(name: str) -> object:
    if name not in _DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found: object = getattr(importlib.import_module(_DEFINED_IN[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise NotFound(
            "the client library for PostgreSQL is not installed",
            detail=f"{error}.",
            hint='Install it: pip install "mainstem[postgres]"',
        ) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
