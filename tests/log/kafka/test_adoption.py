"""Topics of other programs: read with a schema, and what does not fit it is kept once, whoever comes across it."""

import json
import threading
from pathlib import Path

import pytest

from mainstem.errors import Conflict, Invalid, TopicNotFound
from mainstem.stem import Mainstem
from mainstem.stem import open as open_stem
from tests.contracts.shown_rows import dicts, numbers, plain
from tests.kafka_broker import KafkaBroker
from tests.log.kafka.kafka_stems import made_elsewhere, opened, own_settings, send_elsewhere

GOOD = [json.dumps({"n": number, "extra": "unknown"}).encode() for number in range(3)]
BAD = [b"not json", b'{"n": "seven"}', b'{"n": 9223372036854775808}', b"[1]", b"\xff\xfe", None]


def test_a_topic_of_other_programs_is_read_and_what_does_not_fit_is_kept_with_its_reason(
    kafka_broker: KafkaBroker,
) -> None:
    settings = own_settings(kafka_broker)
    made_elsewhere(settings, "clicks", [GOOD[0], *BAD, GOOD[1], GOOD[2]])
    with opened(settings) as stem, opened(settings) as other:
        with pytest.raises(Conflict, match="exists on Kafka"):
            stem.create_topic("clicks", schema="n bigint")
        with pytest.raises(TopicNotFound, match="does not exist on Kafka"):
            stem.adopt_topic("clisk", schema="n bigint")
        clicks = stem.adopt_topic("clicks", schema="n bigint")
        # One begins at the end, one at the start, and both again: each is there once.
        assert numbers(other.topic("clicks").batches(start={0: 6})) == [1, 2]
        for topic in (clicks, other.topic("clicks"), clicks):
            assert numbers(topic.to_arrow()) == [0, 1, 2]
        kept = dicts(stem.topic("clicks.unreadable").to_arrow())
        assert [(row["offset"], row["value"]) for row in kept] == list(enumerate(BAD, start=1))
        assert {(row["topic"], row["partition"]) for row in kept} == {("clicks", 0)}
        assert all(row["reason"] for row in kept)
        assert 'column "n" is BIGINT, got the text "seven"' in kept[1]["reason"]
        # More comes, and many readers meet it at once.
        send_elsewhere(settings, "clicks", [b"{", GOOD[0]])
        readers = [threading.Thread(target=topic.to_arrow) for topic in (clicks, other.topic("clicks"))]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert [row["value"] for row in dicts(stem.topic("clicks.unreadable").to_arrow())] == [*BAD, b"{"]
        # Appends go on beside those of the others.
        clicks.append([{"n": 7}])
        assert numbers(other.topic("clicks").to_arrow()) == [0, 1, 2, 0, 7]


def test_a_program_s_own_words_open_a_home_on_kafka(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    home = tmp_path / "shop"
    settings = own_settings(kafka_broker)
    home.mkdir()
    (home / "kafka.toml").write_text(f'prefix = "{settings.prefix}"\nreplication_factor = 1\nmin_insync_replicas = 1\n')
    with open_stem(home, log=f"kafka://{kafka_broker.address}") as stem:
        stem.create_topic("orders", schema="n bigint", codec="json").append([{"n": 1}])
    # A home that names its brokers needs no more to be opened.
    (home / "kafka.toml").write_text(f'brokers = ["{kafka_broker.address}"]\nprefix = "{settings.prefix}"\n')
    with open_stem(home) as stem:
        assert plain(stem.topic("orders").to_arrow()) == [{"n": 1}]
        assert str(kafka_broker.port) in repr(stem)


def test_an_embedded_log_has_neither_codecs_nor_topics_to_adopt(tmp_path: Path) -> None:
    with open_stem(tmp_path / "home") as stem:
        with pytest.raises(Invalid, match="cannot have a codec"):
            stem.create_topic("orders", schema="n bigint", codec="arrow")
        with pytest.raises(Invalid, match="cannot be adopted"):
            stem.adopt_topic("orders", schema="n bigint")
        with pytest.raises(Invalid, match="codec"):
            stem.create_topic("orders", schema="n bigint", codec="yaml")


def test_a_use_of_what_kafka_cannot_do_is_refused_before_anything_is_done(kafka_broker: KafkaBroker) -> None:
    with opened(own_settings(kafka_broker)) as stem:
        for settings in (
            {"archive": "somewhere"},
            {"codec": "raw"},
            {"codec": "arrow", "keep": "latest per key", "key": "k"},
        ):
            with pytest.raises(Invalid):
                stem.create_topic("orders", schema="k string, n bigint", **settings)
        assert stem.topics() == []
        topic = stem.create_topic("orders", schema="k string, n bigint", key="k", keep="latest per key")
        topic.append([{"k": "a", "n": 1}])
        for refused in (topic.compact, lambda: topic.to_arrow(watermark="1 minute"), lambda: _look_back(stem)):
            with pytest.raises(Invalid, match="a log on Kafka cannot"):
                refused()


def _look_back(stem: Mainstem) -> None:
    from mainstem.clock import as_datetime

    stem.topic("orders").queue("emails").rewind(as_datetime(0))
