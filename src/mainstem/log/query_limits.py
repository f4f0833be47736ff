"""QueryLimits: the limits of an SQL query. Does not import DuckDB, which is loaded by the first query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from mainstem.arguments import whole_number
from mainstem.durations import Duration, duration_us

__all__ = ["QUERY_THREAD", "ROWS_MAX", "QueryLimits"]

# A result is kept in memory. Ten million rows of a few columns are about a gigabyte.
ROWS_MAX = 10_000_000

# The thread in which a statement runs; see `sql_sandbox`.
QUERY_THREAD = "mainstem-query"


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """The maximum number of rows of a result, and the timeout of a query; None means no limit.

    `memory_bytes`: for DuckDB, and as much for the result; None is half of the machine's memory. With `cut` a result with more rows
    ends with one row more than `rows`, instead of an error. `until`: topics without records that were appended after this time, in
    microseconds.
    """

    rows: int = ROWS_MAX
    seconds: float | None = None
    memory_bytes: int | None = None
    cut: bool = False
    until: int | None = None

    @classmethod
    def parse(cls, rows_max: int, timeout: Duration | None) -> Self:
        """
        >>> QueryLimits.parse(100, "1 minute")
        QueryLimits(rows=100, seconds=60.0, memory_bytes=None, cut=False, until=None)
        """
        whole_number(rows_max, "rows_max", least=1, hint=f"Leave it out to use the default, {ROWS_MAX:,}.")
        return cls(rows_max, None if timeout is None else duration_us(timeout, setting="timeout") / 1_000_000)
