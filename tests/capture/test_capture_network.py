"""C9: connections that are cut, or on which nothing passes any more. The capture connects again; nothing is lost, nothing
twice."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from mainstem.capture import snapshots
from mainstem.capture.capture_status import StatusFile
from mainstem.capture.postgresql import postgres_connection, postgres_session
from mainstem.capture.postgresql.postgres_connection import PostgresConnection
from mainstem.capture.postgresql.postgres_session import PostgresSession
from tests.capture.captured_shop import TABLE, CapturedShop, captured_shop, random_changes
from tests.capture.test_capture_crashes import differences
from tests.cutting_proxy import Cut, CuttingProxy
from tests.postgres_server import PostgresServer

CUTS = pytest.mark.parametrize("cuts", [2, pytest.param(8, marks=pytest.mark.long)])
LARGE = "INSERT INTO accounts SELECT i, 'large', i, repeat('x', 500) FROM generate_series({0}, {0} + 1999) i"


@pytest.fixture
def proxy(shop: CapturedShop, monkeypatch: pytest.MonkeyPatch) -> Iterator[CuttingProxy]:
    """Between the capture and its server; a server that says nothing is given up after a second."""
    monkeypatch.setattr(postgres_connection, "SILENT_SECONDS_MAX", 1.0)
    monkeypatch.setattr(postgres_connection, "ASK_SECONDS", 0.2)
    monkeypatch.setattr(postgres_connection, "STATUS_SECONDS", 0.2)
    monkeypatch.setattr(snapshots, "CHUNK_ROWS", 100)
    with CuttingProxy(shop.server.port) as made:
        shop.url = shop.server.address(shop.database, port=made.port)
        yield made


def is_running(shop: CapturedShop) -> bool:
    status = StatusFile(shop.home, "shop").read()
    return status is not None and status.state == "running"


def was_cut(proxy: CuttingProxy, before: int) -> bool:
    return proxy.cuts > before


def has(shop: CapturedShop, number: int) -> bool:
    return (number,) in shop.replay("shop.accounts")


@CUTS
@pytest.mark.parametrize("when", ["idle", "idle, silent", "large transaction", "large transaction, silent", "snapshot"])
def test_a_cut_connection_loses_and_repeats_nothing(
    shop: CapturedShop, proxy: CuttingProxy, when: str, cuts: int, fault_report: Callable[..., None]
) -> None:
    chance = random.Random(seed := 9)
    shop.sql(TABLE)
    shop.sql(LARGE.format(10_000))
    with shop.background("accounts"):
        for number in range(cuts):
            shop.wait(lambda: is_running(shop))
            random_changes(shop.connection, chance, 5)
            before = proxy.cuts
            match when:
                case "idle":
                    # Its own report to the server is the only thing sent.
                    proxy.cut(b"d\x00\x00\x00&r", Cut.BEFORE)
                case "idle, silent":
                    proxy.swallow(b"START_REPLICATION")
                case "large transaction":
                    proxy.cut_answers(chance.randrange(100_000, 800_000))
                    shop.sql(LARGE.format(20_000 + 2000 * number))
                case "large transaction, silent":
                    proxy.swallow(b"START_REPLICATION", chance.randrange(100_000, 800_000))
                    shop.sql(LARGE.format(20_000 + 2000 * number))
                case "snapshot":
                    StatusFile(shop.home, "shop").request("snapshot", tables=["accounts"])
                    proxy.cut_answers(chance.randrange(100_000, 400_000))
            shop.wait(partial(was_cut, proxy, before))
            shop.sql("INSERT INTO accounts VALUES (%s, 'after', 0, '')", 900_000 + number)
            shop.wait(partial(has, shop, 900_000 + number))
    shop.run("accounts")
    violations = differences(shop)
    fault_report("C9", points=cuts, compared=len(shop.records("shop.accounts")), violations=violations, seed=seed)


def test_a_silent_server_is_given_up(shop: CapturedShop, proxy: CuttingProxy) -> None:
    shop.sql(TABLE)
    with shop.background("accounts"):
        shop.wait(lambda: is_running(shop))
        began = time.monotonic()
        proxy.swallow(b"START_REPLICATION")
        shop.sql("INSERT INTO accounts VALUES (1, 'a', 0, '')")
        shop.wait(lambda: (1,) in shop.replay("shop.accounts"))
    # A second, twice its length for a busy machine, and the pause before connecting again.
    assert time.monotonic() - began < 10
    assert proxy.cuts == 1


def test_a_machine_that_is_gone_is_given_up_by_the_kernel(shop: CapturedShop) -> None:
    """The session beside the stream waits for slow queries, so it cannot tell them from silence for some minutes."""
    shop.sql(TABLE)
    connection = shop.capture("accounts").source.open("shop", shop.home)
    assert isinstance(connection, PostgresConnection)
    handle = socket.socket(fileno=connection._session.fileno())
    try:
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        found = [handle.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
    finally:
        handle.detach()
        connection.close()
    idle, interval, count, unanswered = found
    assert 0 < idle + interval * count <= 30
    assert 0 < unanswered <= 30_000


@pytest.mark.parametrize("when", ["wait", "wait_for_input"])
def test_a_server_that_hangs_in_a_query_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    """While psycopg waits for an answer, and while rows of a COPY come."""
    monkeypatch.setattr(postgres_session, "SILENT_SECONDS_MAX", 2.0)
    waits = getattr(PostgresSession, when)
    hanging: list[int] = []
    with PostgresServer() as server, captured_shop(server, tmp_path / "home") as shop:
        shop.sql("CREATE TABLE t (id int PRIMARY KEY, body text)")
        # More than the buffers of a socket hold.
        shop.sql("INSERT INTO t SELECT i, repeat('x', 4000) FROM generate_series(1, 5000) i")

        def hang(session: PostgresSession, *given: object, **settings: object) -> object:
            if not hanging:
                hanging.append(session.info.backend_pid)
                os.kill(hanging[0], signal.SIGSTOP)
            return waits(session, *given, **settings)

        monkeypatch.setattr(PostgresSession, when, hang)
        try:
            with shop.background("t"):
                shop.wait(lambda: "shop.t" in shop.stem.topics() and len(shop.replay("shop.t")) == 5000)
        finally:
            os.kill(hanging[0], signal.SIGCONT)
    assert "cannot be reached" in caplog.text
