"""The answer to a query of the console: as `stem.query`, with tighter limits, and cut instead of refused."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from mainstem.clock import as_us
from mainstem.errors import Invalid, Unavailable
from mainstem.log.query_limits import QueryLimits
from mainstem.workbench.cli.row_output import distinct_names
from mainstem.workbench.console.row_cells import column_facts, json_rows
from mainstem.workbench.console.watched_home import WatchedHome

__all__ = ["SqlAnswers"]

ROWS_MAX = 10_000
LIMITS = QueryLimits(ROWS_MAX, seconds=10.0, memory_bytes=256 * 2**20, cut=True)
# Queries at a time: each may take a core.
QUERIES_MAX = 2


class SqlAnswers:
    """Runs queries, a few at a time. Thread-safe."""

    def __init__(self, home: WatchedHome) -> None:
        self._home = home
        self._places = threading.BoundedSemaphore(QUERIES_MAX)

    def answer(self, sql: Any, at: datetime | None = None) -> dict[str, Any]:
        """The rows of one SELECT; with `at`, over topics by append time, and views that keep history, as they were."""
        if not isinstance(sql, str) or not sql.strip():
            raise Invalid(
                "the query is empty",
                detail="It is one SELECT over topics and views.",
                hint='Send {"sql": "SELECT ..."}.',
            )
        if not self._places.acquire(timeout=LIMITS.seconds):
            raise Unavailable(
                "other queries are running", detail=f"The console runs {QUERIES_MAX} at a time.", hint="Run it again."
            )
        stem, begun = self._home.stem, self._home.stem.log.clock.monotonic()
        try:
            limits = LIMITS if at is None else replace(LIMITS, until=as_us(at))
            with self._home.reach.asking():
                tables = {name: partial(stem.view(name).to_arrow, as_of=at) for name in stem.views()}
                found = stem.log.query(sql, (), tables, limits)
        finally:
            self._places.release()
        found = found.rename_columns(distinct_names(found.schema.names))
        return {
            "columns": column_facts(found.schema),
            "rows": json_rows(found.slice(0, ROWS_MAX)),
            "truncated": found.num_rows > ROWS_MAX,
            "rows_max": ROWS_MAX,
            "seconds": (stem.log.clock.monotonic() - begun) / 1_000_000,
        }
