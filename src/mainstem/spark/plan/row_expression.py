"""RowExpression: a condition or a value that a flow computes over a topic's rows in Arrow, before they are sent to Spark.

Written as JSON lists, so that it can be passed in a source's options: `[name, part, ...]`. Parts that are lists are
expressions themselves; others are parameters, known when the plan is translated.

    ["column", name, field, ...]   ["literal", type, text or number]   ["struct", [name, value], ...]
    ["and" | "or", condition, ...]   ["not", condition]   ["in", value, [literal, ...]]
    ["if", condition, value, value]   ["coalesce", value, ...]
    [name, part, ...]              a function of `row_functions`

A result equals Spark's, bit for bit, in ANSI mode and in UTC: nulls, NaN (equal to itself and larger than every other number),
overflow. Where Spark fails, the expression fails (`FAILING`); where Spark does not compute a part for a row (a branch that is
not taken, the right side of an AND), it is not computed for that row, so it cannot fail there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Invalid
from mainstem.spark.plan.row_functions import FAILING, FUNCTIONS, NULL_FUNCTIONS, find_in, literal

__all__ = [
    "Condition",
    "Expression",
    "all_of",
    "any_of",
    "can_fail",
    "columns_in",
    "condition_mask",
    "is_small",
    "value_of",
    "values_of",
]

Expression = list[Any]
# Python allows a thousand calls within each other, and a part takes four.
DEPTH_MAX = 100
PARTS_MAX = 2_000
# An expression whose value is a Boolean.
Condition = Expression


def all_of(conditions: Sequence[Condition]) -> Condition | None:
    """The conjunction; None, which keeps all rows, if there are no conditions."""
    parts = [part for condition in conditions for part in (condition[1:] if condition[0] == "and" else [condition])]
    return None if not parts else parts[0] if len(parts) == 1 else ["and", *parts]


def any_of(conditions: Sequence[Condition | None]) -> Condition | None:
    """The disjunction; None, which keeps all rows, if one of them does.

    >>> any_of([["null", ["column", "a"]], None]) is None
    True
    """
    known = [condition for condition in conditions if condition is not None]
    if not known or len(known) < len(conditions):
        return None
    return known[0] if len(known) == 1 else ["or", *known]


def columns_in(expression: Expression) -> set[str]:
    """The columns that an expression uses."""
    if expression[0] == "column":
        return {expression[1]}
    return {name for part in _parts(expression) for name in columns_in(part)}


def can_fail(expression: Expression) -> bool:
    """Whether there are values for which the expression fails."""
    return expression[0] in FAILING or any(map(can_fail, _parts(expression)))


def is_small(expression: Expression) -> bool:
    """Whether it can be computed without too many calls within each other, or one after the other.

    A column that is computed from others twice, and these from others twice, grows fast: 30 such steps are a billion parts.
    """
    known: dict[int, tuple[int, int]] = {}

    def measure(part: Expression) -> tuple[int, int]:
        """The number of parts and the depth; of a list that is there twice, measured once."""
        if id(part) not in known:
            found = [measure(inner) for inner in _parts(part)]
            count, depth = sum(count for count, _ in found), max((depth for _, depth in found), default=0)
            known[id(part)] = count + 1, depth + 1
        return known[id(part)]

    count, depth = measure(expression)
    return count <= PARTS_MAX and depth <= DEPTH_MAX


def _parts(expression: Expression) -> list[Expression]:
    name, *parts = expression
    if name in ("column", "literal"):
        return []
    if name == "struct":
        return [value for _, value in parts]
    return parts[:1] if name == "in" else [part for part in parts if isinstance(part, list)]


def condition_mask(condition: Condition, rows: pa.RecordBatch) -> pa.BooleanArray:
    """For each row whether the condition is true.

    >>> rows = pa.RecordBatch.from_pydict({"n": [1, 5, None]})
    >>> condition_mask([">", ["column", "n"], ["literal", "bigint", 3]], rows).to_pylist()
    [False, True, False]
    """
    if condition[0] != "and" or not can_fail(condition):
        return pc.fill_null(value_of(condition, rows), False)
    # A part that can fail is computed for rows that all others keep.
    found = pa.repeat(True, rows.num_rows)
    for part in sorted(condition[1:], key=can_fail):
        kept = _Values(rows).find_where(part, partial(_whole, found, rows.num_rows))
        found = pc.and_(found, pc.fill_null(_whole(kept, rows.num_rows), False))
    return found


def value_of(expression: Expression, rows: pa.RecordBatch) -> pa.Array:
    """A value for each row.

    >>> rows = pa.RecordBatch.from_pydict({"n": [1, 5, None]})
    >>> value_of(["-", ["column", "n"], ["literal", "bigint", 3]], rows).to_pylist()
    [-2, 2, None]
    """
    return values_of([expression], rows)[0]


def values_of(expressions: Sequence[Expression], rows: pa.RecordBatch) -> list[pa.Array]:
    """A value of each expression for each row. What several of them have in common is computed once.

    >>> rows = pa.RecordBatch.from_pydict({"n": [1, 5, None]})
    >>> [values.to_pylist() for values in values_of([["column", "n"], ["null", ["column", "n"]]], rows)]
    [[1, 5, None], [False, False, True]]
    """
    values = _Values(rows)
    return [_whole(values.find(expression), rows.num_rows) for expression in expressions]


class _Values:
    """The values of expressions over one batch: an array, or a scalar if it is the same for all rows."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows
        self._known: dict[str, Any] = {}

    def find(self, expression: Expression) -> Any:
        name = expression[0]
        if name == "column":
            column = self._rows.column(expression[1])
            return pc.struct_field(column, expression[2:]) if expression[2:] else column
        if name == "literal":
            return literal(*expression[1:])
        text = repr(expression)
        if text not in self._known:
            self._known[text] = self._compute(name, expression[1:])
        return self._known[text]

    def _compute(self, name: str, parts: list[Any]) -> Any:
        if name in ("and", "or"):
            return self._combine(name, parts)
        if name == "if":
            return self._choose(*parts)
        if name == "coalesce":
            return self._coalesce(parts)
        if name == "struct":
            values = [_whole(self.find(value), self._rows.num_rows) for _, value in parts]
            return pc.make_struct(*values, field_names=[field for field, _ in parts])
        if name == "in":
            return find_in(self.find(parts[0]), [literal(*part[1:]) for part in parts[1]])
        if name in NULL_FUNCTIONS:
            return NULL_FUNCTIONS[name](
                *self._some_array([self.find(part) if isinstance(part, list) else part for part in parts])
            )
        arguments: list[Any] = []
        for part in parts:
            # Spark does not compute the rest of a function for a row for which one part is null.
            arguments.append(
                self.find_where(part, partial(_all_valid, [*arguments])) if isinstance(part, list) else part
            )
        return FUNCTIONS[name](*self._some_array(arguments))

    def _some_array(self, arguments: list[Any]) -> list[Any]:
        """With an array among them: functions need not expect scalars alone."""
        if any(isinstance(argument, pa.Array) for argument in arguments):
            return arguments
        return [_whole(argument, self._rows.num_rows) for argument in arguments]

    def find_where(self, expression: Expression, mask: Callable[[], Any]) -> Any:
        """The value for the rows of the mask; for others any value, or null. None as mask: all rows."""
        if not can_fail(expression):
            return self.find(expression)
        # Mostly it fails for no row, so all rows are tried first; once in vain.
        text = repr(expression)
        if text not in _FAILED:
            try:
                return self.find(expression)
            except Invalid:
                _FAILED.add(text)
        wanted = mask()
        if wanted is None:
            return self.find(expression)
        wanted = pc.fill_null(_whole(wanted, self._rows.num_rows), False)
        chosen = self._rows.select(sorted(columns_in(expression)) or self._rows.schema.names[:1]).filter(wanted)
        values = _whole(_Values(chosen).find(expression), chosen.num_rows)
        places = pc.subtract(pc.cumulative_sum(wanted.cast(pa.int32())), pa.scalar(1, pa.int32()))
        return values.take(pc.if_else(wanted, places, pa.scalar(None, pa.int32())))

    def _combine(self, name: str, parts: list[Condition]) -> Any:
        """AND and OR: a part is computed for the rows that the parts before it do not decide."""
        combine, decided = (pc.and_kleene, False) if name == "and" else (pc.or_kleene, True)
        found = self.find(parts[0])
        for part in parts[1:]:
            found = combine(found, self.find_where(part, partial(_undecided, found, decided)))
        return found

    def _choose(self, condition: Condition, then: Expression, otherwise: Expression) -> Any:
        taken = pc.fill_null(_whole(self.find(condition), self._rows.num_rows), False)
        count = taken.true_count
        if count in (0, len(taken)):
            return self.find(then if count else otherwise)
        left = partial(pc.invert, taken)
        return pc.if_else(taken, self.find_where(then, lambda: taken), self.find_where(otherwise, left))

    def _coalesce(self, parts: list[Expression]) -> Any:
        found = self.find(parts[0])
        for part in parts[1:]:
            if isinstance(found, pa.Array) and not found.null_count:
                break
            found = pc.coalesce(found, self.find_where(part, partial(pc.is_null, found)))
        return found


# Expressions that failed when they were computed for more rows than Spark does, as text.
_FAILED: set[str] = set()


def _undecided(found: Any, decided: Any) -> Any:
    return pc.fill_null(pc.not_equal(found, pa.scalar(decided)), True)


def _whole(value: Any, count: int) -> pa.Array:
    return pa.repeat(value, count) if isinstance(value, pa.Scalar) else value


def _all_valid(values: Sequence[Any]) -> Any:
    """Where none of the values is null; None if that is everywhere."""
    nullable = [value for value in values if isinstance(value, pa.Array) and value.null_count]
    nullable += [value for value in values if isinstance(value, pa.Scalar) and not value.is_valid]
    return reduce(pc.and_, map(pc.is_valid, nullable)) if nullable else None
