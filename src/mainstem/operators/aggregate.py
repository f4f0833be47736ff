"""aggregate: aggregates of the groups of a changing table, correct after every change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mainstem.errors import Invalid
from mainstem.operators.stage.stage import add_stage, remember
from mainstem.operators.tables.aggregate_plan import AggregatePlan, plan_aggregate

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["aggregate"]


def aggregate(
    changes: DataFrame,
    *,
    by: str | Sequence[str] = (),
    aggregates: Column | str | Sequence[Column | str],
    name: str | None = None,
) -> DataFrame:
    """Aggregates of each group of a changing table, updated when rows change or are deleted.

    `by`: the columns of the group; without it all rows are one group. `aggregates`: as for Spark's `agg`, or as SQL
    ("sum(price) AS total"). A group without rows is not in the result, even without `by`.

    For count, and for sum and avg of integers and decimals, the state is one row per group. For all others, such as min,
    max, count(DISTINCT ...), stddev and sums of doubles, the state has every value of the group, and is read when the
    group changes. Lists (collect_list) are sorted by value. first and last are not supported: rows of a table have no order.

    >>> from mainstem.testing import TestStream
    >>> from mainstem.operators import table
    >>> bids = TestStream("bid INT, auction STRING, price INT").rows([{"bid": 1, "auction": "a", "price": 30}])
    >>> bids = bids.rows([{"bid": 2, "auction": "a", "price": 50}]).rows([{"bid": 2, "auction": "a", "price": 20}])
    >>> best = bids.run(lambda rows: aggregate(table(rows, key="bid"), by="auction", aggregates="max(price) AS price"))
    >>> best.changes[-2:]
    [('delete', {'auction': 'a', 'price': 50}), ('insert', {'auction': 'a', 'price': 30})]
    """
    written: list[Any] = list(aggregates) if isinstance(aggregates, (list, tuple)) else [aggregates]
    if not written:
        raise Invalid(
            "aggregate has no aggregates",
            detail="It computes aggregates for each group.",
            hint='For example: aggregates=[F.max("price").alias("price")]; for the groups alone: distinct(rows).',
        )
    plan: AggregatePlan = remember("aggregate", lambda: plan_aggregate(changes, by, written))
    return plan.show(add_stage(plan.narrow(changes), plan.spec, name=name))
