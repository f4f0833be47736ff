"""Changes of a SQLite file in topics: rows, keys, transactions, restarts, schema changes, values, and what is lost."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import mainstem
from mainstem import Capture, Invalid, NotFound, PositionLost
from mainstem.capture import CapturedTable, snapshots, sqlite, sqlite_connection
from mainstem.capture.capture_run import CaptureRun
from mainstem.capture.sqlite_types import arrow_type
from tests.capture.captured_file import ACCOUNTS, CapturedFile, captured_file, random_change


@pytest.fixture
def file(tmp_path: Path) -> Iterator[CapturedFile]:
    with captured_file(tmp_path) as made:
        made.sql(ACCOUNTS)
        yield made


# Rows and transactions


def test_a_table_is_read_then_followed(file: CapturedFile) -> None:
    file.sql("INSERT INTO accounts VALUES (1, 'a', 1.5, x'00ff'), (2, 'b', 2, NULL)")
    file.run("accounts")
    file.sql("UPDATE accounts SET balance = 3.25 WHERE id = 2")
    file.sql("DELETE FROM accounts WHERE id = 1")
    file.sql("INSERT INTO accounts VALUES (3, ?, -1, NULL)", "c\0'\"")
    file.run("accounts")

    assert file.seen("shop.accounts", "owner", "balance", "note") == [
        ("insert", 1, "a", Decimal("1.50"), b"\x00\xff", True),
        ("insert", 2, "b", Decimal("2.00"), None, True),
        ("update", 2, "b", Decimal("3.25"), None, False),
        ("delete", 1, None, None, None, False),
        ("insert", 3, "c\0'\"", Decimal("-1.00"), None, False),
    ]


def test_a_transaction_is_in_all_its_topics_at_once(file: CapturedFile) -> None:
    file.sql("CREATE TABLE orders (number INT, line INT, item TEXT, PRIMARY KEY (number, line)) WITHOUT ROWID")
    file.run("accounts", "orders")
    file.sql("BEGIN")
    file.sql("INSERT INTO accounts VALUES (1, 'a', 1, NULL)")
    file.sql("INSERT INTO orders VALUES (1, 1, 'book'), (1, 2, 'pen')")
    file.sql("COMMIT")
    file.run("accounts", "orders")

    [last] = [row for row in file.records("mainstem.capture.shop.transactions") if row["transaction"] is not None]
    assert dict(last["changes"]) == {"accounts": 1, "orders": 2}
    assert {row["origin"]["transaction"] for row in file.records("shop.orders")} == {last["transaction"]}
    assert file.replay("shop.orders") == file.rows("SELECT * FROM orders ORDER BY number, line")


def test_a_large_transaction_comes_in_pieces(file: CapturedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_connection, "ROWS_MAX", 250)
    file.run("accounts")
    file.sql("WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 1100) "
             "INSERT INTO accounts SELECT i, i, i, NULL FROM n")  # fmt: skip
    file.run("accounts")

    found = file.records("shop.accounts")
    assert [row["origin"]["number"] for row in found] == list(range(1, 1101))
    assert {row["origin"]["position"] for row in found} == {"1100"}


def test_rows_that_a_replacement_removes_are_deleted(file: CapturedFile) -> None:
    file.sql("INSERT INTO accounts VALUES (1, 'a', 1, NULL), (2, 'b', 1, NULL)")
    file.run("accounts")
    # Removes both without firing a trigger of theirs: 1 by its owner, 2 by its key.
    file.sql("INSERT OR REPLACE INTO accounts VALUES (2, 'a', 9, NULL)")
    file.sql("INSERT OR IGNORE INTO accounts VALUES (5, 'a', 9, NULL)")
    file.run("accounts")

    assert file.seen("shop.accounts", "owner")[2:] == [("delete", 1, None, False), ("insert", 2, "a", False)]


@pytest.mark.parametrize("form", ["", "WITHOUT ROWID"])
def test_a_key_that_differs_in_case_replaces_a_row(file: CapturedFile, form: str) -> None:
    file.sql(f"CREATE TABLE words (id TEXT COLLATE NOCASE PRIMARY KEY, n INT) {form}")
    file.sql("INSERT INTO words VALUES ('one', 1), ('two', 1)")
    file.run("words")
    file.sql("INSERT OR REPLACE INTO words VALUES ('ONE', 2)")
    file.sql("UPDATE words SET id = 'Two' WHERE id = 'two'")
    file.sql("UPDATE OR REPLACE words SET id = 'oNe' WHERE id = 'TWO'")
    file.sql("INSERT OR REPLACE INTO words VALUES ('oNe', 3)")
    file.run("words")

    assert file.replay("shop.words") == file.rows("SELECT * FROM words") == [{"id": "oNe", "n": 3}]


def test_rows_that_a_foreign_key_removes_are_deleted(file: CapturedFile) -> None:
    file.sql("PRAGMA foreign_keys = ON")
    file.sql("CREATE TABLE cards (id INTEGER PRIMARY KEY, account REFERENCES accounts (id) ON DELETE CASCADE)")
    file.sql("INSERT INTO accounts VALUES (1, 'a', 1, NULL)")
    file.sql("INSERT INTO cards VALUES (10, 1)")
    file.run("cards")
    file.sql("DELETE FROM accounts")
    file.run("cards")

    assert file.seen("shop.cards") == [("insert", 10, True), ("delete", 10, False)]


def test_the_row_before_a_change_if_it_is_wanted(file: CapturedFile) -> None:
    file.run(CapturedTable("accounts", before="row", columns=["balance"]))
    file.sql("INSERT INTO accounts VALUES (1, 'a', 1, NULL)")
    file.sql("UPDATE accounts SET balance = 2")
    file.sql("DELETE FROM accounts")
    file.run(CapturedTable("accounts", before="row", columns=["balance"]))

    before = [row["before"] for row in file.records("shop.accounts")]
    assert before == [None, {"id": 1, "balance": Decimal(1)}, {"id": 1, "balance": Decimal(2)}]


def test_masked_values_cannot_be_read(file: CapturedFile) -> None:
    table = CapturedTable("accounts", masked=["owner"])
    file.sql("INSERT INTO accounts VALUES (1, 'a', 1, NULL)")
    file.run(table)
    file.sql("UPDATE accounts SET balance = 2")
    file.run(table)

    one, two = [row["owner"] for row in file.records("shop.accounts")]
    assert one == two
    assert len(one) == 32


# Restarts


def test_what_is_captured_is_removed_from_the_file(file: CapturedFile) -> None:
    file.run("accounts")
    file.sql("INSERT INTO accounts VALUES (1, 'a', 1, NULL)")
    file.run("accounts")

    assert file.sql("SELECT count(*) FROM mainstem_changes_shop") == [(0,)]
    assert file.sql("SELECT value FROM mainstem_capture_shop WHERE name = 'confirmed'") == [("1",)]


@pytest.mark.parametrize("point", ["capture_before_commit", "capture_after_commit"])
@pytest.mark.parametrize("time", [1, 2, 3])
def test_a_killed_capture_goes_on_where_its_log_is(file: CapturedFile, point: str, time: int) -> None:
    file.sql("INSERT INTO accounts VALUES (1, 'a', 1, NULL), (2, 'b', 2, NULL)")
    if time > 1:
        file.run("accounts")
    file.sql("UPDATE accounts SET balance = balance + 1")
    file.sql("UPDATE accounts SET id = 3 WHERE id = 2")
    code = file.run_process("accounts", crash_at=f"{point}:{min(time, 2)}")
    file.sql("DELETE FROM accounts WHERE id = 1")
    file.run("accounts")

    assert code == -9
    assert file.replay() == file.rows()
    streamed = [row["origin"] for row in file.records("shop.accounts") if not row["origin"]["snapshot"]]
    assert len({(one["transaction"], one["number"]) for one in streamed}) == len(streamed)


@pytest.mark.parametrize("seed", range(6))
def test_a_topic_adds_up_to_its_table(file: CapturedFile, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any mixture of changes, with restarts and with chunks of a snapshot in between."""
    monkeypatch.setattr(snapshots, "CHUNK_ROWS", 3)
    monkeypatch.setattr(sqlite_connection, "ROWS_MAX", 5)
    chance = random.Random(seed)
    # In both of SQLite's ways to write.
    file.sql(f"PRAGMA journal_mode = {'WAL' if seed % 2 else 'DELETE'}")
    file.sql(f"PRAGMA recursive_triggers = {'ON' if seed % 3 == 0 else 'OFF'}")
    for _ in range(20):
        random_change(file.connection, chance)
    original = sqlite_connection.SqliteConnection.read

    def read(self: Any, seconds: float) -> Any:
        if chance.random() < 0.3 and budget:
            budget.pop()
            random_change(file.connection, chance)
        return original(self, seconds)

    monkeypatch.setattr(sqlite_connection.SqliteConnection, "read", read)
    for _ in range(6):
        budget = [None] * 8
        file.run("accounts", snapshot="again" if chance.random() < 0.3 else "initial")
        for _ in range(chance.randrange(5)):
            random_change(file.connection, chance)
    budget = []
    file.run("accounts")

    assert file.replay() == file.rows()


