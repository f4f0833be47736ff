"""`read()` of a topic: the same rows as `to_arrow()` and `stream()`, whatever was done to the topic, and frozen."""

import gc
import os
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mainstem.errors import FellOff, Invalid
from mainstem.log.embedded.embedded_topic import EmbeddedMoment, EmbeddedTopic
from mainstem.log.keep_rule import Keep
from mainstem.log.topic import Topic
from mainstem.log.transaction import Transaction
from mainstem.spark.sources import topic_read
from mainstem.stem import Mainstem
from tests.waiting import wait_until

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def ordered(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=lambda row: (row["record"]["partition"], row["record"]["offset"]))


def test_columns_that_were_added_or_widened_read_as_they_are_now(stem: Mainstem):
    topic = stem.create_topic(
        "things", key="id", event_time="at", partitions=2,
        schema="id STRING, a TINYINT, b SMALLINT, f FLOAT, m DECIMAL(6,2), s STRUCT<x: INT>, l ARRAY<INT>, at TIMESTAMP, "
        "local TIMESTAMP_NTZ, raw BINARY, m2 MAP<STRING, INT>",
    )  # fmt: skip

    def rows(first: int, end: int) -> list[dict[str, Any]]:
        return [
            {
                "id": f"t-{n}", "a": n % 100, "b": n, "f": n / 2, "m": Decimal(n) / 4, "s": {"x": n}, "l": [n, None],
                "at": NOON + timedelta(seconds=n), "local": (NOON + timedelta(days=n)).replace(tzinfo=None),
                "raw": bytes([n % 256]), "m2": [("k", n)], "record": {"headers": [{"key": "h", "value": b"1"}]},
            }
            for n in range(first, end)
        ]  # fmt: skip

    topic.append(rows(0, 40))
    topic.delete([{"id": "t-3"}])
    topic.seal()
    topic.alter(
        schema="id STRING, a BIGINT, b DOUBLE, new STRING, f DOUBLE, m DECIMAL(12,2), s STRUCT<x: BIGINT, y: STRING>, "
        "l ARRAY<BIGINT>, at TIMESTAMP, local TIMESTAMP_NTZ, raw BINARY, m2 MAP<STRING, BIGINT>"
    )
    topic.append([{**row, "new": "x"} for row in rows(40, 60)])
    topic.seal()
    topic.append([{**row, "s": {"x": 1, "y": "z"}} for row in rows(60, 80)])
    read, late = topic.read(), topic.read(watermark="10 seconds")
    assert read.schema == topic.stream().schema
    assert [field.metadata for field in read.schema] == [field.metadata for field in topic.stream().schema]
    assert late.schema["record"] == topic.stream(watermark="10 seconds").schema["record"]
    assert ordered(read.toArrow()) == ordered(topic.to_arrow())
    assert ordered(late.toArrow()) == ordered(topic.to_arrow(watermark="10 seconds"))
    assert late.where("at < record.watermark").count() == sum(
        row["at"] is not None and row["record"]["watermark"] is not None and row["at"] < row["record"]["watermark"]
        for row in topic.to_arrow(watermark="10 seconds").to_pylist()
    )
    for bounds in ({"start": {0: 7, 1: 3}}, {"stop": {0: 30}}, {"start": {0: 5}, "stop": {0: 25, 1: 11}}):
        assert ordered(topic.read(**bounds).toArrow()) == ordered(topic.to_arrow(**bounds)), bounds


def test_one_column_of_many_is_all_that_is_scanned(stem: Mainstem):
    topic = stem.create_topic("wide", schema=", ".join(f"c{n} BIGINT" for n in range(10)))
    topic.append([{f"c{n}": n for n in range(10)}])
    topic.seal()
    plan = topic.read(start={0: 0}).selectExpr("c3", "record.offset")._jdf.queryExecution().executedPlan().toString()
    assert "ReadSchema: struct<c3:bigint,record:struct<offset:bigint>>" in plan


