"""What every source of a capture does alike: changes, keys, transactions, snapshots, restarts and the outbox."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Protocol

import pytest

from mainstem import Capture, Conflict, Invalid
from mainstem.capture import CapturedTable, outbox
from mainstem.capture.captured_topics import make_topics
from mainstem.stem import Mainstem

__all__ = ["CapturedSource", "SourceContract"]


class CapturedSource(Protocol):
    """A database that is captured into a home. Its connection begins no transactions by itself."""

    stem: Mainstem
    connection: Any

    home: str

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]: ...

    def capture(self, *tables: str | CapturedTable, **settings: Any) -> Capture: ...

    def run(self, *tables: str | CapturedTable, **settings: Any) -> None: ...

    def records(self, topic: str) -> list[dict[str, Any]]: ...


def replay(captured: CapturedSource, *columns: str) -> list[tuple[Any, ...]]:
    """What the records add up to."""
    found: dict[int, tuple[Any, ...]] = {}
    for row in captured.records("shop.accounts"):
        found.pop(row["id"], None)
        if row["record"]["change"] != "delete":
            found[row["id"]] = tuple(row[name] for name in columns)
    return [found[key] for key in sorted(found)]


def transaction(captured: CapturedSource, statements: Sequence[str], end: str = "COMMIT") -> None:
    for statement in ["BEGIN", *statements, end]:
        captured.sql(statement)


class SourceContract:
    """Tests of a source; a class of a source gives the fixture `captured`, with the table `accounts`."""

    ACCOUNTS = "CREATE TABLE accounts (id INTEGER PRIMARY KEY, owner TEXT, balance DECIMAL(12, 2))"

    def test_rows_are_read_then_followed(self, captured: CapturedSource) -> None:
        captured.sql("INSERT INTO accounts VALUES (1, 'a', 1.5), (2, 'b', 2)")
        captured.run("accounts")
        captured.sql("UPDATE accounts SET balance = 3.25 WHERE id = 2")
        captured.sql("DELETE FROM accounts WHERE id = 1")
        captured.run("accounts")

        found = captured.records("shop.accounts")
        assert [(row["record"]["change"], row["id"], row["balance"], row["origin"]["snapshot"]) for row in found] == [
            ("insert", 1, Decimal("1.50"), True),
            ("insert", 2, Decimal("2.00"), True),
            ("update", 2, Decimal("3.25"), False),
            ("delete", 1, None, False),
        ]

    def test_a_changed_key_is_a_deletion_and_an_insert(self, captured: CapturedSource) -> None:
        captured.sql("INSERT INTO accounts VALUES (1, 'a', 1)")
        captured.run("accounts")
        captured.sql("UPDATE accounts SET id = 7")
        captured.run("accounts")

        gone, come = captured.records("shop.accounts")[1:]
        assert (gone["record"]["change"], gone["id"], gone["owner"]) == ("delete", 1, None)
        assert (come["record"]["change"], come["id"], come["owner"]) == ("insert", 7, "a")
        assert gone["record"]["headers"] == [{"key": "new_key", "value": b'{"id": "7"}'}]
        assert come["record"]["headers"] == [{"key": "old_key", "value": b'{"id": "1"}'}]
        assert [row["origin"]["number"] for row in (gone, come)] == [1, 2]

    def test_what_is_rolled_back_is_not_captured(self, captured: CapturedSource) -> None:
        captured.run("accounts")
        insert = "INSERT INTO accounts VALUES ({}, 'a', 1)"
        transaction(
            captured, [insert.format(1), "SAVEPOINT one", insert.format(2), "ROLLBACK TO one", insert.format(3)]
        )
        transaction(captured, [insert.format(4)], end="ROLLBACK")
        captured.run("accounts")

        assert [row["id"] for row in captured.records("shop.accounts")] == [1, 3]

    def test_a_transaction_is_counted_by_table(self, captured: CapturedSource) -> None:
        captured.sql("CREATE TABLE orders (number INTEGER, line INTEGER, item TEXT, PRIMARY KEY (number, line))")
        captured.run("accounts", "orders")
        transaction(
            captured,
            ["INSERT INTO accounts VALUES (1, 'a', 1)", "INSERT INTO orders VALUES (1, 1, 'book'), (1, 2, 'pen')"],
        )
        captured.run("accounts", "orders")

        found = captured.records("mainstem.capture.shop.transactions")
        [one] = [row for row in found if row["transaction"] is not None]
        assert dict(one["changes"]) == {"accounts": 1, "orders": 2}
        rows = [*captured.records("shop.accounts"), *captured.records("shop.orders")]
        assert {row["origin"]["transaction"] for row in rows} == {one["transaction"]}

    def test_a_topic_adds_up_to_its_table_after_restarts(self, captured: CapturedSource) -> None:
        chance = random.Random(3)
        for round_number in range(5):
            for _ in range(10):
                one, other = chance.sample(range(20), 2)
                statements = [
                    f"DELETE FROM accounts WHERE id = {one}",
                    f"INSERT INTO accounts VALUES ({one}, 'round {round_number}', {other})",
                    f"UPDATE accounts SET balance = {one} WHERE id > {other}",
                    f"UPDATE accounts SET id = {other + 100 * (round_number + 1)} WHERE id = {other}",
                ]
                transaction(
                    captured, statements[: chance.randint(1, 3)], chance.choice(["COMMIT", "COMMIT", "ROLLBACK"])
                )
            captured.run("accounts")

        assert replay(captured, "id", "owner", "balance") == captured.sql("SELECT * FROM accounts ORDER BY id") != []

    def test_a_type_of_an_unknown_column_is_refused_before_anything_is_made(self, captured: CapturedSource) -> None:
        capture = captured.capture("accounts", types={"accounts.ballance": "STRING"})
        with pytest.raises(Invalid) as refused:
            make_topics(captured.stem.log, captured.home, capture)
        assert refused.value.summary == 'types names "accounts.ballance", which is not a captured column'
        assert "accounts.id, accounts.owner, accounts.balance" in refused.value.detail
        assert "accounts.balance" in refused.value.hint
        assert captured.stem.topics() == []

    @pytest.mark.parametrize(
        ("first", "later", "said"),
        [
            ({}, {"partitions": 2}, 'partitions is "1", asked for "2"'),
            ({"partitions": 3}, {"partitions": 2}, 'partitions is "3", asked for "2"'),
            ({}, {"keep": "7 days"}, 'keep is "latest per key (tombstones 1 day)", asked for "7 days"'),
            ({}, {"event_time": "opened_at"}, 'event_time is "none", asked for "opened_at"'),
        ],
    )
    def test_other_settings_of_a_topic_are_refused(
        self, captured: CapturedSource, first: dict[str, Any], later: dict[str, Any], said: str
    ) -> None:
        captured.sql("ALTER TABLE accounts ADD opened_at timestamptz")
        log, home = captured.stem.log, captured.home
        make_topics(log, home, captured.capture(CapturedTable("accounts", **first)))
        with pytest.raises(Conflict) as refused:
            make_topics(log, home, captured.capture(CapturedTable("accounts", **later)))
        assert refused.value.summary == 'topic "shop.accounts" of table "accounts" exists with other settings'
        assert said in refused.value.detail
        # What is left out is as the topic has it, which may have been altered.
        captured.stem.topic("shop.accounts").alter(keep="30 days")
        make_topics(log, home, captured.capture("accounts"))

    def test_a_message_of_the_outbox_is_relayed_once(self, captured: CapturedSource) -> None:
        topic = captured.stem.create_topic("reserved", schema="seat INT, price DECIMAL(5, 2)", key="seat")
        captured.run("accounts", outbox=True)
        for number, end in enumerate(["COMMIT", "ROLLBACK", "COMMIT"]):
            captured.sql("BEGIN")
            captured.sql(f"INSERT INTO accounts VALUES ({number}, 'a', 1)")
            outbox(captured.connection).append("reserved", {"seat": number, "price": Decimal("1.20")}, id=f"m-{number}")
            outbox(captured.connection).append("unknown", {"seat": number})
            captured.sql(end)
            captured.run("accounts", outbox=True)

        found = topic.to_arrow().to_pylist()
        assert [(row["seat"], row["price"], row["record"]["change"]) for row in found] == [
            (0, Decimal("1.20"), "insert"),
            (2, Decimal("1.20"), "insert"),
        ]
        assert [row["record"]["headers"] for row in found] == [
            [{"key": "id", "value": b"m-0"}],
            [{"key": "id", "value": b"m-2"}],
        ]
        assert [row["reason"] for row in captured.records("mainstem.capture.shop.rejected")] == [
            'topic "unknown" does not exist'
        ] * 2
        assert captured.sql("SELECT count(*) FROM mainstem_outbox") == [(0,)]
        assert replay(captured, "id") == [(0,), (2,)]
