"""dedupe: which rows are kept, against a list that is looked through; how long it remembers; how fast it is."""

import random
from collections import defaultdict
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest

from mainstem.errors import Invalid
from mainstem.operators.dedupe import dedupe
from mainstem.operators.dedupe_engine import ROUNDS, DedupeEngine
from mainstem.operators.stage.engine import NO_TIME, BatchClock
from mainstem.operators.stage.state_runs import MemoryState
from mainstem.testing import TestStream
from tests.operators.visits import at

ORDERS = TestStream("customer STRING, change STRING, n INT, at TIMESTAMP", event_time="at")
WITHIN = timedelta(minutes=10)


def once(rows):
    return dedupe(rows, by=["customer", "change"], within="10 minutes")


def order(n, minute, customer="ada", change="x"):
    return {"customer": customer, "change": change, "n": n, "at": None if minute is None else at(minute)}


def kept(results):
    return [row["n"] for row in results.rows]


def test_the_first_is_kept_also_if_a_later_row_has_an_earlier_time():
    script = ORDERS.rows([order(1, 5), order(2, 14.9), order(3, -4.9)]).rows([order(4, 15), order(5, -5), order(6, 6)])

    results = script.run(once)

    assert kept(results) == [1, 4, 5]
    assert results.counts == {"duplicates": 3}
    assert results.late == []


def test_of_a_key_in_two_partitions_one_row_is_kept_and_only_in_one_batch_is_it_that_of_the_first_partition():
    script = ORDERS.rows([order(1, 5), order(2, 0, "bob")], partition=1).rows([order(3, 6)], partition=0)

    # Partitions have no order among them: what was read first stays.
    assert kept(script.run(once)) == [1, 2]
    assert sorted(kept(script.run(once, batches="one"))) == [2, 3]


def test_columns_of_any_name_come_out_as_they_went_in():
    results = ORDERS.rows([order(1, 0, "ada", None), order(2, 0, None, "ada")]).run(once)

    # Nulls take part in a key: (ada, null) is another one than (null, ada).
    assert results.rows == [order(1, 0, "ada", None), order(2, 0, None, "ada")]


def test_what_cannot_be_decided_any_more_is_late_and_not_lost_from_sight():
    script = ORDERS.rows([order(1, 0)]).watermark(at(15)).rows([order(2, 5), order(3, 5.1), order(4, None)])

    results = script.run(once)

    assert kept(results) == [1]
    assert results.counts == {"duplicates": 1, "too_late": 2}
    assert [
        (row["customer"], row.get("time"), row["watermark"], row["reason"], row["offset"]) for row in results.late
    ] == [
        ("ada", at(5), at(15), "too late to tell whether it is a duplicate", 1),
        ("ada", None, at(15), "no event time", 3),
    ]


def test_it_forgets_when_the_watermark_is_twice_the_span_past():
    script = ORDERS.rows([order(1, 0)])

    assert script.watermark(at(19.9)).run(once).state_rows == {"dedupe-1": 1}
    assert script.watermark(at(20)).run(once).state_rows == {"dedupe-1": 0}
    # What nobody can ask for any more is not even kept for a moment.
    assert script.watermark(at(20)).run(once, batches="one").state_rows == {"dedupe-1": 0}
    assert script.watermark(at(20)).rows([order(2, 30)]).watermark(at(50)).run(once).state_rows == {"dedupe-1": 0}


def naive(appends):
    """Every row against all that were kept, with nothing ever forgotten."""
    found, of_key = [], defaultdict(list)
    for watermark, rows in appends:
        for row in rows:
            if watermark is not None and watermark >= row["at"] + WITHIN:
                continue
            times = of_key[row["customer"]]
            if all(abs(row["at"] - time) >= WITHIN for time in times):
                times.append(row["at"])
                found.append(row["n"])
    return found


