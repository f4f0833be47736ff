"""TestStream without Spark: what its steps mean, and what it refuses."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

import pytest

from mainstem.errors import Invalid, InvalidRows
from mainstem.operators import (
    Process,
    aggregate,
    dedupe,
    late_rows,
    on_time_rows,
    process,
    table,
    tumbling,
    windowed,
)
from mainstem.testing import TestResults, TestStream, TestStreams
from tests.operators.visits import Visits, at

STREAM = TestStream("n INT, at TIMESTAMP", event_time="at")


class Seen(Process):
    """Puts out what a row and the clock say."""

    output = "n INT, offset BIGINT, watermark TIMESTAMP, now TIMESTAMP"

    @dataclass
    class State:
        pass

    def on_rows(self, key, rows, state, timers):
        for row in rows:
            record = row["record"]
            yield {"n": row["n"], "offset": record["offset"], "watermark": record["watermark"], "now": timers.now}


def seen(script, **how):
    return [tuple(row.values()) for row in script.run(lambda rows: process(rows, by="n", using=Seen), **how).rows]


def test_a_row_knows_the_watermark_that_was_stated_before_it():
    first = datetime(2026, 1, 1, tzinfo=UTC)
    script = STREAM.rows([{"n": 1}]).watermark("2026-01-01 12:05").now(at(7)).rows([{"n": 2}, {"n": 3}])

    assert seen(script) == [(1, 0, None, first), (2, 1, at(5), at(7)), (3, 2, at(5), at(7))]
    assert seen(script, batches="single rows") == seen(script)
    # In one batch it is as late for all of them as for the last.
    assert seen(script, batches="one") == [(1, 0, None, at(7)), (2, 1, at(5), at(7)), (3, 2, at(5), at(7))]


def test_with_a_delay_the_watermark_follows_the_slowest_partition():
    script = TestStream("n INT, at TIMESTAMP", event_time="at", delay="2 minutes")
    script = script.rows([{"n": 1, "at": at(10)}]).rows([{"n": 2, "at": at(4)}], partition=1).rows([{"n": 3}])
    script = script.rows([{"n": 4, "at": at(9)}], partition=1).watermark(at(7.5)).rows([{"n": 5}])

    assert [(n, watermark) for n, _, watermark, _ in seen(script)] == [
        (1, None), (2, None), (3, at(2)), (4, at(2)), (5, at(7.5)),
    ]  # fmt: skip


def test_cut_into_single_rows_no_batch_knows_more_than_the_rows_after_it():
    script = TestStream("user STRING, page STRING, at TIMESTAMP", event_time="at", delay="0 seconds")
    script = script.rows(
        [
            {"user": "ada", "page": "/", "at": at(0)},
            {"user": "bob", "page": "/", "at": at(20)},
            {"user": "ada", "page": "/cart", "at": at(3)},
        ]
    )

    for batches in ("scripted", "single rows", "one"):
        [visit] = script.run(lambda rows: process(rows, by="user", using=Visits), batches=batches).rows
        assert visit == {"user": "ada", "pages": ["/", "/cart"], "closed_at": at(8)}, batches


def test_every_method_gives_a_new_script():
    one = STREAM.rows([{"n": 1}])

    assert [row[0] for row in seen(one.rows([{"n": 2}]))] == [1, 2]
    assert [row[0] for row in seen(one)] == [1]
    assert STREAM.steps == ()


def test_times_are_text_in_utc_or_datetimes_with_a_zone():
    berlin = datetime(2026, 1, 1, 13, 1, tzinfo=timezone(timedelta(hours=1)))
    script = STREAM.watermark(at(0)).rows([{"n": 1, "at": "2026-01-01 12:01"}, {"n": 2, "at": berlin}])
    script = script.rows([{"n": 3, "at": "2026-01-01T12:01:00+01:00"}])

    results = script.run(late_rows)

    assert [row["n"] for row in results.rows] == [3]
    assert [row["at"] for row in script.run(on_time_rows).rows] == [at(1), at(1)]


class Drifting(Seen):
    """Not a function of its rows: it counts how often it was asked."""

    asked = 0

    def on_rows(self, key, rows, state, timers):
        for _ in rows:
            Drifting.asked += 1
            yield {"n": Drifting.asked}


def test_a_batch_that_is_killed_must_give_the_same_again():
    script = STREAM.rows([{"n": 1}])

    assert script.kill().run(lambda rows: process(rows, by="n", using=Seen)).killed == 1
    script.run(lambda rows: process(rows, by="n", using=Drifting))
    with pytest.raises(AssertionError, match='stage "process-1" ran a batch twice from the same state'):
        script.kill().run(lambda rows: process(rows, by="n", using=Drifting))


def test_stages_follow_one_another_and_are_told_apart():
    def twice(rows):
        return dedupe(dedupe(rows, by="n", within="1 minute"), by="n", within="10 minutes")

    script = STREAM.rows([{"n": 1, "at": at(0)}, {"n": 1, "at": at(0.5)}]).rows([{"n": 1, "at": at(5)}])

    results = script.run(twice)

    assert [row["at"] for row in results.rows] == [at(0)]
    assert results.counts == {"duplicates": 2}
    assert results.state_rows == {"dedupe-1": 2, "dedupe-2": 1}


def test_late_rows_are_told_with_times_as_times():
    script = STREAM.watermark(at(5)).rows([{"n": 7, "at": at(1)}])

    [late] = script.run(lambda rows: windowed(rows, tumbling("1 minute"), by="n", aggregates="count(*) AS c")).late

    assert (late["n"], late["time"], late["watermark"], late["window_end"]) == (7, at(1), at(5), at(2))


def test_what_a_view_would_hold_is_the_latest_of_each_key():
    results = TestResults(
        [
            [("insert", {"key": {"start": 1}, "n": 1}), ("insert", {"key": {"start": 2}, "n": 2})],
            [("update", {"key": {"start": 1}, "n": 3}), ("delete", {"key": {"start": 2}, "n": 2})],
        ]
    )

    assert results.latest("key") == [{"key": {"start": 1}, "n": 3}]
    assert [row["n"] for row in results.rows] == [1, 2, 3]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: TestStream("n INT", event_time="at"), 'the stream lacks the column "at", its event time'),
        (STREAM.kill, "there is no step to kill yet"),
        (lambda: TestStream("n INT").watermark(at(0)), "the stream has no event time"),
        (lambda: STREAM.watermark(datetime(2026, 1, 1)), "has no time zone"),  # noqa: DTZ001
        (
            lambda: STREAM.run(lambda rows: rows.where("n > 1")),
            '"where" needs Spark, and this test runs without it',
        ),
        (lambda: STREAM.run(lambda rows: None), "the operator returned a NoneType"),
    ],
)
def test_mistakes_are_refused(wrong, says):
    with pytest.raises(Invalid, match=says):
        wrong()


def test_rows_that_do_not_fit_are_refused_when_they_are_scripted():
    with pytest.raises(InvalidRows):
        STREAM.rows([{"n": "one"}])
    with pytest.raises(Invalid, match="m"):
        STREAM.rows([{"m": 1}])


WRONG_VALUES = [2, None, "x", b"x", [2], [None], ["x"], {"n": 1}, object(), float("nan"), 10**30, True]


@pytest.mark.parametrize(
    "step",
    [
        STREAM.rows,
        STREAM.delete,
        lambda wrong: STREAM.rows([{"n": 1, "record": wrong or 2}]),
        lambda wrong: STREAM.rows([{"n": 1, "record": {"change": wrong or 2}}]),
        lambda wrong: STREAM.rows([{"n": 1, "record": {"chnge": wrong}}]),
        lambda wrong: STREAM.rows([{"n": 1, "at": wrong or 2}]),
        lambda wrong: STREAM.rows([{"n": 1}], partition=-1 if wrong == 2 else wrong),
        lambda wrong: STREAM.delete([{"n": 1}], partition=1024 if wrong == 2 else wrong),
        STREAM.watermark,
        STREAM.now,
        STREAM.run,
        STREAM.run_on_spark,
        lambda wrong: STREAM.run(late_rows, batches=wrong),
        TestStream,
        lambda wrong: TestStream("at TIMESTAMP", event_time=wrong or 2),
        lambda wrong: TestStream("at TIMESTAMP", event_time="at", delay=wrong or 2),
        lambda wrong: TestStream("at TIMESTAMP", event_time="at", idle_after=wrong or 2),
        lambda wrong: TestStreams(one=wrong),
        lambda wrong: TestStreams(one=STREAM).rows(wrong, [{"n": 1}]),
        lambda wrong: TestStreams(one=STREAM).delete("one", wrong),
        lambda wrong: TestStreams(one=STREAM).watermark(wrong, at(0)),
        lambda wrong: TestStreams(one=STREAM).now(wrong),
        lambda wrong: TestStreams(one=STREAM).run(wrong),
        lambda wrong: TestStreams(one=STREAM).run_on_spark(wrong),
    ],
)
def test_wrong_values_are_refused_with_a_detail_and_a_hint(step):
    for wrong in WRONG_VALUES:
        with pytest.raises((Invalid, InvalidRows)) as refused:
            step(wrong)
        assert refused.value.detail, wrong
        assert refused.value.hint, wrong


def test_streams_without_a_stream_are_refused():
    with pytest.raises(Invalid, match="no streams"):
        TestStreams()


def test_a_key_may_have_a_name_that_late_rows_have_too():
    script = TestStream("offset STRING, at TIMESTAMP", event_time="at").watermark("2026-01-01 13:00")
    script = script.rows([{"offset": "news", "at": "2026-01-01 12:00"}])
    for operator in (
        lambda rows: windowed(rows, tumbling("1 minute"), by="offset", aggregates="count(*) AS c"),
        lambda rows: dedupe(rows, by="offset", within="1 minute"),
    ):
        [late] = script.run(operator).late
        assert (late["offset_"], late["offset"]) == ("news", 0)


def test_a_row_says_which_change_it_is():
    stock = TestStream("item STRING, pieces INT").rows([{"item": "pen", "pieces": 3}, {"item": "ink", "pieces": 1}])

    def kept(rows):
        return table(rows, key="item")

    deleted = stock.rows([{"item": "pen", "pieces": 3, "record": {"change": "delete"}}])
    assert deleted.run(kept).latest("item") == stock.delete([{"item": "pen"}]).run(kept).latest("item")
    assert [row["item"] for row in deleted.run(kept).latest("item")] == ["ink"]
    streams = TestStreams(stock=stock).rows("stock", [{"item": "pen", "pieces": 3}]).delete("stock", [{"item": "pen"}])
    assert streams.run(lambda stock: table(stock, key="item")).latest("item") == []
    with pytest.raises(InvalidRows, match=r"record\.change is .remove."):
        stock.rows([{"item": "pen", "record": {"change": "remove"}}])


def test_zero_is_one_key_with_either_sign_and_so_is_nan():
    levels = [0.0, -0.0, float("nan"), float("nan"), 1.0]
    script = TestStream("level DOUBLE").rows([{"level": level} for level in levels]).kill()
    counted = script.run(lambda rows: aggregate(table(rows, key="level"), aggregates=["count(*) AS levels"]))
    assert counted.rows[-1] == {"levels": 3}


def test_a_stream_without_time_holds_nobody_back():
    streams = TestStreams(names=TestStream("n INT, name STRING"), scores=STREAM)
    streams = streams.rows("names", [{"n": 1, "name": "ada"}]).rows("scores", [{"n": 1, "at": at(1)}])

    def counted(names, scores):
        return windowed(scores, tumbling("1 minute"), aggregates=["count(*) AS n"])

    assert len(streams.watermark("scores", at(5)).run(counted).rows) == 1


def test_a_key_that_the_results_do_not_have_is_told():
    with pytest.raises(Invalid) as refused:
        TestResults([[("insert", {"team": "red", "total": 3})]]).latest("teem")
    assert refused.value.parts() == [
        'the results have no column "teem"',
        "Detail: Their columns are: team, total.",
        'Hint: Did you mean "team"?',
    ]
