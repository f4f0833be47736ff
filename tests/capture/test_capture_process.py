"""CaptureProcess: captures in a child without Spark; it ends when asked and with its parent, and reports its errors."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mainstem
from mainstem import Capture, DatabaseUnavailable, Fenced, Invalid, MainstemError, PositionLost, Unavailable
from mainstem.capture import CapturedTable
from mainstem.capture import postgres as postgres_source
from mainstem.capture.capture_process import CaptureProcess, error_from_json, error_to_json
from mainstem.capture.capture_status import StatusFile
from mainstem.capture.captured_topics import find_or_make_topics, make_topics
from mainstem.processes import Identity, alive, identity_of
from tests.capture.shop_database import ShopDatabase, shop_database
from tests.postgres_server import PASSWORD, QUOTED_PASSWORD, PostgresServer
from tests.waiting import wait_until


@pytest.fixture
def shop(postgres: PostgresServer) -> Iterator[ShopDatabase]:
    with shop_database(postgres) as made:
        yield made


@pytest.fixture
def home(tmp_path: Path) -> str:
    with mainstem.open(tmp_path / "home"):
        return str(tmp_path / "home")


def capture(shop: ShopDatabase, *tables: str) -> Capture:
    source = postgres_source(shop.address, tables=tables or ("customers", "orders"), slot=shop.slot)
    return Capture("shop", source)


def count(home: str, topic: str) -> int:
    with mainstem.open(home, upkeep="manual") as stem:
        return stem.query(f'SELECT count(*) AS n FROM "{topic}"').to_pylist()[0]["n"] if topic in stem.topics() else 0


def test_it_captures_until_idle_in_a_process_without_spark(shop: ShopDatabase, home: str) -> None:
    told = []
    with CaptureProcess([capture(shop)], home=home, until="idle", tell=told.append) as running:
        running.wait()

    assert (count(home, "shop.customers"), count(home, "shop.orders")) == (10, 100)
    assert told[-1].state == "stopped"
    assert told[-1].process["pid"] == running.pid != os.getpid()


def test_its_module_imports_no_spark() -> None:
    program = (
        "import sys, mainstem.capture.capture_process; print([n for n in ('pyspark', 'pandas') if n in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_the_password_is_neither_on_its_command_line_nor_in_its_environment(shop: ShopDatabase, home: str) -> None:
    with CaptureProcess([capture(shop)], home=home) as running:
        wait_until(lambda: bool(running.statuses))
        shown = Path(f"/proc/{running.pid}/cmdline").read_bytes() + Path(f"/proc/{running.pid}/environ").read_bytes()
        files = [path.read_bytes() for path in Path(home, "captures").rglob("*.json")]
    for secret in (PASSWORD, QUOTED_PASSWORD):
        assert secret.encode() not in b"".join([shown, *files])


def test_it_stops_when_another_process_asks_for_it(shop: ShopDatabase, home: str) -> None:
    with CaptureProcess([capture(shop)], home=home) as running:
        wait_until(lambda: count(home, "shop.orders") == 100)
        StatusFile(home, "shop").request("stop")
        running.wait()
    assert running.ended
    status = StatusFile(home, "shop").read()
    assert status is not None
    assert status.state == "stopped"


def test_a_stop_request_for_an_earlier_run_does_not_stop_the_next(shop: ShopDatabase, home: str) -> None:
    StatusFile(home, "shop").request("stop")
    with CaptureProcess([capture(shop)], home=home, until="idle") as running:
        running.wait()
    assert count(home, "shop.orders") == 100


def test_sigterm_ends_it_in_order(shop: ShopDatabase, home: str) -> None:
    with CaptureProcess([capture(shop)], home=home) as running:
        wait_until(lambda: bool(running.statuses))
        os.kill(running.pid, signal.SIGTERM)
        running.wait()
    assert running.statuses["shop"].state == "stopped"


def test_the_error_of_the_child_is_raised_in_the_parent(shop: ShopDatabase, home: str) -> None:
    shop.execute("CREATE TABLE keyless (n int)")
    with CaptureProcess([capture(shop, "keyless")], home=home) as running, pytest.raises(Invalid) as raised:
        running.wait()
    assert raised.value.summary == 'table "keyless" has no key'
    assert "ADD PRIMARY KEY" in raised.value.hint
    assert vars(raised.value)["capture"] == "shop"


def test_if_one_capture_fails_the_others_stop(shop: ShopDatabase, home: str) -> None:
    shop.execute("CREATE TABLE keyless (n int)")
    bad = Capture("bad", postgres_source(shop.address, tables=["keyless"], slot=f"{shop.slot}_bad"))
    with CaptureProcess([capture(shop), bad], home=home) as running, pytest.raises(Invalid):
        running.wait()
    wait_until(lambda: running.ended)


def test_a_killed_child_is_reported(shop: ShopDatabase, home: str) -> None:
    with CaptureProcess([capture(shop)], home=home) as running:
        wait_until(lambda: bool(running.statuses))
        os.kill(running.pid, signal.SIGKILL)
        with pytest.raises(Unavailable, match="the process of captures shop died"):
            running.wait()


PARENT = """
import json, sys
from mainstem import Capture
from mainstem.capture.capture_process import CaptureProcess
spec = json.loads(sys.stdin.readline())
running = CaptureProcess([Capture.from_json(spec["capture"])], home=spec["home"])
print(running.pid, flush=True)
sys.stdin.readline()
"""


def test_it_ends_when_its_parent_is_killed(shop: ShopDatabase, home: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent:
        parent.stdin.write(json.dumps({"capture": capture(shop).to_json(), "home": home}) + "\n")
        parent.stdin.flush()
        child: Identity | None = identity_of(int(parent.stdout.readline()))
        assert child is not None
        wait_until(lambda: count(home, "shop.orders") == 100)
        parent.kill()
    wait_until(lambda: not alive(child))
    status = StatusFile(home, "shop").read()
    assert status is not None
    assert status.state == "stopped"


def test_its_warnings_are_logged_in_the_parent(shop: ShopDatabase, home: str, caplog: pytest.LogCaptureFixture) -> None:
    nowhere = Capture("shop", postgres_source("postgresql://reader:canary@127.0.0.1:1/shop", tables=["orders"]))
    with caplog.at_level(logging.WARNING, "mainstem.capture"), CaptureProcess([nowhere], home=home):
        wait_until(lambda: bool(caplog.records))
    assert caplog.messages[0].startswith(
        'capture "shop" waits: the database "postgresql://reader@127.0.0.1:1/shop" cannot be reached. '
        "PostgreSQL's client says: connection failed: "
    )
    assert "Connection refused" in caplog.messages[0]


@pytest.mark.parametrize("wrong", ["password", "database"])
def test_a_rejected_login_at_the_first_connection_is_an_error_at_once(
    shop: ShopDatabase, home: str, wrong: str
) -> None:
    address = shop.address.replace("s3cret", "another") if wrong == "password" else f"{shop.address}_not"
    refused = Capture("shop", postgres_source(address, tables=["orders"], slot=shop.slot))
    with CaptureProcess([capture(shop, "orders")], home=home, until="idle") as running:
        running.wait()
    # As topics exist, a database that does not answer would be waited for.
    with mainstem.open(home, upkeep="manual") as stem, pytest.raises(DatabaseUnavailable, match="cannot be reached"):
        find_or_make_topics(stem.log, home, refused)
    with CaptureProcess([refused], home=home) as running, pytest.raises(DatabaseUnavailable) as caught:
        running.wait()
    said = "password authentication failed" if wrong == "password" else "does not exist"
    assert said in caught.value.detail
    assert "a capture continues after the last position" in caught.value.hint
    status = StatusFile(home, "shop").read()
    assert status is not None
    assert (status.state, said in status.error, "canary" in status.error) == ("failed", True, False)


def test_a_login_that_is_rejected_later_is_waited_for_with_the_cause(
    shop: ShopDatabase, home: str, postgres: PostgresServer
) -> None:
    role = f"reader_{shop.slot}"
    shop.execute(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
    try:
        source = postgres_source(postgres.address(shop.slot, user=role), tables=["orders"], slot=shop.slot)
        with CaptureProcess([Capture("shop", source)], home=home) as running:
            wait_until(lambda: count(home, "shop.orders") == 100)
            shop.execute(f"ALTER ROLE {role} PASSWORD 'another'")
            shop.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", role)
            wait_until(lambda: "authentication failed" in running.statuses["shop"].error)
            assert (running.statuses["shop"].state, running.ended) == ("waiting", False)
            shop.execute(f"ALTER ROLE {role} PASSWORD '{PASSWORD}'")
            wait_until(lambda: running.statuses["shop"].state == "running")
            assert running.statuses["shop"].error == ""
    finally:
        shop.execute(f"DROP OWNED BY {role}")
        shop.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    "error",
    [
        PositionLost("it is gone", detail="All of it.", hint="Read again.", position="0/1", capture="shop"),
        MainstemError("something", detail="", hint="", capture="shop"),
        Unavailable("no answer", hint="Wait."),
    ],
)
def test_an_error_is_the_same_after_its_way_through_json(error: MainstemError) -> None:
    found = error_from_json(json.loads(json.dumps(error_to_json(error))))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


def test_topics_are_made_without_a_slot_and_without_fencing_a_run(shop: ShopDatabase, home: str) -> None:
    with mainstem.open(home) as stem:
        assert [topic.name for topic in make_topics(stem.log, home, capture(shop))] == ["shop.customers", "shop.orders"]
        assert (shop.slots(), shop.publications()) == ([], [])
        assert stem.topics() == ["shop.customers", "shop.orders"]
    with CaptureProcess([capture(shop)], home=home) as running:
        wait_until(lambda: count(home, "shop.orders") == 100)
        with mainstem.open(home) as stem:
            make_topics(stem.log, home, capture(shop))
        shop.execute("INSERT INTO orders VALUES (1000, 1, 2)")
        wait_until(lambda: count(home, "shop.orders") == 101)
        running.check()


def test_a_run_starts_with_the_topics_of_an_earlier_one_if_the_source_does_not_answer(home: str) -> None:
    nowhere = Capture("shop", postgres_source("postgresql://reader@127.0.0.1:1/shop", tables=["orders"]))
    with mainstem.open(home) as stem:
        with pytest.raises(Unavailable):
            find_or_make_topics(stem.log, home, nowhere)
        stem.create_topic("shop.orders", schema="id INT", key="id")
        find_or_make_topics(stem.log, home, nowhere)


def test_a_topic_that_is_no_captured_table_is_refused(shop: ShopDatabase, home: str) -> None:
    taken = Capture(
        "shop", postgres_source(shop.address, tables=[CapturedTable("orders", into="orders")], slot=shop.slot)
    )
    with mainstem.open(home) as stem:
        stem.create_topic("orders", schema="id BIGINT", key="id")
        with pytest.raises(MainstemError, match="is not the topic of a captured table"):
            make_topics(stem.log, home, taken)


def test_a_newer_run_takes_over_from_an_older_one(shop: ShopDatabase, home: str) -> None:
    with CaptureProcess([capture(shop)], home=home) as older:
        wait_until(lambda: count(home, "shop.orders") == 100)
        with CaptureProcess([capture(shop)], home=home) as newer:
            with pytest.raises(Fenced):
                older.wait()
            shop.execute("INSERT INTO orders VALUES (1000, 1, 2)")
            wait_until(lambda: count(home, "shop.orders") == 101)
            assert not newer.ended
            newer.check()
