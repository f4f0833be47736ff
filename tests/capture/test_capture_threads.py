"""CaptureThreads and what captures say: requests of users while a capture runs, alarms, and lines for a person."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mainstem
from mainstem import Capture, Mainstem
from mainstem.capture import postgres as postgres_source
from mainstem.capture.capture_notes import CaptureNotes
from mainstem.capture.capture_status import CaptureStatus, StatusFile
from mainstem.capture.capture_threads import CaptureThreads
from mainstem.capture.source import Health
from tests.capture.shop_database import ShopDatabase, shop_database
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until

CAPTURE = Capture("shop", postgres_source("postgresql://reader@db/shop", tables=["customers", "orders"]))


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[ShopDatabase]:
    with shop_database(postgres) as made:
        yield made


@pytest.fixture
def stem(tmp_path: Path) -> Iterator[Mainstem]:
    with mainstem.open(tmp_path / "home", upkeep="manual") as opened:
        yield opened


@contextmanager
def running(stem: Mainstem, database: ShopDatabase) -> Iterator[CaptureThreads]:
    """A capture that has read its tables."""
    source = postgres_source(database.address, tables=["customers", "orders"], slot=database.slot)
    threads = CaptureThreads(stem.log, stem.home, [Capture("shop", source)])
    threads.start()
    try:
        wait_until(
            lambda: bool(threads.error) or (_state(threads, "running") and not threads.statuses["shop"].snapshot)
        )
        yield threads
    finally:
        threads.stop()
        assert threads.join(60)
    assert threads.error is None


def _state(threads: CaptureThreads, state: str) -> bool:
    return "shop" in threads.statuses and threads.statuses["shop"].state == state


def records(stem: Mainstem, topic: str) -> list[dict[str, Any]]:
    return stem.topic(topic).to_arrow().to_pylist()


def test_a_snapshot_is_paused_while_changes_are_captured_and_resumed(stem: Mainstem, database: ShopDatabase) -> None:
    files = StatusFile(stem.home, "shop")
    with running(stem, database) as threads:
        files.request("pause")
        wait_until(lambda: threads.statuses["shop"].paused)
        files.request("snapshot", tables=["orders"], where=None)
        wait_until(lambda: "orders" in threads.statuses["shop"].snapshot)
        database.execute("INSERT INTO orders VALUES (1000, 1, 2)")
        wait_until(lambda: threads.statuses["shop"].changes == 1)
        assert threads.statuses["shop"].snapshot["orders"]["rows"] == 0
        assert len(records(stem, "shop.orders")) == 101

        files.request("resume")
        wait_until(lambda: not threads.statuses["shop"].snapshot and not threads.statuses["shop"].paused)
    assert len(records(stem, "shop.orders")) == 202


def test_a_snapshot_of_some_rows_reads_these_and_deletes_none(stem: Mainstem, database: ShopDatabase) -> None:
    with running(stem, database):
        StatusFile(stem.home, "shop").request("snapshot", tables=["orders"], where="id <= 3")
        wait_until(lambda: len(records(stem, "shop.orders")) == 103)
    assert sorted(row["id"] for row in records(stem, "shop.orders")[100:]) == [1, 2, 3]
    assert {row["record"]["change"] for row in records(stem, "shop.orders")} == {"insert"}


def test_a_condition_that_the_database_refuses_is_a_warning_and_ends_nothing(
    stem: Mainstem, database: ShopDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "mainstem.capture"), running(stem, database) as threads:
        StatusFile(stem.home, "shop").request("snapshot", tables=["orders"], where="colour = 'red'")
        wait_until(lambda: bool(caplog.messages))
        database.execute("INSERT INTO orders VALUES (1000, 1, 2)")
        wait_until(lambda: threads.statuses["shop"].changes == 1)
    assert caplog.messages == [
        'capture "shop" reads no snapshot of "orders" where colour = \'red\': column "colour" does not exist'
    ]
    assert len(records(stem, "shop.orders")) == 101


def status(**facts: Any) -> CaptureStatus:
    known = {"state": "running", "position": "0/1", "changes": 0, "health": None, "snapshot": {}, "error": ""}
    given = {**known, **facts}
    return CaptureStatus.of(CAPTURE, paused=bool(given.pop("paused", False)), now=0, **given)


def test_an_alarm_is_logged_once(stem: Mainstem, caplog: pytest.LogCaptureFixture) -> None:
    threads = CaptureThreads(stem.log, stem.home, [])
    with caplog.at_level(logging.WARNING, "mainstem.capture"):
        for held in (10, 60, 70, 10, 80):
            threads._take(status(health=Health(held << 20, (100 - held) << 20, "0/1")))
    assert caplog.messages == [
        f'capture "shop": the server holds {held} MiB of its WAL, and may hold {100 - held} MiB more; beyond that, changes '
        "are lost"
        for held in (60, 80)
    ]


def test_lines_for_a_person_say_what_is_new_and_nothing_twice() -> None:
    said: list[str] = []
    notes = CaptureNotes(said.append)
    orders = {"rows": 20_000, "of": 100_000, "reason": "initial", "seconds_left": 40.0}
    items = {"rows": 0, "of": 50_000, "reason": "initial", "seconds_left": 25.0}
    for one in (
        status(snapshot={"orders": orders, "items": items}),
        status(snapshot={"orders": {**orders, "rows": 40_000}, "items": items}),
        status(),
        status(changes=12),
        status(changes=24),
        status(state="stopped", changes=24),
    ):
        notes.take(one)
    assert said == [
        "capture shop: reads customers, orders of postgresql://reader@db:5432/shop",
        "capture shop: reads the rows of orders: 20,000 of about 100,000, then items, about 1 minute left",
        "capture shop: the snapshot is complete",
        "capture shop: first changes: 12",
    ]


def test_an_unknown_number_of_rows_and_a_pause_are_said() -> None:
    said: list[str] = []
    CaptureNotes(said.append).take(
        status(snapshot={"orders": {"rows": 500, "of": 0, "reason": "asked for", "seconds_left": None}}, paused=True)
    )
    assert said[-1] == "capture shop: paused the snapshot of orders: 500"
