"""With Spark: a flow keeps a Delta table current, and fills it again after it was set back."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import mainstem
from mainstem import Mainstem
from mainstem.flows.flow import Flow
from mainstem.operators import table

pytestmark = pytest.mark.usefixtures("one_bucket")


def test_a_flow_keeps_a_delta_table_current_and_fills_it_again_after_it_was_set_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"

    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(table(stem.topic("products").stream(), key="id"), into=stem.delta(lake / "products", key="id"))

    def run(*rows: tuple[int, str | None]) -> str:
        with mainstem.open(tmp_path / "home", upkeep="manual", spark=spark) as stem:
            if "products" not in stem.topics():
                stem.create_topic("products", schema="id BIGINT, title STRING", key="id", partitions=2)
            for key, title in rows:
                if title is None:
                    stem.topic("products").delete([{"id": key}])
                else:
                    stem.topic("products").append([{"id": key, "title": title}])
            stem.run(flows, until="idle")
            store = stem.delta(lake / "products", key="id")
            assert store.name == "delta.lake.products"
            return store.status.state

    def found() -> list[tuple[int, str]]:
        with duckdb.connect() as connection:
            connection.register("products", DeltaTable(str(lake / "products")).to_pyarrow_dataset())
            return connection.sql("SELECT id, title FROM products ORDER BY id").fetchall()

    assert run((1, "a"), (2, "b")) == "current"
    assert found() == [(1, "a"), (2, "b")]
    shutil.copytree(lake, tmp_path / "saved")
    assert run((1, None), (3, "c")) == "current"
    assert found() == [(2, "b"), (3, "c")]

    shutil.rmtree(lake)
    shutil.copytree(tmp_path / "saved", lake)
    assert found() == [(1, "a"), (2, "b")]
    assert run((4, "d")) == "current"
    assert found() == [(2, "b"), (3, "c"), (4, "d")]
    assert [path.name for path in lake.iterdir()] == ["products"]
