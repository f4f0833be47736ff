"""mainstem query."""

import subprocess
import sys

import pyarrow as pa
import pytest

from mainstem.batch import Batch, FlowRun
from mainstem.errors import Invalid
from mainstem.views.view import View
from tests.log.endless_query import ENDLESS, ctrl_c_in_a_query


@pytest.fixture
def sales(orders):
    orders.append(
        [
            {"order_id": "o-1", "store": "Berlin", "amount": 12.5},
            {"order_id": "o-2", "store": "Paris", "amount": 30.0},
            {"order_id": "o-3", "store": "Berlin", "amount": 7.5},
        ]
    )
    return orders


REVENUE = "SELECT store, sum(amount) AS revenue FROM orders GROUP BY store ORDER BY store"


def test_the_answer_is_a_table(cli, sales):
    said = cli("query", REVENUE)

    heading, _, *lines = said.out.splitlines()
    assert (said.status, said.err) == (0, "")
    assert heading.split() == ["store", "revenue"]
    assert [line.split() for line in lines] == [["Berlin", "20.0"], ["Paris", "30.0"]]


def test_the_answer_as_json_and_csv(cli, sales):
    assert cli("query", REVENUE, "--format", "json").lines == [
        {"store": "Berlin", "revenue": 20.0},
        {"store": "Paris", "revenue": 30.0},
    ]
    assert cli("query", REVENUE, "--format", "csv").out == "store,revenue\nBerlin,20.0\nParis,30.0\n"


def test_parameters_stand_for_question_marks(cli, sales):
    said = cli(
        "query", "SELECT order_id FROM orders WHERE store = ? AND amount > ?", "--parameter", "Berlin", "--parameter", "10",
        "--format", "json",
    )  # fmt: skip

    assert said.lines == [{"order_id": "o-1"}]


def test_a_question_from_standard_input(cli, sales):
    assert cli("query", "-", "--format", "json", stdin="SELECT count(*) AS n\nFROM orders").lines == [{"n": 3}]


def test_records_can_be_asked_for(cli, sales):
    [answer] = cli(
        "query", "SELECT record.change AS change, count(*) AS n FROM orders GROUP BY 1", "--format", "json"
    ).lines

    assert answer == {"change": "insert", "n": 3}


def test_types_that_topics_do_not_have(cli, stem):
    sql = """SELECT 170141183460469231731687303715884105727::HUGEINT AS huge, 1.50::DECIMAL(4, 2) AS price, [1, 2] AS list,
        {'a': 1} AS struct, INTERVAL 1 DAY AS length, 'x'::ENUM('x', 'y') AS word, NULL AS nothing,
        TIME '09:00:00' AS time, 18446744073709551615::UBIGINT AS long, MAP {'k': 1} AS map, UUID '00000000-0000-0000-0000-000000000001' AS id"""

    said = cli("query", sql, "--format", "json")

    assert said.status == 0, said.err
    [answer] = said.lines
    assert (answer["price"], answer["list"], answer["struct"], answer["map"]) == ("1.50", [1, 2], {"a": 1}, {"k": 1})
    assert (answer["word"], answer["nothing"], answer["time"], answer["long"]) == ("x", None, "09:00:00", 2**64 - 1)
    assert cli("query", sql).status == 0
    assert cli("query", sql, "--format", "csv").status == 0


def test_an_answer_without_rows(cli, sales):
    assert cli("query", "SELECT store FROM orders WHERE false") == (0, "", "no rows\n")
    assert cli("query", "SELECT store FROM orders WHERE false", "--format", "csv").out == "store\n"


@pytest.mark.parametrize(
    "sql",
    [
        "SELEC store FROM orders",
        "SELECT stroe FROM orders",
        "SELECT * FROM ordres",
        "SELECT store FROM orders WHERE store = ?",
    ],
)
def test_a_question_that_cannot_be_asked(cli, sales, sql):
    error = cli("query", sql).error

    assert error[0].startswith(("mainstem.Invalid: ", "mainstem.TopicNotFound: "))
    assert error[-1].startswith("Hint: ")


def test_a_question_sees_views_beside_topics(cli, stem, orders):
    orders.append([{"order_id": "a", "store": "Berlin"}, {"order_id": "b", "store": "Paris"}])
    rows = pa.table({"store": ["Berlin", "Rome"], "revenue": [12, 7]})
    run = FlowRun("revenue", 1)
    stem.view("revenue", key="store").writer(run, rows.schema).writer.apply(rows, Batch(0, run))

    assert cli("query", "SELECT max(revenue) AS best FROM revenue", "--format", "json").lines == [{"best": 12}]
    assert cli(
        "query", "SELECT order_id, revenue FROM orders JOIN revenue USING (store)", "--format", "json"
    ).lines == [{"order_id": "a", "revenue": 12}]
    _, detail, hint = cli("query", "SELECT * FROM revenu").error
    assert "There are these views: revenue." in detail
    assert hint == 'Hint: Did you mean "revenue"?'


