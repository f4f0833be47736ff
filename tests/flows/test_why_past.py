"""Why a row is as it is when its flow began later, changed, was rebuilt, or has read what its topic no longer has."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

import mainstem
from mainstem import Flow
from mainstem.flows.why.lineage_file import read_lineage
from mainstem.operators import aggregate, table, top
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.stem import Mainstem
from mainstem.views.row_explanation import RowExplanation


def sale(number: int, store: str, amount: float) -> dict[str, Any]:
    return {"id": f"i{number}", "store": store, "amount": amount}


def sums(rows: Any) -> Any:
    return rows.groupBy("store").agg(F.sum("amount").alias("total"), F.count("*").alias("n"))


def program(least: float) -> Callable[[Mainstem], Iterator[Flow]]:
    """The flows, of which two have a filter that changes from run to run."""

    def flows(stem: Mainstem) -> Iterator[Flow]:
        sales, prices = (stem.topic(name).stream() for name in ("sales", "prices"))
        later = stem.topic("sales").stream(start={0: 1, 1: 1})
        yield Flow(sums(later), into=stem.view("started", key="store"))
        filtered = sums(sales.where(f"amount > {least}"))
        yield Flow(filtered, into=stem.view("filtered", key="store"))
        yield Flow(filtered, into=stem.view("rebuilt", key="store", history="1 day"))
        yield Flow(prices.groupBy("g").agg(F.sum("p").alias("p")), into=stem.view("all_prices", key="g"))
        yield Flow(table(prices, key="k"), into=stem.view("prices_now", key="k"))
        by_both = aggregate(sales, by=["store", "id"], aggregates="sum(amount) AS total")
        best = top(by_both, 1, by="store", order="total DESC").select("store", "total", "record")
        yield Flow(best, into=stem.view("best", key="store"))
        hashed = sales.select("store", F.sha2("id", 256).alias("hash"), "record")
        yield Flow(hashed, into=stem.view("hashed", key="store"))
        odd = sales.groupBy(F.sha2("store", 256).alias("s")).count()
        yield Flow(odd, into=stem.view("odd", key="s"))

    return flows


@pytest.fixture(scope="module")
def home(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, datetime]:
    """The home after two runs and a rebuild between them, and a moment before the rebuild."""
    path = tmp_path_factory.mktemp("past") / "home"
    with mainstem.open(path, upkeep="manual", spark=spark) as stem:
        sales = stem.create_topic("sales", schema="id STRING, store STRING, amount DOUBLE", partitions=2)
        prices = stem.create_topic("prices", schema="k STRING, g STRING, p BIGINT", key="k", keep="latest per key")
        for partition in range(2):
            sales.append([sale(3 * partition + at, "A", 5 + 10 * at) for at in range(3)], partition=partition)
        prices.append([{"k": k, "g": "g", "p": p} for k, p in (("x", 1), ("y", 2), ("x", 10))])
        stem.run(program(10), until="idle")
        between = datetime.now(UTC)
        sales.append([sale(9, "A", 50), sale(10, "B", 50)], partition=0)
        with stem.rebuild("rebuilt", program(0)) as rebuild:
            rebuild.wait()
            rebuild.apply()
        stem.run(program(0), until="idle")
        prices.seal()
        prices.compact()
    return str(path), between


@pytest.fixture(scope="module")
def shop(home: tuple[str, datetime]) -> Iterator[Mainstem]:
    with mainstem.open(home[0], upkeep="manual") as stem:
        yield stem


def ids(found: RowExplanation, topic: str = "sales", column: str = "id") -> list[Any]:
    assert (found.because, found.exact) == ("", True)
    return sorted(found.records[topic].column(column).to_pylist())


def test_records_before_the_start_of_a_flow_are_not_named(shop: Mainstem) -> None:
    assert ids(shop.view("started").why("A")) == ["i1", "i2", "i4", "i5", "i9"]
    assert shop.view("started").get("A")["n"] == 5  # type: ignore[index]


def test_a_changed_filter_is_told_where_earlier_records_may_be_part_of_the_row(shop: Mainstem) -> None:
    before = shop.view("filtered").why("A")
    assert not before.exact
    assert "its program changed after batch" in before.because
    # All records of this store came later.
    assert ids(shop.view("filtered").why("B")) == ["i10"]


def test_a_row_as_of_a_time_before_a_rebuild_has_what_the_version_of_then_had_read(
    shop: Mainstem, home: tuple[str, datetime]
) -> None:
    view = shop.view("rebuilt")
    assert ids(view.why("A", as_of=home[1])) == ["i1", "i2", "i4", "i5"]
    assert ids(view.why("A")) == ["i0", "i1", "i2", "i3", "i4", "i5", "i9"]


def test_a_version_whose_lineage_is_gone_is_told(shop: Mainstem, home: tuple[str, datetime]) -> None:
    path = Path(FlowStore(shop.home, "rebuilt").lineage(1))
    kept = path.rename(path.with_suffix(".kept"))
    found = shop.view("rebuilt").why("A", as_of=home[1])
    kept.rename(path)
    assert (found.exact, "version 1 of the view was live then" in found.because) == (False, True)


def test_records_that_compaction_removed_are_told_unless_only_the_last_of_a_key_counts(shop: Mainstem) -> None:
    found = shop.view("all_prices").why("g")
    assert (found.exact, "prices is compacted" in found.because) == (False, True)
    assert ids(shop.view("prices_now").why("x"), "prices", "p") == [10]


def test_several_candidates_that_only_a_computed_value_tells_apart_are_told(shop: Mainstem) -> None:
    for view, column in (("best", "total"), ("hashed", "hash")):
        found = shop.view(view).why("A")
        assert (found.exact, f'differ in "{column}"' in found.because) == (False, True)
        assert shop.view(view).why("B").exact


def test_an_expression_is_named_as_the_program_has_it(shop: Mainstem) -> None:
    lineage = read_lineage(FlowStore(shop.home, "odd"), 1)
    assert lineage is not None
    assert lineage["because"].startswith("sha2(")


def test_a_copy_of_the_home_says_why_too(shop: Mainstem, tmp_path: Path) -> None:
    shop.copy_to(tmp_path / "copy")
    with mainstem.open(tmp_path / "copy", upkeep="manual") as copy:
        assert len(ids(copy.view("started").why("A"))) == 5
