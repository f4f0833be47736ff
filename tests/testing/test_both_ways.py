"""Joins and look-ups give the same without Spark and in a flow on Spark, step by step."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from tests.testing.both_ways import TWO, together, told, told_late, told_of, two_streams


def compare(script: Any, operators: Any, with_spark: Any) -> None:
    alone = {name: script.run(operator) for name, operator in operators.items()}
    differing = {}
    for name in operators:
        mine, theirs = told(alone[name]), told_of(with_spark, name)
        if mine != theirs:
            step = next(number for number, pair in enumerate(zip(mine, theirs, strict=True)) if pair[0] != pair[1])
            differing[name] = (step, mine[step], theirs[step])
    assert not differing
    counts: Counter[str] = Counter()
    for results in alone.values():
        counts.update(results.counts)
    assert with_spark.counts == counts
    assert told_late([with_spark]) == told_late(list(alone.values()))


def check_two(seed: int, steps: int, spark: Any) -> None:
    script = two_streams(Random(seed), steps)
    compare(script, TWO, script.run_on_spark(lambda rows, versions: together(TWO, rows, versions), spark))


def test_operators_of_two_streams_give_the_same_with_spark(spark: Any) -> None:
    check_two(1, 7, spark)
