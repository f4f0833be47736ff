"""A checkpoint outlives programs: each offset that was ever written is read, and the next one is written in the same words."""

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import mainstem
from mainstem.log.keep_rule import Keep
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.sources.batch_clock import set_now
from mainstem.spark.sources.topic_request import TopicRequest
from mainstem.spark.sources.topic_source import TopicSource, TopicsSource
from mainstem.spark.spark_types import spark_schema
from mainstem.stem import Mainstem
from tests.kafka_broker import KafkaBroker

NOW = 4_000_000_000_000_000
DELAY = 60_000_000
IDLE = {"after": DELAY, "beside": [["orders.us", 0]]}


def rows(*minutes: int) -> list[dict[str, Any]]:
    return [{"n": n, "at": datetime(2026, 1, 1, 12, n, tzinfo=UTC)} for n in minutes]


def filled(stem: Mainstem) -> None:
    """Two topics with three rows each, of which a flow has read the first two."""
    for name, keep in (("orders.eu", "forever"), ("orders.us", Keep.latest_per_key())):
        topic = stem.create_topic(name, schema="n BIGINT, at TIMESTAMP", key="n", event_time="at", keep=keep)
        topic.append(rows(1, 2))
        topic.append(rows(3))


class Resumed:
    """A source that goes on from a stored offset. A topic's id stands in the text by its name."""

    def __init__(self, stem: Mainstem, topic: str, stored: str, **asked: Any) -> None:
        self._stem = stem
        clock = f"{stem.home}/stages"
        set_now(clock, NOW)
        pattern = "*" in topic
        delay = asked.get("delay")
        shown = stem.topics(topic)._unite_columns(delay)[0] if pattern else stem.topic(topic).shown_schema(delay)
        request = TopicRequest(
            home=stem.home, log=stem.log.address, topic=topic, columns=tuple(shown.names), pattern=pattern, wait_ms=0,
            **{**asked, "clock": clock if delay is not None else ""},
        )  # fmt: skip
        source = (TopicsSource if pattern else TopicSource)({"request": request.to_option()})
        self._reader = source.streamReader(spark_schema(shown))
        self._ids = {f"<{name}>": stem.log.open_topic(name).id for name in stem.topics()}
        for name, known in self._ids.items():
            stored = stored.replace(name, known)
        self.at: dict[str, Any] = json.loads(stored)

    def next(self) -> tuple[str, list[int]]:
        """The text of the next offset, and the rows up to there."""
        end = self._reader.latestOffset(self.at, ReadAllAvailable())
        parts = self._reader.partitions(self.at, end)
        found = [row for part in parts for batch in self._reader.read(part) for row in batch.to_pylist()]
        self.at = end
        text = json.dumps(end)
        for name, known in self._ids.items():
            text = text.replace(known, name)
        return text, sorted(row["n"] for row in found)

    def stop(self) -> None:
        self._reader.stop()


# Of one topic and of a pattern: what an earlier version wrote, and what comes next.
ONE = '{"topic": "orders.eu", "id": "<orders.eu>", "offsets": {"0": 2}'
COMPACTED = '{"topic": "orders.us", "id": "<orders.us>", "offsets": {"0": 2}, "cleaned": {"0": 0}'
ALL = (
    '{"glob": "orders.*", "topics": {"orders.eu": {"0": 2}, "orders.us": {"0": 2}}, "ids": {"orders.eu": "<orders.eu>", '
    '"orders.us": "<orders.us>"}, "began": {"orders.eu": {"0": 0}, "orders.us": {"0": 0}}, '
    '"refused": {"orders.uk": "it has no n"}'
)
CLEANED = ', "cleaned": {"orders.us": {"0": 0}}'
CLOCK = ', "watermark": 1, "now": 2, "appended": 2, "delay": 60000000'
SILENT = ', "idle": {"after": 60000000, "beside": [["orders.us", 0]], "floor": null}'
APPLIED = ', "applied": {"carts": {"0": 3}}'


def after(text: str, watermark: int) -> str:
    """The offset of the next batch: only where it stands and its clock are different."""
    clock = f', "watermark": {watermark}, "now": {NOW}, "appended": {NOW}, "delay": 60000000'
    return text.replace('{"0": 2}', '{"0": 3}').replace(CLOCK, clock)


