"""A feed of changes applied by flows: several topics into one view, stopped and started again, and asked as of earlier."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem import Flow, Mainstem
from mainstem.errors import Invalid
from mainstem.flows import program
from mainstem.operators import enrich, table, versions
from tests.acceptance import test_change_feeds as a13

DDL = "id INT, name STRING, version INT, op STRING"
DELETED = "op = 'DELETE'"
Row = dict[str, Any]


def feeds(stem: Mainstem, how: str) -> DataFrame:
    """Two topics as one feed."""
    crm, shop = (getattr(stem.topic(name), how)() for name in ("crm", "shop"))
    return crm.unionByName(shop)


def newest(rows: DataFrame) -> DataFrame:
    return table(rows, key="id", order_by="version", delete_when=DELETED).drop("op")


def every(rows: DataFrame) -> DataFrame:
    return versions(rows, key="id", order_by="version", delete_when=F.col("op") == "DELETE", track=["name"]).drop("op")


def rows_of(chance: Random, count: int) -> list[Row]:
    """Few keys and versions: many of them tie."""
    return [
        {
            "id": chance.randrange(4),
            "name": chance.choice(["ada", "bob", "cyd"]),
            "version": chance.randrange(5),
            "op": chance.choice(["UPSERT", "UPSERT", "DELETE"]),
        }
        for _ in range(count)
    ]


def read(stem: Mainstem, name: str) -> list[Row]:
    return sorted(stem.view(name).to_arrow().to_pylist(), key=str)


def collected(rows: DataFrame) -> list[Row]:
    found = rows.toArrow()
    assert pa.compute.unique(found.column("record").combine_chunks().field("change")).to_pylist() == ["insert"]
    return sorted(found.drop_columns(["record"]).to_pylist(), key=str)


def test_two_feeds_in_one_view_do_not_depend_on_batches_and_restarts(
    stem: Mainstem, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [stem.create_topic(name, schema=DDL, key="id", partitions=2) for name in ("crm", "shop")]
    packed_query = program.packed_query
    packed: list[bool] = []

    def flows(stem: Mainstem) -> Iterator[Flow]:
        rows = feeds(stem, "stream")
        yield Flow(newest(rows), into=stem.view("newest", key="id"))
        yield Flow(every(rows), into=stem.view("versions", key=["id", "valid_from"]))

    def query(*given: Any) -> Any:
        found = packed_query(*given) if part % 2 == 0 else None
        packed.append(found is not None)
        return found

    monkeypatch.setattr(program, "packed_query", query)
    chance = Random(11)
    for part in range(3):
        with stem.start(flows) as running:
            # One topic is read before the other, in each run another one first.
            for topic in topics[:: 1 if part % 2 else -1]:
                topic.append(rows_of(chance, 9))
                running.wait_until_idle()
    # Over Arrow and in Spark, in turns on one checkpoint.
    assert packed == [True, True, False, False, True, True]
    assert read(stem, "newest") == collected(newest(feeds(stem, "read")))
    assert read(stem, "versions") == collected(every(feeds(stem, "read")))
    found = read(stem, "versions")
    assert sum(row["valid_until"] is None for row in found) == len(read(stem, "newest"))
    # In the order of the versions, whatever order the rows came in; here ties are decided by position and by a hash.
    assert len(found) > 6


def test_a_feed_of_plain_files_as_in_case_a13_and_with_ties(stem: Mainstem, tmp_path: Path) -> None:
    """Rows without a `record`, and so without positions."""
    folder = tmp_path / "feed"
    folder.mkdir()

    def flows(stem: Mainstem) -> Iterator[Flow]:
        rows = stem.spark.readStream.schema(DDL).parquet(str(folder))
        yield Flow(newest(rows), into=stem.view("newest", key="id"))
        yield Flow(every(rows), into=stem.view("versions", key=["id", "valid_from"]))

    def run(rows: list[Row]) -> None:
        pq.write_table(pa.Table.from_pylist(rows, a13.SCHEMA), folder / f"{len(list(folder.iterdir()))}.parquet")
        stem.run(flows, until="idle")

    for case in a13.SCD1["three_runs"][:2]:
        run(a13.rows_of(case["input"]))
        assert [list(row.values()) for row in read(stem, "newest")] == case["target"]
    run([*a13.rows_of(a13.SCD1["three_runs"][2]["input"]), *rows_of(Random(4), 20)])
    files = stem.spark.read.schema(DDL).parquet(str(folder))
    assert read(stem, "newest") == collected(newest(files))
    assert read(stem, "versions") == collected(every(files))


def test_what_was_believed_earlier_about_a_time(stem: Mainstem) -> None:
    feed = stem.create_topic("customers", schema="id INT, city STRING, day INT", key="id")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        found = versions(stem.topic("customers").stream(), key="id", order_by="day")
        yield Flow(found, into=stem.view("cities", key=["id", "valid_from"], history="30 days"))

    def city_on(day: int, as_of: Any = None) -> list[str]:
        asked = f"SELECT city FROM cities WHERE valid_from <= {day} AND coalesce(valid_until > {day}, true)"
        return [row["city"] for row in stem.view("cities").query(asked, as_of=as_of).to_pylist()]

    with stem.start(flows) as running:
        first = feed.append([{"id": 1, "city": "Bonn", "day": 1}, {"id": 1, "city": "Jena", "day": 9}])
        running.wait_until_idle()
        second = feed.append([{"id": 1, "city": "Ulm", "day": 5}, {"id": 1, "city": "Kiel", "day": None}])
        running.wait_until_idle()
    assert city_on(7) == ["Ulm"]
    assert city_on(7, as_of=first.token) == ["Bonn"]
    assert city_on(7, as_of=second.token) == ["Ulm"]
    # A row without an order is not lost.
    [late] = stem.topic("cities.late").to_arrow().to_pylist()
    assert (late["id"], late["reason"]) == (1, "order_by is null")


def test_a_delete_by_a_condition_ends_a_version_in_a_look_up(stem: Mainstem) -> None:
    frame = stem.spark.createDataFrame(
        pa.table({"id": pa.array([1, 1], pa.int32()), "op": ["UPSERT", "DELETE"], "since": [1, 2]}),
    )
    made = table(frame, key="id", order_by="since", delete_when=DELETED)
    with pytest.raises(Invalid, match="rows that are not from a topic, with delete_when="):
        enrich(frame, made, on="id")
    moves = stem.create_topic("moves", schema="id INT, city STRING, at TIMESTAMP, op STRING", event_time="at")
    visits = stem.create_topic("visits", schema="id INT, seen_at TIMESTAMP", event_time="seen_at")
    for day, op in ((1, "UPSERT"), (3, "DELETE")):
        moves.append([{"id": 1, "city": "Ulm", "at": datetime(2026, 1, day, tzinfo=UTC), "op": op}])
    visits.append([{"id": 1, "seen_at": datetime(2026, 1, day, tzinfo=UTC)} for day in (2, 4)])
    homes = table(stem.topic("moves").read(), key="id", order_by="at", delete_when=DELETED)

    found = enrich(stem.topic("visits").read(), homes, on="id").toArrow().to_pylist()

    assert {row["seen_at"].day: row["city"] for row in found} == {2: "Ulm", 4: None}
    several = table(stem.topic("moves").read(), key="id", order_by=["at", "op"])
    with pytest.raises(Invalid, match="ordered by an expression or by several columns"):
        enrich(stem.topic("visits").read(), several, on="id")


def test_what_is_asked_wrongly_is_told_while_the_program_is_built(stem: Mainstem) -> None:
    stem.create_topic("feed", schema=f"{DDL}, tags ARRAY<STRING>, valid_from INT")
    given = stem.topic("feed").stream()
    rows = given.drop("valid_from")
    wrong: list[tuple[str, DataFrame, dict[str, Any]]] = [
        ('versions uses the column "vers", which the rows lack', rows, {"order_by": "vers"}),
        ('order_by of versions uses the column "vers", which the rows lack', rows, {"order_by": "vers + 1"}),
        ('order_by of versions uses the column "vers", which the rows lack', rows, {"order_by": F.col("vers")}),
        ("order_by of versions cannot be computed", rows, {"order_by": "version +"}),
        ("order_by of versions cannot have a direction", rows, {"order_by": F.desc("version")}),
        ("order_by of versions cannot have a direction", rows, {"order_by": ["version desc"]}),
        ("order_by of versions is empty", rows, {"order_by": []}),
        ('versions cannot order rows by "tags"', rows, {"order_by": "tags"}),
        ("versions cannot order rows by this expression", rows, {"order_by": F.struct("version", "op")}),
        ("delete_when of versions is not a condition", rows, {"order_by": "version", "delete_when": "version + 1"}),
        ("delete_when of versions cannot be computed", rows, {"order_by": "version", "delete_when": "op = 'DELETE"}),
        ('delete_when of versions uses the column "ob"', rows, {"order_by": "version", "delete_when": "ob = 'D'"}),
        ('the rows of versions already have a column "valid_from"', given, {"order_by": "version"}),
        ('versions uses the column "nam", which the rows lack', rows, {"order_by": "version", "track": "nam"}),
        ("track of versions is empty", rows, {"order_by": "version", "track": []}),
        ("versions has no order_by", rows, {"order_by": None}),
        ("versions has no key", rows, {"order_by": "version", "key": []}),
        ("versions cannot take a changing table", newest(rows), {"order_by": "version"}),
    ]  # fmt: skip
    for said, frame, asked in wrong:
        with pytest.raises(Invalid, match=said) as refused:
            versions(frame, **{"key": "id"} | asked)
        assert refused.value.detail
        assert refused.value.hint
