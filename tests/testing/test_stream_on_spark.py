"""The same scripts without Spark and with it, same expectations: operators of ours as stages of a real flow."""

from mainstem.operators import compare_with, dedupe, process, tumbling, windowed
from mainstem.testing import TestStream
from tests.operators.visits import Visits, at

PAGES = TestStream("user STRING, page STRING, at TIMESTAMP", event_time="at")


def page(user, name, minute):
    return {"user": user, "page": name, "at": at(minute)}


def in_any_order(results):
    return sorted(str(change) for change in results.changes)


def late_times(results):
    """Without places: behind a stage a row's partition is its bucket."""
    return sorted((row["page"], row["time"], row["watermark"], row["reason"]) for row in results.late)


def test_a_process_gives_the_same_with_spark_killed_in_the_middle(spark):
    script = (
        PAGES.rows([page("ada", "/", 0), page("bob", "/", 1)])
        .rows([page("cleo", "/", 1)], partition=1)
        .rows([page("ada", "/cart", 3), page("bob", "/logout", 4)])
        .kill()
        .watermark(at(6))
        .kill()
        .watermark(at(8))
    )

    def visits(rows):
        return process(rows, by="user", using=Visits)

    alone, with_spark = script.run(visits), script.run_on_spark(visits, spark)

    assert in_any_order(with_spark) == in_any_order(alone)
    assert sorted(row["user"] for row in with_spark.rows) == ["ada", "bob", "cleo"]
    assert with_spark.killed == alone.killed == 2
    assert sum(with_spark.state_rows.values()) == 0


def test_three_stages_in_a_row_give_the_same_with_spark(spark):
    script = (
        PAGES.rows([page("ada", "/", 0), page("ada", "/", 2), page("bob", "/", 3), page("ada", "/", 31)])
        .watermark(at(10))
        .rows([page("ada", "/", 12), page("ada", "/", 15), page("bob", "/", -50), page("bob", "/cart", 16)])
        .kill()
        .watermark(at(20))
        .rows([page("cleo", "/cart", 19), page("cleo", "/", 21)])
        .watermark(at(60))
    )

    def compared(rows):
        once = dedupe(rows, by=["user", "page"], within="10 minutes")
        counted = windowed(once, tumbling("10 minutes"), by="page", aggregates=["count(*) AS users"], on="at")
        return compare_with(counted, earlier="10 minutes")

    alone, with_spark = script.run(compared), script.run_on_spark(compared, spark)

    assert in_any_order(with_spark) == in_any_order(alone)
    assert {row["window"]["start"]: row["users_earlier"] for row in with_spark.rows if row["page"] == "/"} == {
        at(0): None, at(10): 2, at(20): 1, at(30): 1,
    }  # fmt: skip
    assert with_spark.counts == alone.counts == {"duplicates": 2, "too_late": 2}
    assert late_times(with_spark) == late_times(alone)
    assert len(alone.late) == 2
    assert with_spark.killed == 1
