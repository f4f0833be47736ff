"""mainstem store: what it lists and describes, and that a rebuild is asked for; the rebuild itself is in tests/flows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mainstem.batch import Batch, FlowRun
from mainstem.log.record import RECORD
from mainstem.sinks.store import Store
from mainstem.stem import Mainstem

PROGRAM = """
from mainstem import Flow

def flows(stem):
    yield Flow(stem.topic("orders").stream(), into=stem.delta("lake/orders", key="id"))
"""


@pytest.fixture
def lake(place: Path, stem: Mainstem) -> Iterator[Store]:
    (place / "shop.py").write_text(PROGRAM)
    stem.create_topic("orders", schema="id BIGINT", key="id")
    store = stem.delta("lake/orders", key="id")
    run = FlowRun("delta.lake.orders", 1)
    schema = pa.schema([("id", pa.int64()), ("record", RECORD)])
    writer = store.table_writer(run, schema)
    writer.commit(
        writer.prepare(pa.table({"id": [1, 2], "record": pa.nulls(2, RECORD)}, schema)),
        Batch(0, run, {"orders": {0: 2}}),
    )
    writer.finish()
    store.record.use(1)
    store.record.change(lambda facts: type(facts)(facts.version, facts.until, store.location, facts.highest))
    yield store
    writer.close()


def test_stores_are_listed_with_their_places(cli: Callable[..., Any], lake: Store) -> None:
    said = cli("store", "list")
    assert (said.status, said.err) == (0, "")
    assert said.out.splitlines()[-1].split()[:2] == ["delta.lake.orders", "1"]
    assert cli("store", "list", "--json").json == [
        {"store": "delta.lake.orders", "version": 1, "location": lake.location}
    ]


def test_without_stores_it_says_so(cli: Callable[..., Any], stem: Mainstem) -> None:
    assert cli("store", "list").out.strip() == "no stores"


def test_a_store_is_described_without_spark(
    cli: Callable[..., Any], lake: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mainstem, "spark", property(lambda _: pytest.fail("it needs no Spark")))
    said = cli("store", "describe", "delta.lake.orders", "--program", "shop.py")
    assert (said.status, said.err) == (0, "")
    facts = dict(
        line.split(maxsplit=1) for line in said.out.splitlines() if line.startswith(("state", "version", "flow"))
    )
    assert facts == {"state": "current", "version": "1", "flow": "delta.lake.orders"}
    described = cli("store", "describe", "delta.lake.orders", "--program", "shop.py", "--json").json
    assert (described["state"], described["batch"], described["offsets"]) == ("current", 0, {"orders": {"0": 2}})


def test_a_store_that_the_program_does_not_have(cli: Callable[..., Any], lake: Store) -> None:
    said = cli("store", "describe", "delta.lake.order", "--program", "shop.py").error
    assert said[0].endswith('no flow of the program writes into store "delta.lake.order"')
    assert "delta.lake.orders" in said[2]


def test_a_rebuild_is_asked_for_with_its_settings(
    cli: Callable[..., Any], lake: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def rebuild(_: Mainstem, name: str, flows: Any, *, incomplete: bool, tell: Callable[[int, int], None]) -> Any:
        tell(1, 2)
        asked.append((name, incomplete))
        return lake.status

    monkeypatch.setattr(Mainstem, "spark", None)
    monkeypatch.setattr(Mainstem, "rebuild_store", rebuild)
    said = cli("store", "rebuild", "delta.lake.orders", "--program", "shop.py", "--incomplete")
    assert (said.status, said.out) == (0, "version 1 of delta.lake.orders is live\n")
    assert asked == [("delta.lake.orders", True)]
