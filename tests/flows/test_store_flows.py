"""Flows into stores: filled, kept current, filled again by themselves when they lost rows, and by hand."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import functions as F

from mainstem import Flow, FlowFailed, Mainstem
from mainstem.errors import Conflict, FellOff, SchemaMismatch, Unavailable
from mainstem.flows import runner
from mainstem.operators import table
from mainstem.sinks.store import Store
from mainstem.sinks.store_writer import StoreWriter
from mainstem.workbench.cli.flow_facts import FillFacts, flow_facts
from mainstem.workbench.cli.main import run
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until

pytestmark = [pytest.mark.starts_servers, pytest.mark.thorough]

SCHEMA = "id BIGINT, title STRING"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def url(server: PostgresServer) -> str:
    return server.new_address()


@pytest.fixture
def database(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def flows(url: str) -> Callable[[Mainstem], Iterator[Flow]]:
    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(table(stem.topic("products").stream(), key="id"), into=stem.postgres(url, "products", key="id"))

    return flows


@pytest.fixture
def shop(stem: Mainstem) -> Mainstem:
    stem.create_topic("products", schema=SCHEMA, key="id", keep="latest per key")
    return stem


def append(stem: Mainstem, rows: dict[int, str]) -> None:
    stem.topic("products").append([{"id": key, "title": title} for key, title in rows.items()])


def rows_of(database: psycopg.Connection[Any]) -> dict[int, str]:
    return dict(database.execute("SELECT id, title FROM products").fetchall())


def store_of(stem: Mainstem, url: str) -> Store:
    return stem.postgres(url, "products", key="id")


# How a person or a machine sets a database back.
LOSSES = {
    "one batch": "DELETE FROM products WHERE id = 3; INSERT INTO products VALUES (77, 'gone from the log');"
    "UPDATE mainstem_stores SET fence = replace(fence, '\"batch\": 1', '\"batch\": 0')",
    "everything": "DROP TABLE products; DROP TABLE mainstem_stores",
    "the table": "DROP TABLE products",
}


@pytest.mark.parametrize("loss", LOSSES)
def test_what_a_store_lost_while_its_flow_was_stopped_is_filled_again(
    shop: Mainstem, url: str, database: psycopg.Connection[Any], flows: Any, loss: str
) -> None:
    append(shop, {1: "a", 2: "b"})
    shop.run(flows, until="idle")
    append(shop, {2: "c", 3: "d"})
    shop.topic("products").delete([1])
    shop.run(flows, until="idle")
    expected = {2: "c", 3: "d"}
    assert rows_of(database) == expected
    database.execute("ALTER TABLE products ADD COLUMN note TEXT; UPDATE products SET note = 'mine' WHERE id = 2")
    database.execute(LOSSES[loss])
    shop.run(flows, until="idle")
    assert rows_of(database) == expected
    status = store_of(shop, url).status
    assert (status.state, status.version, status.next_version) == ("current", 2, None)
    if loss == "one batch":
        # What others added to the table stays, and the next table is gone.
        assert database.execute("SELECT note FROM products WHERE id = 2").fetchall() == [("mine",)]
    tables = {
        name for (name,) in database.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    }
    assert tables == {"products", "mainstem_stores"}
    append(shop, {4: "e"})
    shop.run(flows, until="idle")
    assert rows_of(database) == {**expected, 4: "e"}
    assert store_of(shop, url).version == 2


def test_what_an_idle_store_lost_is_noticed_and_readers_see_that_it_is_filled(
    shop: Mainstem, url: str, database: psycopg.Connection[Any], flows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "STORE_SECONDS", 0.1)
    monkeypatch.setattr(runner, "RETRY", runner.Backoff("10 milliseconds", max="10 milliseconds"))
    append(shop, {1: "a", 2: "b"})
    states: list[tuple[Any, ...]] = []
    fills: list[FillFacts | None] = []
    finish = StoreWriter.finish

    def noted(writer: StoreWriter) -> bool:
        fills.append(flow_facts(shop, "postgres.products").fills)
        states.extend(database.execute("SELECT copy, state, version FROM mainstem_stores ORDER BY copy").fetchall())
        return finish(writer)

    with shop.start(flows) as running:
        running.wait_until_idle()
        monkeypatch.setattr(StoreWriter, "finish", noted)
        database.execute("DELETE FROM products")
        database.execute(
            "UPDATE mainstem_stores SET fence = replace(fence, '\"batch\": 0', '\"batch\": -1'), batch = -1"
        )
        wait_until(lambda: store_of(shop, url).status.version == 2)
        running.wait_until_idle()
        assert rows_of(database) == {1: "a", 2: "b"}
        assert states == [("beside", "filling", 2), ("live", "current", 1)]
        assert fills == [FillFacts(2, 0, 2)]
        assert running["postgres.products"].notes == [
            'store "postgres.products" has lost everything: version 2 is filled from the log',
            'version 2 of store "postgres.products" is live',
        ]


def test_a_store_that_loses_everything_while_its_flow_starts_is_filled_again(
    shop: Mainstem, url: str, database: psycopg.Connection[Any], flows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RETRY", runner.Backoff("10 milliseconds", max="10 milliseconds"))
    append(shop, {1: "a", 2: "b"})
    shop.run(flows, until="idle")
    begin_again = runner.begin_again_if_lost

    def lost_then(*given: Any) -> bool:
        again = begin_again(*given)
        monkeypatch.setattr(runner, "begin_again_if_lost", begin_again)
        database.execute("DROP TABLE products")
        return again

    monkeypatch.setattr(runner, "begin_again_if_lost", lost_then)
    shop.run(flows, until="idle")
    assert rows_of(database) == {1: "a", 2: "b"}
    assert store_of(shop, url).version == 2


def test_where_retention_has_cut_the_log_a_store_is_not_filled_again_by_itself(
    shop: Mainstem, url: str, database: psycopg.Connection[Any]
) -> None:
    topic = shop.create_topic("visits", schema=SCHEMA, key="id")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        rows = stem.topic("visits").stream()
        yield Flow(rows, into=stem.postgres(url, "visits", key="id"))

    topic.append([{"id": key, "title": "x"} for key in range(10)])
    shop.run(flows, until="idle")
    topic.seal()
    topic.append([{"id": 10, "title": "x"}])
    shop.run(flows, until="idle")
    topic.alter(keep="1 byte")
    topic.drop_expired()
    database.execute("DROP TABLE visits")
    with pytest.raises(FlowFailed) as failed:
        shop.run(flows, until="idle")
    cause = failed.value.__cause__
    assert isinstance(cause, FellOff)
    assert (cause.topic, cause.first_lost, cause.last_lost) == ("visits", 0, 9)
    assert "--incomplete" in cause.hint
    shop.rebuild_store("postgres.visits", flows, incomplete=True)
    assert database.execute("SELECT count(*) FROM visits").fetchone() == (1,)
    topic.append([{"id": 50, "title": "y"}])
    shop.run(flows, until="idle")
    assert database.execute("SELECT count(*) FROM visits").fetchone() == (2,)


def test_a_store_is_rebuilt_by_hand_while_its_flow_goes_on(
    shop: Mainstem, url: str, database: psycopg.Connection[Any], flows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "STORE_SECONDS", 0.1)
    append(shop, {1: "a", 2: "b"})
    told: list[tuple[int, int]] = []
    with shop.start(flows) as running:
        running.wait_until_idle()
        database.execute("INSERT INTO products VALUES (99, 'by someone else'); DELETE FROM products WHERE id = 1")
        appending = threading.Thread(target=append, args=(shop, dict.fromkeys(range(10, 20), "new")))
        appending.start()
        status = shop.rebuild_store("postgres.products", flows, tell=lambda *facts: told.append(facts))
        appending.join()
        assert (status.state, status.version) == ("current", 2)
        append(shop, {3: "c"})
        expected = {1: "a", 2: "b", 3: "c", **dict.fromkeys(range(10, 20), "new")}
        wait_until(lambda: rows_of(database) == expected)
        running.check()
    assert told
    assert store_of(shop, url).version == 2


def test_a_rebuild_whose_version_was_displaced_ends_and_leaves_the_other_one_alone(
    shop: Mainstem, url: str, database: psycopg.Connection[Any], flows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RETRY", runner.Backoff("10 milliseconds", max="10 milliseconds"))
    append(shop, {1: "a"})
    shop.run(flows, until="idle")
    finish = StoreWriter.finish

    def displaced(writer: StoreWriter) -> bool:
        """Another one fills version 9 by the time that the first batch of this one is committed."""
        if writer.committed_batch >= 0:
            monkeypatch.setattr(StoreWriter, "finish", finish)
            database.execute("UPDATE mainstem_stores SET fence = replace(fence, '\"version\": 2', '\"version\": 9')")
            raise Unavailable("for a while", detail="", hint="")
        return False

    monkeypatch.setattr(StoreWriter, "finish", displaced)
    begin_again = runner.begin_again_if_lost

    def after_commit(planned: Any, checkpoint: str, stem: Mainstem) -> bool:
        if Path(checkpoint, "offsets/0").exists():
            Path(checkpoint, "commits").mkdir(exist_ok=True)
            Path(checkpoint, "commits/0").touch()
        return begin_again(planned, checkpoint, stem)

    monkeypatch.setattr(runner, "begin_again_if_lost", after_commit)
    with pytest.raises(FlowFailed, match="gone before it was complete"):
        shop.rebuild_store("postgres.products", flows)
    status = store_of(shop, url).status
    assert (status.version, status.next_version, store_of(shop, url).version) == (1, 9, 1)


def test_a_rebuild_may_have_other_columns(
    shop: Mainstem, url: str, database: psycopg.Connection[Any], flows: Any
) -> None:
    append(shop, {1: "a"})
    shop.run(flows, until="idle")

    def wider(stem: Mainstem) -> Iterator[Flow]:
        rows = table(stem.topic("products").stream(), key="id").selectExpr("id", "length(title) AS title", "record")
        yield Flow(rows, into=stem.postgres(url, "products", key="id"))

    with pytest.raises(SchemaMismatch, match="is INT now"):
        shop.run(wider, until="idle")
    shop.rebuild_store("postgres.products", wider)
    assert database.execute("SELECT * FROM products").fetchall() == [(1, 1)]
    shop.run(wider, until="idle")


def test_a_store_that_is_down_keeps_nothing_else_from_going_on(
    shop: Mainstem, url: str, server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    append(shop, {1: "a"})
    away = url.replace(f":{server.port}/", ":1/")

    def both(stem: Mainstem) -> Iterator[Flow]:
        rows = table(stem.topic("products").stream(), key="id")
        yield Flow(rows, into=stem.postgres(away, "products", key="id"), name="away")
        yield Flow(rows, into=stem.view("products_now", key="id"))

    with shop.start(both) as running:
        wait_until(lambda: shop.view("products_now").exists and shop.view("products_now").get(1) is not None)
        wait_until(lambda: running["away"].state == "waiting to restart")
        running.check()
        assert run(["flow", "list", "--json", "--home", shop.home]) == 0
        listed = {it["flow"]: it for it in json.loads(capsys.readouterr().out)}
        assert (listed["away"]["state"], listed["products_now"]["state"]) == ("waiting", "running")
        assert "cannot be reached" in listed["away"]["retries"]["reason"]
        assert run(["flow", "describe", "away", "--home", shop.home]) == 0
        described = capsys.readouterr().out
        assert f"waiting, process {os.getpid()}" in described
        assert re.search(
            r"waits for +store postgres\.products: the database .* cannot be reached: .*onnection refused", described
        )
        assert re.search(r", since \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", described)
    assert flow_facts(shop, "away").state == "stopped"


def test_a_row_that_a_constraint_of_others_forbids_is_rejected_and_the_flow_goes_on(
    shop: Mainstem, database: psycopg.Connection[Any], flows: Any
) -> None:
    append(shop, {1: "a"})
    shop.run(flows, until="idle")
    database.execute("ALTER TABLE products ADD CHECK (title <> 'bad')")
    append(shop, {2: "bad", 3: "c"})
    shop.run(flows, until="idle")
    assert rows_of(database) == {1: "a", 3: "c"}
    (rejected,) = shop.topic("postgres.products.rejected").to_arrow().to_pylist()
    assert rejected["id"] == 2
    assert 'violates check constraint "products_title_check"' in rejected["rejection"]["reason"]
    # The rows of `table` have no place in the topic any more.
    place = [rejected["rejection"][name] for name in ("topic", "partition", "offset")]
    assert place == ["products", None, None]


def test_several_stores_are_rebuilt_one_after_the_other(shop: Mainstem, url: str, tmp_path: Path) -> None:
    def program(*columns: str) -> Callable[[Mainstem], Iterator[Flow]]:
        def flows(stem: Mainstem) -> Iterator[Flow]:
            rows = table(stem.topic("products").stream(), key="id").select(*columns, "record")
            yield Flow(rows, into=stem.postgres(url, "products", key="id"))
            yield Flow(rows, into=stem.delta(tmp_path / "products", key="id", name="lake"))

        return flows

    append(shop, {1: "a"})
    shop.run(program("id", "title"), until="idle")
    for name in ("lake", "postgres.products"):
        shop.rebuild_store(name, program("id"))
    shop.run(program("id"), until="idle")
    assert shop.delta(tmp_path / "products", key="id", name="lake").to_arrow().to_pylist() == [{"id": 1}]
    assert store_of(shop, url).to_arrow().to_pylist() == [{"id": 1}]


def test_a_store_that_is_empty_at_another_place_is_not_filled_by_itself(shop: Mainstem, tmp_path: Path) -> None:
    def program(folder: str) -> Callable[[Mainstem], Iterator[Flow]]:
        def flows(stem: Mainstem) -> Iterator[Flow]:
            yield Flow(stem.topic("products").stream(), into=stem.delta(tmp_path / folder, key="id", name="lake"))

        return flows

    append(shop, {1: "a"})
    shop.run(program("one"), until="idle")
    with pytest.raises(FlowFailed) as failed:
        shop.run(program("other"), until="idle")
    assert isinstance(failed.value.__cause__, Conflict)
    assert str(tmp_path / "one") in failed.value.__cause__.summary
    assert not (tmp_path / "other").exists()
    # It may be moved.
    (tmp_path / "one").rename(tmp_path / "moved")
    append(shop, {2: "b"})
    shop.run(program("moved"), until="idle")
    # What it loses there is filled again there.
    shutil.rmtree(tmp_path / "moved")
    shop.run(program("moved"), until="idle")
    assert shop.delta(tmp_path / "moved", key="id", name="lake").to_arrow().num_rows == 2
    shop.rebuild_store("lake", program("other"))
    assert shop.delta(tmp_path / "other", key="id", name="lake").to_arrow().num_rows == 2
    # Killed between the switch and the record, the next run finds the version that readers see.
    store = shop.delta(tmp_path / "other", key="id", name="lake")
    rebuilt = store.version
    store.record.change(lambda facts: replace(facts, version=rebuilt - 1))
    append(shop, {3: "c"})
    shop.run(program("other"), until="idle")
    assert (store.version, store.to_arrow().num_rows) == (rebuilt, 3)


def test_a_login_that_is_rejected_at_the_start_ends_the_flow(shop: Mainstem, url: str) -> None:
    wrong = url.replace("shop:", "nobody:")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(stem.topic("products").stream(), into=stem.postgres(wrong, "products", key="id"))

    append(shop, {1: "a"})
    with pytest.raises(FlowFailed) as failed:
        shop.run(flows, until="idle")
    assert "nobody" in failed.value.detail


def test_two_flows_do_not_share_the_name_of_a_store(
    shop: Mainstem, url: str, flows: Any, server: PostgresServer
) -> None:
    append(shop, {1: "a"})
    shop.run(flows, until="idle")

    def others(stem: Mainstem) -> Iterator[Flow]:
        rows = table(stem.topic("products").stream(), key="id")
        yield Flow(rows, into=stem.postgres(server.new_address(), "products", key="id"), name="another")

    with pytest.raises(FlowFailed) as failed:
        shop.run(others, until="idle")
    assert isinstance(failed.value.__cause__, Conflict)
    assert 'name="..."' in failed.value.__cause__.hint


def test_a_table_that_no_flow_has_made_is_refused_before_anything_is_started(
    shop: Mainstem, database: psycopg.Connection[Any], flows: Any
) -> None:
    database.execute(
        "CREATE TABLE products (id BIGINT PRIMARY KEY, title TEXT); INSERT INTO products VALUES (1, 'mine')"
    )
    with pytest.raises(Conflict, match="no flow has made it"):
        shop.run(flows, until="idle")
    assert rows_of(database) == {1: "mine"}


def test_what_a_store_loses_in_the_middle_of_a_batch_is_filled_again(
    shop: Mainstem, url: str, database: psycopg.Connection[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "STORE_SECONDS", 0.1)
    monkeypatch.setattr(runner, "RETRY", runner.Backoff("10 milliseconds", max="10 milliseconds"))
    held, begun = str(tmp_path / "held"), str(tmp_path / "begun")

    @F.udf("string", useArrow=False)
    def passed(title):  # type: ignore[no-untyped-def]
        while os.path.exists(held):
            open(begun, "a").close()
        return title

    def flows(stem: Mainstem) -> Iterator[Flow]:
        rows = stem.topic("products").stream().withColumn("title", passed("title"))
        yield Flow(rows, into=stem.postgres(url, "products", key="id"))

    append(shop, {1: "a"})
    with shop.start(flows) as running:
        running.wait_until_idle()
        open(held, "a").close()
        append(shop, {2: "b"})
        wait_until(lambda: os.path.exists(begun))
        database.execute("DROP TABLE products")
        wait_until(lambda: running["postgres.products"].retried_after is not None)
        os.remove(held)
        wait_until(lambda: running.check() is None and store_of(shop, url).status.state == "current")
        running.wait_until_idle()
        assert rows_of(database) == {1: "a", 2: "b"}
