"""A home of its own for each test, on the Spark session of all tests; and runs that end where a test says."""

import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mainstem
from mainstem.flows import native_catch_up, runner
from mainstem.log_on_spark import native_links
from mainstem.stem import Mainstem
from tests.kafka_broker import KafkaBroker
from tests.spark.native_runs import Died


@pytest.fixture
def stem(spark: SparkSession, tmp_path: Path) -> Iterator[Mainstem]:
    with mainstem.open(tmp_path / "home", upkeep="manual", spark=spark) as opened:
        yield opened


@pytest.fixture
def on_kafka(spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[Mainstem]:
    """A home whose log is on the test process's broker, with topics of its own there."""
    home = tmp_path / "on_kafka"
    home.mkdir()
    (home / "kafka.toml").write_text(f'prefix = "t{uuid.uuid4().hex[:8]}."\n')
    with mainstem.open(home, log=f"kafka://{kafka_broker.address}", spark=spark) as opened:
        yield opened


@pytest.fixture
def die_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have every flow end when it reaches a point in a batch, as if its process were killed there."""

    def at(point: str, batch: int | None = None) -> None:
        def reach(name: str) -> None:
            # Who says that it is somewhere has the number of its batch at hand.
            if name == point and batch in (None, sys._getframe(1).f_locals.get("number")):
                raise Died(name)

        for module in (runner, native_catch_up, native_links):
            monkeypatch.setattr(module, "reach", reach)

    return at


@pytest.fixture
def few_rows_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """To be read from sealed files first."""
    monkeypatch.setattr(native_catch_up, "ROWS_MIN", 1)


@pytest.fixture
def one_bucket(spark: SparkSession) -> Iterator[None]:
    """Stages with half the tasks, for a test with many of them: what several buckets do is seen elsewhere."""
    known = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", known)
