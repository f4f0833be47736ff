"""C4: slots that are dropped, moved or invalidated, other servers, restored copies. The capture stops before the next event,
or reads its tables again; nothing is missing without a word."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

import mainstem
from mainstem import Conflict, Invalid, PositionLost
from mainstem.capture.capture_status import StatusFile
from tests.capture.captured_shop import CapturedShop, captured_shop
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'old' FROM generate_series(1, 9) i"
# Not in the stream of a slot that is made afterwards.
MEANWHILE = ("DELETE FROM t WHERE id = 1", "UPDATE t SET v = 'new' WHERE id = 2", "INSERT INTO t VALUES (10, 'new')")


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server whose settings and files these tests change; the newest version, which says why a slot is invalid."""
    with PostgresServer(version=18) as server:
        yield server


@pytest.fixture
def own_shop(own_server: PostgresServer, tmp_path: Path) -> Iterator[CapturedShop]:
    with captured_shop(own_server, tmp_path / "own_home") as made:
        yield made


def change(shop: CapturedShop) -> None:
    for statement in MEANWHILE:
        shop.sql(statement)


def end_reader(shop: CapturedShop) -> None:
    """A slot that is read can be neither dropped nor moved."""
    shop.sql(
        f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{shop.slot}' AND active"
    )


def in_slot(shop: CapturedShop, statement: str) -> None:
    """Before the capture, if it runs, has the slot again."""

    def done() -> bool:
        end_reader(shop)
        try:
            shop.sql(statement.format(slot=shop.slot))
        except psycopg.errors.ObjectInUse:
            return False
        return True

    wait_until(done)


def dropped(shop: CapturedShop) -> None:
    in_slot(shop, "SELECT pg_drop_replication_slot('{slot}')")
    change(shop)


def made_again_before(shop: CapturedShop) -> None:
    in_slot(
        shop,
        "SELECT pg_drop_replication_slot('{slot}'); SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
    )
    change(shop)


def made_again_after(shop: CapturedShop) -> None:
    change(shop)
    in_slot(
        shop,
        "SELECT pg_drop_replication_slot('{slot}'); SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
    )


def moved(shop: CapturedShop) -> None:
    change(shop)
    in_slot(shop, "SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")


def physical(shop: CapturedShop) -> None:
    in_slot(shop, "SELECT pg_drop_replication_slot('{slot}'); SELECT pg_create_physical_replication_slot('{slot}')")
    change(shop)


def invalidated(shop: CapturedShop) -> None:
    """More WAL than the slot may hold, and a checkpoint."""
    with psycopg.connect(shop.server.address(), autocommit=True) as other:
        other.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        other.execute("ALTER SYSTEM SET max_wal_size = '32MB'")
        other.execute("SELECT pg_reload_conf()")
        wait_until(lambda: other.execute("SHOW max_slot_wal_keep_size").fetchone() == ("1MB",))
        change(shop)
        try:
            for _ in range(10):
                end_reader(shop)
                other.execute(
                    "SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000)) FROM generate_series(1, 4)"
                )
                other.execute("SELECT pg_switch_wal()")
                other.execute("CHECKPOINT")
                status = other.execute(
                    "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", [shop.slot]
                ).fetchone()
                if status == ("lost",):
                    break
        finally:
            other.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
            other.execute("ALTER SYSTEM RESET max_wal_size")
            other.execute("SELECT pg_reload_conf()")
    assert status == ("lost",)


LOSSES: dict[str, Callable[[CapturedShop], None]] = {
    "dropped": dropped,
    "dropped and made again": made_again_before,
    "changed, dropped and made again": made_again_after,
    "moved": moved,
    "physical": physical,
    "invalidated": invalidated,
}
FOREIGN = ("physical",)


def differences(shop: CapturedShop) -> list[object]:
    kept, there = shop.replay("shop.t"), shop.rows("t")
    return [
        (key, kept.get(key), there.get(key)) for key in kept.keys() | there.keys() if kept.get(key) != there.get(key)
    ]


