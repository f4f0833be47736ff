"""table, aggregate, top and distinct without Spark: what each does at its edges, and what it refuses."""

import random
import statistics
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest

from mainstem.errors import Invalid
from mainstem.operators import aggregate, distinct, table, top
from mainstem.operators.tables.changing import is_changing, table_source
from mainstem.operators.tables.weights import value_ranks
from mainstem.spark.sources.topic_writer import put_retractions_first
from tests.operators.naive_feed import Fact, feed
from tests.operators.scripted_tables import changes, held, scripted_table

CITIES = pa.schema([("id", pa.int32()), ("city", pa.string()), ("version", pa.int32())])
PRICES = pa.schema([("store", pa.string()), ("price", pa.float64())])
BILLS = pa.schema([("store", pa.string()), ("bill", pa.struct([("total", pa.int32())]))])


def city(key, name, version=0):
    return {"id": key, "city": name, "version": version}


def price(of, store="s"):
    return {"store": store, "price": of}


# table


def test_the_newest_row_takes_the_place_of_the_one_before_and_a_delete_takes_it_away():
    script = [[("+", city(1, "Bonn"))], [("~", city(1, "Ulm")), ("~", city(1, "Jena"))], [("-", city(1, None))]]
    rows = scripted_table(CITIES, script, killed=True)

    found = table(rows, key="id")

    assert changes(found) == [
        [("+", city(1, "Bonn"))],
        [("-", city(1, "Bonn")), ("+", city(1, "Jena"))],
        [("-", city(1, "Jena"))],
    ]
    # A key that is no more is forgotten.
    assert rows.run.state_rows == {"table-1": 0}


def test_a_row_that_says_what_is_known_and_a_delete_of_nothing_change_nothing():
    script = [[("+", city(1, "Bonn")), ("-", city(2, None))], [("~", city(1, "Bonn"))], [("+", city(1, "Bonn"))]]

    assert changes(table(scripted_table(CITIES, script), key="id")) == [[("+", city(1, "Bonn"))], [], []]


def test_an_older_row_that_comes_later_changes_nothing_also_after_a_delete():
    script = [
        [("+", city(1, "Bonn", 5))],
        [("~", city(1, "Ulm", 4)), ("~", city(1, "Jena", None))],
        [("-", city(1, None, 7))],
        [("~", city(1, "Ulm", 6))],
        [("~", city(1, "Kiel", 7))],
    ]
    rows = scripted_table(CITIES, script)

    found = changes(table(rows, key="id", order_by="version"))

    # What is ignored is counted.
    assert rows.run.counts == {"out_of_order": 3}
    # Of rows that are equally new, the last in the log counts.
    assert found == [[("+", city(1, "Bonn", 5))], [], [("-", city(1, "Bonn", 5))], [], [("+", city(1, "Kiel", 7))]]
    assert rows.run.state_rows == {"table-1": 1}


def test_a_delete_that_says_nothing_of_the_order_takes_away_what_is_there_when_it_comes():
    script = [
        [("+", city(1, "Bonn", 5)), ("-", city(1, None, None)), ("~", city(1, "Ulm", 4))],
        [("~", city(1, "Jena", 5))],
        [("-", city(1, None, None))],
        [("~", city(1, "Kiel", 4))],
    ]

    found = changes(table(scripted_table(CITIES, script), key="id", order_by="version"))

    assert found == [[], [("+", city(1, "Jena", 5))], [("-", city(1, "Jena", 5))], []]


def test_of_equally_new_rows_the_last_in_the_log_counts_in_whatever_order_they_come():
    first, last = (Fact(partition, 0, _fact("Bonn" if partition else "Ulm", 5)) for partition in (0, 1))
    again = Fact(1, 1, _fact("Jena", 5))
    for batches in ([[first], [last]], [[last], [first]], [[first, last]]):
        assert held(changes(table(feed(batches), key="id", order_by="version"))) == [_fact("Bonn", 5)]
    gone = Fact(0, 1, _fact("Ulm", 5) | {"op": "DELETE"})
    # A delete of the same order as well: it comes before what partition 1 says.
    for batches in ([[last], [gone]], [[gone], [last]], [[gone, last]]):
        assert held(changes(table(feed(batches), key="id", order_by="version"))) == [_fact("Bonn", 5)]
    assert held(changes(table(feed([[again], [last], [first]]), key="id", order_by="version"))) == [_fact("Jena", 5)]


