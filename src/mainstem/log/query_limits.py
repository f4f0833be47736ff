"""QueryLimits: the limits of an SQL query. Does not import DuckDB, which is loaded by the first query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from mainstem.durations import Duration, duration_us
from mainstem.errors import Invalid

__all__ = ["QUERY_THREAD", "ROWS_MAX", "QueryLimits"]

# An answer is kept in memory whole. Ten million rows of a few columns are about a gigabyte.
ROWS_MAX = 10_000_000

# The thread in which a statement runs; see `sql_sandbox`.
QUERY_THREAD = "mainstem-query"


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """The maximum number of rows of a result, and the timeout of a query; None means no limit."""

    rows: int = ROWS_MAX
    seconds: float | None = None

    @classmethod
    def checked(cls, rows_max: int, timeout: Duration | None) -> Self:
        """
        >>> QueryLimits.checked(100, "1 minute")
        QueryLimits(rows=100, seconds=60.0)
        """
        if isinstance(rows_max, bool) or not isinstance(rows_max, int) or rows_max < 1:
            raise Invalid(
                f"rows_max must be a whole number of at least 1, not {rows_max!r}",
                detail="It is the maximum number of rows in a result.",
                hint=f"Leave it out to use the default, {ROWS_MAX:,}.",
            )
        return cls(rows_max, None if timeout is None else duration_us(timeout, setting="timeout") / 1_000_000)
