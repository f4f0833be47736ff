"""Aggregates: every function against DuckDB, the same however rows are divided; sketches within their bounds."""

import math
import pickle
import random
from decimal import Decimal
from functools import cache

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.errors import Invalid
from mainstem.operators.aggregates.accumulators import AggregateCall, Parts
from mainstem.operators.aggregates.aggregate_columns import WrittenAggregates
from mainstem.operators.aggregates.aggregates import FUNCTIONS, Aggregates
from mainstem.operators.aggregates.counted_accumulators import closest_bins
from mainstem.testing.row_sql import compute_columns, read_aggregate_text

ROWS = pa.schema(
    [("n", pa.int32()), ("x", pa.float64()), ("d", pa.decimal128(10, 2)), ("s", pa.string()), ("b", pa.bool_())]
)
# As we write it, and as DuckDB does; of exact ones each.
EXACT = {
    "sum(n)": "sum(n)::BIGINT",
    "sum(d)": "sum(d)",
    "count(*)": "count(*)",
    "count(x)": "count(x)",
    "count(DISTINCT s)": "count(DISTINCT s)",
    "count_if(n > 2)": "count(*) FILTER (WHERE n > 2)",
    "count(*) FILTER (WHERE b)": "count(*) FILTER (WHERE b)",
    "sum(n) FILTER (WHERE b)": "sum(n) FILTER (WHERE b)::BIGINT",
    "min(n)": "min(n)",
    "max(s)": "max(s)",
    "min(d)": "min(d)",
    "min(x)": "min(x)",
    "max(x)": "max(x)",
    "bool_or(b)": "bool_or(b)",
    "bool_and(b)": "bool_and(b)",
    "avg(n)": "avg(n)",
    "first(s)": "arg_min_null(s, (time, part, pos))",
    "last(s)": "arg_max_null(s, (time, part, pos))",
    "min_by(s, n)": "arg_min_null(s, (n, part, pos)) FILTER (WHERE n IS NOT NULL)",
    "max_by(s, n)": "arg_max_null(s, (n, part, pos)) FILTER (WHERE n IS NOT NULL)",
    "collect_list(s)": "coalesce(list(s ORDER BY part, pos) FILTER (WHERE s IS NOT NULL), [])",
    "collect_set(n)": "coalesce(list(DISTINCT n ORDER BY n) FILTER (WHERE n IS NOT NULL), [])",
    "median(n)": "median(n)::DOUBLE",
    "approx_percentile(n, 0.5)": "quantile_disc(n, 0.5)",
}
NEAR = {
    "sum(x)": "sum(x)",
    "avg(x)": "avg(x)",
    "stddev(x)": "stddev_samp(x)",
    "stddev_pop(n)": "stddev_pop(n)",
    "variance(x)": "var_samp(x)",
    "var_pop(x)": "var_pop(x)",
    # Between two values both interpolate, and round differently.
    "percentile(x, 0.9)": "quantile_cont(x, 0.9)",
}

values = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-5, 5),
        "x": st.none() | st.floats(-1e6, 1e6),
        "d": st.none() | st.integers(-999, 999).map(lambda cents: Decimal(cents) / 100),
        "s": st.none() | st.sampled_from(["a", "b", "ä", ""]),
        "b": st.none() | st.booleans(),
        "time": st.integers(0, 3),
        "id": st.integers(0, 2),
    }
)