MINUTE_2, MINUTE_3 = 1_767_268_920_000_000, 1_767_268_980_000_000
EMBEDDED = {
    "one topic": ("orders.eu", {}, ONE + "}", 0, [3]),
    "compacted": ("orders.us", {"delay": DELAY}, COMPACTED + CLOCK + "}", MINUTE_2, [3]),
    "idle": ("orders.eu", {"delay": DELAY, "idle": IDLE}, ONE + APPLIED + CLOCK + SILENT + "}", MINUTE_3, [3]),
    "a pattern": ("orders.*", {}, ALL + CLEANED + "}", 0, [3, 3]),
    "idle topics": (
        "orders.*",
        {"delay": DELAY, "idle": IDLE},
        ALL + CLEANED + CLOCK + SILENT + "}",
        MINUTE_3,
        [3, 3],
    ),
}


@pytest.mark.parametrize("case", EMBEDDED)
def test_an_offset_of_the_embedded_log_goes_on(tmp_path: Path, case: str) -> None:
    topic, asked, stored, watermark, found = EMBEDDED[case]
    with mainstem.open(tmp_path, upkeep="manual") as stem:
        filled(stem)
        source = Resumed(stem, topic, stored, **asked)
        assert source.next() == (after(stored, watermark), found)
        assert source.next() == (after(stored, watermark), [])
        source.stop()


def test_an_offset_from_before_topics_had_ids_goes_on(tmp_path: Path) -> None:
    with mainstem.open(tmp_path, upkeep="manual") as stem:
        filled(stem)
        one = Resumed(stem, "orders.eu", '{"topic": "orders.eu", "offsets": {"0": 2}}')
        assert one.next() == (after(ONE + "}", 0), [3])
        text = ALL.replace('"ids": {"orders.eu": "<orders.eu>", "orders.us": "<orders.us>"}, ', "") + "}"
        several = Resumed(stem, "orders.*", text)
        assert several.next() == (after(ALL + "}", 0), [3, 3])


def test_a_topic_that_joins_is_in_the_next_offset(tmp_path: Path) -> None:
    with mainstem.open(tmp_path, upkeep="manual") as stem:
        filled(stem)
        before = (
            '{"glob": "orders.*", "topics": {"orders.eu": {"0": 2}}, "ids": {"orders.eu": "<orders.eu>"}, '
            '"began": {"orders.eu": {"0": 0}}, "refused": {"orders.uk": "it has no n"}}'
        )
        source = Resumed(stem, "orders.*", before)
        assert source.next() == (after(ALL + CLEANED + "}", 0), [1, 2, 3, 3])


SEEN = f', "leaf": 0, "times": {{"0": [{MINUTE_2}, 1]}}, "known": 1}}'
SEEN_OF_ALL = f', "leaf": 0, "times": {{"orders.eu": {{"0": [{MINUTE_2}, 1]}}}}, "known": 1}}'
ON_KAFKA = {
    "one topic": ("orders.eu", {}, ONE + ', "noted": 0}', 0, [3]),
    "watermark": ("orders.eu", {"delay": DELAY}, ONE + CLOCK + ', "noted": 0' + SEEN, MINUTE_2 - DELAY, [3]),
    "a pattern": ("orders.*", {}, ALL + ', "noted": 0}', 0, [3, 3]),
    "watermarks": ("orders.*", {"delay": DELAY}, ALL + CLOCK + ', "noted": 0' + SEEN_OF_ALL, MINUTE_2 - DELAY, [3, 3]),
}


@pytest.fixture
def on_kafka(kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[Mainstem]:
    (tmp_path / "kafka.toml").write_text(f'prefix = "t{uuid.uuid4().hex[:8]}."\n')
    with mainstem.open(tmp_path, log=f"kafka://{kafka_broker.address}") as opened:
        yield opened


def test_an_offset_of_a_log_on_kafka_goes_on(on_kafka: Mainstem) -> None:
    filled(on_kafka)
    run = FlowStore(on_kafka.home, "flow").begin()
    for topic, asked, stored, watermark, found in ON_KAFKA.values():
        source = Resumed(on_kafka, topic, stored, flow="flow", epoch=run.epoch, leaf=0, **asked)
        expected = after(stored, watermark).replace('"known": 1', f'"known": {watermark}')
        assert source.next() == (expected, found)
        assert source.next() == (expected, [])
        source.stop()


def test_an_idle_pattern_goes_on_without_a_topic_that_was_deleted(tmp_path: Path) -> None:
    with mainstem.open(tmp_path, upkeep="manual") as stem:
        filled(stem)
        idle = {"after": DELAY, "beside": [["orders.eu", 0]]}
        source = Resumed(stem, "orders.*", ALL + CLEANED + CLOCK + SILENT + "}", delay=DELAY, idle=idle)
        stem.delete_topic("orders.us")
        text, found = source.next()
        assert found == [3]
        assert json.loads(text)["topics"] == {"orders.eu": {"0": 3}, "orders.us": {"0": 2}}
        source.stop()
