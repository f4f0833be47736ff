"""A topic that was deleted and created again under a flow's checkpoint: noticed, with what to do, and nothing lost."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from mainstem.durable_files import decode_checked, encode_checked
from mainstem.errors import BeyondEnd, Conflict, FlowFailed
from mainstem.flows import runner
from mainstem.flows.checkpoint_fit import SinkIdentity
from mainstem.flows.flow import Flow
from mainstem.flows.program import Flows
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.topic import Topic
from mainstem.log.topic_settings import TopicSettings
from mainstem.spark.checkpoint.checkpoint_check import check_topics
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.sources.topic_request import TopicRequest
from mainstem.spark.sources.topic_stream_reader import TopicStreamReader
from mainstem.stem import Mainstem

SCHEMA = "store STRING, amount BIGINT"


def made(log: EmbeddedLog, rows: int, name: str = "orders") -> Topic:
    """The topic, new, with so many rows."""
    if name in log.topic_names():
        log.delete_topic(name)
    topic = Topic(log, log.create_topic(TopicSettings.of(name, schema=SCHEMA)))
    topic.append([{"store": "AB"[n % 2], "amount": n} for n in range(rows)])
    return topic


def without_id(home: Path, name: str = "orders") -> None:
    """As the topic would lie there had it been made before topics had ids."""
    path = home / "topics" / name / "topic.json"
    content = decode_checked(path.read_bytes())
    del content["id"]
    path.write_bytes(encode_checked(content))


@pytest.mark.parametrize("kind", ["topic", "topics"])
def test_another_topic_of_the_name_is_told_from_the_one_that_was_read(tmp_path: Path, kind: str) -> None:
    log = EmbeddedLog(tmp_path)
    before = made(log, 10).backend.id
    offset = {
        "topic": {"topic": "orders", "id": before, "offsets": {"0": 10}},
        "topics": {"topics": {"orders": {"0": 10}}, "ids": {"orders": before}},
    }[kind]
    check_topics(log, offset, "totals", hint="Rebuild.")
    log.open_topic("orders").alter({"keep": "7 days"})
    check_topics(EmbeddedLog(tmp_path), offset, "totals", hint="Rebuild.")

    for rows in (0, 10, 20):
        made(log, rows)
        with pytest.raises(Conflict) as refused:
            check_topics(log, offset, "totals", hint="Rebuild.")
        assert refused.value.summary == 'topic "orders" is not the one that flow "totals" has read so far'
        assert "deleted and created again" in refused.value.detail
        assert refused.value.hint == "Rebuild."

    # Without an id a shorter one is noticed still.
    without_id(tmp_path)
    check_topics(EmbeddedLog(tmp_path), offset, "totals", hint="Rebuild.")
    made(log, 9)
    without_id(tmp_path)
    with pytest.raises(BeyondEnd, match='topic "orders" ends before the position of flow "totals"') as refused:
        check_topics(EmbeddedLog(tmp_path), offset, "totals", hint="Rebuild.")
    assert "up to offset 10; it ends at 9" in refused.value.detail

    # One that is not there at all is found when the program is built.
    log.delete_topic("orders")
    check_topics(log, offset, "totals", hint="Rebuild.")


def test_a_flow_that_begins_behind_an_open_transaction_goes_on(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    topic = made(log, 10)
    transaction = Mainstem(log).transaction()
    end = transaction.append(topic, [{"store": "A", "amount": 1}]).offsets[0][1]
    offset = {"topic": "orders", "id": topic.backend.id, "offsets": {"0": end}}
    assert topic.backend.latest(0) == 10
    check_topics(log, offset, "totals", hint="Rebuild.")
    transaction.abort()
    offset["offsets"] = {"0": topic.backend.end(0) + 1}
    with pytest.raises(BeyondEnd):
        check_topics(log, offset, "totals", hint="Rebuild.")


@pytest.mark.parametrize("pattern", [False, True])
def test_a_stream_with_a_checkpoint_of_its_own_does_not_go_on_beyond_the_end(tmp_path: Path, pattern: bool) -> None:
    topic = made(EmbeddedLog(tmp_path), 10)
    request = TopicRequest(str(tmp_path), "ord*" if pattern else "orders", ("amount",), wait_ms=0, pattern=pattern)
    schema = pa.schema({"amount": pa.int64()})

    def reader() -> Any:
        return TopicStreamReader(request, schema)

    first = reader().initialOffset()
    source = reader()
    there = source.latestOffset(first, source.getDefaultReadLimit())
    assert len(source.partitions(first, there)) == 1
    beyond = json.loads(json.dumps(there).replace('"0": 10', '"0": 11'))
    for ask in (lambda at: at.latestOffset(beyond, None), lambda at: at.partitions(first, beyond)):
        with pytest.raises(BeyondEnd, match='topic "orders" ends before'):
            ask(reader())
    topic.append([{"store": "A", "amount": 1}])
    assert reader().latestOffset(beyond, None) == beyond


def flows(stem: Mainstem) -> Iterator[Flow]:
    for sink, rows in (("of_one", stem.topic("orders").stream()), ("of_all", stem.topics("ord*").stream())):
        yield Flow(rows.groupBy("store").agg(F.sum("amount").alias("amount")), into=stem.view(sink, key="store"))


def amounts(stem: Mainstem) -> list[dict[str, int]]:
    return [
        {row["store"]: row["amount"] for row in stem.view(name).to_arrow().to_pylist()} for name in ("of_one", "of_all")
    ]


def test_a_topic_made_again_stops_its_flows_until_their_views_are_rebuilt(stem: Mainstem) -> None:
    made(stem.log, 10)
    with stem.start(flows) as running:
        running.wait_until_idle()
        made(stem.log, 30)
        # Whichever it sees first: that it is gone, or that it is another one.
        with pytest.raises(FlowFailed) as raised:
            running.wait_until_idle()
        assert 'topic "orders"' in raised.value.detail
        assert "\n\tat " not in raised.value.detail
    assert amounts(stem) == [{"A": 20, "B": 25}] * 2

    with stem.start(flows) as running:
        for name in ("of_one", "of_all"):
            with pytest.raises(FlowFailed) as raised:
                running[name].wait_until_idle()
            cause = raised.value.__cause__
            assert isinstance(cause, Conflict)
            assert f"mainstem view rebuild {name}" in cause.hint
            assert "30 rows" in cause.hint
    assert amounts(stem) == [{"A": 20, "B": 25}] * 2

    # Fewer than the live version has applied: the rebuild does not wait for what never comes.
    made(stem.log, 6)
    for name in ("of_one", "of_all"):
        with stem.rebuild(name, flows) as rebuild:
            rebuild.wait()
            assert (rebuild.rows, rebuild.done) == (6, 6)
            rebuild.apply()
    stem.topic("orders").append([{"store": "A", "amount": 100}])
    stem.run(flows, until="idle")
    assert amounts(stem) == [{"A": 106, "B": 9}] * 2


def copies(name: str = "copied") -> Flows:
    return lambda stem: [Flow(stem.topic("orders").stream().drop("record"), into=stem.topic("copied"), name=name)]


def test_a_sink_topic_made_again_stops_the_flow_that_has_written_into_it(
    stem: Mainstem, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(stem.log, 10)
    stem.run(copies(), until="idle")
    stem.log.delete_topic("copied")
    for rows in (None, 3):
        if rows is not None:
            made(stem.log, rows, "copied")
        with pytest.raises(FlowFailed) as raised:
            stem.run(copies(), until="idle")
        cause = raised.value.__cause__
        assert isinstance(cause, Conflict)
        assert cause.summary == 'topic "copied" is not the one that flow "copied" has written into so far'
        assert ("deleted and created again since" if rows is not None else "It was deleted since") in cause.detail
        assert 'Flow(..., name="copied_2")' in cause.hint
        assert "replays 10 rows" in cause.hint
        assert ("copied" in stem.log.topic_names()) == (rows is not None)

    stem.run(copies("copied_2"), until="idle")
    assert stem.topic("copied").to_arrow().num_rows == 3 + 10
    # Or the same flow, begun anew.
    made(stem.log, 0, "copied")
    shutil.rmtree(FlowStore(stem.home, "copied").checkpoint(1))
    stem.run(copies(), until="idle")
    assert stem.topic("copied").to_arrow().num_rows == 10

    # What happens where nobody looks at the id, nor at what the flow has noted: ten rows are missing, without a word.
    made(stem.log, 0, "copied")
    stem.topic("orders").append([{"store": "A", "amount": 100}])
    monkeypatch.setattr(runner, "check_sink", lambda *_: SinkIdentity("", "", True))
    with pytest.raises(FlowFailed, match="stopped") as raised:
        stem.run(copies(), until="idle")
    assert "the sink is older than the checkpoint" in str(raised.value.__cause__)
    shutil.rmtree(f"{FlowStore(stem.home, 'copied').checkpoint(1)}/sink_rows")
    stem.run(copies(), until="idle")
    assert stem.topic("copied").to_arrow().num_rows == 1
