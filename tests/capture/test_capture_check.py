"""`check_capture` names every row that differs, invents none, and repairs them, while the table is written."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from mainstem import Invalid, NotFound, Unavailable
from mainstem.capture import CapturedTable, capture_check, snapshots
from mainstem.capture.capture_check import CaptureCheck, Difference, check_capture
from mainstem.capture.capture_status import StatusFile
from tests.capture.captured_file import captured_file
from tests.capture.captured_shop import TABLE, CapturedShop
from tests.capture.test_capture_crashes import change, held_commits

SEEDS = pytest.mark.parametrize("seed", [16, *(pytest.param(one, marks=pytest.mark.long) for one in range(10))])


def check(shop: CapturedShop, *tables: str | CapturedTable, **settings: Any) -> CaptureCheck:
    return check_capture(shop.stem.log, shop.home, shop.capture(*tables or ["accounts"]), **settings)


def named(found: CaptureCheck) -> dict[int, str]:
    return {one.key["id"]: one.kind for one in found.differences}


def is_running(shop: CapturedShop) -> bool:
    status = StatusFile(shop.home, "shop").read()
    return status is not None and status.running


def lose(shop: CapturedShop, statement: str) -> None:
    """Change the source so that the stream does not have it."""
    publication = sql.Identifier(shop.slot)
    with psycopg.connect(shop.url) as connection:
        connection.execute(sql.SQL("ALTER PUBLICATION {} SET (publish = '')").format(publication))
        connection.execute(statement.encode())
        connection.execute(
            sql.SQL("ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate')").format(publication)
        )


class Corruptions:
    """Makes source and topic differ, each time in another row. `made`: the kind of each, by key."""

    def __init__(self, shop: CapturedShop, seed: int) -> None:
        self.shop = shop
        self.random = random.Random(seed)
        self.made: dict[int, str] = {}
        self.keys = self.random.sample(range(1000, 1500), 200)

    def row(self, key: int, **values: Any) -> dict[str, Any]:
        return {"id": key, "owner": "o", "balance": Decimal(key), "note": "z", "origin": None, **values}

    def origin(self, transaction: int | None) -> dict[str, Any]:
        return {"position": "0/1", "transaction": transaction, "number": 1, "snapshot": transaction is None}

    def is_deleted(self, key: int, after: int) -> bool:
        return key in self.shop.topic("shop.accounts").to_arrow(start={0: after}, columns=["id"])["id"].to_pylist()

    def make(self) -> None:
        topic, key = self.shop.topic("shop.accounts"), self.keys.pop()
        match self.random.randrange(9):
            case 0:
                topic.append([self.row(key, owner="wrong")])
                self.made[key] = "differs"
            case 1:
                topic.append([self.row(key, note=None, origin=self.origin(3))])
                self.made[key] = "differs"
            case 2:
                # A transaction that no source has had.
                topic.append([self.row(key, balance=Decimal("-1.50"), origin=self.origin(2_000_000_000))])
                self.made[key] = "differs"
            case 3:
                topic.delete([{"id": key}])
                self.made[key] = "missing in topic"
            case 4:
                topic.append([self.row(100_000 + key, origin=self.origin(None))])
                self.made[100_000 + key] = "not in source"
            case 5:
                end = topic.backend.latest(0)
                self.shop.sql("DELETE FROM accounts WHERE id = %s", key)
                self.shop.wait(lambda: self.is_deleted(key, end))
                topic.append([self.row(key)])
                self.made[key] = "not in source"
            case 6:
                lose(self.shop, f"UPDATE accounts SET balance = balance + 1 WHERE id = {key}")
                self.made[key] = "differs"
            case 7:
                lose(self.shop, f"DELETE FROM accounts WHERE id = {key}")
                self.made[key] = "not in source"
            case 8:
                lose(self.shop, f"INSERT INTO accounts VALUES ({200_000 + key}, 'lost', 0, repeat('l', 3000))")
                self.made[200_000 + key] = "missing in topic"


def write(url: str, seed: int, ended: threading.Event) -> int:
    """Changes of all kinds in the rows that are not corrupted, among them rows at the end of the table."""
    chance, count = random.Random(seed), 0
    with psycopg.connect(url, autocommit=True) as connection:
        while not ended.is_set():
            key = chance.choice([chance.randrange(500), 500_000 + chance.randrange(500)])
            with connection.transaction():
                match chance.randrange(4):
                    case 0:
                        note = chance.choice(["x", "y" * chance.randint(3000, 6000)])
                        connection.execute(
                            "INSERT INTO accounts VALUES (%s, 'w', 0, %s) ON CONFLICT (id) DO UPDATE SET note = excluded.note",
                            [key, note],
                        )
                    case 1:
                        connection.execute("UPDATE accounts SET balance = balance + 1 WHERE id = %s", [key])
                    case 2:
                        connection.execute("DELETE FROM accounts WHERE id = %s", [key])
                    case 3:
                        connection.execute(
                            "UPDATE accounts SET id = 500 + id WHERE id = %s AND NOT EXISTS (SELECT FROM accounts WHERE id = %s)",
                            [key % 500, 500 + key % 500],
                        )
            count += 1
    return count


@contextmanager
def load(shop: CapturedShop, seed: int) -> Iterator[None]:
    ended = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, shop.url, seed + number, ended) for number in range(2)]
        try:
            yield
        finally:
            ended.set()
            assert all(writer.result() for writer in writers)


def fill(shop: CapturedShop) -> None:
    shop.sql(TABLE)
    shop.sql("INSERT INTO accounts SELECT i, 'o', i, 'z' FROM generate_series(0, 1499) i")


@SEEDS
def test_a_hundred_corruptions_under_load_are_named_and_repaired(
    shop: CapturedShop, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(capture_check, "CHUNK_ROWS", 200)
    monkeypatch.setattr(capture_check, "CHUNK_KEYS", 30)
    monkeypatch.setattr(snapshots, "CHUNK_KEYS", 30)
    fill(shop)
    shop.run("accounts")
    corruptions = Corruptions(shop, seed)
    with shop.background("accounts"):
        shop.wait(lambda: is_running(shop))
        with load(shop, seed):
            clean = check(shop)
            for _ in range(100):
                corruptions.make()
            found = check(shop)
            repaired = check(shop, repair=True)
            after = check(shop)
        shop.wait(lambda: check(shop).equal)
    assert named(clean) == {}
    assert named(found) == corruptions.made
    assert len(corruptions.made) == 100
    assert (named(repaired), repaired.tables[0].repaired, repaired.equal) == (corruptions.made, 100, True)
    assert (named(after), after.equal) == ({}, True)
    assert shop.replay("shop.accounts") == shop.rows("accounts")
    assert found.tables[0].chunks > 5


def test_a_capture_that_does_not_run_is_run_until_idle(shop: CapturedShop) -> None:
    fill(shop)
    shop.run("accounts")
    shop.sql("UPDATE accounts SET owner = 'new' WHERE id < 10")
    lose(shop, "UPDATE accounts SET owner = 'lost', balance = 0.5 WHERE id = 20")
    lose(shop, "DELETE FROM accounts WHERE id = 21")
    found = check(shop)
    repaired = check(shop, repair=True)
    status = StatusFile(shop.home, "shop").read()

    assert found.differences == (
        Difference("accounts", {"id": 20}, "differs", ("owner", "balance")),
        Difference("accounts", {"id": 21}, "not in source"),
    )
    assert (found.equal, repaired.equal, found.tables[0].rows) == (False, True, 1499)
    assert repaired.differences == found.differences
    assert status is not None
    assert status.state == "stopped"
    assert shop.replay("shop.accounts") == shop.rows("accounts")


def test_an_idle_capture_is_asked_for_its_position(shop: CapturedShop) -> None:
    fill(shop)
    shop.run("accounts")
    with shop.background("accounts"):
        shop.wait(lambda: is_running(shop))
        shop.topic("shop.accounts").delete([{"id": 7}])
        assert named(check(shop)) == {7: "missing in topic"}
        assert check(shop, repair=True).equal
    assert shop.replay("shop.accounts") == shop.rows("accounts")


KEYS = [
    ("int", "1", "2"),
    ("bigint", "-5", "9000000000"),
    ("text", "'it''s'", "E'a\\\\b\\tc'"),
    ("bytea", r"'\x00ff'", r"'\x'"),
    ("boolean", "true", "false"),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12'"),
    ("numeric(10, 2)", "1.50", "-0.25"),
    ("numeric", "1.5", "2.50"),
    ("date", "'2024-01-31'", "'1999-12-31'"),
    ("time", "'12:30:00'", "'00:00:00.000001'"),
    ("timestamp", "'2024-01-31 12:00'", "'2024-01-31 12:00:00.25'"),
    ("timestamptz", "'2024-01-31 12:00+02'", "'2024-01-31 12:00:00.25+00'"),
    ("double precision", "0.1", "1e300"),
    ("real", "0.1", "3"),
    ("mood", "'glad'", "'sad'"),
    ("character(4)", "'ab'", "'cd'"),
]


def test_keys_of_every_type_are_found_again(shop: CapturedShop) -> None:
    shop.sql("CREATE TYPE mood AS ENUM ('glad', 'sad')")
    for number, (kind, first, second) in enumerate(KEYS):
        shop.sql(f"CREATE TABLE t{number} (k {kind}, n int, v text, PRIMARY KEY (k, n))")
        shop.sql(f"INSERT INTO t{number} VALUES ({first}, 1, 'a'), ({second}, 1, 'b'), ({second}, 2, 'c')")
    tables = [f"t{number}" for number in range(len(KEYS))]
    shop.run(*tables)
    for table, (kind, first, second) in zip(tables, KEYS, strict=True):
        lose(shop, f"DELETE FROM {table} WHERE k = {first}::{kind}")
        lose(shop, f"UPDATE {table} SET v = 'x' WHERE k = {second}::{kind} AND n = 2")
    clean = check(shop, *tables, tables=["t0"])
    found = check(shop, *tables, repair=True)
    kinds = {one.table: sorted(it.kind for it in one.differences) for one in found.tables}

    assert [one.table for one in clean.tables] == ["t0"]
    assert kinds == {table: ["differs", "not in source"] for table in tables}
    assert found.equal
    assert check(shop, *tables).differences == ()


def test_a_key_that_no_row_can_have_is_not_in_the_source(shop: CapturedShop) -> None:
    shop.sql("CREATE TYPE mood AS ENUM ('glad', 'sad')")
    shop.sql("CREATE TABLE moods (id mood PRIMARY KEY)")
    shop.sql("INSERT INTO moods VALUES ('glad')")
    shop.run("moods")
    shop.topic("shop.moods").append([{"id": "angry", "origin": None}, {"id": "sad", "origin": None}])

    found = check(shop, "moods", repair=True)
    assert {one.key["id"]: one.kind for one in found.differences} == dict.fromkeys(["angry", "sad"], "not in source")
    assert found.equal
    assert shop.replay("shop.moods").keys() == {("glad",)}


def test_a_commit_that_is_streamed_before_it_is_visible_is_no_difference(shop: CapturedShop) -> None:
    fill(shop)
    shop.run("accounts")
    with ThreadPoolExecutor(1) as pool, shop.background("accounts"):
        shop.wait(lambda: is_running(shop))
        with held_commits(shop):
            pool.submit(change, shop, "UPDATE accounts SET owner = 'new' WHERE id < 3")
            shop.wait(lambda: shop.replay("shop.accounts")[2,]["owner"] == "new")
            visible = shop.sql("SELECT owner FROM accounts WHERE id = 2")
            early = check(shop)
            # Without the records before it, nobody knows what the row was.
            shop.topic("shop.accounts").seal()
            shop.topic("shop.accounts").compact()
            compacted = check(shop)
        assert visible == [("o",)]
        assert (early.differences, early.equal) == ((), True)
        assert compacted.differences == ()
        assert [one["id"] for one in compacted.tables[0].undecided] == [0, 1, 2]
        shop.wait(lambda: shop.sql("SELECT owner FROM accounts WHERE id = 2") == [("new",)])
        assert check(shop).equal


def test_a_repaired_large_value_is_the_one_that_later_updates_keep(shop: CapturedShop) -> None:
    fill(shop)
    shop.sql("UPDATE accounts SET note = repeat('a', 5000) WHERE id = 1")
    shop.run("accounts")
    with shop.background("accounts"):
        shop.wait(lambda: is_running(shop))
        lose(shop, "UPDATE accounts SET note = repeat('b', 5000) WHERE id = 1")
        repaired = check(shop, repair=True)
        # PostgreSQL does not send the note again.
        shop.sql("UPDATE accounts SET owner = 'new' WHERE id = 1")
        shop.wait(lambda: shop.replay("shop.accounts")[1,]["owner"] == "new")
    assert named(repaired) == {1: "differs"}
    assert shop.replay("shop.accounts") == shop.rows("accounts")


def test_a_check_of_what_cannot_be_compared_is_refused(shop: CapturedShop) -> None:
    fill(shop)
    with pytest.raises(NotFound) as never:
        check(shop)
    StatusFile(shop.home, "shop").request("pause")
    shop.run("accounts")
    with pytest.raises(Unavailable) as incomplete:
        check(shop)
    with pytest.raises(Invalid) as unknown:
        check(shop, tables=["acounts"])

    assert never.value.summary == 'capture "shop" has not run in this home'
    assert incomplete.value.summary == 'the snapshot of table "accounts" is not complete'
    assert unknown.value.summary == 'capture "shop" has no table "acounts"'


def test_a_file_of_sqlite_is_compared_and_repaired(tmp_path: Path) -> None:
    with captured_file(tmp_path) as file:
        file.sql(
            "CREATE TABLE visits (at TIMESTAMP, place DECIMAL(5, 2), ok BOOLEAN, note TEXT, PRIMARY KEY (at, place, ok))"
        )
        for minute in range(50):
            file.sql("INSERT INTO visits VALUES (?, 1.5, ?, 'x')", f"2026-01-31 09:{minute:02}:00", minute % 2)
        file.run("visits")
        topic = file.stem.topic("shop.visits")
        rows = topic.to_arrow().to_pylist()
        topic.append(
            [{**rows[3], "note": "wrong", "record": None}, {**rows[4], "place": Decimal("9.25"), "record": None}]
        )
        topic.delete([{name: rows[5][name] for name in ("at", "place", "ok")}])
        # Another form of the same time.
        file.sql("INSERT INTO visits VALUES ('2026-01-31T10:00', 2, 1, 'y')")
        found = check_capture(file.stem.log, file.home, file.capture("visits"))
        repaired = check_capture(file.stem.log, file.home, file.capture("visits"), repair=True)
        after = check_capture(file.stem.log, file.home, file.capture("visits"))

    assert sorted((one.kind, one.columns) for one in found.differences) == [
        ("differs", ("note",)), ("missing in topic", ()), ("not in source", ())
    ]  # fmt: skip
    assert found.tables[0].rows == 51
    assert repaired.equal
    assert after.equal
    assert after.differences == ()
