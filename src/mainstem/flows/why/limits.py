"""Limits: what the rows that matter have in common, on its way from the key of a view's row down to the records of a source.

A limit only narrows what is read: rows beyond it cannot be part of the wanted row. What cannot be passed on is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mainstem.clock import as_us
from mainstem.spark.plan.row_expression import Expression

__all__ = ["Equal", "Limit", "Range", "limit_columns", "limit_fields", "substitute"]


@dataclass(frozen=True)
class Equal:
    """An expression has one of these values; null is one too."""

    of: Expression
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Range:
    """An expression is a time, or a number of microseconds, from `low` up to `high`, both included."""

    of: Expression
    low: int
    high: int


Limit = Equal | Range


def substitute(limits: Sequence[Limit], columns: Mapping[str, Expression | None]) -> list[Limit]:
    """The limits over the columns from which others are computed."""
    found: list[Limit] = []
    for limit in limits:
        inner = _replaced(limit.of, columns)
        if inner is not None:
            found += _simplified(
                Equal(inner, limit.values) if isinstance(limit, Equal) else Range(inner, limit.low, limit.high)
            )
    return found


def _replaced(expression: Expression, columns: Mapping[str, Expression | None]) -> Expression | None:
    """An expression of a column, with the definition of that column."""
    if expression[0] != "column":
        return None
    of = columns.get(expression[1])
    for name in expression[2:]:
        if of is None:
            return None
        of = dict(of[1:]).get(name) if of[0] == "struct" else [*of, name] if of[0] == "column" else None
    return of


def _simplified(limit: Limit) -> list[Limit]:
    of = limit.of
    if isinstance(limit, Equal):
        if of[0] == "struct":
            return _of_struct(of, limit.values)
        if of[0] == "if" and of[3][0] == "literal" and of[3][2] is None and None not in limit.values:
            # The other branch is null, and the value is not.
            return _simplified(Equal(of[2], limit.values))
        if of[:2] == ["as", "timestamp"] and all(isinstance(value, datetime) for value in limit.values):
            return _simplified(Equal(of[2], tuple(map(as_us, limit.values))))
        if of[:2] == ["as", "bigint"] and all(isinstance(value, int) for value in limit.values):
            return _simplified(Range(of[2], min(limit.values), max(limit.values)))
    elif of[0] == "as" and of[1] in ("bigint", "timestamp"):
        return _simplified(Range(of[2], limit.low, limit.high))
    return [limit] if of[0] == "column" else []


def _of_struct(of: Expression, values: Sequence[Any]) -> list[Limit]:
    if not all(isinstance(value, dict) for value in values):
        return []
    fields = dict(of[1:])
    window = _window_time(fields)
    if window is not None and all(set(value) >= {"start", "end"} and None not in value.values() for value in values):
        starts, ends = ([as_us(value[side]) for value in values] for side in ("start", "end"))
        return _simplified(Range(window, min(starts), max(ends) - 1))
    found: list[Limit] = []
    for name, part in fields.items():
        if all(name in value for value in values):
            found += _simplified(Equal(part, tuple(value[name] for value in values)))
    return found


def _window_time(fields: Mapping[str, Expression]) -> Expression | None:
    """The time in Spark's window of it, which it computes by a remainder; None if it is not such a window."""
    if list(fields) != ["start", "end"] or any(
        "%" not in repr(part) and "remainder" not in repr(part) for part in fields.values()
    ):
        return None
    times: list[Expression] = []
    for part in fields.values():
        _collect_columns(part, times)
    return times[0] if times and all(time == times[0] for time in times) else None


def _collect_columns(expression: Expression, found: list[Expression]) -> None:
    if expression[0] == "column":
        found.append(expression)
        return
    for part in expression[1:]:
        if isinstance(part, list) and expression[0] != "literal":
            _collect_columns(part, found)


def limit_columns(limits: Sequence[Limit], names: Mapping[str, str]) -> list[Limit]:
    """The limits of some columns, under other names."""
    return substitute(limits, {name: ["column", inner] for name, inner in names.items()})


def limit_fields(limits: Sequence[Limit], column: str, names: Sequence[str]) -> list[Limit]:
    """The limits of some fields of a struct, as limits of columns of these names."""
    fields = ["struct", *([name, ["column", name]] for name in names)]
    return substitute([limit for limit in limits if limit.of[1] == column and len(limit.of) > 2], {column: fields})