def _fact(name, version):
    return {"id": 1, "city": name, "note": 0, "version": version, "rank": 0, "op": "UPSERT"}


def test_the_rows_of_a_changing_table_have_no_positions_a_delete_deletes_when_it_comes():
    script = [[("+", city(1, "Bonn", 5))], [("~", city(1, "Ulm", 5))], [("-", city(1, None))]]
    inner = table(scripted_table(CITIES, script), key="id")

    # Deletes are numbered before all inserts: by position they would come before the row that they delete.
    assert held(changes(table(inner, key="id", order_by="version"))) == []
    assert len(changes(table(inner, key="id", order_by="version"))[2]) == 1


def test_a_condition_marks_deletes_and_null_is_no_delete():
    cases = [("Bonn", 1, "UPSERT"), ("Ulm", 2, None), ("Ulm", 3, "DELETE"), ("Jena", 2, "UPSERT"), ("Kiel", 4, None)]
    facts = [Fact(0, place, _fact(name, version) | {"op": op}) for place, (name, version, op) in enumerate(cases)]

    found = changes(
        table(feed([[fact] for fact in facts], in_log=False), key="id", order_by="version", delete_when="op = 'DELETE'")
    )

    assert [[(sign, row["city"]) for sign, row in batch] for batch in found] == [
        [("+", "Bonn")], [("-", "Bonn"), ("+", "Ulm")], [("-", "Ulm")], [], [("+", "Kiel")],
    ]  # fmt: skip


def test_an_order_may_be_an_expression_or_several_columns():
    low, high = (_fact("Bonn", 1) | {"rank": 7}), (_fact("Ulm", 2) | {"rank": 1})
    batches = [[Fact(0, 0, low)], [Fact(0, 1, high)]]

    def newest(order_by):
        return held(changes(table(feed(batches), key="id", order_by=order_by)))

    assert newest("version") == newest(["version", "rank"]) == newest("version * 10 + rank") == [high]
    assert newest(["rank", "version"]) == newest("rank * 10 + version") == newest("-version") == [low]


def test_a_table_tells_what_it_is_and_what_it_was_made_of():
    rows = scripted_table(CITIES, [[("+", city(1, "Bonn"))]])
    found = table(rows, key="id", order_by="version")

    assert not is_changing(rows.schema)
    assert is_changing(found.schema)
    source = table_source(found)
    assert (source.rows, source.key, source.order) == (rows, ("id",), ("version",))
    assert table_source(distinct(found)) is None


def test_what_is_taken_away_comes_before_what_is_put_in_whatever_bucket_it_is_from():
    script = [[("+", city(1, "Bonn")), ("+", city(2, "Ulm"))], [("~", city(1, "Jena")), ("~", city(2, "Kiel"))]]

    found = table(scripted_table(CITIES, script), key="id").batches[1].rows

    places = [(row["change"], row["partition"]) for row in found.column("record").to_pylist()]
    assert places == [("delete", -1), ("delete", -1), ("insert", 0), ("insert", 0)]


