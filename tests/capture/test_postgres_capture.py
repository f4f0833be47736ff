"""Rows, keys, transactions and truncates of a captured table, with a real server."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import mainstem
from mainstem import Capture, Conflict, DatabaseUnavailable, Invalid, PositionLost
from mainstem.capture import CapturedTable, postgres, snapshots
from mainstem.capture.capture_run import CaptureRun
from mainstem.capture.capture_status import StatusFile
from mainstem.capture.postgresql import postgres_connection
from tests.capture.captured_shop import CapturedShop

CUSTOMERS = """
CREATE TABLE customers (id int PRIMARY KEY, first_name text, last_name text, email text);
INSERT INTO customers VALUES (1001, 'Sally', 'Thomas', 'sally.thomas@acme.com'), (1002, 'George', 'Bailey', 'gbailey@foobar.com'),
    (1003, 'Edward', 'Walker', 'ed@walker.com'), (1004, 'Anne', 'Kretchmar', 'annek@noanswer.org')
"""


PARTITIONED = """
CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE u PARTITION OF t FOR VALUES FROM (0) TO (9)
"""


def seen(shop: CapturedShop, topic: str = "shop.customers") -> list[tuple[object, ...]]:
    return [
        (row["record"]["change"], row["id"], row.get("first_name"), row["origin"]["snapshot"])
        for row in shop.records(topic)
    ]


def test_a_table_is_read_then_followed(shop: CapturedShop) -> None:
    shop.sql(CUSTOMERS)
    shop.run("customers")
    first = seen(shop)
    shop.sql("UPDATE customers SET first_name = 'Anne Marie' WHERE id = 1004")
    shop.sql("DELETE FROM customers WHERE id = 1004")
    shop.run("customers")
    # Written while nothing captured.
    shop.sql("INSERT INTO customers VALUES (1005, 'Sarah', 'Thompson', 'kitt@acme.com')")
    shop.sql("INSERT INTO customers VALUES (1006, 'Kenneth', 'Anderson', 'kander@acme.com')")
    shop.run("customers")

    assert first == [
        ("insert", 1001, "Sally", True),
        ("insert", 1002, "George", True),
        ("insert", 1003, "Edward", True),
        ("insert", 1004, "Anne", True),
    ]
    assert seen(shop)[4:] == [
        ("update", 1004, "Anne Marie", False),
        ("delete", 1004, None, False),
        ("insert", 1005, "Sarah", False),
        ("insert", 1006, "Kenneth", False),
    ]


def test_a_changed_key_is_a_deletion_and_an_insert(shop: CapturedShop) -> None:
    shop.sql(CUSTOMERS)
    shop.run("customers")
    shop.sql("UPDATE customers SET id = 7 WHERE id = 1002")
    shop.run("customers")

    gone, come = shop.records("shop.customers")[4:]
    assert (gone["record"]["change"], gone["id"], gone["email"]) == ("delete", 1002, None)
    assert (come["record"]["change"], come["id"], come["email"]) == ("insert", 7, "gbailey@foobar.com")
    assert gone["record"]["headers"] == [{"key": "new_key", "value": b'{"id": "7"}'}]
    assert come["record"]["headers"] == [{"key": "old_key", "value": b'{"id": "1002"}'}]
    assert [row["origin"]["number"] for row in (gone, come)] == [1, 2]


def test_a_transaction_is_one_row_of_transactions(shop: CapturedShop) -> None:
    shop.sql(CUSTOMERS)
    shop.sql("CREATE TABLE orders (id bigint PRIMARY KEY, customer int, amount numeric(10, 2))")
    shop.run("customers", "orders")
    with shop.connection.transaction():
        shop.sql("INSERT INTO orders VALUES (1, 1001, 9.5), (2, 1002, 8)")
        shop.sql("UPDATE customers SET email = 'x' WHERE id = 1001")
    [(now,)] = shop.sql("SELECT now()")
    shop.run("customers", "orders")

    last = shop.records("mainstem.capture.shop.transactions")[-1]
    orders = shop.records("shop.orders")
    assert dict(last["changes"]) == {"orders": 2, "customers": 1}
    assert last["transaction"] == orders[0]["origin"]["transaction"]
    assert abs(last["committed_at"] - now).total_seconds() < 60
    assert [row["origin"]["number"] for row in orders] == [1, 2]
    # The token reaches the ends of both topics.
    assert len(shop.topic("shop.orders").to_arrow(stop=last["token"].split(";")[1])) == 2
    assert [row["amount"] for row in orders] == [Decimal("9.50"), Decimal("8.00")]


def test_truncate_deletes_each_key_that_there_is(shop: CapturedShop) -> None:
    shop.sql(CUSTOMERS)
    shop.run("customers")
    shop.sql("DELETE FROM customers WHERE id = 1001")
    with shop.connection.transaction():
        shop.sql("INSERT INTO customers (id) VALUES (1), (2)")
        shop.sql("DELETE FROM customers WHERE id = 2")
        shop.sql("TRUNCATE customers")
        shop.sql("INSERT INTO customers (id) VALUES (3)")
    shop.run("customers")

    deleted = [row[1] for row in seen(shop)[8:-1]]
    assert {row[0] for row in seen(shop)[8:-1]} == {"delete"}
    assert sorted(deleted, key=str) == [1, 1002, 1003, 1004]
    assert shop.replay("shop.customers").keys() == {(3,)}


def test_a_large_value_that_was_not_sent_is_filled(shop: CapturedShop) -> None:
    shop.sql("CREATE TABLE pages (id int PRIMARY KEY, title text, body text, more bytea)")
    shop.sql("ALTER TABLE pages ALTER body SET STORAGE EXTERNAL, ALTER more SET STORAGE EXTERNAL")
    shop.sql("INSERT INTO pages VALUES (1, 'a', repeat('x', 5000), decode(repeat('ab', 4000), 'hex'))")
    shop.run("pages")
    shop.sql("UPDATE pages SET title = 'b' WHERE id = 1")
    with shop.connection.transaction():
        shop.sql("INSERT INTO pages VALUES (2, 'new', repeat('y', 6000))")
        shop.sql("UPDATE pages SET title = 'newer' WHERE id = 2")
    shop.run("pages")
    # The key of a row with such a value changes, after a restart.
    shop.sql("UPDATE pages SET id = 3 WHERE id = 2")
    shop.run("pages")

    assert shop.replay("shop.pages") == shop.rows("pages")
    assert {len(row["body"]) for row in shop.replay("shop.pages").values()} == {5000, 6000}


def test_without_the_store_the_value_comes_from_the_source(shop: CapturedShop) -> None:
    shop.sql("CREATE TABLE pages (id int PRIMARY KEY, title text, body text)")
    shop.sql("ALTER TABLE pages ALTER body SET STORAGE EXTERNAL")
    shop.sql("INSERT INTO pages SELECT i, 'a', repeat('x', 5000) FROM generate_series(1, 3) i")
    # Rows from before are never read.
    shop.run("pages", snapshot="none")
    shop.sql("UPDATE pages SET title = 'b'")
    shop.sql("DELETE FROM pages WHERE id = 3")
    shop.run("pages", snapshot="none")

    assert shop.replay("shop.pages") == shop.rows("pages")
    assert all(row["body"] for row in shop.records("shop.pages") if row["record"]["change"] != "delete")


def test_settings_of_a_table(shop: CapturedShop) -> None:
    shop.sql("CREATE SCHEMA sales")
    shop.sql(
        "CREATE TABLE sales.visits (id int PRIMARY KEY, email text, at timestamptz, age int, secret text);"
        "ALTER TABLE sales.visits REPLICA IDENTITY FULL"
    )
    shop.sql("INSERT INTO sales.visits VALUES (1, 'a@b', '2024-05-06 07:08:09+00', 20, 's'), (2, 'a@b', now(), 5, 's')")
    table = CapturedTable(
        "sales.visits", into="visits", partitions=2, event_time="at", columns=["email", "at", "age"], where="age > 9",
        masked="email", before="row", keep="7 days",
    )  # fmt: skip
    shop.run(table)
    shop.sql("UPDATE sales.visits SET age = 21 WHERE id = 1")
    shop.sql("UPDATE sales.visits SET age = 3 WHERE id = 1")
    shop.run(table)

    settings = shop.topic("visits").settings
    first, second, third = shop.records("visits")
    assert (settings.partitions, settings.event_time, str(settings.keep)) == (2, "at", "7 days")
    assert settings.schema.names == ["id", "email", "at", "age", "before", "origin"]
    assert first["at"] == datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    assert first["email"] == second["email"] != "a@b"
    assert (second["before"]["age"], second["age"], second["before"]["email"]) == (20, 21, first["email"])
    assert (third["record"]["change"], third["before"]["age"], third["age"]) == ("delete", 21, None)
    assert "a@b" not in json.dumps(shop.records("visits"), default=str)


@pytest.mark.parametrize(
    ("ddl", "tables", "message"),
    [
        ("CREATE TABLE t (id int)", ["t"], 'table "t" has no key'),
        ("CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING", ["t"], 'table "t" has no key'),
        ("CREATE TABLE t (id int); ALTER TABLE t REPLICA IDENTITY FULL", ["t"], 'table "t" has no key'),
        ("CREATE TABLE other (id int PRIMARY KEY)", ["othr"], 'table "othr" does not exist'),
        ("CREATE TABLE t (id int PRIMARY KEY); CREATE VIEW v AS TABLE t", ["v"], '"v" is not a table'),
        ("CREATE TABLE t (id int PRIMARY KEY, record int)", ["t"], 'column "record" of table "t" has a reserved name'),
        ("CREATE TABLE t (id int PRIMARY KEY)", [CapturedTable("t", before="row")],
         'table "t" is captured with before="row", but the WAL does not have its old rows'),
        ("CREATE TABLE t (id int PRIMARY KEY)", [CapturedTable("t", masked="x")], 'table "t" has no column "x"'),
        ("CREATE UNLOGGED TABLE t (id int PRIMARY KEY)", ["t"], 'table "t" is unlogged or temporary'),
        ("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u () INHERITS (t)", ["t"],
         'table "t" has children that inherit from it'),
        (f"{PARTITIONED}; ALTER TABLE t REPLICA IDENTITY FULL", ["t"],
         'partition "u" of table "t" has another REPLICA IDENTITY than the table'),
        ("CREATE TABLE t (id int PRIMARY KEY)", [CapturedTable("t", masked="id")],
         'key column "id" of table "t" cannot be masked'),
    ],
)  # fmt: skip
def test_what_cannot_be_captured_is_refused_before_anything_is_made(
    shop: CapturedShop, ddl: str, tables: list[str | CapturedTable], message: str
) -> None:
    shop.sql(ddl)
    with pytest.raises(Invalid) as refused:
        shop.run(*tables)
    assert refused.value.summary == message
    assert shop.sql("SELECT pubname FROM pg_publication") == []
    assert shop.sql(f"SELECT slot_name FROM pg_replication_slots WHERE slot_name = '{shop.slot}'") == []


def test_an_application_can_still_update_a_table_without_a_key(shop: CapturedShop) -> None:
    shop.sql("CREATE TABLE t (id int); INSERT INTO t VALUES (1)")
    with pytest.raises(Invalid):
        shop.run("t")
    shop.sql("UPDATE t SET id = 2")
    assert shop.sql("SELECT id FROM t") == [(2,)]


def test_a_user_without_rights_is_told_the_sql(shop: CapturedShop) -> None:
    role = f"reader_{shop.slot}"
    shop.sql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    shop.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
    owner, shop.url = shop.url, f"postgresql://{role}:pw@127.0.0.1:{shop.server.port}/{shop.database}"
    hints = []
    for _ in range(3):
        with pytest.raises(Invalid) as refused:
            shop.run("t")
        hints.append(refused.value.hint)
        statement = refused.value.hint.splitlines()
        shop.sql(
            "\n".join(line for line in statement if line.endswith(";"))
            .replace("As an administrator: ", "")
            .replace("As its owner: ", "")
        )
    shop.run("t")

    assert hints[0] == f'As an administrator: ALTER ROLE "{role}" REPLICATION;'
    assert hints[1] == f'As its owner: GRANT SELECT ON "public"."t" TO "{role}";'
    assert "CREATE PUBLICATION" in hints[2]
    assert shop.replay("shop.t") == {(1,): {"id": 1}}
    shop.url = owner
    shop.sql(f"DROP OWNED BY {role}")


@pytest.mark.parametrize(
    ("column", "value"),
    [("numeric(10, 2)", "NaN"), ("date", "infinity"), ("timestamptz", "-infinity"), ("timestamp", "0044-03-15 BC"),
     ("timestamptz", "20000-01-01"), ("time", "24:00:00")],
)  # fmt: skip
def test_a_value_that_has_no_place_stops_with_the_way_out(shop: CapturedShop, column: str, value: str) -> None:
    shop.sql(f"CREATE TABLE t (id int PRIMARY KEY, v {column})")
    shop.run("t")
    shop.sql("INSERT INTO t VALUES (1, NULL)")
    shop.sql("INSERT INTO t VALUES (2, %s)", value)
    with pytest.raises(Invalid) as refused:
        shop.run("t")

    assert refused.value.summary == 'column "v" of table "t" has a value that the topic cannot hold'
    assert '{"id": "2"}' in refused.value.detail
    assert 'types={"t.v": "STRING"}' in refused.value.hint
    shop.run(CapturedTable("t", into="as_text"), types={"t.v": "STRING"})
    rows = shop.replay("as_text")
    assert rows[1,]["v"] is None
    assert shop.sql(f"SELECT v = %s::{column} FROM t WHERE id = 2", rows[2,]["v"]) == [(True,)]


def test_a_topic_of_another_program_is_not_written(shop: CapturedShop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY)")
    shop.stem.create_topic("shop.t", schema="id INT", key="id")
    with pytest.raises(Conflict) as refused:
        shop.run("t")
    assert refused.value.summary == 'topic "shop.t" is not the topic of a captured table'


def test_a_newer_run_fences_the_older_one(shop: CapturedShop) -> None:
    shop.sql(CUSTOMERS)
    shop.run("customers")
    older = CaptureRun(shop.stem.log, shop.home, shop.capture("customers"))
    newer = CaptureRun(shop.stem.log, shop.home, shop.capture("customers"))
    shop.sql("INSERT INTO customers (id) VALUES (1)")
    newer.run(until="idle")
    shop.sql("INSERT INTO customers (id) VALUES (2)")
    with pytest.raises(Conflict):
        older.run(until="idle")
    shop.run("customers")
    assert shop.repeated("shop.customers") == 0
    assert shop.replay("shop.customers") == shop.rows("customers")


def test_a_lost_slot_is_found_before_the_next_event(shop: CapturedShop) -> None:
    shop.sql(CUSTOMERS)
    shop.run("customers")
    shop.drop_slot()
    shop.sql("DELETE FROM customers WHERE id = 1001")
    shop.sql("UPDATE customers SET email = 'new' WHERE id = 1002")
    with pytest.raises(PositionLost):
        shop.run("customers")
    shop.sql(f"SELECT pg_create_logical_replication_slot('{shop.slot}', 'pgoutput')")
    with pytest.raises(PositionLost):
        shop.run("customers")
    before = len(shop.records("shop.customers"))
    shop.run("customers", when_lost="snapshot")

    assert before == 4
    assert shop.replay("shop.customers") == shop.rows("customers")
    assert shop.replay("shop.customers").keys() == {(1002,), (1003,), (1004,)}


@pytest.mark.parametrize("rows", [1, 4, 10])
def test_a_transaction_that_fills_batches_exactly_is_committed_at_once(
    shop: CapturedShop, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(postgres_connection, "ROWS_MAX", rows)
    shop.sql("CREATE TABLE t (id int PRIMARY KEY)")
    shop.run("t")
    with shop.background("t"):
        shop.sql("INSERT INTO t SELECT generate_series(0, 19)")
        shop.wait(lambda: len(shop.records("shop.t")) == 20)
        shop.sql("INSERT INTO t SELECT generate_series(20, 39)")
        shop.wait(lambda: len(shop.records("shop.t")) == 40)
    changes = [dict(row["changes"]) for row in shop.records("mainstem.capture.shop.transactions") if row["changes"]]
    assert changes == [{"t": 20}, {"t": 20}]


def test_a_request_for_some_rows_does_not_end_a_snapshot_of_all(shop: CapturedShop) -> None:
    shop.sql(CUSTOMERS)
    StatusFile(shop.home, "shop").request("pause")
    shop.run("customers")
    # The topic has a record before the first snapshot has read anything.
    shop.sql("INSERT INTO customers VALUES (1, 'New', 'Customer', '')")
    shop.run("customers")
    before = shop.replay("shop.customers").keys()
    StatusFile(shop.home, "shop").request("snapshot", tables=["customers"], where="id = 1001")
    StatusFile(shop.home, "shop").request("resume")
    shop.run("customers")

    state = {row["name"]: row["value"] for row in shop.records("mainstem.capture.shop.state")}
    assert before == {(1,)}
    assert shop.replay("shop.customers") == shop.rows("customers")
    # Flows that wait for the first snapshot go on.
    assert json.loads(state["read:shop.customers"])["0"] > 1


def test_another_condition_holds_for_what_is_there_and_for_what_comes(shop: CapturedShop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, n int); ALTER TABLE t REPLICA IDENTITY FULL")
    shop.sql("INSERT INTO t VALUES (1, 5), (2, 50)")
    shop.run(CapturedTable("t", where="n > 9"))
    shop.run(CapturedTable("t", where="n < 9"))
    shop.sql("INSERT INTO t VALUES (3, 3), (4, 40)")
    shop.run(CapturedTable("t", where="n < 9"))
    assert shop.replay("shop.t").keys() == {(1,), (3,)}


def test_a_large_key_is_no_changed_key(shop: CapturedShop) -> None:
    shop.sql("CREATE TABLE t (id text PRIMARY KEY, n int, more text); ALTER TABLE t ALTER id SET STORAGE EXTERNAL")
    shop.run("t")
    shop.sql("INSERT INTO t SELECT string_agg(md5(i::text), ''), 1, repeat('z', 1000) FROM generate_series(1, 75) i")
    shop.run("t")
    shop.sql("UPDATE t SET n = 2")
    shop.run("t")
    assert shop.replay("shop.t") == shop.rows("t")
    assert [row["record"]["change"] for row in shop.records("shop.t")] == ["insert", "update"]


def test_rows_too_large_for_one_chunk_are_read_by_several(shop: CapturedShop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_connection, "CHUNK_BYTES_MAX", 10_000)
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, body text)")
    shop.sql("INSERT INTO t SELECT i, repeat('x', 3000) FROM generate_series(1, 30) i")
    shop.run("t")
    assert [row["id"] for row in shop.records("shop.t")] == list(range(1, 31))


def test_a_topic_has_one_table(shop: CapturedShop) -> None:
    shop.sql("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); INSERT INTO a VALUES (1)")
    shop.run(CapturedTable("a", into="same"))
    other = Capture("other", postgres(shop.url, tables=[CapturedTable("b", into="same")], slot=f"{shop.slot}_b"))
    with pytest.raises(Conflict) as refused:
        CaptureRun(shop.stem.log, shop.home, other).run(until="idle")
    assert refused.value.summary == 'topic "same" is written by capture "shop"'
    assert len(shop.records("same")) == 1
    shop.sql(f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{shop.slot}_b'")


def test_a_run_of_another_home_does_not_take_the_slot(shop: CapturedShop, tmp_path: Path) -> None:
    shop.sql("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    shop.run("a")
    with shop.background("a"), mainstem.open(tmp_path / "other", upkeep="manual") as stem:
        shop.wait(lambda: shop.sql(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{shop.slot}' AND active"))
        with pytest.raises(Invalid) as refused:
            CaptureRun(stem.log, stem.home, shop.capture("b")).run(until="idle")
        shop.sql("INSERT INTO a VALUES (1)")
        shop.wait(lambda: shop.records("shop.a"))
    assert refused.value.summary == f'the replication slot "{shop.slot}" is in use'


def test_names_that_differ_have_slots_that_differ() -> None:
    names = ["shop", "Shop", "x.a", "x_a", "x-a", "y" * 80 + "1", "y" * 80 + "2"]
    source = postgres("postgresql://reader@db/shop", tables=["orders"])
    slots = [source.slot(name) for name in names]
    assert len(set(slots)) == len(names)
    assert all(len(slot) <= 63 for slot in slots)
    assert slots[0] == "mainstem_shop"


def test_a_run_until_idle_of_a_server_that_is_away_is_an_error(shop: CapturedShop) -> None:
    shop.url = "postgresql://reader@127.0.0.1:1/shop"
    with pytest.raises(DatabaseUnavailable):
        shop.run("a")


def test_a_position_that_is_no_longer_kept_is_lost(shop: CapturedShop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    shop.run("t")
    # As the topic is when its retention has passed while nothing was captured.
    shop.stem.delete_topic("mainstem.capture.shop.transactions")
    shop.sql("DELETE FROM t WHERE id = 1")
    with pytest.raises(PositionLost):
        shop.run("t")
    shop.run("t", when_lost="snapshot")
    assert shop.replay("shop.t") == shop.rows("t")


def test_a_condition_that_fails_on_a_later_row_ends_no_run(
    shop: CapturedShop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(snapshots, "CHUNK_ROWS", 3)
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t SELECT i, 10 - i FROM generate_series(1, 10) i")
    shop.run("t")
    before = len(shop.records("shop.t"))
    StatusFile(shop.home, "shop").request("snapshot", tables=["t"], where="1 / n >= 0")
    shop.run("t")
    shop.run("t")
    assert len(shop.records("shop.t")) == before + 9
    assert "division by zero" in caplog.text


@pytest.mark.parametrize("base", ["mood", "varchar(6)", "worded", "numeric(6, 1)"])
def test_a_domain_is_a_key(shop: CapturedShop, monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    """A domain over an enum has no operators of its own."""
    monkeypatch.setattr(snapshots, "CHUNK_ROWS", 2)
    values = ["1.5", "2.5", "3.5", "4.5", "5.5"] if base.startswith("numeric") else ["sad", "ok", "happy", "b'c", "%s"]
    listed = ", ".join("'" + one.replace("'", "''") + "'" for one in values)
    shop.sql(f"CREATE TYPE mood AS ENUM ({listed})" if base == "mood" else "SELECT 1")
    shop.sql("CREATE DOMAIN worded AS text CHECK (value <> '')")
    shop.sql(f"CREATE DOMAIN below AS {base}; CREATE DOMAIN key AS below CHECK (value IS NOT NULL)")
    shop.sql(
        "CREATE TABLE t (id key, n int, big text, PRIMARY KEY (id, n)); ALTER TABLE t ALTER big SET STORAGE EXTERNAL"
    )
    shop.sql(f"INSERT INTO t SELECT one, 1, repeat('x', 4000) FROM unnest(ARRAY[{listed}]::below[]) one")
    shop.run("t", snapshot="none")
    # Its large value is not sent, and looked up in the table.
    shop.sql(f"UPDATE t SET n = 2 WHERE id::{base} = {listed.split(',')[0]}")
    shop.run("t", snapshot="none")
    assert [len(row["big"]) for row in shop.records("shop.t") if row["big"]] == [4000]
    StatusFile(shop.home, "shop").request("snapshot", tables=["t"])
    shop.run("t")
    StatusFile(shop.home, "shop").request("repair", table="t", keys=[[values[1], "1"], [values[2], "7"]])
    shop.run("t")
    key = ("id", "n")
    assert shop.replay("shop.t") == shop.rows("t", key)


def test_two_processes_that_set_up_a_capture_at_once(shop: CapturedShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one looks for publication, slot and table before the first one made them, and makes them afterwards."""
    shop.sql("CREATE TABLE t (id int PRIMARY KEY)")
    first, second = (shop.capture("t", outbox=True).source.open("shop", shop.home) for _ in range(2))
    looked = Counter[str]()

    def stale(name: str) -> None:
        look = getattr(postgres_connection, name)

        def looks(*given: Any) -> Any:
            looked[name] += 1
            return None if looked[name] == 1 else look(*given)

        monkeypatch.setattr(postgres_connection, name, looks)

    try:
        begins = first.prepare()
        stale("publication_tables")
        stale("slot_facts")
        assert second.prepare() == begins
    finally:
        first.close()
        second.close()
    assert min(looked.values()) > 1


def test_a_slot_in_use_is_not_dropped_and_its_reader_is_named(
    shop: CapturedShop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connection, "FREED_SECONDS_MAX", 0.2)
    shop.sql("CREATE TABLE t (id int PRIMARY KEY)")
    with shop.background("t"):
        shop.wait(lambda: shop.sql(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{shop.slot}' AND active"))
        [(pid,)] = shop.sql(f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{shop.slot}'")
        for home, kind in ((shop.home, DatabaseUnavailable), (str(tmp_path / "other"), Invalid)):
            other = shop.capture("t").source.open("shop", home)
            with pytest.raises(kind) as refused:
                other.drop()
            other.close()
            assert refused.value.summary == f'the replication slot "{shop.slot}" is in use'
            assert str(pid) in refused.value.detail
