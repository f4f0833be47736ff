"""Every operator gives the same without Spark and in a flow on Spark, step by step: rows, late rows, counts and columns.

The operators of a script run together in one flow: what Spark needs for a batch is paid for once. A few in every run of the tests,
all of them, more scripts and killed batches in the long one.
"""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import mainstem.operators
from mainstem.flows import program
from mainstem.operators.stage import keyed_rows
from mainstem.operators.tables import feed_rows
from mainstem.testing import scripted_home as scripted_log
from mainstem.testing import scripted_rows
from tests.testing import both_ways
from tests.testing.both_ways import (
    ONE,
    ONE_SHORT,
    TWO,
    TWO_SHORT,
    Operator,
    Told,
    alone,
    chains,
    one_stream,
    together,
    told_late,
    two_streams,
)

SEED = 87
# A script of few batches, in which every fault of `MUTANTS` shows.
SHORT_SEED = 3
# The module, not the function of the same name.
late_rows = import_module("mainstem.operators.late_rows")


def difference(name: str, mine: Told, theirs: Told) -> str:
    """How what an operator gave differs with Spark; empty if it does not. Of its steps the first that does."""
    if mine.schema != theirs.schema:
        return f"{name}: columns {mine.schema}, with Spark {theirs.schema}"
    for step, (one, other) in enumerate(zip(mine.steps, theirs.steps, strict=True)):
        if one != other:
            return f"{name}, step {step}: {one - other}, with Spark {other - one}"
    return ""


def compare(script: Any, operators: Mapping[str, Operator], spark: Any, seed: int) -> dict[str, Told]:
    """Fail if something differs; gives what came with Spark."""
    found, with_spark = together(script, operators, spark)
    without = {name: alone(script, operator) for name, operator in operators.items()}
    found_differing = [difference(name, told, found[name]) for name, (told, _) in without.items()]
    assert [told for told in found_differing if told] == [], f"seed {seed}"
    # A script that makes an operator show nothing compares nothing; of chains a few do.
    silent = [name for name, told in found.items() if not any(told.steps)]
    assert [name for name in silent if name in ONE or name in TWO] == [], f"seed {seed}"
    counts: Counter[str] = Counter()
    for _, results in without.values():
        counts.update(results.counts)
    assert with_spark.counts == counts, f"seed {seed}"
    late, late_with_spark = told_late(*(results for _, results in without.values())), told_late(with_spark)
    assert (late - late_with_spark, late_with_spark - late) == (Counter(), Counter()), f"seed {seed}"
    return found


def test_every_public_name_is_in_a_case() -> None:
    tree = ast.parse(inspect.getsource(both_ways))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert set(mainstem.operators.__all__) - used == set()


def test_every_operator_is_among_those_that_every_run_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = {name: getattr(mainstem.operators, name) for name in mainstem.operators.__all__}
    operators = {
        name
        for name, function in functions.items()
        if inspect.isfunction(function) and inspect.signature(function).return_annotation == "DataFrame"
    }
    called: set[str] = set()
    for name in operators:
        monkeypatch.setattr(both_ways, name, noted(name, called))
    for name in ONE_SHORT:
        one_stream(Random(SHORT_SEED), 1).run(ONE[name])
    for name in TWO_SHORT:
        two_streams(Random(SHORT_SEED), 1).run(TWO[name])
    assert operators - called == set()


def noted(name: str, called: set[str]) -> Callable[..., Any]:
    right = getattr(mainstem.operators, name)

    def call(*given: Any, **more: Any) -> Any:
        called.add(name)
        return right(*given, **more)

    return call


def replace_column(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, values)


