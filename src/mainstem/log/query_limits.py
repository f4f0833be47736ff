"""QueryLimits: how much a question in SQL may cost. Without DuckDB, which is loaded when the first one is asked."""

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
    """The most rows an answer may have, and how long it may take; None is without limit."""

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
