r"""Conditions: what a pattern asks of rows, divided into what is computed natively and what the engine asks.

    amount > 500 AND amount > 9 * avg(small.amount)
    \__________/     \____________________________/
     the row alone    depends on the candidate

The first is a Boolean column of the rows, computed for all of them by Spark; only if it is true the second is computed, in
Python, for each candidate. Null is no.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import expressions as nodes

from mainstem.operators.patterns.expression import Expression, parse, read_expression, refers_to_steps
from mainstem.operators.patterns.pattern import Condition

__all__ = ["DividedCondition", "divide_condition"]


@dataclass(frozen=True)
class DividedCondition:
    """A condition: its part about the row alone, and its part about earlier rows. None: nothing is asked."""

    native: Condition | None
    asked: Expression | None


def divide_condition(condition: Condition, steps: Sequence[str], columns: pa.Schema) -> DividedCondition:
    """Divide a condition at its ANDs.

    >>> columns = pa.schema([("amount", pa.float64())])
    >>> divided = divide_condition("amount > 5 AND amount > avg(small.amount)", ["small"], columns)
    >>> divided.native, divided.asked.text
    ('amount > 5', 'amount > AVG(small.amount)')
    """
    if not isinstance(condition, str):
        return DividedCondition(condition, None)
    parts = _conjuncts(parse(condition))
    asked = [part for part in parts if refers_to_steps(part, steps)]
    if not asked:
        return DividedCondition(condition, None)
    alone = [part for part in parts if not refers_to_steps(part, steps)]
    return DividedCondition(_join(alone) if alone else None, read_expression(_join(asked), steps, columns))


def _conjuncts(node: nodes.Expression) -> list[nodes.Expression]:
    if isinstance(node, nodes.Paren):
        inner = _conjuncts(node.this)
        return inner if len(inner) > 1 else [node]
    if isinstance(node, nodes.And):
        return [*_conjuncts(node.this), *_conjuncts(node.expression)]
    return [node]


def _join(parts: Sequence[nodes.Expression]) -> str:
    written = [f"({part.sql('spark')})" if isinstance(part, nodes.Or) else part.sql("spark") for part in parts]
    # Under the names that were read: sqlglot does not know them.
    return " AND ".join(written).replace("STEP_LAST(", "last(").replace("STEP_FIRST(", "first(")
