"""Functions of users (`F.udf`) that say with which values they failed.

Spark passes on what such a function raised as text, with the line of the program, but not the row. So it is sent to the
workers inside of one that adds a note to the error: what it was called with. `flow_failure` finds it there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["CALLED_WITH", "show_calls", "with_call_shown"]

CALLED_WITH = "Called with: "
# Values are shown so that the row can be recognised, not whole.
SHOWN_MAX = 300


def with_call_shown(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; what it raises has a note that shows its arguments, on one line."""

    @functools.wraps(function)
    def called(*values: Any, **named: Any) -> Any:
        try:
            return function(*values, **named)
        except Exception as error:
            shown = ", ".join([*map(repr, values), *(f"{name}={value!r}" for name, value in named.items())])
            shown = " ".join(shown.split())
            error.add_note(f"{CALLED_WITH}{shown[:SHOWN_MAX]}{'...' if len(shown) > SHOWN_MAX else ''}")
            raise

    return called


def show_calls() -> None:
    """Have all functions that are called row by row, and are used from now on, show their calls. Once for the process."""
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    plain: Any = UserDefinedFunction._create_judf
    if hasattr(plain, "__wrapped__"):
        return
    row_by_row = (PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_ARROW_BATCHED_UDF)

    @functools.wraps(plain)
    def create(self: Any, function: Any) -> Any:
        return plain(self, with_call_shown(function) if self.evalType in row_by_row else function)

    made: Any = create
    UserDefinedFunction._create_judf = made  # type: ignore[method-assign]