# Faults of one way alone, and the case in which each is seen.
MUTANTS: dict[str, tuple[str, Any, str, Callable[[Any], Any]]] = {
    "a delete is taken for an insert": (
        "top of distinct", feed_rows.FeedRows, "arrow",
        lambda right: lambda self, rows: replace_column(right(self, rows), "deleted", pa.repeat(False, rows.num_rows)),
    ),
    "0.0 and -0.0 are two keys": (
        "process", keyed_rows, "identify_keys",
        lambda right: lambda keys, count: right([key.cast(pa.string()) for key in keys], count),
    ),
    "a row's own watermark is not known": (
        "late_rows", scripted_log, "with_watermark",
        lambda right: lambda record, known: right(record, pa.nulls(len(known), known.type)),
    ),
    "a row at the watermark is late": (
        "late_rows", late_rows.pc, "less", lambda right: late_rows.pc.less_equal,
    ),
    "the clock stands still": (
        "process", scripted_rows, "_clock",
        lambda right: lambda clock, spec: replace(right(clock, spec), now=0, now_before=0),
    ),
}  # fmt: skip


# Those whose steps before a stage Arrow does not have; see `packed_rows`.
NEVER_PACKED = ("clock_corrected", "windows of corrected times")


@pytest.fixture(params=["packed", "by Spark"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How rows reach the first stages of a flow."""
    used = []

    def query(*given: Any) -> Any:
        rows = packed_query(*given) if request.param == "packed" else None
        used.append(rows is not None)
        return rows

    packed_query = program.packed_query
    monkeypatch.setattr(program, "packed_query", query)
    yield request.param
    assert set(used) == {request.param == "packed"}


def which(way: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if way == "by Spark" or name not in NEVER_PACKED]


@pytest.mark.parametrize("way", ["packed"], indirect=True)
def test_operators_of_one_stream_give_the_same_with_spark(
    spark: Any, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = one_stream(Random(SHORT_SEED), 2)
    found = compare(script, {name: ONE[name] for name in which(way, ONE_SHORT)}, spark, SHORT_SEED)
    # What the comparison sees: each of these is a fault of one way alone.
    unseen = []
    for fault, (name, place, attribute, changed) in MUTANTS.items():
        with monkeypatch.context() as patch:
            patch.setattr(place, attribute, changed(getattr(place, attribute)))
            told, _ = alone(script, ONE[name])
        if not difference(name, told, found[name]):
            unseen.append(fault)
    assert unseen == []


@pytest.mark.parametrize("way", ["by Spark"], indirect=True)
def test_rows_that_are_not_packed_give_the_same_with_spark(spark: Any, way: str) -> None:
    some = [name for name in ONE_SHORT if name in ("clock_corrected", "dedupe", "sessions again")]
    compare(one_stream(Random(SHORT_SEED), 2), {name: ONE[name] for name in which(way, some)}, spark, SHORT_SEED)


@pytest.mark.usefixtures("one_bucket")
def test_operators_of_two_streams_and_chains_of_them_give_the_same_with_spark(spark: Any) -> None:
    operators = {name: TWO[name] for name in TWO_SHORT} | chains(Random(SHORT_SEED), 1)
    compare(two_streams(Random(SHORT_SEED), 2), operators, spark, SHORT_SEED)


# All of them; a flow of more operators than this takes minutes for a batch.
GROUPS = [list(ONE)[first : first + 9] for first in range(0, len(ONE), 9)]


@pytest.mark.long
def test_operators_of_both_kinds_give_the_same_with_spark_for_a_longer_script(spark: Any) -> None:
    compare(
        two_streams(Random(SEED), 3), {name: TWO[name] for name in TWO_SHORT} | chains(Random(SEED), 2), spark, SEED
    )
    for group in GROUPS:
        compare(one_stream(Random(SEED), 3), {name: ONE[name] for name in group}, spark, SEED)


@pytest.mark.long
@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_all_cases_of_one_stream_give_the_same_with_spark_and_kills(spark: Any, way: str, group: int) -> None:
    seed = SEED + 1 + group
    operators = {name: ONE[name] for name in which(way, GROUPS[group])}
    compare(one_stream(Random(seed), 5, kills=True), operators, spark, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", [11, 12])
def test_all_cases_of_two_streams_and_more_chains_give_the_same_with_spark_and_kills(spark: Any, seed: int) -> None:
    compare(two_streams(Random(seed), 7, kills=True), TWO | chains(Random(seed), 3), spark, seed)
