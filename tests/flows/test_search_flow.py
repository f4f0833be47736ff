"""With Spark: a flow keeps a search index current, and fills it again when its directory was removed."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mainstem
from mainstem import Mainstem
from mainstem.errors import NotFound, Unavailable
from mainstem.flows import runner
from mainstem.flows.flow import Flow
from mainstem.operators import table
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("one_bucket")


def flows(stem: Mainstem) -> Iterator[Flow]:
    rows = table(stem.topic("products").stream(), key="id")
    yield Flow(rows, into=stem.search_index("products", key="id", text=["title"]))


def found(stem: Mainstem, words: str) -> list[int]:
    try:
        return sorted(row["id"] for row in stem.search_index("products").search(words))
    except (NotFound, Unavailable):
        return []


def test_a_flow_keeps_an_index_current_and_fills_it_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "STORE_SECONDS", 0.2)
    with mainstem.open(tmp_path / "home", upkeep="manual", spark=spark) as stem:
        products = stem.create_topic("products", schema="id BIGINT, title STRING", key="id")
        products.append([{"id": 1, "title": "red shoes"}, {"id": 2, "title": "red hat"}, {"id": 3, "title": "scarf"}])
        with stem.start(flows):
            wait_until(lambda: found(stem, "red") == [1, 2])
            products.append([{"id": 1, "title": "green shoes"}])
            products.delete([2])
            wait_until(lambda: found(stem, "green") == [1])
            assert found(stem, "red") == []
            shutil.rmtree(tmp_path / "home/search/products")
            # Nothing is appended: the flow itself finds that the index is gone.
            wait_until(lambda: found(stem, "shoes") == [1] and found(stem, "scarf") == [3])
            assert found(stem, "red") == []
            products.append([{"id": 4, "title": "red scarf"}])
            wait_until(lambda: found(stem, "scarf") == [3, 4])