def placed(rows: list[dict]) -> pa.Table:
    """Rows with their places in a log of two partitions."""
    places = [{"topic": 0, "partition": at % 2, "offset": at // 2, "time": row["time"]} for at, row in enumerate(rows)]
    plain = pa.Table.from_pylist([{name: row[name] for name in ROWS.names} for row in rows], schema=ROWS)
    schema = pa.schema([("topic", pa.int32()), ("partition", pa.int32()), ("offset", pa.int64()), ("time", pa.int64())])
    where = pa.Table.from_pylist(places, schema=schema)
    return pa.table({**{name: plain[name] for name in ROWS.names}, **{name: where[name] for name in schema.names}})


@cache
def written(texts: tuple[str, ...]) -> WrittenAggregates:
    return read_aggregate_text(ROWS, texts, "time")


def partials_of(texts: list[str], rows: pa.Table) -> tuple[Aggregates, pa.Table]:
    found = written(tuple(texts))
    inputs = compute_columns(
        {**found.inputs, **{name: name for name in ("topic", "partition", "offset", "time")}}, rows
    )
    return found.aggregates, found.aggregates.of_rows(inputs)


def in_parts(aggregates: Aggregates, partials: pa.Table, ids: list[int], chance: random.Random) -> pa.Table:
    """Merged in two steps, from pieces in any order."""
    order = list(range(len(ids)))
    chance.shuffle(order)
    cuts = sorted(chance.randint(0, len(order)) for _ in range(3))
    pieces = [order[first:end] for first, end in zip([0, *cuts], [*cuts, len(order)], strict=True)]
    merged, of = [aggregates.empty(3)], [0, 1, 2]
    for piece in pieces:
        wholes = sorted({ids[at] for at in piece})
        numbers = np.array([wholes.index(ids[at]) for at in piece], np.int64)
        merged.append(aggregates.merge(partials.take(pa.array(piece, pa.int64())), numbers, len(wholes)))
        of += wholes
    return aggregates.finish(aggregates.merge(pa.concat_tables(merged), np.array(of, np.int64), 3))


def answers_of_duckdb(sqls: list[str], rows: pa.Table, ids: list[int]) -> list[tuple]:
    table = rows.append_column("id", pa.array(ids, pa.int32())).rename_columns(
        [*ROWS.names, "topic", "part", "pos", "time", "id"]
    )
    with duckdb.connect() as connection:
        connection.register("given", table)
        chosen = ", ".join(sqls)
        found = connection.sql(f"SELECT id, {chosen} FROM given GROUP BY id ORDER BY id").fetchall()
    return [row[1:] for row in found]


@pytest.mark.thorough
@settings(max_examples=40)
@given(st.lists(values, min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_every_function_gives_what_duckdb_gives_however_rows_are_divided(rows, chance):
    table, ids = placed(rows), [row["id"] for row in rows]
    texts = [*EXACT, *NEAR]
    aggregates, partials = partials_of(texts, table)

    found = in_parts(aggregates, partials, ids, chance)
    wanted = answers_of_duckdb([*EXACT.values(), *NEAR.values()], table, ids)

    shown = [tuple(row.values()) for row in found.to_pylist()]
    came = [shown[whole] for whole in sorted(set(ids))]
    for row, truth in zip(came, wanted, strict=True):
        assert dict(zip(texts, row[: len(EXACT)], strict=False)) == dict(zip(texts, truth[: len(EXACT)], strict=False))
        for text, one, other in zip(NEAR, row[len(EXACT) :], truth[len(EXACT) :], strict=True):
            assert (one is None) == (other is None), text
            assert one is None or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-3), text


def test_no_rows_are_a_count_and_a_sum_of_0_and_null_otherwise():
    aggregates, _ = partials_of(["sum(n)", "sum(d)", "count(*)", "min(n)", "avg(x)", "first(s)"], placed([]))

    assert aggregates.finish(aggregates.empty(1)).to_pylist() == [
        {"o0": 0, "o1": Decimal("0.00"), "o2": 0, "o3": None, "o4": None, "o5": None}
    ]


def test_rows_without_a_value_sum_up_to_null_also_after_no_rows():
    aggregates, partials = partials_of(["sum(n)"], placed([dict.fromkeys(ROWS.names) | {"time": 0}]))

    both = pa.concat_tables([aggregates.empty(1), partials])
    merged = aggregates.merge(both, np.array([0, 0]), 1)

    assert aggregates.finish(merged).to_pylist() == [{"o0": None}]


def test_an_id_without_parts_is_empty():
    aggregates, partials = partials_of(
        ["count(*)", "collect_list(s)"], placed([{**dict.fromkeys(ROWS.names), "time": 0}])
    )

    assert aggregates.merge(partials, np.array([1]), 2).to_pylist()[0] == aggregates.empty(1).to_pylist()[0]


STRUCT = pa.struct(
    [("n", pa.int64()), ("x", pa.float64()), ("in", pa.struct([("s", pa.string()), ("at", pa.timestamp("us"))])), ("b", pa.bool_())]
)  # fmt: skip


def rank(value):
    """As Spark compares: null is the smallest, NaN the largest, and structs are compared field by field."""
    if isinstance(value, dict):
        return 1, tuple(map(rank, value.values()))
    if isinstance(value, float):
        return 1, math.isnan(value), 0.0 if math.isnan(value) else value
    return (0,) if value is None else (1, value)


@pytest.mark.parametrize("seed", range(60))
def test_structs_are_compared_field_by_field(seed):
    chance = random.Random(seed)

    def one():
        inner = {"s": chance.choice([None, "a", "b"]), "at": chance.choice([None, 5, 6])}
        value = {"n": chance.choice([None, 1, 2]), "x": chance.choice([None, math.nan, 1.0]),
                 "in": chance.choice([None, inner]), "b": chance.choice([None, True, False])}  # fmt: skip
        return value if chance.random() > 0.1 else None

    values = pa.array([one() for _ in range(chance.randint(1, 60))], STRUCT)
    ids = np.array([chance.randrange(7) for _ in range(len(values))])
    for which, choose in (("min", min), ("max", max)):
        found = Parts(ids, 7).extreme(values, which).to_pylist()
        for group, answer in enumerate(found):
            some = [
                value for value, of in zip(values.to_pylist(), ids, strict=True) if of == group and value is not None
            ]
            assert rank(answer) == (rank(choose(some, key=rank)) if some else rank(None))


def test_nan_is_the_largest_number():
    rows = placed([{**dict.fromkeys(ROWS.names), "x": x, "time": 0} for x in (1.0, math.nan, 3.0)])
    aggregates, partials = partials_of(["min(x)", "max(x)"], rows)

    (answer,) = aggregates.finish(aggregates.merge(partials, np.zeros(3, np.int64), 1)).to_pylist()

    assert answer["o0"] == 1.0
    assert math.isnan(answer["o1"])


def test_a_sum_beyond_a_bigint_is_an_error_as_in_spark():
    call = AggregateCall("sum", (pa.int64(),), pa.int64(), "sum(n)")
    aggregates = Aggregates((call,))
    partials = aggregates.of_rows(pa.table({"i0_0": pa.array([2**62, 2**62])}))

    with pytest.raises(Invalid, match="does not fit"):
        aggregates.merge(partials, np.zeros(2, np.int64), 1)

    apart = aggregates.merge(partials, np.arange(2), 2)
    assert aggregates.finish(apart).to_pylist() == [{"o0": 2**62}, {"o0": 2**62}]


def test_an_average_of_decimals_is_rounded_as_spark_rounds():
    call = AggregateCall("avg", (pa.decimal128(10, 2),), pa.decimal128(14, 6), "avg(d)")
    aggregates = Aggregates((call,))
    partials = aggregates.of_rows(
        pa.table({"i0_0": pa.array([Decimal("1.00"), Decimal("1.00"), None, Decimal("0.00")])})
    )

    answer = aggregates.finish(aggregates.merge(partials, np.zeros(4, np.int64), 1))

    assert answer.to_pylist() == [{"o0": Decimal("0.666667")}]


def test_what_is_kept_can_be_sent_to_another_process():
    aggregates, partials = partials_of([*EXACT, *NEAR], placed([]))

    sent = pickle.loads(pickle.dumps(aggregates))

    assert (sent, sent.partial_schema) == (aggregates, partials.schema)


# Sketches


def distinct(count: int, rsd: float = 0.05) -> int:
    call = AggregateCall("approx_count_distinct", (pa.int64(),), pa.int64(), "approx_count_distinct(n)", (rsd,))
    aggregates = Aggregates((call,))
    partials = aggregates.of_rows(pa.table({"i0_0": pa.array(np.arange(count))}))
    return aggregates.finish(aggregates.merge(partials, np.zeros(count, np.int64), 1)).to_pylist()[0]["o0"]


@pytest.mark.parametrize("count", [1, 10, 100, 1_000, 20_000, 200_000])
def test_distinct_counts_are_within_three_standard_errors(count):
    assert abs(distinct(count, 0.02) - count) <= max(3 * 0.02 * count, 1)


def test_distinct_counts_do_not_depend_on_the_order():
    call = AggregateCall("approx_count_distinct", (pa.int64(),), pa.int64(), "approx_count_distinct(n)", (0.05,))
    aggregates = Aggregates((call,))
    partials = aggregates.of_rows(pa.table({"i0_0": pa.array(np.arange(5_000) % 3_000)}))
    once = aggregates.merge(partials, np.zeros(5_000, np.int64), 1)
    halves = aggregates.merge(partials.take(pa.array(np.arange(5_000)[::-1])), np.arange(5_000) % 2, 2)

    assert aggregates.merge(halves, np.zeros(2, np.int64), 1).equals(once)


def quantiles(values: np.ndarray, ids: np.ndarray, accuracy: int) -> tuple[Aggregates, pa.Table]:
    call = AggregateCall("approx_percentile", (pa.float64(),), pa.float64(), "approx_percentile(x)", (0.5, accuracy))
    aggregates = Aggregates((call,))
    partials = aggregates.of_rows(pa.table({"i0_0": pa.array(values)}))
    return aggregates, aggregates.merge(partials, ids, int(ids.max()) + 1)


def test_quantiles_keep_no_more_than_they_may_and_the_same_however_rows_came():
    chance = np.random.default_rng(7)
    values = chance.lognormal(0, 3, 20_000)
    aggregates, once = quantiles(values, np.zeros(20_000, np.int64), 1_000)
    # Unequal parts: the first alone overflows early, the others later or never.
    parts = np.minimum(chance.integers(0, 40, 20_000), 3)
    _, some = quantiles(values, parts, 1_000)
    together = aggregates.merge(some, np.zeros(4, np.int64), 1)

    assert together.equals(once)
    assert len(once.to_pylist()[0]["a0_counts"]) <= 1_000
    found, exact = aggregates.finish(once).to_pylist()[0]["o0"], float(np.median(values))
    assert math.isclose(found, exact, rel_tol=0.05)


def test_frequent_values_are_counted_within_their_bound():
    chance = np.random.default_rng(3)
    values = np.minimum(chance.zipf(1.3, 50_000), 5_000)
    item = pa.struct([("item", pa.int64()), ("count", pa.int64())])
    call = AggregateCall("approx_top_k", (pa.int64(),), pa.list_(item), "approx_top_k(n, 5, 100)", (5, 100))
    aggregates = Aggregates((call,))
    partials = aggregates.of_rows(pa.table({"i0_0": pa.array(values)}))
    parts = aggregates.merge(partials, np.arange(50_000) % 20, 20)
    kept = aggregates.merge(parts, np.zeros(20, np.int64), 1)

    (answer,) = aggregates.finish(kept).to_pylist()

    assert len(kept.to_pylist()[0]["a0_counts"]) <= 100
    counts = np.bincount(values)
    assert [one["item"] for one in answer["o0"]] == list(np.argsort(-counts, kind="stable")[:5])
    for one in answer["o0"]:
        assert 0 <= counts[one["item"]] - one["count"] <= 50_000 / 100


def test_a_histogram_joins_the_closest_bins_first():
    values = np.array([1.0, 2.0, 10.0, 11.0, 50.0])

    assert closest_bins(values, np.array([1, 3, 1, 1, 2]), 3) == [(1.75, 4), (10.5, 2), (50.0, 2)]
    assert closest_bins(values, np.ones(5, np.int64), 9) == [(x, 1) for x in values]


# Refusals


@pytest.mark.parametrize("text", ["skewness(x)", "corr(x, n)", "sum(DISTINCT n)", "listagg(s)"])
def test_what_cannot_be_merged_is_refused_with_what_can_be_had(text):
    with pytest.raises(Invalid, match="not supported") as refused:
        read_aggregate_text(ROWS, [text], "time")

    assert all(name in refused.value.detail for name in FUNCTIONS)
    assert refused.value.hint


def test_an_unknown_column_is_named():
    with pytest.raises(Invalid, match='column "nn"') as refused:
        read_aggregate_text(ROWS, ["sum(nn)"], "time")

    assert refused.value.hint == 'Did you mean "n"?'


def test_two_aggregates_of_one_name_are_refused():
    with pytest.raises(Invalid, match='two aggregates are named "total"'):
        read_aggregate_text(ROWS, ["sum(n) AS total", "sum(x) AS total"], "time")