class History:
    """A topic to which things are done at random."""

    def __init__(self, stem: Mainstem, chance: random.Random, number: int) -> None:
        self._stem = stem
        self._chance = chance
        self.kept = chance.choice(["forever", "1 KiB", Keep.latest_per_key()])
        self._columns = "k STRING, n INT, at TIMESTAMP"
        self.topic: Topic = stem.create_topic(
            f"t{number}", schema=self._columns, key="k", event_time="at", partitions=2, keep=self.kept
        )
        self._open: list[Transaction] = []
        self._count = 0

    def rows(self) -> list[dict[str, Any]]:
        self._count += 1
        return [
            {"k": self._chance.choice("abcdef"), "n": self._count, "at": NOON + timedelta(seconds=self._count)}
            for _ in range(self._chance.randint(1, 8))
        ]

    def step(self) -> None:
        action = self._chance.choice(
            ["append", "append", "delete", "seal", "upkeep", "begin", "commit", "abort", "alter"]
        )
        if action == "append":
            self.topic.append(self.rows())
        elif action == "delete":
            self.topic.delete([{"k": self._chance.choice("abcdef")}])
        elif action == "seal":
            self.topic.seal()
        elif action == "upkeep":
            self.topic.compact() if isinstance(self.kept, Keep) else self.topic.drop_expired()
        elif action == "begin":
            transaction = self._stem.transaction()
            transaction.append(self.topic, self.rows())
            self._open.append(transaction)
        elif action in ("commit", "abort") and self._open:
            getattr(self._open.pop(0), action)()
        elif action == "alter" and "more" not in self._columns:
            self._columns = self._columns.replace("n INT", "n BIGINT") + ", more STRING"
            self.topic.alter(schema=self._columns)

    def close(self) -> None:
        for transaction in self._open:
            transaction.abort()


@pytest.mark.parametrize("seed", range(6))
def test_any_history_reads_the_same_everywhere(stem: Mainstem, seed: int):
    chance = random.Random(seed)
    history = History(stem, chance, seed)
    frames: list[tuple[Any, list[dict[str, Any]]]] = []
    for step in range(40):
        history.step()
        if step % 10 == 9:
            topic = stem.topic(history.topic.name)
            frames.append((topic.read(watermark="2 seconds"), ordered(topic.to_arrow(watermark="2 seconds"))))
            first = {0: min(topic.backend.earliest(0) + chance.randint(0, 3), topic.backend.end(0))}
            frames.append((topic.read(start=first), ordered(topic.to_arrow(start=first))))
    history.close()
    # Looked at last of all: a frame does not change, whatever was sealed, decided, compacted or dropped since.
    for frame, expected in frames:
        assert ordered(frame.toArrow()) == expected


def test_the_files_of_a_read_go_when_no_frame_needs_them(stem: Mainstem, spark: SparkSession):
    topic = stem.create_topic("orders", schema="n BIGINT")
    topic.append([{"n": 1}, {"n": 2}])
    folder = Path(stem.home, "reads")

    def collect() -> None:
        gc.collect()
        spark._jvm.System.gc()  # type: ignore[union-attr]
        topic_read._remove_unused(stem.home)

    derived = topic.read().where("n > 1").select("n")
    collect()
    assert len(os.listdir(folder)) == 1
    assert [row.n for row in derived.collect()] == [2]
    del derived

    def is_empty() -> bool:
        collect()
        return os.listdir(folder) == []

    # Threads of Spark's let go of a frame some time after its rows were taken.
    wait_until(is_empty)
    # What a process that is gone has left, the next read removes.
    left = folder / "4194305.1-abc"
    left.mkdir()
    topic.read()
    assert not left.exists()


def test_what_cannot_be_read_is_refused(stem: Mainstem):
    topic = stem.create_topic("orders", schema="n BIGINT", keep="1 KiB")
    assert topic.read().count() == 0
    with pytest.raises(Invalid, match="no event time"):
        topic.read(watermark="1 minute")
    for n in range(3):
        topic.append([{"n": n}] * 500)
        topic.seal()
    topic.drop_expired()
    with pytest.raises(FellOff):
        topic.read(start={0: 0})
    assert topic.read().count() == topic.to_arrow().num_rows
    assert len(os.listdir(Path(stem.home, "reads"))) <= 2


def test_a_transaction_that_is_decided_and_sealed_meanwhile_is_not_there(
    stem: Mainstem, monkeypatch: pytest.MonkeyPatch
):
    topic = stem.create_topic("orders", schema="n BIGINT")
    topic.append([{"n": 1}])
    topic.seal()
    transaction = stem.transaction()
    transaction.append(topic, [{"n": 2}, {"n": 3}])
    topic.append([{"n": 4}])
    look = EmbeddedTopic.moment
    left = [transaction]

    def moment(self: EmbeddedTopic) -> EmbeddedMoment:
        found = look(self)
        while left:
            left.pop().commit()
            topic.seal()
        return found

    monkeypatch.setattr(EmbeddedTopic, "moment", moment)
    assert sorted(row.n for row in topic.read().collect()) == [1, 4]
    assert sorted(row.n for row in topic.read().collect()) == [1, 2, 3, 4]