def test_ctrl_c_ends_a_query(cli, stem):
    with ctrl_c_in_a_query():
        assert cli("query", ENDLESS).status == 130


def test_a_query_that_heeds_no_interrupt_is_left_without_a_complaint(stem):
    distance = "SELECT levenshtein(repeat('a', 200000), repeat('b', 200000))"
    command = [sys.executable, "-m", "mainstem.workbench.cli.main", "query", distance, "--timeout", "50 milliseconds"]

    said = subprocess.run(command, capture_output=True, text=True)

    assert (said.returncode, said.stdout) == (1, "")
    assert [line.partition(": ")[0] for line in said.stderr.splitlines()] == ["mainstem.Invalid", "Detail", "Hint"]


def test_show_tables_names_all_that_can_be_asked(cli, stem, orders):
    rows = pa.table({"store": ["Berlin"], "revenue": [12]})
    run = FlowRun("revenue", 1)
    stem.view("revenue", key="store").writer(run, rows.schema).writer.apply(rows, Batch(0, run))

    assert cli("query", "show tables;", "--format", "json").lines == [
        {"name": "orders", "kind": "topic"},
        {"name": "revenue", "kind": "view"},
    ]


def test_a_query_has_limits(cli, sales):
    assert cli("query", ENDLESS, "--timeout", "50 milliseconds").error == [
        "mainstem.Invalid: the query took longer than 50 milliseconds",
        "Detail: It was cancelled; a query changes nothing.",
        "Hint: Read less (fewer columns, a WHERE, a LIMIT), or raise the timeout.",
    ]
    assert cli("query", "SELECT * FROM orders", "--rows-max", "2").error[0] == (
        "mainstem.Invalid: the result has more than 2 rows"
    )
    assert "60 seconds" in cli("query", "--help").out


def test_a_query_writes_no_file(cli, sales, place):
    first, *_, hint = cli("query", "COPY orders TO 'orders.csv'").error

    assert first == "mainstem.Invalid: a query only reads, and this one is COPY"
    assert "--format csv > answer.csv" in hint
    assert not (place / "orders.csv").exists()


def test_ctrl_c_before_the_home_is_open_has_the_same_status(cli, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("mainstem.workbench.cli.query_command.open_home", interrupted)
    assert cli("query", "SELECT 1").status == 130


# Columns that are words of SQL, and statements that write


def test_a_column_that_is_a_reserved_word_is_quoted(cli, stem):
    stem.create_topic("panes", schema="window STRING, `order` INT, n INT").append([{"window": "a", "order": 1, "n": 2}])

    def hint(sql: str) -> str:
        return cli("query", sql).error[-1]

    assert hint("SELECT window FROM panes") == (
        'Hint: window is a reserved word of SQL: as a column it is quoted, "window".'
    )
    assert hint("SELECT window, order FROM panes") == (
        'Hint: window and order are reserved words of SQL: as columns they are quoted, "window", "order".'
    )
    assert cli("query", 'SELECT "window" FROM panes', "--format", "json").lines == [{"window": "a"}]
    assert hint("SELECT \"window\", 'order' FRM panes").startswith("Hint: Topics and views are tables")


def test_text_in_double_quotes_and_a_question_mark_without_a_value_are_told(cli, sales):
    assert cli("query", 'SELECT * FROM orders WHERE store = "Berlin"').error[2] == (
        "Hint: Text is in single quotes: 'Berlin'. In double quotes it is the name of a column."
    )
    assert cli("query", "SELECT * FROM orders WHERE store = ?").error[2] == (
        'Hint: Give a value for each ?: query(sql, ["Berlin"]), or on the command line --parameter Berlin.'
    )


def test_a_column_of_a_view_that_is_a_reserved_word_is_quoted(cli, stem):
    view = View(stem.home, "per_minute", key="window")
    rows, run = pa.table({"window": ["a"], "n": [3]}), FlowRun("per_minute", 1)
    view.writer(run, rows.schema).apply(rows, Batch(0, run))

    assert cli("query", "SELECT window FROM per_minute").error[-1].startswith("Hint: window is a reserved word")
    with pytest.raises(Invalid) as refused:
        view.query("SELECT window FROM per_minute")
    assert refused.value.hint.startswith("window is a reserved word")


@pytest.mark.parametrize(
    ("sql", "way"),
    [
        (
            "DELETE FROM orders",
            "Hint: A topic is append-only: append the new row; or, if it has a key, a deletion of the key",
        ),
        ("UPDATE orders SET amount = 1", "Hint: A topic is append-only: append the new row"),
        ("INSERT INTO orders VALUES (1)", "Hint: A topic is append-only: append rows with topic.append(rows)"),
        ("DROP TABLE orders", "Hint: Topics are created, altered and deleted with mainstem topic"),
    ],
)
def test_a_statement_that_writes_is_answered_with_the_way_to_do_it(cli, sales, sql, way):
    first, _, hint = cli("query", sql).error

    assert first == f"mainstem.Invalid: a query only reads, and this one is {sql.split()[0]}"
    assert hint.startswith(way)
