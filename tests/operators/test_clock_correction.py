"""clock_corrected, late_rows and on_time_rows without Spark; with Spark they are in tests/spark."""

from datetime import timedelta

import pytest

from mainstem.errors import Invalid
from mainstem.log.record import EVENT_TIME_MARK
from mainstem.operators import clock_corrected, late_rows, on_time_rows
from mainstem.operators.stage.frame_columns import event_time_of
from mainstem.testing import TestStream
from tests.operators.visits import at

TAPS = TestStream("n INT, tapped TIMESTAMP, sent TIMESTAMP, came TIMESTAMP", event_time="tapped")
HOUR = timedelta(hours=1)


def tap(n, tapped, sent, came):
    return {"n": n, "tapped": tapped, "sent": sent, "came": came}


def corrected(rows):
    return clock_corrected(rows, occurred="tapped", sent="sent", received="came")


def test_a_wrong_clock_is_put_right_by_the_time_at_which_the_row_was_sent_and_came():
    script = TAPS.rows(
        [
            tap(1, at(0) - 3 * HOUR, at(1) - 3 * HOUR, at(1)),
            tap(2, at(0) + 48 * HOUR, at(1) + 48 * HOUR, at(1)),
            tap(3, at(0), None, at(1)),
            tap(4, at(0) - 24 * HOUR, at(1) - 24 * HOUR, at(1)),
        ]
    )

    rows = script.run(corrected).rows

    assert [
        (row["corrected_at"], row["drift_us"] and row["drift_us"] / 3.6e9, row["drift_outlier"]) for row in rows
    ] == [
        (at(0), 3.0, False),
        (at(0), -48.0, True),
        (at(0), None, True),
        # A drift of exactly the limit is none beyond it.
        (at(0), 24.0, False),
    ]
    assert list(rows[0]) == ["n", "tapped", "sent", "came", "corrected_at", "drift_us", "drift_outlier"]


def test_the_corrected_time_is_the_event_time_from_then_on():
    marked = []

    def noted(rows):
        given = corrected(rows)
        marked.extend(field.name for field in given.schema if EVENT_TIME_MARK.keys() & (field.metadata or {}).keys())
        assert event_time_of(given.schema, "test") == "corrected_at"
        return late_rows(given)

    script = TAPS.watermark(at(0)).rows(
        [tap(1, at(0) - 3 * HOUR, at(1) - 3 * HOUR, at(1)), tap(2, at(-1), at(0), at(0))]
    )

    assert [row["n"] for row in script.run(noted).rows] == [2]
    assert marked == ["corrected_at"]


def test_received_is_the_time_of_the_append_unless_said_otherwise():
    script = TAPS.now(at(5)).rows([tap(1, at(0), at(2), None)])

    rows = script.run(lambda rows: clock_corrected(rows, occurred="tapped", sent="sent")).rows

    assert rows[0]["corrected_at"] == at(3)


def test_every_row_is_late_or_on_time_and_never_both():
    script = TAPS.rows([tap(0, at(-9), None, None)]).watermark(at(0))
    script = script.rows([tap(1, at(-0.001), None, None), tap(2, at(0), None, None), tap(3, None, None, None)])

    assert [row["n"] for row in script.run(late_rows).rows] == [1]
    assert [row["n"] for row in script.run(on_time_rows).rows] == [0, 2, 3]


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        (lambda rows: clock_corrected(rows, occurred="tap", sent="sent"), '"tap", which the rows lack'),
        (lambda rows: clock_corrected(rows, occurred="n", sent="sent"), '"n" is not a time'),
        (lambda rows: clock_corrected(rows, occurred="tapped", sent="record.sent"), '"record.sent" is not a time'),
        (lambda rows: clock_corrected(rows, occurred="tapped", sent="sent", by="n"), "cannot be computed in a stream"),
        (lambda rows: corrected(corrected(rows)), 'already have a column "corrected_at"'),
    ],
)
def test_mistakes_are_refused_while_building(operator, says):
    with pytest.raises(Invalid, match=says):
        TAPS.run(operator)


def test_late_rows_need_a_watermark():
    with pytest.raises(Invalid, match="late_rows needs one event time, and no columns are marked as event time"):
        TestStream("at TIMESTAMP").run(late_rows)
