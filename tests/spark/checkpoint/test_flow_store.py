"""What a home keeps of a flow: dropped, it leaves nothing behind, not even what it held of its topics."""

from pathlib import Path

from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.topic import Topic
from mainstem.log.topic_settings import TopicSettings
from mainstem.spark.checkpoint.flow_store import FlowStore, flow_names
from mainstem.spark.sources.topic_request import TopicRequest


def holder(flow: str, version: int) -> str:
    return TopicRequest("home", "orders", (), flow=flow, version=version, leaf=0).holder


def test_a_flow_that_is_dropped_lets_go_of_what_it_held(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    settings = TopicSettings.of("orders", schema="id BIGINT", key="id", keep="latest per key")
    topic = Topic(log, log.create_topic(settings))
    topic.append([{"id": 1}] * 10)
    topic.seal()
    store = FlowStore(str(tmp_path), "copy")
    holders = [holder("copy", 1), holder("copy", 2), holder("copy.v1", 1), holder("copy_2", 1)]
    assert all(holders)
    for each in holders:
        topic.backend.hold(each, {0: (0, 10)})
    store.begin(1)
    store.begin(2)
    # Compaction keeps a copy of what is held.
    topic.append([{"id": 1}])
    topic.seal()
    topic.compact()
    copies = tmp_path / "topics/orders/holds/0"
    assert len(list(copies.iterdir())) == 1

    store.forget(2)
    assert sorted(held.name for held in copies.parent.glob("copy*")) == sorted({*holders} - {holders[1]})
    store.drop()
    assert sorted(held.name for held in copies.parent.glob("copy*")) == sorted(holders[2:])
    assert flow_names(str(tmp_path)) == []
    # Others hold the same records still.
    assert len(list(copies.iterdir())) == 1
    FlowStore(str(tmp_path), "copy_2").drop()
    FlowStore(str(tmp_path), "copy.v1").drop()
    assert list(copies.iterdir()) == []


def test_a_run_that_could_not_begin_failed_unless_another_one_runs(tmp_path: Path) -> None:
    store = FlowStore(str(tmp_path), "copy")
    store.refuse(1, ["mainstem.FlowFailed: it never ran"])
    assert not store.exists()
    run = store.begin(1, sink="topic out")
    store.refuse(1, ["mainstem.FlowFailed: no"])
    assert "ended" not in store.of_version(1)
    store.end(run, "stopped")
    store.refuse(1, ["mainstem.FlowFailed: no"])
    assert store.of_version(1)["ended"] == {"state": "failed", "error": ["mainstem.FlowFailed: no"]}
    store.begin(1)
    assert "ended" not in store.of_version(1)
