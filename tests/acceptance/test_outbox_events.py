"""Case A12, outbox: the row of an outbox becomes a message with its route as the topic, its key, its id and its payload."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mainstem
from mainstem import Capture, Mainstem
from mainstem.capture import outbox, sqlite
from mainstem.capture.capture_run import CaptureRun
from tests.acceptance.case_files import case

OUTBOX = case("A12")["outbox"]
ROW: dict[str, Any] = OUTBOX["row"]
ROUTE = "outbox.event."
SCHEMA = "id INT, lineItems ARRAY<STRUCT<id: INT, item: STRING, status: STRING, quantity: INT, totalPrice: DOUBLE>>, rest STRING"


@pytest.fixture
def stem(tmp_path: Path) -> Iterator[Mainstem]:
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        yield stem


def relay(stem: Mainstem, folder: Path, *rows: dict[str, Any]) -> None:
    """The rows of an outbox, each in a transaction of an application, in their topics."""
    path = folder / "orders.db"
    sqlite3.connect(path).close()
    run = CaptureRun(stem.log, str(folder / "home"), Capture("orders", sqlite(path, outbox=True)))
    run.run(until="idle")
    for row in rows:
        with sqlite3.connect(path) as connection:
            outbox(connection).append(
                ROUTE + row["aggregatetype"], row["payload"], key=row["aggregateid"], id=row["id"],
                headers={"type": row["type"]},
            )  # fmt: skip
        connection.close()
    CaptureRun(stem.log, str(folder / "home"), Capture("orders", sqlite(path, outbox=True))).run(until="idle")


def test_a_row_is_a_message(stem: Mainstem, tmp_path: Path) -> None:
    expected = OUTBOX["message"]
    topic = stem.create_topic(expected["topic"], schema=SCHEMA)
    relay(stem, tmp_path, ROW)

    # One record: the deletion of the row is no message.
    [found] = topic.to_arrow().to_pylist()
    record = found.pop("record")
    headers = {one["key"]: one["value"].decode() for one in record["headers"]}
    assert record["change"] == "insert"
    assert headers == {"id": ROW["id"], "key": expected["key"], "type": ROW["type"]}
    assert found == ROW["payload"]


def test_in_a_topic_with_a_key_the_key_is_a_column(stem: Mainstem, tmp_path: Path) -> None:
    topic = stem.create_topic(OUTBOX["message"]["topic"], schema=f"aggregate STRING, {SCHEMA}", key="aggregate")
    relay(stem, tmp_path, ROW)

    [found] = topic.to_arrow().to_pylist()
    del found["record"]
    assert found == {"aggregate": OUTBOX["message"]["key"], **ROW["payload"]}


def test_the_route_is_the_topic(stem: Mainstem, tmp_path: Path) -> None:
    examples: dict[str, str] = OUTBOX["routing_examples"]
    for name in examples.values():
        stem.create_topic(name, schema=SCHEMA)
    relay(stem, tmp_path, *({**ROW, "aggregatetype": kind, "id": f"id of {kind}"} for kind in examples))

    for kind, name in examples.items():
        [record] = stem.topic(name).to_arrow().column("record").to_pylist()
        assert record["headers"][0] == {"key": "id", "value": f"id of {kind}".encode()}