def captured_on(shop: CapturedShop, when_lost: str, loss: str) -> list[object]:
    """Start the capture after a loss; what is wrong then."""
    before = shop.records("shop.t")
    if when_lost == "stop":
        try:
            shop.run("t")
        except PositionLost as error:
            return [] if error.detail and error.hint and shop.records("shop.t") == before else ["appended", error]
        return ["no error"]
    if loss in FOREIGN:
        # A slot that somebody else may need is not dropped.
        with pytest.raises(Invalid, match="is not of this capture"):
            shop.run("t", when_lost=when_lost)
        in_slot(shop, "SELECT pg_drop_replication_slot('{slot}')")
    shop.run("t", when_lost=when_lost)
    wrong = differences(shop)
    shop.sql("UPDATE t SET v = 'last' WHERE id = 3")
    shop.run("t", when_lost=when_lost)
    return wrong + differences(shop)


@pytest.mark.parametrize("when_lost", ["stop", "snapshot"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_slot_that_is_lost_while_nothing_captures(
    own_shop: CapturedShop, loss: str, when_lost: str, fault_report: Callable[..., None]
) -> None:
    own_shop.sql(TABLE)
    own_shop.run("t")
    LOSSES[loss](own_shop)
    violations = captured_on(own_shop, when_lost, loss)
    fault_report("C4", points=1, compared=len(own_shop.records("shop.t")), violations=violations)


@pytest.mark.parametrize("when_lost", ["stop", "snapshot"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_slot_that_is_lost_while_the_capture_runs(
    own_shop: CapturedShop, loss: str, when_lost: str, fault_report: Callable[..., None]
) -> None:
    shop = own_shop
    shop.sql(TABLE)
    shop.run("t")
    violations: list[object] = []
    stop: Exception | None = None
    try:
        with shop.background("t", when_lost=when_lost):
            shop.wait(lambda: (found := StatusFile(shop.home, "shop").read()) is not None and found.state == "running")
            LOSSES[loss](shop)
            with suppress(AssertionError):
                shop.wait(lambda: when_lost == "snapshot" and not differences(shop), 15)
    except (PositionLost, Invalid) as error:
        stop = error
    if when_lost == "snapshot" and loss not in FOREIGN:
        violations = [*differences(shop), *([stop] if stop else [])]
    elif stop is None and differences(shop):
        # If everything was read before it happened, nothing was lost.
        violations = ["no error", *differences(shop)]
    elif when_lost == "stop" and stop is not None and not isinstance(stop, PositionLost):
        violations = [stop]
    fault_report("C4", points=1, compared=len(shop.records("shop.t")), violations=violations)


@pytest.mark.parametrize("when_lost", ["stop", "snapshot"])
def test_another_database_is_noticed(
    shop: CapturedShop, tmp_path: Path, when_lost: str, fault_report: Callable[..., None]
) -> None:
    shop.sql(TABLE)
    shop.run("t")
    violations: list[object] = []
    with captured_shop(shop.server, tmp_path / "other") as other:
        other.sql(TABLE)
        change(other)
        own, shop.url = shop.url, other.url
        former, shop.connection = shop.connection, other.connection
        if when_lost == "stop":
            violations = captured_on(shop, when_lost, "")
        else:
            # The slot of the first database has its name.
            with pytest.raises(Invalid, match="is not of this capture"):
                shop.run("t", when_lost="snapshot")
            former.execute(f"SELECT pg_drop_replication_slot('{shop.slot}')".encode())
            violations = captured_on(shop, when_lost, "")
            other.sql(f"SELECT pg_drop_replication_slot('{shop.slot}')")
        shop.url, shop.connection = own, former
    fault_report("C4", points=1, compared=10, violations=violations)


@pytest.mark.parametrize("when_lost", ["stop", "snapshot"])
def test_another_server_is_noticed(
    shop: CapturedShop, own_shop: CapturedShop, when_lost: str, fault_report: Callable[..., None]
) -> None:
    shop.sql(TABLE)
    shop.run("t")
    own_shop.sql(TABLE)
    change(own_shop)
    # Same names: the slot and the publication are there.
    own_shop.run("t", snapshot="none")
    own_shop.stem.close()
    own_shop.home, own_shop.stem = shop.home, mainstem.open(shop.home, upkeep="manual")
    if when_lost == "snapshot":
        # That slot is the other home's.
        with pytest.raises(Conflict, match="is of another home"):
            own_shop.run("t", when_lost=when_lost)
        in_slot(own_shop, "SELECT pg_drop_replication_slot('{slot}')")
    violations = captured_on(own_shop, when_lost, "")
    fault_report("C4", points=1, compared=10, violations=violations)


@pytest.mark.parametrize("when_lost", ["stop", "snapshot"])
def test_a_home_that_was_restored_from_a_copy_is_noticed(
    shop: CapturedShop, tmp_path: Path, when_lost: str, fault_report: Callable[..., None]
) -> None:
    shop.sql(TABLE)
    shop.run("t")
    shop.stem.close()
    shutil.copytree(shop.home, tmp_path / "copy")
    shop.stem = mainstem.open(shop.home, upkeep="manual")
    change(shop)
    shop.run("t")
    shop.stem.close()
    shutil.rmtree(shop.home)
    shutil.copytree(tmp_path / "copy", shop.home)
    shop.stem = mainstem.open(shop.home, upkeep="manual")
    shop.sql("UPDATE t SET v = 'newer' WHERE id = 4")
    violations = captured_on(shop, when_lost, "")
    fault_report("C4", points=1, compared=len(shop.records("shop.t")), violations=violations)


@pytest.mark.parametrize("when_lost", ["stop", "snapshot"])
@pytest.mark.parametrize("further", ["not yet", "other tables", "this table"])
def test_a_server_that_was_restored_from_a_copy_is_noticed(
    own_shop: CapturedShop, tmp_path: Path, when_lost: str, further: str, fault_report: Callable[..., None]
) -> None:
    """Also when it has passed the position, with other changes."""
    shop, server = own_shop, own_shop.server
    shop.sql(TABLE)
    shop.sql("CREATE TABLE other (id int)")
    shop.run("t")
    shop.connection.close()
    server.stop(signal.SIGINT)
    data = server.data
    kept = data.with_name("kept")
    shutil.copytree(data, kept, symlinks=True)
    server.start()
    shop.connection = psycopg.connect(shop.url, autocommit=True)
    change(shop)
    shop.run("t")
    shop.connection.close()
    server.stop(signal.SIGINT)
    server.restore(kept)
    server.start()
    shop.connection = psycopg.connect(shop.url, autocommit=True)
    if further == "other tables":
        shop.sql("INSERT INTO other SELECT i FROM generate_series(1, 5000) i")
    elif further == "this table":
        shop.sql("INSERT INTO t SELECT i, 'more' FROM generate_series(20, 5000) i")
    violations = captured_on(shop, when_lost, "")
    fault_report("C4", points=1, compared=len(shop.records("shop.t")), violations=violations)


def test_a_server_that_crashed_is_not_taken_for_a_copy(own_shop: CapturedShop) -> None:
    """It may have forgotten what was confirmed; its transactions are those of the log."""
    own_shop.sql(TABLE)
    own_shop.run("t")
    for number in range(3):
        change_one = f"UPDATE t SET v = 'crash {number}' WHERE id = 5"
        own_shop.sql(change_one)
        own_shop.run("t")
        own_shop.connection.close()
        own_shop.server.restart(signal.SIGQUIT)
        own_shop.connection = psycopg.connect(own_shop.url, autocommit=True)
    own_shop.run("t")
    assert differences(own_shop) == []
    assert own_shop.repeated("shop.t") == 0
