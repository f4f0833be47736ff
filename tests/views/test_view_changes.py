"""The changes of a view under Spark's own aggregates: refused where a delete would be counted as a row."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem.errors import Invalid
from mainstem.flows.flow import Flow
from mainstem.flows.program import Program
from mainstem.stem import Mainstem

SIGN = "if(record.change = 'delete', -1, 1)"

WRONG: dict[str, Callable[[DataFrame], DataFrame]] = {
    "counted": lambda rows: rows.groupBy("size").count(),
    "summed behind other columns": lambda rows: (
        rows.withColumn("twice", F.col("amount") * 2).groupBy("size").sum("twice")
    ),
    "counted behind a filter": lambda rows: rows.where("amount > 3").groupBy("size").agg(F.count("*").alias("n")),
    "distinct by an aggregate": lambda rows: rows.groupBy("size").agg(F.max("amount").alias("most")),
}
RIGHT: dict[str, Callable[[DataFrame], DataFrame]] = {
    "with a sign": lambda rows: rows.groupBy("size").agg(F.sum(F.expr(f"amount * {SIGN}")).alias("amount")),
    "without deletes": lambda rows: rows.where("record.change <> 'delete'").groupBy("size").count(),
    "by change": lambda rows: rows.groupBy("size", "record.change").count(),
    "not at all": lambda rows: rows.select("size", "amount"),
}


def program(operator: Callable[[DataFrame], Any]) -> Callable[[Mainstem], Iterator[Flow]]:
    def flows(stem: Mainstem) -> Iterator[Flow]:
        orders = stem.topic("orders").stream()
        latest = orders.select("store", "amount", F.when(F.col("amount") > 9, "large").otherwise("small").alias("size"))
        yield Flow(latest, into=stem.view("latest", key="store"))
        yield Flow(operator(stem.view("latest").stream()), into=stem.view("by_size", key="size"))

    return flows


def test_an_aggregate_that_does_not_look_at_the_change_is_refused(stem: Mainstem) -> None:
    orders = stem.create_topic("orders", schema="store STRING, amount BIGINT", key="store")
    for case, operator in WRONG.items():
        with pytest.raises(Invalid) as refused:
            Program(stem, program(operator))
        assert (
            refused.value.summary == 'flow "by_size" aggregates the changes of view latest as if each change were a row'
        ), case
        assert "a delete of the old row and an insert of the new one" in refused.value.detail
        assert "record.change" in refused.value.hint
    for operator in RIGHT.values():
        assert len(Program(stem, program(operator)).flows) == 2

    # As the hint has it: what left a group is taken off it again.
    orders.append([{"store": store, "amount": amount} for store, amount in zip("ABC", (5, 6, 70), strict=True)])
    with stem.start(program(RIGHT["with a sign"])) as running:
        running.wait_until_idle()
        orders.append([{"store": "A", "amount": 50}])
        orders.append([{"store": "B", "amount": 8}])
        running.wait_until_idle()
    assert (
        stem.view("by_size").to_arrow().to_pylist()
        == stem.query("SELECT size, sum(amount)::BIGINT AS amount FROM latest GROUP BY size ORDER BY size").to_pylist()
    )
    assert stem.view("by_size").get("large") == {"size": "large", "amount": 120}
