"""C6, C10 and the limits: large transactions, WAL that the server holds, rows that are too large, a full home, a slot in use;
and the password, which is nowhere."""

from __future__ import annotations

import logging
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest import mock

import psycopg
import pytest

from mainstem import Invalid
from mainstem.capture import capture_run
from mainstem.capture.capture_run import CaptureRun
from mainstem.capture.capture_status import StatusFile
from mainstem.capture.postgresql import postgres_connection
from mainstem.errors import DiskFull
from mainstem.log.transaction import Transaction
from tests.capture.captured_shop import CapturedShop, captured_shop
from tests.postgres_server import PASSWORD, QUOTED_PASSWORD, PostgresServer
from tests.waiting import wait_until

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
# A capture in a process of its own; its largest size in KiB.
MEASURED = """
import re, sys
import mainstem
from mainstem import Capture
from mainstem.capture import postgres
from mainstem.capture.capture_run import CaptureRun
home, slot = sys.argv[1:]
capture = Capture("shop", postgres(sys.stdin.readline().strip(), tables=["t"], slot=slot))
CaptureRun(mainstem.open(home, upkeep="manual").log, home, capture).run(until="idle")
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


@pytest.fixture
def own_shop(tmp_path: Path) -> Iterator[CapturedShop]:
    """On a server whose settings the test changes."""
    with PostgresServer() as server, captured_shop(server, tmp_path / "home") as made:
        yield made


# Large transactions


@pytest.mark.parametrize("rows", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_large_transaction_is_one_of_the_log(
    shop: CapturedShop, rows: int, fault_report: Callable[..., None]
) -> None:
    shop.sql(TABLE)
    shop.run("t")
    with psycopg.connect(shop.url) as large, psycopg.connect(shop.url) as given_up:
        large.execute("INSERT INTO t SELECT i, repeat('x', 50) FROM generate_series(1, %s::int) i", [rows // 2])
        # Transactions that are committed before it come first; those that are rolled back do not come.
        shop.sql("INSERT INTO t VALUES (-1, 'between')")
        given_up.execute("INSERT INTO t SELECT -i, 'never' FROM generate_series(100, 1000) i")
        with large.transaction():
            large.execute(
                "INSERT INTO t SELECT i, 'sub' FROM generate_series(%s::int, %s::int) i", [rows // 2 + 1, rows]
            )
        with large.transaction():
            large.execute("UPDATE t SET v = 'never'")
            raise psycopg.Rollback
        given_up.rollback()
        large.commit()
    process = subprocess.run(
        [sys.executable, "-c", MEASURED, shop.home, shop.slot], input=f"{shop.url}\n".encode(), capture_output=True,
        cwd=Path(__file__).parent.parent.parent, check=True,
    )  # fmt: skip
    size = int(process.stdout) >> 10
    found = [row for row in shop.records("mainstem.capture.shop.transactions") if row["transaction"]]
    violations: list[object] = []
    if [dict(row["changes"]) for row in found] != [{"t": 1}, {"t": rows}]:
        violations.append([row["changes"] for row in found])
    if shop.topic("shop.t").to_arrow(columns=["id"]).num_rows != rows + 1 or shop.repeated("shop.t"):
        violations.append("rows are missing or repeated")
    if size > 512:
        violations.append(f"{size} MiB")
    fault_report("C6", points=1, compared=rows, violations=violations, mebibytes=size)


def test_a_reader_sees_all_of_a_transaction_or_nothing(shop: CapturedShop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_connection, "ROWS_MAX", 100)
    shop.sql(TABLE)
    shop.run("t")
    seen = set()
    with shop.background("t"):
        shop.sql("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 3000) i")

        def count() -> bool:
            seen.add(shop.topic("shop.t").to_arrow(columns=["id"]).num_rows)
            return 3000 in seen

        shop.wait(count)
    [row] = [row for row in shop.records("mainstem.capture.shop.transactions") if row["transaction"]]
    assert seen <= {0, 3000}
    assert dict(row["changes"]) == {"t": 3000}


# What the server holds


def test_a_stalled_reader_is_told_before_its_slot_is_lost(own_shop: CapturedShop) -> None:
    shop = own_shop
    shop.sql("ALTER SYSTEM SET max_slot_wal_keep_size = '48MB'")
    shop.sql("SELECT pg_reload_conf()")
    shop.sql(TABLE)
    shop.run("t")
    process = shop.start_process("t")
    wait_until(lambda: (found := StatusFile(shop.home, "shop").read()) is not None and found.running)
    quiet = StatusFile(shop.home, "shop").read()
    process.send_signal(signal.SIGSTOP)
    for _ in range(3):
        shop.sql("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000)) FROM generate_series(1, 12)")
    [(kept,)] = shop.sql(f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{shop.slot}'")
    # Another process asks for it.
    connection = shop.capture("t").source.open("shop", shop.home)
    health = connection.health()
    connection.close()
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
    assert quiet is not None
    assert (quiet.alarm, quiet.held_bytes is not None) == (False, True)
    assert kept != "lost"
    assert health.held_bytes > 30 << 20
    assert health.left_bytes is not None
    assert health.held_bytes > (health.held_bytes + health.left_bytes) / 2
    shop.run("t")


def test_the_wal_of_another_database_is_let_go(own_shop: CapturedShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing captured is written, and the capture's role may not write either."""
    monkeypatch.setattr(capture_run, "NOTE_SECONDS", 0.0)
    shop = own_shop
    shop.sql(TABLE)
    shop.run("t")
    shop.sql("CREATE ROLE reader LOGIN REPLICATION PASSWORD 'pw'; GRANT SELECT ON t TO reader")
    shop.url = f"postgresql://reader:pw@127.0.0.1:{shop.server.port}/{shop.database}"
    held = f"SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots WHERE slot_name = '{shop.slot}'"
    with psycopg.connect(shop.server.address(), autocommit=True) as other, shop.background("t"):
        [(before,)] = other.execute("SELECT pg_current_wal_lsn() - '0/0'")
        for _ in range(10):
            other.execute("SELECT pg_logical_emit_message(true, 'x', repeat('x', 1000000)) FROM generate_series(1, 10)")
        [(after,)] = other.execute("SELECT pg_current_wal_lsn() - '0/0'")

        def let_go() -> bool:
            other.execute("CHECKPOINT")
            return bool(shop.sql(held)[0][0] < 32 << 20)

        shop.wait(let_go)
    assert after - before > 100_000_000


