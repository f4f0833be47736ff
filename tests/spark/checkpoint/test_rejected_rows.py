"""Rows that a sink cannot take: in `<flow>.rejected`, each once, with why and where from; too many of them stop the flow."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from mainstem import Mainstem
from mainstem.errors import FlowFailed
from mainstem.flows.flow import Flow
from mainstem.sinks.file_commits import FileCommits


def rows(first: int, count: int) -> list[dict]:
    """Of five rows the fourth has an empty store, the third none at all."""
    return [{"id": n, "store": ["A", "B", None, "", "C"][n % 5], "amount": n} for n in range(first, first + count)]


def test_each_sink_gives_what_it_cannot_take_to_the_topic_of_the_rejected(stem: Mainstem, tmp_path: Path) -> None:
    orders = stem.create_topic("orders", schema="id INT, store STRING, amount BIGINT")
    stem.create_topic("small", schema="id INT, amount TINYINT")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        orders = stem.topic("orders").stream()
        yield Flow(orders.select("id", (F.col("amount") * 10).alias("amount"), "record"), into=stem.topic("small"))
        yield Flow(orders.select("store", "id", "record"), into=stem.view("last_of_store", key="store"))
        yield Flow(orders, into=stem.files(tmp_path / "out" / "orders", partition_by="store"))

    # Appended before the sink commits; the commit of the files fails once, and the batch is done again.
    commit, failures = FileCommits.commit, [1]

    def failing_commit(self, version, batch):
        if failures:
            failures.pop()
            raise RuntimeError("the disk is gone")
        commit(self, version, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileCommits, "commit", failing_commit)
        orders.append(rows(0, 20))
        with pytest.raises(FlowFailed, match=r"out\.orders"), stem.start(flows) as running:
            running.wait_until_idle()
    with stem.start(flows) as running:
        running.wait_until_idle()
        orders.append(rows(20, 10))
        running.wait_until_idle()
        assert {handle.name: handle.state for handle in running} == dict.fromkeys(running.handles, "running")

    small = stem.topic("small.rejected").to_arrow().to_pylist()
    view = stem.topic("last_of_store.rejected").to_arrow().to_pylist()
    files = stem.topic("out.orders.rejected").to_arrow().to_pylist()
    assert sorted(row["id"] for row in small) == list(range(13, 30))
    assert sorted(row["id"] for row in view) == [2, 7, 12, 17, 22, 27]
    assert sorted(row["id"] for row in files) == [3, 8, 13, 18, 23, 28]
    first = next(row for row in small if row["id"] == 13)
    assert (first["amount"], first["row"]) == (130, '{"id": 13, "amount": 130}')
    assert {**first["rejection"], "rejected_at": None} == {
        "reason": '130 does not fit column "amount", which is TINYINT',
        "sink": "topic small",
        "version": 1,
        "batch": 0,
        "topic": "orders",
        "partition": 0,
        "offset": 13,
        "rejected_at": None,
    }
    assert {row["rejection"]["reason"] for row in view} == {'column "store" is null, and is in the key'}
    # What could be taken is there, once.
    assert sorted(stem.topic("small").to_arrow().column("id").to_pylist()) == list(range(13))
    assert stem.view("last_of_store").get("A")["id"] == 25
    written = stem.files(tmp_path / "out" / "orders")
    kept = [n for n in range(30) if n % 5 != 3]
    assert sorted(written.to_arrow().column("id").to_pylist()) == kept
    frame = written.read()
    assert frame.columns == ["id", "store", "amount", "record"]
    assert sorted(row.id for row in frame.where("store IS NULL").collect()) == [n for n in kept if n % 5 == 2]


def test_a_flow_that_rejects_more_than_it_may_stops_before_anything_is_written(stem: Mainstem) -> None:
    orders = stem.create_topic("orders", schema="id INT, store STRING, amount BIGINT")
    stem.create_topic("small", schema="id INT, amount TINYINT")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        rows = stem.topic("orders").stream()
        yield Flow(rows.select("id", "amount"), into=stem.topic("small"), rejected_max=0.1)
        yield Flow(rows.select("store", "id"), into=stem.view("ids", key="store"), rejected_max=0.1)

    orders.append(rows(0, 400))
    with stem.start(flows) as running:
        for name in ("small", "ids"):
            with pytest.raises(FlowFailed) as failed:
                running[name].wait_until_idle()
            assert "rejected_max" in failed.value.detail
            assert "does not fit" in failed.value.detail or "is null" in failed.value.detail
    assert [name for name in stem.topics() if name.endswith(".rejected")] == []
    assert len(stem.topic("small").to_arrow()) == 0


def test_what_not_everybody_can_read_is_rejected_and_the_flow_goes_on(stem: Mainstem) -> None:
    events = stem.create_topic("events", schema="id BIGINT, raw BINARY, micros BIGINT")
    stem.create_topic("texts", schema="id BIGINT, note STRING, at TIMESTAMP")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        # Spark holds text of any bytes, and times of any year.
        rows = stem.topic("events").stream().selectExpr("id", "cast(raw AS STRING) note", "timestamp_micros(micros) at")
        yield Flow(rows, into=stem.topic("texts"))
        yield Flow(rows, into=stem.view("latest", key="id"))

    events.append(
        [
            {"id": 1, "raw": b"a", "micros": 0},
            {"id": 2, "raw": b"\xff", "micros": 0},
            {"id": 3, "raw": b"c", "micros": 1_767_225_600_000_000_000},
            {"id": 4, "raw": b"d", "micros": 5},
        ]
    )
    stem.run(flows, until="idle")

    assert sorted(stem.topic("texts").to_arrow().column("id").to_pylist()) == [1, 4]
    assert [row["id"] for row in stem.view("latest").to_arrow().to_pylist()] == [1, 4]
    for flow in ("texts", "latest"):
        rejected = stem.topic(f"{flow}.rejected").to_arrow().to_pylist()
        reasons = {row["id"]: row["rejection"]["reason"] for row in rejected}
        assert reasons.keys() == {2, 3}
        assert reasons[2].endswith("its bytes are not UTF-8")
        assert reasons[3].endswith("its year is not one of 1 to 9999")
