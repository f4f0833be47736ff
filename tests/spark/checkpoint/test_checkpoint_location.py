"""Checkpoints that Spark keeps elsewhere: on a file system that only Java knows, here Hadoop's viewfs over a folder."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import mainstem
from mainstem import Flow, Mainstem
from mainstem.errors import FlowFailed, Invalid, Unavailable
from mainstem.flows import runner
from mainstem.operators import tumbling, windowed
from mainstem.spark.checkpoint import checkpoint_location
from mainstem.spark.checkpoint.checkpoint_offsets import last_batch
from mainstem.spark.checkpoint.flow_store import FlowStore
from tests.flows.memory_sink import MemorySink
from tests.kafka_broker import KafkaBroker

ROOT = "viewfs://shop/checkpoints"


@pytest.fixture
def far(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """The folder behind the address."""
    folder = tmp_path / "far"
    folder.mkdir()
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    name = "fs.viewfs.mounttable.shop.link./checkpoints"
    settings.set(name, folder.as_uri())
    # What Hadoop keeps open would show the folder of the test before.
    settings.set("fs.viewfs.impl.disable.cache", "true")
    yield folder
    settings.unset(name)


@pytest.fixture
def shop(spark: SparkSession, far: Path, tmp_path: Path) -> Iterator[Mainstem]:
    with mainstem.open(tmp_path / "home", spark=spark, checkpoints=ROOT) as stem:
        stem.create_topic("orders", schema="id BIGINT, at TIMESTAMP", event_time="at", key="id", partitions=2)
        yield stem


def append(stem: Mainstem, first: int, end: int) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    stem.topic("orders").append([{"id": n, "at": start + timedelta(seconds=n)} for n in range(first, end)])


def flows(stem: Mainstem) -> Iterator[Flow]:
    orders = stem.topic("orders").stream(watermark="1 second")
    counted = [F.count("*").alias("orders")]
    yield Flow(orders.select("id"), into=stem.topic("copied"))
    yield Flow(orders.groupBy((F.col("id") % 3).alias("rest")).agg(*counted), into=stem.view("rests", key="rest"))
    yield Flow(
        windowed(orders, tumbling("10 seconds"), by=[], aggregates=counted), into=stem.view("tens", key="window")
    )


def there(far: Path) -> set[str]:
    return {str(path.relative_to(far)).split("-")[0] for path in far.glob("*/*")}


def check(stem: Mainstem, rows: int) -> None:
    assert sorted(stem.topic("copied").to_arrow(columns=["id"]).column("id").to_pylist()) == list(range(rows))
    assert sum(row["orders"] for row in stem.view("rests").to_arrow().to_pylist()) == rows
    assert {row["orders"] for row in stem.view("tens").to_arrow().to_pylist()} == {10}


def test_flows_go_on_from_a_checkpoint_elsewhere(
    shop: Mainstem, far: Path, tmp_path: Path, spark: SparkSession
) -> None:
    append(shop, 0, 50)
    shop.run(flows, until="idle")
    check(shop, 50)
    assert there(far) == {"copied/v1", "rests/v1", "tens/v1"}
    # A home remembers it, and commands see how far a flow is without a Spark.
    with mainstem.open(tmp_path / "home", spark=spark) as again:
        assert again.checkpoints == ROOT
        append(again, 50, 80)
        again.run(flows, until="idle")
        check(again, 80)
    folder = FlowStore(shop.home, "copied").checkpoint(1)
    [offsets] = far.glob("copied/v1-*/offsets")
    assert (
        last_batch(folder) == last_batch(folder, "offsets") == max(map(int, filter(str.isdigit, os.listdir(offsets))))
    )
    assert {name for name in os.listdir(folder) if "." not in name} == {
        "begun",
        "commits",
        "cut",
        "elsewhere",
        "metadata",
        "offsets",
        "sink_rows",
    }


def test_a_home_on_kafka_has_its_checkpoints_there_as_well(
    spark: SparkSession, far: Path, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "kafka.toml").write_text(f'brokers = ["{kafka_broker.address}"]\nprefix = "c{uuid.uuid4().hex[:8]}."\n')
    with mainstem.open(home, spark=spark, checkpoints=ROOT) as stem:
        stem.create_topic("orders", schema="id BIGINT, at TIMESTAMP", event_time="at", key="id", partitions=2)
        for first in (0, 50):
            append(stem, first, first + 50)
            stem.run(flows, until="idle")
        check(stem, 100)
    assert there(far) == {"copied/v1", "rests/v1", "tens/v1"}


def test_what_is_there_counts_and_not_the_copies(shop: Mainstem, far: Path) -> None:
    append(shop, 0, 50)
    shop.run(flows, until="idle")
    folder = Path(FlowStore(shop.home, "rests").checkpoint(1))
    for log in ("offsets", "commits"):
        shutil.rmtree(folder / log)
    append(shop, 50, 60)
    shop.run(flows, until="idle")
    check(shop, 60)
    # And what is lost there is missed, as it is in a home.
    [log] = far.glob("rests/v1-*/offsets")
    shutil.rmtree(log)
    with pytest.raises(FlowFailed, match="rests") as failed:
        shop.run(flows, until="idle")
    assert "is not the one that its sink was written from" in str(failed.value.__cause__)


@pytest.mark.parametrize("damaged", ["offsets", "commits"])
def test_a_batch_is_done_again_where_its_entry_is_half_written(shop: Mainstem, far: Path, damaged: str) -> None:
    """Planned and not held by the sink, or done and not committed: removed there too, or Spark would stumble over it."""
    sink = MemorySink("seen", failing={1} if damaged == "offsets" else set())

    def copy(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(stem.topic("orders").stream().select("id", "record"), into=sink)

    append(shop, 0, 10)
    shop.run(copy, until="idle")
    append(shop, 10, 20)
    if damaged == "offsets":
        with pytest.raises(FlowFailed):
            shop.run(copy, until="idle")
    else:
        shop.run(copy, until="idle")
    folder = FlowStore(shop.home, "seen").checkpoint(1)
    [log] = far.glob(f"seen/v1-*/{damaged}")
    number = str(last_batch(folder, damaged))
    (log / f".{number}.crc").unlink(missing_ok=True)
    (log / number).write_text("")
    append(shop, 20, 30)
    shop.run(copy, until="idle")
    assert sorted(row["id"] for row in sink.rows()) == list(range(30))


def test_what_a_later_run_has_written_is_not_removed_there(shop: Mainstem, far: Path, spark: SparkSession) -> None:
    """Of a run that stood still between looking and removing."""
    append(shop, 0, 20)
    shop.run(flows, until="idle")
    folder = FlowStore(shop.home, "rests").checkpoint(1)
    older = checkpoint_location.CheckpointLocation.of(spark, folder, ROOT)
    older.pull(begin=True)
    append(shop, 20, 40)
    shop.run(flows, until="idle")
    last = str(last_batch(folder, "offsets"))
    # Its copies are not there yet, either.
    for log in ("offsets", "commits"):
        (Path(folder) / log / last).unlink()
    older.push_removals()
    assert [path.name for path in far.glob(f"rests/v1-*/*/{last}") if path.parent.name != "state"] == [last, last]


def test_what_is_dropped_is_removed_there(shop: Mainstem, far: Path) -> None:
    append(shop, 0, 20)
    shop.run(flows, until="idle")
    with shop.rebuild("rests", flows) as rebuilt:
        rebuilt.wait()
        assert "rests/v2" in there(far)
    assert there(far) == {"copied/v1", "rests/v1", "tens/v1"}
    FlowStore(shop.home, "rests").drop()
    assert there(far) == {"copied/v1", "tens/v1"}


def test_a_flow_that_was_begun_in_the_home_stays_there(spark: SparkSession, far: Path, tmp_path: Path) -> None:
    with mainstem.open(tmp_path / "home", spark=spark) as stem:
        stem.create_topic("orders", schema="id BIGINT, at TIMESTAMP", event_time="at", key="id", partitions=2)
        append(stem, 0, 50)
        stem.run(flows, until="idle")
    with mainstem.open(tmp_path / "home", spark=spark, checkpoints=ROOT) as stem:
        append(stem, 50, 60)
        stem.run(flows, until="idle")
        check(stem, 60)
    assert there(far) == set()


def test_a_path_is_one_of_files(spark: SparkSession, tmp_path: Path) -> None:
    with mainstem.open(tmp_path / "home", spark=spark, checkpoints=str(tmp_path / "mounted")) as stem:
        stem.create_topic("orders", schema="id BIGINT, at TIMESTAMP", event_time="at", key="id", partitions=2)
        append(stem, 0, 50)
        stem.run(flows, until="idle")
        check(stem, 50)
    assert there(tmp_path / "mounted") == {"copied/v1", "rests/v1", "tens/v1"}


def test_a_place_that_cannot_be_used_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with mainstem.open(tmp_path / "home", spark=spark, checkpoints="nowhere://shop") as stem:
        stem.create_topic("orders", schema="id BIGINT, at TIMESTAMP", event_time="at")
        with pytest.raises(FlowFailed) as failed:
            stem.run(flows, until="idle")
    assert isinstance(failed.value.__cause__, Invalid)
    assert 'No FileSystem for scheme "nowhere"' in failed.value.__cause__.detail
    with pytest.raises(Invalid, match="contains a password") as refused:
        mainstem.open(tmp_path / "home", checkpoints="s3a://key:canary@shop/x")
    assert "canary" not in f"{refused.value}{refused.value.detail}{refused.value.hint}"
    with pytest.raises(Invalid, match="is empty"):
        mainstem.open(tmp_path / "home", checkpoints="/")


def test_one_that_is_away_for_a_moment_is_waited_for(
    shop: Mainstem, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RETRY", runner.Backoff("10 milliseconds"))
    right: Callable[..., set[str]] = checkpoint_location._HadoopFolder.numbers
    calls = []

    def away(self: checkpoint_location._HadoopFolder, folder: str) -> set[str]:
        calls.append(folder)
        if len(calls) in (3, 9):
            raise Unavailable("it is away", detail="It is.", hint="Wait.")
        return right(self, folder)

    monkeypatch.setattr(checkpoint_location._HadoopFolder, "numbers", away)
    append(shop, 0, 50)
    shop.run(flows, until="idle")
    check(shop, 50)


def test_the_file_beside_a_checkpoint_has_its_format(shop: Mainstem) -> None:
    append(shop, 0, 10)
    shop.run(flows, until="idle")
    content = json.loads(Path(FlowStore(shop.home, "rests").checkpoint(1), "elsewhere").read_text())
    assert (content["format"], content["url"].rpartition("-")[0]) == (2, f"{ROOT}/rests/v1")