# Tables that change


def test_a_new_column_is_captured_and_the_rows_are_read_again(file: CapturedFile) -> None:
    file.sql("INSERT INTO accounts VALUES (1, 'a', 1, NULL)")
    file.run("accounts")
    file.sql("ALTER TABLE accounts ADD COLUMN open BOOLEAN DEFAULT 1")
    file.sql("INSERT INTO accounts VALUES (2, 'b', 2, NULL, 0)")
    file.run("accounts")
    file.sql("UPDATE accounts SET open = 0")
    file.run("accounts")

    assert file.replay() == file.rows()
    assert [row["open"] for row in file.replay()] == [False, False]


def test_a_column_is_added_while_the_capture_runs(file: CapturedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.sql("INSERT INTO accounts VALUES (1, 'a', 1, NULL)")
    file.run("accounts")
    steps = [
        lambda: file.sql("UPDATE accounts SET more = 4"),
        lambda: file.sql("ALTER TABLE accounts ADD COLUMN more INT"),
    ]
    original = sqlite_connection.SqliteConnection._look

    def look(self: Any) -> Any:
        if steps:
            steps.pop()()
        return original(self)

    monkeypatch.setattr(sqlite_connection.SqliteConnection, "_look", look)
    file.sql("UPDATE accounts SET balance = 2")
    file.run("accounts")
    file.run("accounts")

    assert steps == []
    assert file.replay() == file.rows()


def test_a_renamed_column_is_a_new_one(file: CapturedFile) -> None:
    file.sql("INSERT INTO accounts VALUES (1, 'a', 1, NULL)")
    file.run("accounts")
    file.sql("ALTER TABLE accounts RENAME COLUMN owner TO holder")
    file.sql("INSERT INTO accounts VALUES (2, 'b', 1, NULL)")
    file.run("accounts")

    assert [row["holder"] for row in file.replay()] == ["a", "b"]


def test_a_table_that_is_made_again_is_noticed(file: CapturedFile) -> None:
    file.sql("INSERT INTO accounts VALUES (1, 'a', 1, NULL)")
    file.run("accounts")
    file.sql("ALTER TABLE accounts RENAME TO former")
    file.sql(ACCOUNTS.replace("note BLOB", "extra INT"))
    file.sql("INSERT INTO accounts SELECT id + 10, owner, balance, 5 FROM former")
    file.sql("DROP TABLE former")

    with pytest.raises(PositionLost, match='triggers on table "accounts" are missing'):
        file.run("accounts")
    file.run("accounts", when_lost="snapshot")
    assert [(row["id"], row["extra"]) for row in file.replay()] == [(11, 5)]
    # And goes on from there.
    file.sql("UPDATE accounts SET extra = 6")
    file.run("accounts", when_lost="snapshot")
    assert [row["extra"] for row in file.replay()] == [6]


def test_a_table_that_was_not_captured_for_a_while_is_noticed(file: CapturedFile) -> None:
    file.sql("CREATE TABLE others (id INTEGER PRIMARY KEY)")
    file.run("accounts", "others")
    file.run("others")
    file.sql("INSERT INTO accounts VALUES (1, 'a', 1, NULL)")

    assert file.sql("SELECT count(*) FROM mainstem_changes_shop") == [(0,)]
    with pytest.raises(PositionLost):
        file.run("accounts", "others")


# Positions that are lost


def lose(file: CapturedFile, how: str) -> None:
    """Make changes disappear."""
    match how:
        case "trigger":
            file.sql('DROP TRIGGER "mainstem_update_shop:accounts"')
        case "changes":
            # The application cannot write until its triggers are gone too.
            file.sql("DROP TABLE mainstem_changes_shop")
            for event in ("insert", "update", "delete", "before_insert", "before_update"):
                file.sql(f'DROP TRIGGER "mainstem_{event}_shop:accounts"')
        case "made again":
            connection = file.capture("accounts").source.open("shop", file.home)
            connection.drop()
            connection.prepare()
            connection.close()
        case "older copy":
            shutil.copy(f"{file.path}.copy", file.path)
        case "another reader":
            file.sql("UPDATE mainstem_capture_shop SET value = '99' WHERE name = 'confirmed'")


@pytest.mark.parametrize("how", ["trigger", "changes", "made again", "older copy", "another reader"])
def test_lost_changes_stop_the_capture_or_have_the_tables_read_again(file: CapturedFile, how: str) -> None:
    file.run("accounts")
    shutil.copy(file.path, f"{file.path}.copy")
    file.sql("INSERT INTO accounts VALUES (1, 'a', 1, NULL)")
    file.run("accounts")
    if how == "older copy":
        file.connection.close()
    lose(file, how)
    if how == "older copy":
        file.connection = sqlite3.connect(file.path, isolation_level=None)
    else:
        file.sql("UPDATE accounts SET balance = 7")

    with pytest.raises(PositionLost):
        file.run("accounts")
    file.run("accounts", when_lost="snapshot")
    assert file.replay() == file.rows()


def test_a_file_that_is_replaced_while_it_is_read_is_noticed(
    file: CapturedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.run("accounts")
    other = sqlite3.connect(f"{file.path}.other", isolation_level=None)
    other.execute(ACCOUNTS)
    other.close()
    replaced = []
    original = sqlite_connection.SqliteConnection._look

    def look(self: Any) -> Any:
        if not replaced:
            os.replace(f"{file.path}.other", file.path)
            replaced.append(1)
        return original(self)

    monkeypatch.setattr(sqlite_connection.SqliteConnection, "_look", look)
    with pytest.raises(PositionLost, match="another file"):
        CaptureRun(file.stem.log, file.home, file.capture("accounts")).run()


def test_a_second_home_that_reads_the_same_changes_is_noticed(
    file: CapturedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.run("accounts")
    original = sqlite_connection.SqliteConnection._look
    with mainstem.open(tmp_path / "other", upkeep="manual") as other:

        def look(self: Any) -> Any:
            monkeypatch.setattr(sqlite_connection.SqliteConnection, "_look", original)
            file.sql("INSERT INTO accounts VALUES (1, 'a', 1, NULL)")
            CaptureRun(other.log, str(tmp_path / "other"), file.capture("accounts")).run(until="idle")
            return original(self)

        monkeypatch.setattr(sqlite_connection.SqliteConnection, "_look", look)
        with pytest.raises(PositionLost, match="changes up to 1 were removed"):
            CaptureRun(file.stem.log, file.home, file.capture("accounts")).run()


def test_two_captures_of_a_file_do_not_disturb_each_other(file: CapturedFile) -> None:
    others = Capture("other", sqlite(file.path, tables=["accounts"]))
    for _ in range(2):
        file.sql("INSERT INTO accounts (note) VALUES ('')")
        file.run("accounts")
        file.sql("INSERT INTO accounts (note) VALUES ('')")
        CaptureRun(file.stem.log, file.home, others).run(until="idle")
    file.run("accounts")

    assert file.replay() == file.replay("other.accounts") == [{**row, "note": b""} for row in file.rows()]
    with pytest.raises(Invalid, match="in case only"):
        CaptureRun(file.stem.log, file.home, Capture("Shop", sqlite(file.path, tables=["accounts"]))).run(until="idle")


def test_drop_leaves_the_file_as_it_was(file: CapturedFile) -> None:
    before = file.sql("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_sequence' ORDER BY name")
    connection = file.capture("accounts", outbox=True).source.open("shop", file.home)
    connection.prepare()
    connection.drop()
    connection.close()

    assert file.sql("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_sequence' ORDER BY name") == before


# The application beside it


def test_an_open_write_does_not_stop_the_capture(file: CapturedFile) -> None:
    file.sql("PRAGMA journal_mode = WAL")
    file.run("accounts")
    file.sql("INSERT INTO accounts VALUES (1, 'a', 1, NULL)")
    file.sql("BEGIN IMMEDIATE")
    file.sql("INSERT INTO accounts VALUES (2, 'b', 1, NULL)")
    # It cannot remove what it has captured, and does so later.
    connection = file.capture("accounts").source.open("shop", file.home)
    connection.start("0")
    events = connection.read(0)
    connection.confirm("1")
    connection.close()
    file.sql("COMMIT")

    assert events[-1].position == "1"
    assert file.sql("SELECT count(*) FROM mainstem_changes_shop") == [(2,)]
    file.run("accounts")
    assert file.replay() == file.rows()


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_an_application_writes_while_its_file_is_captured(
    file: CapturedFile, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "CHUNK_ROWS", 50)
    monkeypatch.setattr(sqlite_connection, "REMOVED_ROWS_MIN", 20)
    file.sql(f"PRAGMA journal_mode = {mode}")
    file.sql("WITH RECURSIVE n(i) AS (VALUES (100) UNION ALL SELECT i + 1 FROM n WHERE i < 1000) "
             "INSERT INTO accounts SELECT i, NULL, i, NULL FROM n")  # fmt: skip

    def write(seed: int) -> None:
        chance = random.Random(seed)
        connection = sqlite3.connect(file.path, isolation_level=None)
        connection.execute("PRAGMA synchronous = OFF")
        for _ in range(150):
            connection.execute("BEGIN IMMEDIATE")
            for _ in range(chance.randint(1, 3)):
                one, owner = chance.randrange(1100), f"owner {chance.randrange(50)}"
                connection.execute("INSERT OR REPLACE INTO accounts VALUES (?, ?, 1, NULL)", [one, owner])
                connection.execute("UPDATE accounts SET balance = balance + 1 WHERE id = ?", [chance.randrange(1100)])
                connection.execute("DELETE FROM accounts WHERE id = ?", [chance.randrange(1100)])
            connection.execute("COMMIT")
        connection.close()

    ended = threading.Event()

    def capture() -> None:
        CaptureRun(file.stem.log, file.home, file.capture("accounts"), stopped=ended.is_set).run()

    with ThreadPoolExecutor(3) as pool:
        captured = pool.submit(capture)
        writers = [pool.submit(write, seed) for seed in range(2)]
        for writer in writers:
            writer.result()
        ended.set()
        captured.result()
    file.run("accounts")

    assert file.replay() == file.rows()
    assert file.sql("SELECT count(*) FROM mainstem_changes_shop") == [(0,)]


def test_triggers_do_not_change_what_the_application_sees(file: CapturedFile) -> None:
    plain = sqlite3.connect(":memory:", isolation_level=None)
    plain.execute(ACCOUNTS)
    file.run("accounts")
    for statement in [
        "INSERT INTO accounts (owner) VALUES ('a'), ('b')", "INSERT INTO accounts (owner) VALUES ('a')",
        "INSERT OR REPLACE INTO accounts (owner) VALUES ('a')", "UPDATE accounts SET balance = 1 WHERE owner = 'b'",
        "UPDATE accounts SET owner = 'a' WHERE owner = 'b'", "DELETE FROM accounts WHERE owner = 'a' RETURNING id",
    ]:  # fmt: skip
        seen = []
        for connection in (plain, file.connection):
            try:
                cursor = connection.execute(statement)
                seen.append((cursor.fetchall(), cursor.rowcount, cursor.lastrowid, connection.total_changes > 0))
            except sqlite3.IntegrityError as error:
                seen.append(str(error))
        assert seen[0] == seen[1]
        assert plain.execute("SELECT changes(), last_insert_rowid()").fetchall() == file.sql(
            "SELECT changes(), last_insert_rowid()"
        )


# Types and refusals


@pytest.mark.parametrize(
    ("declared", "stored", "expected"),
    [
        ("INTEGER", 2**62, 2**62),
        ("REAL", 0.1, 0.1),
        ("NUMERIC", 12.5, "12.5"),
        ("", "any", "any"),
        ("JSON", '{"a": 1}', '{"a": 1}'),
        ("BOOLEAN", 1, True),
        ("DECIMAL(10, 2)", 0.1, Decimal("0.10")),
        ("DATE", "2026-01-31", "2026-01-31"),
        ("DATETIME", "2026-01-31 09:00:00.5", "2026-01-31 09:00:00.500000"),
        ("BLOB", "text", b"text"),
        ("VARCHAR(3)", "\U0001f600 longer", "\U0001f600 longer"),
    ],
)  # fmt: skip
def test_values_of_a_declared_type(file: CapturedFile, declared: str, stored: Any, expected: Any) -> None:
    file.sql(f"CREATE TABLE one (id INTEGER PRIMARY KEY, value {declared})")
    file.sql("INSERT INTO one VALUES (1, ?), (2, NULL)", stored)
    file.run("one")
    file.sql("UPDATE one SET id = id + 2")
    file.run("one")

    values = [row["value"] for row in file.replay("shop.one")]
    assert [str(values[0]) if isinstance(expected, str) else values[0], values[1]] == [expected, None]
    assert file.stem.topic("shop.one").settings.schema.field("value").type == arrow_type(declared)


def test_a_value_of_another_kind_stops_the_capture(file: CapturedFile) -> None:
    file.sql("CREATE TABLE one (id INTEGER PRIMARY KEY, value INT)")
    file.run("one")
    file.sql("INSERT INTO one VALUES (7, 'seven')")
    with pytest.raises(Invalid) as caught:
        file.run("one")

    assert caught.value.summary == 'column "value" of table "one" has a value that the topic cannot hold'
    assert "key {'id': '7'} has 'seven': BIGINT takes whole numbers" in str(caught.value)
    assert 'types={"one.value": "STRING"}' in str(caught.value)
    file.run(CapturedTable("one", into="texts"), types={"one.value": "STRING"})
    assert [row["value"] for row in file.replay("texts")] == ["seven"]


def test_damaged_text_is_named(file: CapturedFile) -> None:
    file.run("accounts")
    file.sql("INSERT INTO accounts (id, owner) VALUES (1, CAST(x'ff41' AS TEXT))")
    with pytest.raises(Invalid, match="the text is not UTF-8"):
        file.run("accounts")


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("CREATE TABLE one (value TEXT)", 'table "one" has no primary key'),
        ("CREATE VIEW one AS SELECT * FROM accounts", '"one" is not a table with rows of its own'),
        ("CREATE VIRTUAL TABLE one USING fts5(value)", '"one" is not a table with rows of its own'),
        ("CREATE TABLE onee (id INTEGER PRIMARY KEY)", 'table "one" does not exist'),
        (
            "CREATE TABLE one (id INTEGER PRIMARY KEY, origin TEXT)",
            'column "origin" of table "one" has a reserved name',
        ),
    ],
)
def test_a_table_that_cannot_be_captured_is_refused(file: CapturedFile, statement: str, says: str) -> None:
    file.sql(statement)
    with pytest.raises(Invalid) as caught:
        file.run("one")

    assert caught.value.summary == says
    assert not file.sql("SELECT 1 FROM sqlite_master WHERE name LIKE 'mainstem_%'")


def test_a_key_that_is_null_is_refused(file: CapturedFile) -> None:
    file.sql("CREATE TABLE one (id TEXT PRIMARY KEY)")
    file.run("one")
    file.sql("INSERT INTO one VALUES (NULL)")
    with pytest.raises(Invalid, match='table "one" has a row without a key'):
        file.run("one")


def test_settings_that_a_file_does_not_have_are_refused(file: CapturedFile) -> None:
    with pytest.raises(Invalid, match="where="):
        file.run(CapturedTable("accounts", where="id > 1"))
    with pytest.raises(Invalid, match="no tables to capture"):
        sqlite(file.path)
    with pytest.raises(Invalid, match='types names "orders'):
        sqlite(file.path, tables=["accounts"], types={"orders.id": "STRING"})
    with pytest.raises(NotFound, match="does not exist"):
        CaptureRun(file.stem.log, file.home, Capture("shop", sqlite(f"{file.path}.no", tables=["a"]))).run("idle")
    Path(f"{file.path}.no").write_text("no database, but text that is long enough to be looked at")
    with pytest.raises(Invalid, match="cannot be read as a SQLite file"):
        CaptureRun(file.stem.log, file.home, Capture("shop", sqlite(f"{file.path}.no", tables=["a"]))).run("idle")


def test_a_capture_of_a_file_can_be_given_to_another_process(file: CapturedFile) -> None:
    capture = file.capture("accounts", types={"accounts.balance": "STRING"}, outbox=True)

    assert Capture.from_json(capture.to_json()) == capture
    assert capture.source.types == {"accounts.balance": pa.string()}  # type: ignore[attr-defined]
    assert "mainstem_changes_shop" in capture.source.setup_sql("shop")