@pytest.mark.thorough
def test_any_split_keeps_what_a_list_that_forgets_nothing_keeps():
    duplicates = 0
    for seed in range(25):
        chance = random.Random(seed)
        script, appends, minute, watermark, n = ORDERS, [], 0, None, 0
        for _ in range(chance.randint(1, 12)):
            minute += chance.choice([0, 0, 3, 10, 25])
            if chance.random() < 0.4:
                watermark = at(minute)
                script = script.watermark(watermark)
            numbers = range(n + 1, n + 1 + chance.randint(1, 60))
            n = numbers[-1]
            rows = [
                order(number, minute + chance.randint(-22, 12) / chance.choice([1, 2]), chance.choice("abcdefghijkl"))
                for number in numbers
            ]
            script = script.rows(rows)
            appends.append((watermark, rows))
            if chance.random() < 0.3:
                script = script.kill()
        expected = naive(appends)
        # A step for each row is what takes the time.
        for batches in ("scripted", "one", *(["single rows"] if seed % 5 == 0 else [])):
            results = script.run(once, batches=batches)
            assert kept(results) == expected, (seed, batches)
        duplicates += results.counts.get("duplicates", 0)
    assert duplicates > 1000


def engine_rows(keys, times):
    count = len(keys)
    zeros = np.zeros(count, np.int32)
    row = pa.StructArray.from_arrays([pa.array(np.arange(count))], names=["n"])
    columns = [keys, keys * 7, keys, zeros, np.arange(count), zeros, times, np.full(count, NO_TIME), row]
    names = ["group", "check", "by_0", "partition", "offset", "tie", "time", "watermark", "row"]
    return pa.table([pa.array(column) for column in columns], names)


def test_one_key_with_very_many_rows_is_decided_as_rightly_as_many_with_few():
    engine = DedupeEngine((pa.field("by_0", pa.int64()),), pa.struct([("n", pa.int64())]), 10)
    times = np.random.default_rng(7).integers(0, 20_000, 30_000)
    rows = engine_rows(np.zeros(len(times), np.int64), times)

    step = engine.step(MemoryState(engine.state_schema), rows, BatchClock())

    expected, seen = [], np.zeros(20_020, np.bool_)
    for n, time in enumerate(times.tolist()):
        if not seen[max(0, time - 9) : time + 10].any():
            seen[time] = True
            expected.append(n)
    assert [row["n"] for row in step.output.column("row").to_pylist()] == expected
    assert len(expected) > ROUNDS


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"within": "0 seconds"}, 'within "0 seconds" is not a positive duration'),
        ({"within": 5}, 'within "5" has no unit'),
        ({"by": "order"}, 'dedupe uses the column "order", which the rows lack'),
        ({"on": "when"}, 'dedupe uses the column "when", which the rows lack'),
    ],
)
def test_mistakes_are_refused_while_building(changed, says):
    with pytest.raises(Invalid, match=says):
        ORDERS.run(lambda rows: dedupe(rows, **{"by": "customer", "within": "1 hour", **changed}))


def test_a_stream_without_a_watermark_is_refused():
    script = TestStream("customer STRING, at TIMESTAMP")

    with pytest.raises(Invalid, match="dedupe needs one event time, and no columns are marked as event time"):
        script.run(lambda rows: dedupe(rows, by="customer", within="1 hour"))
    with pytest.raises(Invalid, match="dedupe needs a watermark, and the stream has none"):
        script.run(lambda rows: dedupe(rows, by="customer", within="1 hour", on="at"))


def test_rows_come_in_the_order_of_the_log_whatever_order_spark_has_them_in():
    engine = DedupeEngine((pa.field("by_0", pa.int64()),), pa.struct([("n", pa.int64())]), 10)
    # Two topics with the same places, told apart by the hash of a row.
    rows = engine_rows(np.zeros(4, np.int64), np.array([5, 0, 9, 3]))
    rows = rows.set_column(4, "offset", pa.array([0, 1, 1, 0])).set_column(5, "tie", pa.array([7, 1, 2, 4]))

    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
        step = engine.step(MemoryState(engine.state_schema), rows.take(order), BatchClock())
        assert step.output.column("row").to_pylist() == [{"n": 3}], order
