"""C1, C2, C5: captures that are killed, servers that restart, snapshots beside writes. Nothing is lost, nothing twice."""

from __future__ import annotations

import random
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import psycopg
import pytest

from mainstem.capture import snapshots
from mainstem.capture.capture_status import StatusFile
from tests.capture.captured_shop import TABLE, CapturedShop, captured_shop, random_changes
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until

SNAPSHOT_KILLS = pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.long)])
RESTARTS = pytest.mark.parametrize("restarts", [5, pytest.param(20, marks=pytest.mark.long)])
POINTS = ["capture_before_commit", "capture_after_commit", "capture_chunk_read"]


FILL = (
    "INSERT INTO accounts SELECT i, 'o', i, repeat('z', 10 * i) FROM generate_series(1, 400) i ON CONFLICT DO NOTHING"
)


def differences(shop: CapturedShop) -> list[object]:
    """Keys whose row in the topic is not that of the table, and changes that are in the topic twice."""
    kept, there = shop.replay("shop.accounts"), shop.rows("accounts")
    wrong = [key for key in kept.keys() | there.keys() if kept.get(key) != there.get(key)]
    return [*wrong, *["repeated"] * shop.repeated("shop.accounts")]


def grew(shop: CapturedShop, before: int) -> bool:
    return shop.progress() > before


def has_key(shop: CapturedShop, key: int) -> bool:
    return any(row["id"] == key for row in shop.records("shop.accounts"))


def ended_or_grew(process: subprocess.Popen[bytes], shop: CapturedShop, before: int) -> bool:
    return process.poll() is not None or grew(shop, before)


@pytest.fixture
def shop_on(
    request: pytest.FixtureRequest, kind: str, postgres: PostgresServer, tmp_path: Path
) -> Iterator[CapturedShop]:
    """A database that is captured into topics in the home, or on Kafka."""
    home = tmp_path / "home"
    if kind == "kafka":
        home.mkdir()
        broker = request.getfixturevalue("kafka_broker").address
        (home / "kafka.toml").write_text(f'brokers = ["{broker}"]\nprefix = "t{uuid.uuid4().hex[:8]}."\n')
    with captured_shop(postgres, home) as made:
        yield made


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("embedded", 10),
        ("kafka", 3),
        pytest.param("embedded", 100, marks=pytest.mark.long),
        pytest.param("kafka", 20, marks=pytest.mark.long),
    ],
)
def test_a_killed_capture_loses_and_repeats_nothing(
    shop_on: CapturedShop, kind: str, kills: int, fault_report: Callable[..., None]
) -> None:
    shop = shop_on
    chance = random.Random(seed := 16)
    shop.sql(TABLE)
    shop.run("accounts")
    for _ in range(kills):
        process = shop.start_process("accounts")
        before = shop.progress()
        random_changes(shop.connection, chance, chance.randint(5, 40))
        shop.sql("INSERT INTO accounts VALUES (%s, 'last', 0, '') ON CONFLICT DO NOTHING", chance.randrange(100))
        wait_until(partial(grew, shop, before))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
    shop.run("accounts")
    compared = len(shop.records("shop.accounts"))
    violations = differences(shop)
    fault_report(
        "C1" if kind == "embedded" else "C1 on Kafka", points=kills, compared=compared, violations=violations, seed=seed
    )


@SNAPSHOT_KILLS
def test_a_snapshot_beside_writes_is_resumed_after_a_kill(
    shop: CapturedShop, kills: int, fault_report: Callable[..., None]
) -> None:
    chance = random.Random(seed := 16)
    shop.sql(TABLE)
    died = 0
    for number in range(kills):
        point = f"{POINTS[number % len(POINTS)]}:{chance.randint(1, 4)}"
        process = shop.start_process("accounts", crash_at=point, chunk_rows=20)
        for round_ in count():
            if round_ % 40 == 0:
                # A truncate may have left too few rows for the point, or the snapshot is over: it begins again.
                shop.sql(FILL)
                StatusFile(shop.home, "shop").request("snapshot", tables=["accounts"])
            before = shop.progress()
            random_changes(shop.connection, chance, 2)
            shop.sql("INSERT INTO accounts VALUES (999, '', 0, '') ON CONFLICT (id) DO UPDATE SET balance = 1")
            # The capture must keep up with the writer.
            wait_until(partial(ended_or_grew, process, shop, before))
            if process.poll() is not None:
                break
        died += process.returncode == -signal.SIGKILL
        assert process.stdin is not None
        process.stdin.close()
    shop.run("accounts")
    compared = len(shop.records("shop.accounts"))
    violations = differences(shop)
    fault_report("C5", points=died, compared=compared, violations=violations, seed=seed)
    assert died == kills


@RESTARTS
def test_a_server_that_restarts_is_read_on(
    shop: CapturedShop, restarts: int, fault_report: Callable[..., None]
) -> None:
    chance = random.Random(seed := 16)
    shop.sql(TABLE)
    shop.run("accounts")
    with shop.background("accounts"):
        for number in range(restarts):
            random_changes(shop.connection, chance, 20)
            shop.sql("INSERT INTO accounts VALUES (%s, '', 0, '')", 2000 + number)
            if number % 2:
                # It is idle when the server stops, else in the middle of something.
                shop.wait(partial(has_key, shop, 2000 + number))
            shop.server.restart(signal.SIGINT if number % 2 else signal.SIGQUIT)
            shop.connection.close()
            shop.connection = psycopg.connect(shop.url, autocommit=True)
        random_changes(shop.connection, chance, 20)
        shop.sql("INSERT INTO accounts VALUES (999, 'last', 0, '')")
        shop.wait(lambda: (999,) in shop.replay("shop.accounts"))
    violations = differences(shop)
    fault_report("C2", points=restarts, compared=len(shop.records("shop.accounts")), violations=violations, seed=seed)