# What cannot be appended


def test_a_row_that_is_too_large_stops_with_its_key(shop: CapturedShop) -> None:
    shop.sql(TABLE)
    shop.sql("INSERT INTO t VALUES (1, 'a')")
    shop.run("t")
    shop.sql("INSERT INTO t VALUES (2, 'b'), (3, repeat('x', 17 << 20))")
    for _ in range(2):
        with pytest.raises(Invalid) as refused:
            shop.run("t")
        assert refused.value.summary == 'a row of table "t" is too large for topic "shop.t"'
        assert '{"id": 3}' in refused.value.detail
        [size] = re.findall(r"row 1 has (\d+) bytes", refused.value.detail)
        assert 17 << 20 < int(size) < (17 << 20) + 100
        assert "record_bytes_max" in refused.value.hint
    assert shop.replay("shop.t").keys() == {(1,)}


@pytest.mark.parametrize("call", [1, 2, 3])
def test_while_the_home_is_full_nothing_is_confirmed(
    shop: CapturedShop, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    monkeypatch.setattr(capture_run, "PAUSE_SECONDS_MIN", 0.01)
    shop.sql(TABLE)
    shop.run("t")
    shop.sql("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    [confirmed] = shop.sql(f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{shop.slot}'")
    commit, calls, seen = Transaction.commit, [0], []

    def full(self: Transaction) -> object:
        calls[0] += 1
        if calls[0] <= call:
            seen.extend(
                shop.sql(f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{shop.slot}'")
            )
            raise DiskFull("no space is left", detail="The disk is full.", hint="Free some.", path=shop.home)
        return commit(self)

    with mock.patch.object(Transaction, "commit", full):
        shop.run("t")
    assert seen == [confirmed] * call
    assert shop.replay("shop.t") == shop.rows("t")
    assert shop.repeated("shop.t") == 0


def test_a_commit_that_fails_leaves_neither_rows_nor_a_position(
    shop: CapturedShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_run, "PAUSE_SECONDS_MIN", 0.01)
    shop.sql(TABLE)
    shop.run("t")
    commit = Transaction.commit
    for number in range(1, 6):
        shop.sql(f"INSERT INTO t VALUES ({number}, 'a')")
        calls = [0]

        def full(self: Transaction, calls: list[int] = calls, number: int = number) -> object:
            calls[0] += 1
            if calls[0] == number:
                raise DiskFull("no space is left", detail="The disk is full.", hint="Free some.", path=shop.home)
            return commit(self)

        with mock.patch.object(Transaction, "commit", full):
            shop.run("t")
    assert shop.replay("shop.t") == shop.rows("t")
    assert shop.repeated("shop.t") == 0


# A slot in use


def test_an_older_run_that_holds_the_slot_is_ended(shop: CapturedShop) -> None:
    shop.sql(TABLE)
    shop.run("t")
    process = shop.start_process("t")
    active = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{shop.slot}' AND active"
    wait_until(lambda: shop.sql(active))
    process.send_signal(signal.SIGSTOP)
    shop.sql("INSERT INTO t VALUES (1, 'a')")
    shop.run("t")
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
    assert shop.replay("shop.t") == shop.rows("t")
    assert shop.repeated("shop.t") == 0


def test_another_program_that_holds_the_slot_is_named(shop: CapturedShop) -> None:
    shop.sql(TABLE)
    shop.run("t")
    other = shop.capture("t").source.open("shop", shop.home)
    other._title = "somebody else"  # type: ignore[attr-defined]
    [(position,)] = shop.sql(
        f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{shop.slot}'"
    )
    other.start(position)
    [(pid,)] = shop.sql(f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{shop.slot}'")
    with pytest.raises(Invalid) as refused:
        shop.run("t")
    other.close()
    assert f"Process {pid} of the server" in refused.value.detail
    assert "somebody else" in refused.value.detail


# The password


def has_ended_or_waits(result: Future[None], caplog: pytest.LogCaptureFixture) -> bool:
    return result.done() or "waits" in caplog.text


def test_the_password_is_nowhere(shop: CapturedShop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shop.sql(TABLE)
    shop.sql("INSERT INTO t VALUES (1, 'a')")
    shop.run("t")
    shop.drop_slot()
    said = [repr(shop.capture("t")), str(shop.capture("t").source)]
    for url in (shop.url, shop.url.replace(f":{shop.server.port}/", ":1/"), shop.url.replace("shop:", "nobody:")):
        own, shop.url = shop.url, url
        stopped = threading.Event()
        run = CaptureRun(
            shop.stem.log, shop.home, shop.capture("t"), stopped=stopped.is_set, tell=lambda one: said.append(repr(one))
        )
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(run.run)
            wait_until(partial(has_ended_or_waits, result, caplog))
            processes = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
            stopped.set()
            error = result.exception()
        said.append("".join([repr(error), *getattr(error, "__notes__", [])]))
        shop.url = own
    said += [caplog.text, *(one.decode(errors="replace") for one in processes)]
    said += [path.read_bytes().decode("latin-1") for path in Path(shop.home).rglob("*") if path.is_file()]
    assert len(said) > 10
    assert not [one[:200] for one in said if PASSWORD in one or QUOTED_PASSWORD in one]