def test_a_topic_gets_what_is_taken_away_before_what_is_put_in():
    first, second = (
        scripted_table(CITIES, [[(sign, city(key, name)) for sign, key, name in batch]])
        for batch in ([("+", 1, "new"), ("+", 3, "new")], [("+", 2, "new"), ("-", 1, "old")])
    )
    tables = [rows.batches[0].rows for rows in (first, second)]
    record = [{**row, "partition": -1 if row["change"] == "delete" else 0} for row in _records(tables[1])]
    moved = tables[1].set_column(3, "record", pa.array(record, tables[1].schema.field("record").type))
    rows = pa.concat_tables([tables[0], moved])

    found = put_retractions_first(rows)

    assert [(row["id"], row["city"]) for row in found.to_pylist()] == [(1, "old"), (1, "new"), (3, "new"), (2, "new")]
    assert put_retractions_first(tables[0]) is tables[0]
    assert put_retractions_first(rows.drop_columns(["record"])).num_rows == 4


def _records(rows):
    return rows.column("record").to_pylist()


# aggregate

FUNCTIONS = {
    "count(price)": len,
    "sum(price)": sum,
    "avg(price)": statistics.fmean,
    "min(price)": min,
    "max(price)": max,
    "stddev_samp(price)": lambda of: statistics.stdev(of) if len(of) > 1 else None,
    "var_pop(price)": statistics.pvariance,
    "count(DISTINCT price)": lambda of: len(set(of)),
    "collect_list(price)": sorted,
    "collect_set(price)": lambda of: sorted(set(of)),
    "mode(price)": lambda of: min(set(of), key=lambda value: (-of.count(value), value)),
    "median(price)": statistics.median,
    "approx_count_distinct(price)": lambda of: len(set(of)),
}


def test_every_function_is_right_after_every_batch_of_rows_that_come_and_go():
    chance = random.Random(5)
    there, script = [], []
    for _ in range(12):
        batch = []
        for _ in range(chance.randint(0, 4)):
            if there and chance.random() < 0.45:
                batch.append(("-", price(there.pop(chance.randrange(len(there))))))
            else:
                there.append(chance.choice([0.1, 0.2, 0.3, 1.5, 1e16, -2.0]))
                batch.append(("+", price(there[-1])))
        script.append(batch)
    wanted = [f"{text} AS f{place}" for place, text in enumerate(FUNCTIONS)]

    found = changes(aggregate(scripted_table(PRICES, script, killed=True), by="store", aggregates=wanted))

    values: list[float] = []
    compared = 0
    for number in range(len(script)):
        for sign, row in script[number]:
            values.append(row["price"]) if sign == "+" else values.remove(row["price"])
        rows = held(found[: number + 1])
        if not values:
            assert rows == []
            continue
        [row] = rows
        for place, (text, function) in enumerate(FUNCTIONS.items()):
            expected = function(values)
            expected = pytest.approx(expected) if isinstance(expected, float) else expected
            assert row[f"f{place}"] == expected, (number, text)
            compared += 1
    assert compared > 100


def test_a_sum_of_doubles_has_no_rest_of_what_was_taken_away():
    script = [[("+", price(0.1)), ("+", price(1e300)), ("+", price(0.2))], [("-", price(1e300))], [("+", price(-0.3))]]

    found = held(changes(aggregate(scripted_table(PRICES, script), by="store", aggregates="sum(price) AS total")))

    assert found == [{"store": "s", "total": 2.7755575615628914e-17}]


def test_whole_numbers_and_decimals_are_added_up_with_one_row_for_each_group():
    schema = pa.schema([("n", pa.int64()), ("amount", pa.decimal128(10, 2))])
    big = 2**62
    script = [
        [("+", {"n": big, "amount": Decimal("1.10")}), ("+", {"n": None, "amount": None})],
        [("-", {"n": big, "amount": Decimal("1.10")}), ("+", {"n": 3, "amount": Decimal("2.25")})],
        [("-", {"n": None, "amount": None}), ("-", {"n": 3, "amount": Decimal("2.25")})],
    ]
    wanted = ["sum(n) AS s", "avg(n) AS a", "sum(amount) AS t", "avg(amount) AS m", "count(n) AS c", "count(*) AS r"]
    rows = scripted_table(schema, script)

    found = changes(aggregate(rows, aggregates=wanted))

    first = {"s": big, "a": float(big), "t": Decimal("1.10"), "m": Decimal("1.100000"), "c": 1, "r": 2}
    second = {"s": 3, "a": 3.0, "t": Decimal("2.25"), "m": Decimal("2.250000"), "c": 1, "r": 2}
    # A table without rows has no row of aggregates.
    assert found == [[("+", first)], [("-", first), ("+", second)], [("-", second)]]
    assert rows.run.state_rows == {"aggregate-1": 0}


