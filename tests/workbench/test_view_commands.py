"""mainstem view list, describe, read, get, versions, drop: on views that flows wrote."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from mainstem.batch import Batch, FlowRun
from mainstem.errors import NotYet
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.views.view import View
from tests.workbench.ran_flows import began, killed

COMMAND = [sys.executable, "-c", "from mainstem.workbench.cli.main import main; main()"]
SCHEMA = pa.schema({"store": pa.string(), "day": pa.date32(), "revenue": pa.decimal128(10, 2), "n": pa.int64()})


def row(store: str, day: int, revenue: str | None, n: int) -> dict[str, object]:
    from datetime import date
    from decimal import Decimal

    return {"store": store, "day": date(2026, 1, day), "revenue": None if revenue is None else Decimal(revenue), "n": n}


def write(view: View, rows: list[dict[str, object]], number: int, run: FlowRun, end: int = 0) -> None:
    writer = view.writer(run, SCHEMA)
    writer.apply(pa.Table.from_pylist(rows, SCHEMA), Batch(number, run, {"orders": {0: end}}))
    writer.close()


@pytest.fixture
def revenue(stem, orders):
    """A view of three rows that has applied one record of two; its flow was killed."""
    orders.append([{"order_id": "a"}, {"order_id": "b"}], partition=0)
    run = began(stem, "revenue", sink="view revenue")
    view = View(stem.home, "revenue", key=["store", "day"])
    write(view, [row("Berlin", 1, "12.50", 2), row("Berlin", 2, "7.00", 1), row("Paris", 1, None, 0)], 0, run, end=1)
    killed(stem, run)
    yield view
    view.close()


def test_list_shows_the_views(cli, stem, revenue):
    heading, _, line = cli("view", "list").out.splitlines()

    assert heading.split()[:8] == ["view", "key", "rows", "on", "disk", "live", "versions", "flow"]
    assert heading.split().count("size") == 1  # of what it is behind
    assert line.split()[:4] == ["revenue", "store,", "day", "3"]
    [facts] = cli("view", "list", "--json").json
    assert (facts["view"], facts["key"], facts["rows"], facts["live"]) == ("revenue", ["store", "day"], 3, 1)
    assert (facts["flow"], facts["batch"], facts["offsets"]) == ("revenue", 0, {"orders": {"0": 1}})
    assert facts["lag"]["records"] == 1


def test_a_home_without_views(cli, orders):
    assert cli("view", "list") == (0, "no views yet\n", "")
    first, _, hint = cli("view", "read", "revenue").error
    assert first == 'mainstem.ViewNotFound: view "revenue" does not exist'
    assert "run the program" in hint
    assert not Path("shop/views").exists()


def test_a_topic_and_a_view_are_not_taken_for_each_other(cli, orders, revenue):
    assert cli("topic", "read", "revenue").error == [
        'mainstem.TopicNotFound: topic "revenue" does not exist',
        'Detail: The log in "shop" has 1 topic: orders.',
        'Hint: "revenue" is a view: use stem.view("revenue"), or mainstem view read revenue.',
    ]
    assert cli("view", "get", "orders", "o-1").error == [
        'mainstem.ViewNotFound: view "orders" does not exist',
        f'Detail: The home "{os.path.abspath("shop")}" has these views: revenue.',
        'Hint: "orders" is a topic: mainstem topic read orders',
    ]
    assert cli("topic", "create", "revenue", "--schema", "n INT").error == [
        'mainstem.AlreadyExists: "revenue" is the name of a view',
        "Detail: In SQL a topic hides the view of the same name.",
        "Hint: Give the topic another name.",
    ]


def test_describe_shows_columns_and_how_far_it_is(cli, revenue):
    shown = cli("view", "describe", "revenue").out

    assert "columns       store STRING, day DATE, revenue DECIMAL(10, 2), n BIGINT\n" in shown
    assert "live version  1 of 1\n" in shown
    assert shown.splitlines()[-1].split()[:4] == ["orders", "0", "1", "1"]
    assert cli("view", "describe", "revenue", "--json").json["last_position"] == 3


def test_describe_after_a_topic_was_deleted(cli, stem, revenue):
    stem.delete_topic("orders")

    assert cli("view", "describe", "revenue").out.splitlines()[-1].split() == ["orders", "0", "1", "deleted"]


def test_read_shows_the_rows_by_key(cli, revenue):
    assert cli("view", "read", "revenue").out.splitlines() == [
        "store   day         revenue  n",
        "──────────────────────────────",
        "Berlin  2026-01-01    12.50  2",
        "Berlin  2026-01-02     7.00  1",
        "Paris   2026-01-01     null  0",
    ]
    assert cli("view", "read", "revenue", "--format", "json", "--limit", "1").lines == [
        {"store": "Berlin", "day": "2026-01-01", "revenue": "12.50", "n": 2}
    ]
    assert cli("view", "read", "revenue", "--columns", "n,store", "--format", "csv").out == (
        "store,n\nBerlin,2\nBerlin,1\nParis,0\n"
    )


def test_read_of_a_view_without_rows(cli, stem, orders):
    write(View(stem.home, "empty", key="store"), [], 0, FlowRun("empty", 1))

    assert cli("view", "read", "empty") == (0, "", "no rows\n")
    assert cli("view", "read", "empty", "--format", "csv").out == "store,day,revenue,n\n"


def test_read_of_a_column_that_is_not_there(cli, revenue):
    assert cli("view", "read", "revenue", "--columns", "revenu").error == [
        'mainstem.Invalid: view "revenue" has no column "revenu"',
        "Detail: Its columns are: store, day, revenue, n.",
        'Hint: Did you mean "revenue"?',
    ]


def test_read_follows_the_changes(stem, revenue):
    command = subprocess.Popen(
        [*COMMAND, "view", "read", "revenue", "--follow", "--format", "csv", "--columns", "store,n", "--limit", "5"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert command.stdout is not None
    begun = [command.stdout.readline() for _ in range(4)]
    write(revenue, [row("Paris", 1, "3.00", 5)], 1, FlowRun("revenue", 2))
    rest = command.stdout.read()
    command.stdout.close()

    assert command.wait(300) == 0
    assert "".join(begun) == "change,store,n\ninsert,Berlin,2\ninsert,Berlin,1\ninsert,Paris,0\n"
    assert rest == "delete,Paris,0\ninsert,Paris,5\n"


def test_following_another_version_is_not_understood(cli, revenue):
    assert cli("view", "read", "revenue", "--follow", "--version", "1").status == 2


def test_a_view_with_history_shows_what_it_was(cli, stem, orders):
    view = View(stem.home, "prices", key=["store", "day"], history="30 days")
    run = began(stem, "prices", sink="view prices")
    write(view, [row("Berlin", 1, "12.50", 2)], 0, run, end=1)
    before = view.describe().live.applied_at.isoformat()
    write(view, [row("Berlin", 1, "9.00", 3), row("Paris", 1, None, 0)], 1, run, end=2)

    for as_of in ("orders@0:1", before):
        assert cli("view", "read", "prices", "--as-of", as_of, "--format", "csv").out == (
            "store,day,revenue,n\nBerlin,2026-01-01,12.50,2\n"
        )
        assert cli("view", "get", "prices", "Berlin", "2026-01-01", "--as-of", as_of, "--json").json["n"] == 2
    assert cli("view", "get", "prices", "Paris", "2026-01-01", "--as-of", before).status == 1
    # It may have been empty.
    assert cli("view", "read", "prices", "--as-of", "orders@0:0", "--format", "csv").out == "store,day,revenue,n\n"
    assert cli("view", "read", "prices", "--as-of", "orders@0:3").error[0].startswith("mainstem.NotYet: ")
    assert cli("view", "read", "prices", "--as-of", "2020-01-01T00:00:00Z").error[0] == (
        'mainstem.FellOff: view "prices" no longer has its rows as of 2020-01-01T00:00:00Z'
    )
    assert cli("view", "read", "prices", "--as-of", "yesterday").error[0].startswith("mainstem.Invalid: --as-of")
    assert cli("view", "read", "prices", "--as-of", before, "--follow").status == 2
    assert "history       30 days, since " in cli("view", "describe", "prices").out
    facts = cli("view", "describe", "prices", "--json").json
    assert (facts["history_seconds"], facts["history_since"] < before) == (30 * 86_400, True)
    view.close()


def test_a_view_without_history_says_so(cli, revenue):
    assert "history       not kept\n" in cli("view", "describe", "revenue").out
    assert cli("view", "read", "revenue", "--as-of", "orders@0:1").error[0] == (
        'mainstem.Invalid: view "revenue" keeps no history'
    )


# One row


def test_get_gives_the_row_of_a_key(cli, revenue):
    assert cli("view", "get", "revenue", "Berlin", "2026-01-02").out.splitlines() == [
        "store    Berlin",
        "day      2026-01-02",
        "revenue  7.00",
        "n        1",
    ]
    assert cli("view", "get", "revenue", "Paris", "2026-01-01", "--json").json == {
        "store": "Paris", "day": "2026-01-01", "revenue": None, "n": 0,
    }  # fmt: skip


def test_get_of_a_key_that_is_not_there(cli, revenue):
    assert cli("view", "get", "revenue", "Rome", "2026-01-01").error == [
        'mainstem.NotFound: view "revenue" has no row with the key Rome, 2026-01-01',
        "Detail: Its key is store, day.",
        "Hint: List its rows: mainstem view read revenue --limit 10",
    ]


def test_get_of_what_is_no_key(cli, revenue):
    assert cli("view", "get", "revenue", "Rome").error == [
        'mainstem.Invalid: a key of view "revenue" has 2 values, not 1',
        "Detail: Its columns are: store, day.",
        "Hint: For example: mainstem view get revenue STORE DAY",
    ]
    assert cli("view", "get", "revenue", "Rome", "yesterday").error[0] == (
        'mainstem.Invalid: column "day" is DATE, got the text "yesterday"'
    )


def test_get_waits_for_an_append_and_says_what_is_missing(cli, revenue):
    key = ("Berlin", "2026-01-01")
    assert cli("view", "get", "revenue", *key, "--after", "orders@0:1").status == 0
    first, detail, _ = cli("view", "get", "revenue", *key, "--after", "orders@0:2", "--wait", "1 millisecond").error
    assert first.startswith("mainstem.NotYet")
    assert "orders[0] is applied up to 1, required is 2" in detail


def test_get_with_a_struct_in_the_key(cli, stem, orders):
    window = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
    rows = pa.table({"window": pa.array([{"start": 0, "end": 60_000_000}], window), "n": [3]})
    view = View(stem.home, "per_minute", key="window")
    run = FlowRun("per_minute", 1)
    view.writer(run, rows.schema).apply(rows, Batch(0, run))

    key = '{"start": "1970-01-01T00:00:00Z", "end": "1970-01-01T00:01:00Z"}'
    assert cli("view", "get", "per_minute", key, "--json").json["n"] == 3


def test_pages_follow_one_another(cli, revenue):
    said = cli("view", "page", "revenue", "--limit", "2")

    assert [line.split()[:2] for line in said.out.splitlines()[2:]] == [
        ["Berlin", "2026-01-01"],
        ["Berlin", "2026-01-02"],
    ]
    command = "mainstem view page revenue --after=Berlin --after=2026-01-02 --limit=2"
    assert said.err == f"next page: {command}\n"
    last = cli(*command.split()[1:])
    assert ([line.split()[0] for line in last.out.splitlines()[2:]], last.err) == (["Paris"], "")
    first = cli("view", "page", "revenue", "--limit", "1", "--json").json
    assert first == {
        "view": "revenue",
        "rows": [{"store": "Berlin", "day": "2026-01-01", "revenue": "12.50", "n": 2}],
        "after": ["Berlin", "2026-01-01"],
    }
    assert cli("view", "page", "revenue", "--after", "Zagreb", "--after", "2026-01-01", "--json").json["rows"] == []
    assert cli("view", "page", "revenue", "--after", "Berlin").error[0] == (
        'mainstem.Invalid: a key of view "revenue" has 2 values, not 1'
    )
    assert cli("view", "page", "revenue", "--as-of", "orders@0:1").error[0] == (
        'mainstem.Invalid: view "revenue" keeps no history'
    )


@pytest.mark.usefixtures("per_minute")
def test_the_next_page_is_named_exactly_also_with_windows(cli):
    import shlex

    pages = [cli("view", "page", "per_minute", "--limit", "1")]
    while pages[-1].err:
        pages.append(cli(*shlex.split(pages[-1].err.removeprefix("next page: mainstem "))))
    whole = cli("view", "page", "per_minute")
    assert [page.out.splitlines()[2].split() for page in pages] == [line.split() for line in whole.out.splitlines()[2:]]


def test_a_program_can_wait_for_an_append_too(revenue):
    assert revenue.wait_for("orders@0:1") is None
    with pytest.raises(NotYet):
        revenue.wait_for("orders@0:2", wait="1 millisecond")


# A window in the key is named by its start.


@pytest.fixture
def per_minute(stem, orders):
    """Three minutes of Berlin, one of which begins at the same time on another day, and one of Rome."""
    from datetime import UTC, datetime, timedelta

    window = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
    schema = pa.schema({"window": window, "store": pa.string(), "n": pa.int64()})
    starts = [(16, 20, "Berlin", 1), (17, 20, "Berlin", 2), (17, 21, "Berlin", 3), (17, 20, "Rome", 4)]
    rows = []
    for day, minute, store, n in starts:
        start = datetime(2026, 11, day, 12, minute, tzinfo=UTC)
        rows.append({"window": {"start": start, "end": start + timedelta(minutes=1)}, "store": store, "n": n})
    view = View(stem.home, "per_minute", key=["window", "store"])
    run = FlowRun("per_minute", 1)
    view.writer(run, schema).apply(pa.Table.from_pylist(rows, schema), Batch(0, run))


@pytest.mark.parametrize(
    ("key", "n"),
    [
        (["12:21", "Berlin"], 3),
        (["Berlin", "12:21"], 3),
        (["12:20", "Rome"], 4),
        (["2026-11-16 12:20", "Berlin"], 1),
        (["2026-11-17 12:20:00", "Berlin"], 2),
        (["2026-11-17T12:20:00Z", "Berlin"], 2),
        (["2026-11-17T13:20+01:00", "Berlin"], 2),
        (["2026-11-17 12:20-12:21", "Berlin"], 2),
        (['{"start": "2026-11-17T12:20:00Z", "end": "2026-11-17T12:21:00Z"}', "Rome"], 4),
    ],
)
@pytest.mark.usefixtures("per_minute")
def test_get_finds_a_window_by_its_start(cli, key, n):
    assert cli("view", "get", "per_minute", *key, "--json").json["n"] == n


@pytest.mark.usefixtures("per_minute")
def test_a_start_of_several_windows_is_answered_with_the_candidates(cli):
    assert cli("view", "get", "per_minute", "12:20", "Berlin").error == [
        'mainstem.Invalid: 2 rows of view "per_minute" have such a key',
        "Detail: They are: 2026-11-16 12:20-12:21 Berlin, 2026-11-17 12:20-12:21 Berlin.",
        'Hint: Write the date, and the end if windows overlap: "2026-11-16 12:20-12:21"',
    ]


@pytest.mark.usefixtures("per_minute")
def test_a_window_that_no_row_has(cli):
    assert cli("view", "get", "per_minute", "12:22", "Berlin").error == [
        'mainstem.NotFound: view "per_minute" has no row with the key 12:22, Berlin',
        "Detail: Its key is window, store; a window is found by its start, in UTC.",
        "Hint: List its rows: mainstem view read per_minute --limit 10",
    ]
    first, _, hint = cli("view", "get", "per_minute", "noon", "Berlin").error
    assert first == (
        'mainstem.Invalid: column "window" is STRUCT<start: TIMESTAMP, end: TIMESTAMP>, got the text "noon"'
    )
    assert hint == 'Hint: Write its start, as in 12:20 or "2026-11-17 12:20".'
    for key in (["25:99", "Berlin"], ["Berlin", "25:99"]):
        assert cli("view", "get", "per_minute", *key).error == [
            'mainstem.Invalid: "25:99" is not a time',
            (
                "Detail: A window is written by its start, with its end if windows overlap. Hours are 0 to 23, minutes 00 to "
                "59."
            ),
            'Hint: For example: 12:20, 12:20-12:21 or "2026-11-17 12:20".',
        ]
    assert cli("view", "get", "per_minute", "Berlin", "12:20-").error[0] == 'mainstem.Invalid: "12:20-" is not a time'
    assert cli("view", "get", "per_minute", '{"start": "2026-11-17T12:20:00Z"}', "Rome").error[2] == (
        'Hint: A window in JSON has its start and its end. Write its start, as in 12:20 or "2026-11-17 12:20".'
    )


# Versions


@pytest.fixture
def two_versions(revenue):
    """A second version with other rows; the first one is live."""
    revenue.new_version(SCHEMA)
    write(revenue, [row("Berlin", 1, "13.50", 2), row("Rome", 1, "1.00", 1)], 0, FlowRun("revenue", 3, version=2))
    return revenue


def test_versions_are_listed_used_and_dropped(cli, two_versions):
    def live() -> list[tuple[int, bool, int]]:
        return [(it["version"], it["live"], it["rows"]) for it in cli("view", "versions", "revenue", "--json").json]

    assert live() == [(1, True, 3), (2, False, 2)]
    assert cli("view", "read", "revenue", "--version", "2", "--format", "csv", "--columns", "store").out == (
        "store\nBerlin\nRome\n"
    )
    assert cli("view", "versions", "revenue", "--use", "2").status == 0
    assert live() == [(1, False, 3), (2, True, 2)]
    assert cli("view", "versions", "revenue", "--drop", "2").error[0].startswith("mainstem.Conflict")
    heading, _, line = cli("view", "versions", "revenue", "--drop", "1").out.splitlines()
    assert (heading.split()[:3], line.split()[:3]) == (["version", "live", "rows"], ["2", "live", "2"])
    assert cli("view", "versions", "revenue", "--use", "7").error[0].startswith("mainstem.ViewNotFound")


# Dropping


def test_drop_removes_the_view_and_its_flow_s_checkpoint(cli, stem, revenue):
    assert cli("view", "drop", "revenue", "--yes") == (0, "dropped view revenue\n", "")
    assert cli("view", "list").out == "no views yet\n"
    assert not FlowStore(stem.home, "revenue").exists()


def test_drop_asks_first(cli, revenue):
    said = cli("view", "drop", "revenue")

    assert (said.status, said.out) == (2, "")
    assert said.err.splitlines() == [
        "mainstem.Invalid: nothing was deleted: the command needs a confirmation",
        "Detail: Standard input is not a terminal, so it cannot ask.",
        "Hint: Add --yes to confirm.",
    ]
    assert cli("view", "list", "--json").json[0]["rows"] == 3


def test_a_view_that_is_being_written_is_not_dropped(cli, stem, revenue):
    began(stem, "revenue", sink="view revenue")

    first, _, hint = cli("view", "drop", "revenue", "--yes").error
    assert first == 'mainstem.Invalid: view "revenue" is being written'
    assert hint == "Hint: Stop it first: mainstem flow stop revenue"
