"""compare_with: this window beside an earlier one, against a dict that is looked up."""

import random
from datetime import timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from mainstem.errors import Invalid
from mainstem.operators import compare_with, tumbling, windowed
from mainstem.testing import ScriptedRows, TestStream
from tests.operators.visits import at

HOUR = timedelta(hours=1)
SALES = (
    "store STRING, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, sales BIGINT, best DECIMAL(10, 2), by_whom STRING"
)


def window(hour):
    return {"start": at(60 * hour), "end": at(60 * hour + 60)}


def sold(hour, sales, store="Berlin", best=None, by_whom=None):
    return {"store": store, "window": window(hour), "sales": sales, "best": best, "by_whom": by_whom}


def compared(results):
    return [
        (change, row["window"]["start"], row["sales"], row["sales_earlier"], row["sales_ratio"])
        for change, row in results.changes
    ]


def last_week(rows):
    return compare_with(rows, earlier="7 days")


def test_each_row_stands_beside_the_one_a_week_earlier():
    script = TestStream(SALES).rows([sold(0, 50, best=Decimal("2.50"), by_whom="ada"), sold(1, 0)])
    script = script.rows([sold(168, 60, best=Decimal("5.00"), by_whom="bob"), sold(169, 7), sold(168, 1, "Lisbon")])

    results = script.run(last_week)

    in_order = sorted(results.rows[2:], key=lambda row: (row["store"], row["window"]["start"]))
    assert in_order[0] == {
        "store": "Berlin", "window": window(168), "sales": 60, "sales_earlier": 50, "sales_ratio": 1.2,
        "best": Decimal("5.00"), "best_earlier": Decimal("2.50"), "best_ratio": 2.0,
        "by_whom": "bob", "by_whom_earlier": "ada",
    }  # fmt: skip
    assert [(row["store"], row["sales"], row["sales_earlier"], row["sales_ratio"]) for row in in_order[1:]] == [
        ("Berlin", 7, 0, None),
        ("Lisbon", 1, None, None),
    ]


def scripted_changes(batches):
    """A frame of changes, as a stage gives one: (change, row) in batches."""
    rows = [[row for _, row in batch] for batch in batches]
    script = TestStream(SALES)
    for batch in rows:
        script = script.rows(batch)

    def changed(frame):
        given = []
        for scripted, batch in zip(frame.batches, batches, strict=True):
            record = scripted.rows.column("record").combine_chunks()
            at_change = record.type.get_field_index("change")
            fields = [
                pa.array([change for change, _ in batch], pa.string()) if place == at_change else record.field(place)
                for place in range(record.type.num_fields)
            ]
            changes = pa.StructArray.from_arrays(fields, fields=list(record.type))
            plain = scripted.rows.drop_columns(["record"]).append_column("record", changes)
            given.append(type(scripted)(plain, scripted.clock, scripted.killed))
        return ScriptedRows(frame.schema, given, frame.run)

    return script, changed


def test_corrections_change_both_rows_and_deletes_take_back():
    batches = [
        [("insert", sold(0, 50)), ("insert", sold(168, 60))],
        [("update", sold(0, 30))],
        [("delete", sold(0, 30)), ("insert", sold(0, 20))],
        [("delete", sold(0, 20))],
        [("delete", sold(168, 60))],
        [("delete", sold(500, 1))],
    ]
    script, changed = scripted_changes(batches)

    results = script.run(lambda rows: last_week(changed(rows)))

    early, late = at(0), at(60 * 168)
    assert [compared(type(results)([batch])) for batch in results.batches] == [
        [("insert", early, 50, None, None), ("insert", late, 60, 50, 1.2)],
        [("update", early, 30, None, None), ("update", late, 60, 30, 2.0)],
        [("update", early, 20, None, None), ("update", late, 60, 20, 3.0)],
        [("delete", early, 20, None, None), ("update", late, 60, None, None)],
        [("delete", late, 60, None, None)],
        [],
    ]
    assert results.state_rows == {"compare_with-1": 0}