@contextmanager
def held_commits(shop: CapturedShop) -> Iterator[None]:
    """Inside, commits wait for a standby that does not exist: they are in the WAL, and no reader sees them."""
    shop.sql("SET synchronous_commit = local")
    shop.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    shop.sql("SELECT pg_reload_conf()")
    # A session that shows the setting is not enough: another process of the server makes commits wait.
    wait_until(lambda: commits_wait(shop))
    try:
        yield
    finally:
        shop.sql("ALTER SYSTEM RESET synchronous_standby_names")
        shop.sql("SELECT pg_reload_conf()")


def commits_wait(shop: CapturedShop) -> bool:
    """Whether a commit waits for a standby; that of a message that nobody captures."""
    with psycopg.connect(shop.url, autocommit=True) as probe, ThreadPoolExecutor(1) as pool:
        pid = probe.info.backend_pid
        commit = pool.submit(probe.execute, "SELECT pg_logical_emit_message(true, 'probe', '')")
        waits_for = f"SELECT wait_event FROM pg_stat_activity WHERE pid = {pid}"
        wait_until(lambda: commit.done() or shop.sql(waits_for) == [("SyncRep",)])
        waits = not commit.done()
        shop.sql(f"SELECT pg_cancel_backend({pid})")
        commit.result()
    return waits


def paused(shop: CapturedShop) -> bool:
    """Whether the capture streams, and its snapshot waits."""
    status = StatusFile(shop.home, "shop").read()
    return status is not None and status.paused and status.state == "running"


def change(shop: CapturedShop, statement: str) -> None:
    with psycopg.connect(shop.url, autocommit=True) as connection:
        connection.execute(statement.encode())


def seen(shop: CapturedShop) -> dict[int, str]:
    return {key[0]: row["v"] for key, row in shop.replay("shop.t").items()}


def test_a_commit_that_is_streamed_before_it_is_visible_wins(shop: CapturedShop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, v text)")
    shop.sql("INSERT INTO t VALUES (1, 'old'), (2, 'old'), (3, 'old')")
    StatusFile(shop.home, "shop").request("pause")
    with ThreadPoolExecutor(2) as pool, shop.background("t"):
        shop.wait(lambda: paused(shop))
        with held_commits(shop):
            pool.submit(change, shop, "UPDATE t SET v = 'new' WHERE id = 2")
            pool.submit(change, shop, "DELETE FROM t WHERE id = 3")
            shop.wait(lambda: len(shop.records("shop.t")) == 2)
            # To a reader both rows are as before.
            visible = shop.sql("SELECT v FROM t ORDER BY id")
            StatusFile(shop.home, "shop").request("resume")
            shop.wait(lambda: 1 in seen(shop))
            early = seen(shop)
    assert visible == [("old",), ("old",), ("old",)]
    assert early == {1: "old", 2: "new"}
    assert shop.sql("SELECT id, v FROM t ORDER BY id") == [(1, "old"), (2, "new")]


def test_a_restarted_snapshot_waits_for_streamed_commits_that_are_not_visible(shop: CapturedShop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, v text)")
    shop.sql("INSERT INTO t VALUES (1, 'old'), (2, 'old')")
    StatusFile(shop.home, "shop").request("pause")
    with ThreadPoolExecutor(1) as pool:
        with ExitStack() as first:
            first.enter_context(shop.background("t"))
            shop.wait(lambda: paused(shop))
            held = held_commits(shop)
            held.__enter__()
            pool.submit(change, shop, "UPDATE t SET v = 'new' WHERE id = 2")
            shop.wait(lambda: len(shop.records("shop.t")) == 1)
        StatusFile(shop.home, "shop").request("resume")
        with shop.background("t"):
            status = StatusFile(shop.home, "shop")
            shop.wait(lambda: not paused(shop))
            at = status.read()
            shop.wait(lambda: status.read() != at)
            early = seen(shop)
            held.__exit__(None, None, None)
            shop.wait(lambda: 1 in seen(shop))
    assert early == {2: "new"}
    assert seen(shop) == {1: "old", 2: "new"}


def test_rows_that_the_source_lost_are_deleted_by_a_new_snapshot(
    shop: CapturedShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "CHUNK_ROWS", 7)
    shop.sql(TABLE)
    shop.sql("INSERT INTO accounts SELECT i, 'o', i, '' FROM generate_series(1, 50) i")
    shop.run("accounts")
    # Not in the stream: as if its changes were lost.
    shop.sql("SET session_replication_role = replica; ALTER TABLE accounts RENAME TO other; " + TABLE)
    shop.sql("INSERT INTO accounts SELECT i, 'p', i, '' FROM generate_series(30, 60) i")
    shop.run("accounts", when_lost="snapshot", snapshot="again")
    assert differences(shop) == []
