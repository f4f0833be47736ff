"""A topic moved to Kafka and back is the same, row by row; and a copy that is not is told."""

from pathlib import Path

import pytest

from mainstem.errors import Conflict
from mainstem.log.topic import Topic
from mainstem.log.topic_copy import copy_topic
from mainstem.stem import Mainstem
from mainstem.stem import open as open_stem
from mainstem.workbench.cli.main import run
from tests.contracts.shown_rows import by_partition, changes, dicts, numbers, plain
from tests.kafka_broker import KafkaBroker
from tests.log.kafka.kafka_stems import opened, own_settings


def filled(stem: Mainstem) -> Topic:
    topic = stem.create_topic("orders", schema="k string, n bigint", key="k", partitions=3, keep="7 days")
    topic.append([{"k": f"key-{n % 7}", "n": n} for n in range(100)])
    topic.append([{"k": "a", "n": 1, "record": {"change": "update", "headers": [{"key": "trace", "value": b"\0"}]}}])
    topic.delete(["key-1"])
    return topic


def test_to_kafka_and_back(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    with (
        open_stem(tmp_path / "one") as here,
        opened(own_settings(kafka_broker)) as kafka,
        open_stem(tmp_path / "two") as back,
    ):
        original = filled(here)
        progress: list[int] = []
        copied = copy_topic(original, kafka.log, progress=progress.append)
        assert [part.same_offsets for part in copied] == [True] * 3
        assert sum(part.records for part in copied) == progress[-1] == 102
        there = kafka.topic("orders")
        assert (there.settings.key, str(there.settings.keep), there.settings.codec) == (("k",), "7 days", "json")
        assert by_partition(there.to_arrow()) == by_partition(original.to_arrow())
        # Again copies nothing, and what came since goes behind it.
        original.append([{"k": "b", "n": 500}])
        assert sum(part.records for part in copy_topic(original, kafka.log)) == 103
        assert copy_topic(there, back.log) == copy_topic(original, kafka.log)
        returned = back.topic("orders")
        assert (plain(returned.to_arrow()), changes(returned.to_arrow())) == (
            plain(original.to_arrow()),
            changes(original.to_arrow()),
        )
        headers = [row["record"]["headers"] for row in dicts(returned.to_arrow()) if row["record"]["headers"]]
        assert headers == [[{"key": "trace", "value": b"\0"}]]
        # Somebody else writes to the copy.
        there.append([{"k": "c", "n": -1}])
        with pytest.raises(Conflict, match="and its copy differ"):
            copy_topic(original, kafka.log)


def test_the_command_copies_and_compares(
    kafka_broker: KafkaBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, there = tmp_path / "home", tmp_path / "there"
    with open_stem(home) as stem:
        filled(stem)
    there.mkdir()
    prefix = own_settings(kafka_broker).prefix
    (there / "kafka.toml").write_text(f'brokers = ["{kafka_broker.address}"]\nprefix = "{prefix}"\n')
    assert run(["topic", "copy", "orders", "--from", str(home), "--to", str(there), "--codec", "arrow"]) == 0
    assert "copied topic orders: 102 records, equal in 3 partitions" in capsys.readouterr().out
    assert run(["topic", "list", "--home", str(there)]) == 0
    assert "orders" in capsys.readouterr().out
    with open_stem(there) as stem:
        assert sorted(filter(None, numbers(stem.topic("orders").to_arrow()))) == sorted([*range(1, 100), 1])