def test_a_sum_of_rows_without_a_value_is_null_and_a_group_whose_answer_stays_says_nothing():
    script = [[("+", price(None))], [("+", price(2.0))], [("+", price(1.0)), ("-", price(2.0)), ("+", price(2.0))]]

    found = changes(aggregate(scripted_table(PRICES, script), by="store", aggregates=["max(price) AS best"]))

    assert found == [
        [("+", {"store": "s", "best": None})],
        [("-", {"store": "s", "best": None}), ("+", {"store": "s", "best": 2.0})],
        [],
    ]


def test_lists_of_structs_are_ordered_by_their_fields_and_min_by_has_the_least_of_equals():
    schema = pa.schema([("g", pa.int32()), ("item", pa.struct([("at", pa.int64()), ("text", pa.string())]))])
    rows = [{"g": 1, "item": {"at": at, "text": text}} for at, text in ((2, "b"), (1, "z"), (2, "a"))]
    script = [[("+", row) for row in rows], [("-", rows[1])]]
    wanted = [
        "collect_list(item) AS items",
        "min_by(item.text, item.at) AS first",
        "max_by(item.text, item.at) AS last",
    ]

    found = changes(aggregate(scripted_table(schema, script), by="g", aggregates=wanted))

    assert [row["at"] for row in found[0][0][1]["items"]] == [1, 2, 2]
    assert [row["text"] for row in found[1][1][1]["items"]] == ["a", "b"]
    assert [found[batch][-1][1][name] for batch in (0, 1) for name in ("first", "last")] == ["z", "b", "a", "b"]


@pytest.mark.parametrize("text", ["first(price)", "any_value(price)", "approx_percentile(price, 0.5)"])
def test_what_needs_an_order_of_rows_is_refused_with_what_to_use(text):
    with pytest.raises(Invalid, match="not supported over a changing table"):
        aggregate(scripted_table(PRICES, []), by="store", aggregates=f"{text} AS found")


@pytest.mark.parametrize("batches", [1, 2])
def test_a_sum_that_does_not_fit_is_refused_not_wrong(batches):
    schema = pa.schema([("n", pa.int64())])
    two = [("+", {"n": 2**62})] * 2
    rows = scripted_table(schema, [two] if batches == 1 else [two[:1], two[:1]])

    with pytest.raises(Invalid, match="does not fit into a bigint"):
        aggregate(rows, aggregates="sum(n) AS total")


# top, distinct


def test_the_first_rows_follow_what_comes_and_goes_and_equal_ones_go_by_their_columns():
    script = [
        [("+", price(1.0, "a")), ("+", price(float("nan"), "b")), ("+", price(None, "c")), ("+", price(1.0, "0"))],
        [("-", price(float("nan"), "b"))],
        [("+", price(1.0, "0"))],
    ]

    found = changes(top(scripted_table(PRICES, script), 2, order="price DESC"))

    stores = [[(sign, row["store"]) for sign, row in batch] for batch in found]
    # NaN is the largest number; a row may be there twice.
    assert [sorted(batch) for batch in stores] == [
        [("+", "0"), ("+", "b")],
        [("+", "a"), ("-", "b")],
        [("+", "0"), ("-", "a")],
    ]


def test_distinct_keeps_a_number_for_each_row_and_no_row():
    script = [[("+", price(1.0)), ("+", price(1.0)), ("+", price(None))], [("-", price(1.0))], [("-", price(1.0))]]
    rows = scripted_table(PRICES, script)

    found = changes(distinct(rows))

    assert [sorted(map(str, batch)) for batch in found] == [
        sorted(map(str, [("+", price(1.0)), ("+", price(None))])),
        [],
        [str(("-", price(1.0)))],
    ]
    assert rows.run.state_rows == {"distinct-1": 1}


