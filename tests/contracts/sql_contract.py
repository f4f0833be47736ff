"""What a log promises that can be asked in SQL: topics are tables, seen as of one moment."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mainstem.errors import Invalid, MainstemError, NotFound
from mainstem.log.keep_rule import Keep
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.contracts.promises import Promise, promise
from tests.contracts.shown_rows import fill, plain

SALES = [("Berlin", 2.0), ("Köln", 3.0), ("Berlin", 5.0), (None, 7.0)]


class SqlContract:
    """A question is answered from what is committed, whole transactions only."""

    @promise(Promise.SQL)
    def test_topics_are_tables_and_values_are_parameters(self, stem: Mainstem) -> None:
        orders = stem.create_topic("orders", schema="store string, amount double", partitions=3)
        for store, amount in SALES:
            orders.append([{"store": store, "amount": amount}])
        asked = "SELECT store, sum(amount) AS total FROM orders WHERE store = ? GROUP BY store"
        assert stem.query(asked, ["Berlin"]).to_pylist() == [{"store": "Berlin", "total": 7.0}]
        assert stem.query(asked, ["' OR 1=1 --"]).to_pylist() == []
        assert stem.query("SELECT count(*) AS n FROM orders").to_pylist() == [{"n": 4}]
        assert stem.query("SELECT 1 AS one").to_pylist() == [{"one": 1}]

    @promise(Promise.SQL)
    def test_the_record_of_a_row_can_be_asked_too(self, stem: Mainstem, single: Topic) -> None:
        fill(single, 1, 2)
        single.delete(["a"])
        answer = stem.query("SELECT n, record.offset AS place, record.change AS change FROM single ORDER BY place")
        assert answer.to_pylist() == [
            {"n": 1, "place": 0, "change": "insert"},
            {"n": 2, "place": 1, "change": "insert"},
            {"n": None, "place": 2, "change": "delete"},
        ]

    @promise(Promise.SQL)
    def test_topics_can_be_joined(self, stem: Mainstem) -> None:
        orders = stem.create_topic("orders", schema="order_id string, customer bigint")
        customers = stem.create_topic("customers", schema="id bigint, name string, since timestamp")
        orders.append([{"order_id": "o-1", "customer": 1}, {"order_id": "o-2", "customer": 2}])
        customers.append([{"id": 1, "name": "Ada", "since": datetime(2026, 1, 1, tzinfo=UTC)}])
        answer = stem.query(
            "SELECT order_id, name, since FROM orders LEFT JOIN customers ON id = customer ORDER BY order_id"
        ).to_pylist()
        assert answer == [
            {"order_id": "o-1", "name": "Ada", "since": datetime(2026, 1, 1, tzinfo=UTC)},
            {"order_id": "o-2", "name": None, "since": None},
        ]

    @promise(Promise.SQL)
    def test_a_query_sees_through_changes_of_schema(self, stem: Mainstem) -> None:
        topic = stem.create_topic("sizes", schema="n int")
        topic.append([{"n": 1}])
        topic.alter(schema="n bigint, store string")
        topic.append([{"n": 2**40, "store": "Berlin"}])
        assert plain(stem.query("SELECT n, store FROM sizes ORDER BY n")) == [
            {"n": 1, "store": None},
            {"n": 2**40, "store": "Berlin"},
        ]

    @promise(Promise.SQL, Promise.COMPACTED)
    def test_of_a_compacted_topic_one_sees_the_latest_of_each_key(self, stem: Mainstem) -> None:
        topic = stem.create_topic(
            "profiles", schema="k string, n bigint", key="k", partitions=2, keep=Keep.latest_per_key()
        )
        for number, key in enumerate("abcabd"):
            fill(topic, number, key=key)
        topic.delete(["c"])
        asked = "SELECT k, n FROM profiles ORDER BY k"
        expected = [{"k": "a", "n": 3}, {"k": "b", "n": 4}, {"k": "d", "n": 5}]
        assert stem.query(asked).to_pylist() == expected

    @promise(Promise.SQL, Promise.ATOMIC)
    def test_a_query_shows_all_of_a_transaction_or_none(self, opener: Callable[[], Mainstem], stem: Mainstem) -> None:
        for name in ("debits", "credits"):
            stem.create_topic(name, schema="n bigint", partitions=2)
        done = threading.Event()
        failures: list[BaseException] = []

        def write() -> None:
            try:
                with opener() as writer:
                    for number in range(40):
                        transaction = writer.transaction()
                        for name in ("debits", "credits"):
                            transaction.append(name, [{"n": number}])
                        (transaction.abort if number % 4 == 3 else transaction.commit)()
            except BaseException as error:  # noqa: BLE001 - the test raises it
                failures.append(error)
            finally:
                done.set()

        thread = threading.Thread(target=write)
        thread.start()
        torn = []
        while not done.is_set():
            torn += stem.query(
                "SELECT d.n AS debit, c.n AS credit FROM debits d FULL JOIN credits c ON c.n = d.n "
                "WHERE d.n IS NULL OR c.n IS NULL OR d.n % 4 = 3"
            ).to_pylist()
        thread.join()
        assert not failures
        assert torn == []
        assert stem.query("SELECT count(*) AS n FROM debits").to_pylist() == [{"n": 30}]

    @promise(Promise.SQL, Promise.ATOMIC)
    def test_a_query_shows_all_of_a_transaction_or_none_although_another_is_open(self, stem: Mainstem) -> None:
        for name in ("debits", "credits"):
            stem.create_topic(name, schema="n bigint")
        open_one, committed = stem.transaction(), stem.transaction()
        open_one.append("debits", [{"n": 1}])
        for name in ("debits", "credits"):
            committed.append(name, [{"n": 2}])
        committed.commit()
        rows = stem.query("SELECT n FROM debits UNION ALL SELECT n FROM credits").column("n").to_pylist()
        assert rows in ([], [2, 2])
        open_one.abort()

    @promise(Promise.SQL)
    @pytest.mark.parametrize(
        ("sql", "error"),
        [
            ("SELECT * FROM ordres", NotFound),
            ("SELECT m FROM single", Invalid),
            ("SELEC n FROM single", Invalid),
            ("SELECT n / 'a' FROM single", Invalid),
        ],
    )
    def test_a_question_that_is_none_says_what_is_there(
        self, stem: Mainstem, single: Topic, sql: str, error: type[MainstemError]
    ) -> None:
        fill(single, 1)
        with pytest.raises(error) as refused:
            stem.query(sql)
        assert "single" in refused.value.detail + refused.value.hint

    @promise(Promise.SQL)
    def test_a_question_mark_without_a_value_is_told_to_be_given_one(self, stem: Mainstem, single: Topic) -> None:
        fill(single, 1)
        with pytest.raises(Invalid) as refused:
            stem.query("SELECT n FROM single WHERE n = ?")
        assert refused.value.hint == (
            'Give a value for each ?: query(sql, ["Berlin"]), or on the command line --parameter Berlin.'
        )

    @promise(Promise.SQL)
    def test_a_question_only_reads_and_only_topics(self, stem: Mainstem, single: Topic, tmp_path: Path) -> None:
        fill(single, 1)
        secret, new = tmp_path / "secret.csv", tmp_path / "new"
        secret.write_text("a\nhidden\n")
        for sql in (
            "DELETE FROM single",
            "DROP VIEW single",
            "CREATE TABLE other AS SELECT 1",
            "SELECT 1; SELECT 2",
            f"COPY single TO '{new}'",
            f"WITH a AS (COPY (SELECT 1) TO '{new}' (use_tmp_file false)) SELECT 1",
            f"EXPORT DATABASE '{new}'",
            f"ATTACH '{new}' AS other",
            f"SELECT content FROM read_text('{secret}')",
            f"SELECT * FROM '{secret}'",
            "INSTALL httpfs",
            "SET enable_external_access = true",
        ):
            with pytest.raises(Invalid):
                stem.query(sql)
        assert not new.exists()
        assert stem.topics() == ["single"]
        assert stem.query("SELECT n FROM single").to_pylist() == [{"n": 1}]

    @promise(Promise.SQL)
    def test_a_question_has_limits(self, stem: Mainstem, single: Topic) -> None:
        fill(single, 1, 2)
        with pytest.raises(Invalid, match="the result has more than 1 rows"):
            stem.query("SELECT n FROM single", rows_max=1)
        endless = "SELECT sum(n) FROM single, range(100000000) a, range(100000000) b"
        with pytest.raises(Invalid, match="the query took longer than 200 milliseconds"):
            stem.query(endless, timeout="200 milliseconds")

    @promise(Promise.SQL)
    def test_topics_whose_names_differ_by_case_are_two_tables(self, stem: Mainstem) -> None:
        stem.create_topic("orders", schema="n bigint").append([{"n": 1}])
        stem.create_topic("Orders", schema="n bigint").append([{"n": 2}])
        stem.create_topic("returns", schema="n bigint").append([{"n": 3}])

        assert stem.query("SELECT n FROM orders").to_pylist() == [{"n": 1}]
        assert stem.query("SELECT n FROM Orders").to_pylist() == [{"n": 2}]
        assert stem.query("SELECT n FROM RETURNS").to_pylist() == [{"n": 3}]
        both = 'SELECT a.n AS a, b.n AS b FROM orders a, "Orders" b WHERE a.n < ?'
        assert stem.query(both, [9]).to_pylist() == [{"a": 1, "b": 2}]
        assert stem.query("SELECT orders.n, (SELECT max(Orders.n) FROM Orders) AS most FROM orders").to_pylist() == [
            {"n": 1, "most": 2}
        ]
        assert stem.query("EXPLAIN " + both, [9]).num_rows > 0
        with pytest.raises(NotFound) as refused:
            stem.query("SELECT n FROM ORDERS")
        assert "Orders, orders" in refused.value.detail
