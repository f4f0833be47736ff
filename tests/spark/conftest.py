"""A home of its own for each test, on the Spark session of all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mainstem
from mainstem.stem import Mainstem


@pytest.fixture
def stem(spark: SparkSession, tmp_path: Path) -> Iterator[Mainstem]:
    with mainstem.open(tmp_path / "home", upkeep="manual", spark=spark) as opened:
        yield opened
