"""Joins of tables that change, without Spark: what they do at their edges, what they refuse, and what they leave."""

import pyarrow as pa
import pytest

from mainstem.errors import Invalid
from mainstem.operators import aggregate, top
from mainstem.operators.tables import table_join_engine
from mainstem.operators.tables.table_join import table_join
from mainstem.testing.scripted_rows import ScriptedRun
from tests.operators.scripted_tables import changes, held, scripted_table

PRICES = pa.schema([("store", pa.string()), ("price", pa.float64())])


def price(of, store="s"):
    return {"store": store, "price": of}


def stores(*batches, run):
    schema = pa.schema([("store", pa.string()), ("city", pa.string())])
    script = [[(sign, {"store": store, "city": "x"}) for sign, store in batch] for batch in batches]
    return scripted_table(schema, script, run=run)


def test_null_is_equal_to_nothing_and_many_of_them_do_not_lie_in_one_bucket():
    run = ScriptedRun()
    left = scripted_table(PRICES, [[("+", price(1.0, None)), ("+", price(2.0, None))]], run=run)
    right = stores([("+", None)], run=run)

    for how, count in (("inner", 0), ("left", 2), ("right", 1), ("full", 3), ("semi", 0), ("anti", 2)):
        found = table_join(left, right, on={"store": "store"}, how=how)
        assert len(held(changes(found))) == count, how


def test_an_outer_join_takes_back_rows_alone_when_a_partner_comes_and_puts_them_out_again():
    run = ScriptedRun()
    left = scripted_table(PRICES, [[("+", price(1.0))], [], [], []], run=run)
    right = stores([], [("+", "s")], [("-", "s"), ("+", "s")], [("-", "s")], run=run)

    found = changes(table_join(left, right, on={"store": "store"}, how="left"))

    alone, pair = {"store": "s", "price": 1.0, "city": None}, {"store": "s", "price": 1.0, "city": "x"}
    assert found == [[("+", alone)], [("-", alone), ("+", pair)], [], [("-", pair), ("+", alone)]]


def test_a_pair_that_looks_like_the_row_alone_is_not_put_out_in_its_place():
    run = ScriptedRun()
    schema = pa.schema([("store", pa.string()), ("manager", pa.string())])
    left = scripted_table(PRICES, [[("+", price(1.0))], []], run=run)
    right = scripted_table(schema, [[], [("+", {"store": "s", "manager": None})]], run=run)

    found = changes(table_join(left, right, on={"store": "store"}, how="full"))

    assert found == [[("+", {"store": "s", "price": 1.0, "manager": None})], []]


def test_a_row_with_too_many_partners_stops_the_flow_with_its_values(monkeypatch):
    run = ScriptedRun()
    left = scripted_table(PRICES, [[("+", price(float(n))) for n in range(3)]], run=run)
    right = stores([("+", "s")], run=run)

    assert len(held(changes(table_join(left, right, on={"store": "store"}, limit=3)))) == 3
    with pytest.raises(Invalid, match="has 3 partners, more than limit=2 allows"):
        table_join(right, left, on={"store": "store"}, limit=2)
    # A partner that is replaced is one, not two.
    run = ScriptedRun()
    left = scripted_table(PRICES, [[("+", price(1.0))], [("-", price(1.0)), ("+", price(2.0))]], run=run)
    right = stores([("+", "s")], [("-", "s"), ("+", "s")], run=run)
    assert len(held(changes(table_join(left, right, on={"store": "store"}, limit=1)))) == 1
    run = ScriptedRun()
    left = scripted_table(PRICES, [[("+", price(float(n))) for n in range(3)]], run=run)
    right = stores([("+", "s")], run=run)
    monkeypatch.setattr(table_join_engine, "PAIRS_MAX", 2)
    with pytest.raises(Invalid, match="more than 2 pairs in one batch allow"):
        table_join(left, right, on={"store": "store"})


def test_joins_that_cannot_be_are_told_while_the_program_is_built():
    run = ScriptedRun()
    left, right = scripted_table(PRICES, [], run=run), stores(run=run)
    with pytest.raises(Invalid, match='both sides of a join have a column "price"'):
        table_join(left, left, on={"store": "store"})
    with pytest.raises(Invalid, match='compare "price" with "city"'):
        table_join(left, right, on={"price": "city"})
    with pytest.raises(Invalid, match='how="outer"'):
        table_join(left, right, on={"store": "store"}, how="outer")


def test_state_shrinks_with_the_tables():
    run = ScriptedRun()
    rows = [price(float(n), f"s{n % 5}") for n in range(40)]
    left = scripted_table(PRICES, [[("+", row) for row in rows], [("-", row) for row in rows]], run=run)
    right = stores([("+", f"s{n}") for n in range(5)], [("-", f"s{n}") for n in range(5)], run=run)

    found = table_join(left, right, on={"store": "store"})
    best = top(aggregate(found, by="city", aggregates=["min(price) AS least"]), 1, order="least")

    assert held(changes(best)) == []
    assert run.state_rows == {"join-1": 0, "aggregate-1": 0, "top-1": 0}
