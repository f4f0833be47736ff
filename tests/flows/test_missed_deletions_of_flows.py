"""A flow that was behind for longer than a compacted topic keeps its tombstones is refused; a rebuild makes its view right."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import mainstem
from mainstem.errors import FlowFailed, MissedDeletions
from mainstem.flows.flow import Flow
from mainstem.log.keep_rule import Keep
from mainstem.log.topic import Topic
from mainstem.spark.checkpoint.native_history import HistoryLimits, link_history
from mainstem.spark.checkpoint.read_since import deletions_at_risk
from mainstem.spark.sources.topic_request import TopicRequest
from mainstem.spark.sources.topic_stream_reader import TopicStreamReader
from mainstem.stem import Mainstem
from tests.kafka_broker import KafkaBroker
from tests.log.kafka.kafka_stems import opened, own_settings

SCHEMA = "k STRING, n BIGINT"
# A tombstone goes with the first pass after the one that cleans its segment.
KEEP = Keep.latest_per_key(tombstones="0 seconds")
# So small that no segment is merged with another one: a batch ends where a segment does.
SMALL = 4096


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Mainstem]:
    with mainstem.open(tmp_path / "home", upkeep="manual") as opened:
        yield opened


def put(topic: Topic, *keys: str, partition: int | None = None) -> None:
    topic.append([{"k": key, "n": n} for n, key in enumerate(keys)], partition=partition)
    topic.seal()


def delete(topic: Topic, *keys: str) -> None:
    topic.delete(list(keys))
    topic.seal()


class Batches:
    """The batches that Spark would ask a source for."""

    def __init__(self, stem: Mainstem, topic: str, *, rows_max: int = 100, many: bool = False) -> None:
        columns = ("k", "n", "topic", "record") if many else ("k", "n", "record")
        request = TopicRequest(
            home=stem.home, topic=topic, columns=columns, rows_max=rows_max, flow="", wait_ms=0, pattern=many
        )
        schema = stem.topic(topic.replace("*", "eu")).shown_schema()
        self.reader = TopicStreamReader(request, schema)
        self.at = self.reader.initialOffset()

    def next(self) -> list[str]:
        end = self.reader.latestOffset(self.at, ReadAllAvailable())
        parts = self.reader.partitions(self.at, end)
        self.at = end
        return [key for part in parts for batch in self.reader.read(part) for key in batch.column("k").to_pylist()]


@pytest.mark.parametrize("many", [False, True])
def test_a_flow_that_has_not_read_a_tombstone_that_was_dropped_is_refused(home: Mainstem, many: bool) -> None:
    topic = home.create_topic("profiles.eu", schema=SCHEMA, key="k", keep=KEEP)
    put(topic, "a", "b")
    flow = Batches(home, "profiles.*" if many else "profiles.eu", many=many)
    later = Batches(home, "profiles.*" if many else "profiles.eu", many=many)
    assert flow.next() == ["a", "b"]
    delete(topic, "a")
    topic.compact()
    assert flow.next() == ["a"]
    delete(topic, "b")
    topic.compact()
    topic.compact()
    put(topic, "c")
    with pytest.raises(MissedDeletions) as missed:
        flow.next()
    assert (missed.value.first_lost, missed.value.last_lost) == (3, 3)
    # One that has planned nothing yet has seen nothing that was deleted.
    assert [later.next(), later.next()] == [["c"], []]
    put(topic, "d")
    assert later.next() == ["d"]


def test_a_new_flow_over_a_compacted_topic_reads_it_in_as_many_batches_as_it_likes(home: Mainstem) -> None:
    topic = home.create_topic("profiles", schema=SCHEMA, key="k", keep=KEEP, segment_bytes_max=SMALL)
    for key in "abcdef":
        put(topic, key)
    delete(topic, "f")
    topic.compact()
    topic.compact()
    flow = Batches(home, "profiles", rows_max=1)
    assert [flow.next() for _ in range(5)] == [["a"], ["b"], ["c"], ["d"], ["e"]]


def test_a_tombstone_dropped_between_two_batches_of_a_flow_that_catches_up_is_missed(home: Mainstem) -> None:
    topic = home.create_topic("profiles", schema=SCHEMA, key="k", keep=KEEP, segment_bytes_max=SMALL)
    for key in "abc":
        put(topic, key)
    flow = Batches(home, "profiles", rows_max=1)
    assert flow.next() == ["a"]
    delete(topic, "a")
    topic.compact()
    assert flow.next() == ["b"]
    topic.compact()
    with pytest.raises(MissedDeletions):
        flow.next()


def test_a_partition_of_which_nothing_was_read_misses_nothing(home: Mainstem) -> None:
    topic = home.create_topic("profiles", schema=SCHEMA, key="k", keep=KEEP, partitions=2)
    put(topic, "a", partition=0)
    flow = Batches(home, "profiles")
    assert flow.next() == ["a"]
    with_b = next(key for key in "bcdefghijk" if topic.append([{"k": key, "n": 0}]).offsets.keys() == {1})
    delete(topic, with_b)
    topic.compact()
    topic.compact()
    put(topic, "z", partition=1)
    assert with_b not in flow.next()


def test_a_check_warns_of_deletions_that_a_flow_has_missed(home: Mainstem) -> None:
    topic = home.create_topic("profiles", schema=SCHEMA, key="k", keep=KEEP)
    put(topic, "a", "b")
    flow = Batches(home, "profiles")
    flow.next()
    assert deletions_at_risk(home.log, flow.at, "latest") == []
    delete(topic, "a")
    topic.compact()
    topic.compact()
    assert deletions_at_risk(home.log, flow.at, "latest") == [
        'flow "latest" has missed deletions in "profiles" partition 0: rebuild what it has written'
    ]


def test_a_check_warns_of_deletions_that_a_broker_may_have_dropped(kafka_broker: KafkaBroker) -> None:
    with opened(own_settings(kafka_broker)) as stem:
        for name, kept in (("short", "0 seconds"), ("long", "1 day")):
            topic = stem.create_topic(name, schema=SCHEMA, key="k", keep=Keep.latest_per_key(tombstones=kept))
            topic.append([{"k": "a", "n": 1}])
            behind = {"topic": name, "id": "", "offsets": {"0": 0}}
            read = {"topic": name, "id": "", "offsets": {"0": topic.backend.latest(0)}}
            assert len(deletions_at_risk(stem.log, behind, "latest")) == (name == "short")
            assert deletions_at_risk(stem.log, read, "latest") == []


def test_sealed_files_that_a_flow_read_first_count_as_read(home: Mainstem, tmp_path: Path) -> None:
    topic = home.create_topic("profiles", schema=SCHEMA, key="k", keep=KEEP)
    put(topic, "a", "b")
    history = link_history(topic.backend, str(tmp_path), HistoryLimits(1, 100, 100, 1 << 20, False))  # type: ignore[arg-type]
    assert history is not None
    delete(topic, "a")
    topic.compact()
    topic.compact()
    put(topic, "c")
    flow = Batches(home, "profiles")
    flow.at = history.end
    with pytest.raises(MissedDeletions):
        flow.next()


def test_a_flow_that_was_away_too_long_is_told_to_rebuild_its_view_which_is_right_then(stem: Mainstem) -> None:
    topic = stem.create_topic("profiles", schema=SCHEMA, key="k", keep=KEEP)

    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(stem.topic("profiles").stream(), into=stem.view("latest", key="k"))

    put(topic, "a", "b")
    stem.run(flows, until="idle")
    delete(topic, "a")
    topic.compact()
    topic.compact()
    put(topic, "c")
    with pytest.raises(FlowFailed) as failed:
        stem.run(flows, until="idle")
    assert isinstance(failed.value.__cause__, MissedDeletions)
    assert "mainstem view rebuild latest" in failed.value.hint
    with stem.rebuild("latest", flows) as rebuild:
        rebuild.wait()
        rebuild.apply()
    stem.run(flows, until="idle")
    assert sorted(row["k"] for row in stem.view("latest").to_arrow().to_pylist()) == ["b", "c"]
