"""One Spark session for all tests of a process, and a home of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mainstem
from mainstem.log_on_spark.spark_session import spark_session
from mainstem.stem import Mainstem


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = spark_session("local[2]")
    yield session
    session.stop()


@pytest.fixture
def stem(spark: SparkSession, tmp_path: Path) -> Iterator[Mainstem]:
    with mainstem.open(tmp_path / "home", upkeep="manual", spark=spark) as opened:
        yield opened