def test_in_the_end_every_row_is_beside_its_earlier_one_whatever_the_batches():
    for seed in range(30):
        chance = random.Random(seed)
        held, batches = {}, []
        for _ in range(chance.randint(1, 8)):
            batch = []
            for _ in range(chance.randint(0, 30)):
                store, hour, sales = chance.choice("abc"), chance.randrange(12), chance.randrange(100)
                gone = (store, hour) in held and chance.random() < 0.2
                known = "update" if (store, hour) in held else "insert"
                if gone:
                    sales = held.pop((store, hour))
                else:
                    held[store, hour] = sales
                batch.append(("delete" if gone else known, sold(hour, sales, store)))
            batches.append(batch)
        script, changed = scripted_changes(batches)
        for how in ("scripted", [[change for batch in batches for change in batch]]):
            if how != "scripted":
                script, changed = scripted_changes(how)
            results = script.run(lambda rows: compare_with(changed(rows), earlier="3 hours"))  # noqa: B023
            latest = results.latest(["store", "window"])
            assert sorted(
                (row["store"], row["window"]["start"], row["sales"], row["sales_earlier"]) for row in latest
            ) == [
                (store, at(60 * hour), sales, held.get((store, hour - 3)))
                for (store, hour), sales in sorted(held.items())
            ], (seed, how)


def test_results_of_windows_are_compared_and_forgotten_in_time():
    clicks = TestStream("page STRING, n INT, at TIMESTAMP", event_time="at")
    script = clicks.rows([{"page": "/", "n": 2, "at": at(10)}]).watermark(at(60))
    script = script.rows([{"page": "/", "n": 3, "at": at(70)}, {"page": "/", "n": 4, "at": at(59)}]).watermark(at(120))

    def hour_before(rows):
        hours = windowed(rows, tumbling("1 hour"), by="page", aggregates="sum(n) AS total", lateness="2 hours")
        return compare_with(hours, earlier="1 hour", lateness="2 hours")

    results = script.run(hour_before)

    assert [(change, row["total"], row["total_earlier"]) for change, row in results.changes] == [
        ("insert", 2, None),
        ("update", 6, None),
        ("insert", 3, 6),
    ]
    assert script.watermark(at(60 * 4)).run(hour_before).state_rows["compare_with-1"] == 1
    assert script.watermark(at(60 * 5)).run(hour_before).state_rows["compare_with-1"] == 0


@pytest.mark.parametrize(
    ("schema", "changed", "says"),
    [
        (SALES, {"earlier": "0 days"}, 'earlier "0 days" is not a positive duration'),
        (SALES, {"by": "shop"}, 'compare_with uses the column "shop", which the rows lack'),
        ("store STRING, n INT", {}, 'compare_with uses the column "window", which the rows lack'),
        ("store STRING, window INT", {}, 'the column "window" is not a window'),
        (f"{SALES}, sales_ratio DOUBLE", {}, 'the rows already have a column "sales_ratio"'),
    ],
)
def test_mistakes_are_refused_while_building(schema, changed, says):
    with pytest.raises(Invalid, match=says):
        TestStream(schema).run(lambda rows: compare_with(rows, **{"earlier": "7 days", **changed}))


@pytest.mark.parametrize(
    ("results", "says"),
    [("discard", "cannot be compared"), ("accumulate", "compare_with needs lateness=")],
)
def test_windows_that_are_corrected_say_for_how_long_and_not_in_parts(results, says):
    def hour_before(rows):
        hours = windowed(rows, tumbling("1 hour"), aggregates="count(*) AS n", lateness="2 hours", results=results)
        return compare_with(hours, earlier="1 hour")

    with pytest.raises(Invalid, match=says):
        TestStream("at TIMESTAMP", event_time="at").run(hour_before)