@pytest.mark.parametrize(
    "operator",
    [distinct, lambda rows: top(rows, 1, order="price"), lambda rows: aggregate(rows, aggregates="count(*) AS rows")],
)
def test_an_update_which_does_not_say_what_it_replaces_is_refused(operator):
    with pytest.raises(Invalid, match="cannot take an update") as refused:
        operator(scripted_table(PRICES, [[("~", price(1.0))]]))

    assert "table(rows, key=...)" in str(refused.value)


def test_what_is_asked_wrongly_is_told_while_the_program_is_built():
    rows = scripted_table(PRICES, [])
    maps = scripted_table(pa.schema([("m", pa.map_(pa.string(), pa.int32()))]), [])
    with pytest.raises(Invalid, match='orders rows by "prise"'):
        top(rows, 1, order="prise DESC")
    with pytest.raises(Invalid, match="count of top is 0"):
        top(rows, 0, order="price")
    with pytest.raises(Invalid, match='cannot compare rows by the map "m"'):
        distinct(maps)
    with pytest.raises(Invalid, match='the column "prise", which the rows lack'):
        table(rows, key="store", order_by="prise")
    with pytest.raises(Invalid, match="no key"):
        table(rows, key=[])
    with pytest.raises(Invalid, match="order_by of table is empty"):
        table(rows, key="store", order_by=[])
    with pytest.raises(Invalid, match='order_by of table uses the column "prise", which the rows lack') as missing:
        table(rows, key="store", order_by="prise + 1")
    assert 'Did you mean "price"' in missing.value.hint
    with pytest.raises(Invalid, match='delete_when of table uses the column "op", which the rows lack'):
        table(rows, key="store", delete_when="op = 'DELETE'")
    with pytest.raises(Invalid, match="delete_when of table is not a condition") as number:
        table(rows, key="store", delete_when="price + 1")
    assert "It is double" in number.value.detail
    for broken in ("price >", "price = ", "no_such_function(price)"):
        with pytest.raises(Invalid, match="delete_when of table cannot be computed") as refused:
            table(rows, key="store", delete_when=broken)
        assert refused.value.detail
        assert refused.value.hint
    with pytest.raises(Invalid, match="order_by of table is 5"):
        table(rows, key="store", order_by=5)
    with pytest.raises(Invalid, match="delete_when of table is True"):
        table(rows, key="store", delete_when=True)
    with pytest.raises(Invalid, match="cannot have a direction"):
        table(rows, key="store", order_by="price DESC")
    with pytest.raises(Invalid, match='table cannot order rows by "bill"'):
        table(scripted_table(BILLS, []), key="store", order_by="bill")
    with pytest.raises(Invalid, match='has the name of a key column: "store"'):
        aggregate(rows, by="store", aggregates="count(*) AS store")
    with pytest.raises(Invalid, match="no aggregates"):
        aggregate(rows, by="store", aggregates=[])


# Values


def test_ranks_of_values_of_every_type():
    assert value_ranks(pa.array([2.0, float("nan"), None, -0.0, 0.0])).tolist() == [2, 3, 0, 1, 1]
    assert value_ranks(pa.array([True, None, False])).tolist() == [2, 0, 1]
    assert value_ranks(pa.nulls(2)).tolist() == [0, 0]
    assert Counter(value_ranks(pa.array([[1], [2], [1]])).tolist()) == {1: 2, 2: 1}


def test_an_aggregate_of_a_field_needs_no_name():
    rows = scripted_table(BILLS, [[("+", {"store": "s", "bill": {"total": 3}})]])

    found = aggregate(rows, by="store", aggregates="sum(bill.total)")

    assert changes(found) == [[("+", {"store": "s", "sum(bill.total)": 3})]]
