"""Joins, look-ups and tables that change side by side in one flow, and what the naive ones say of exactly its batches.

All of them read two topics whose rows come out of order, many of them late, some without a key or a time; on the right every
fifth row is a delete where it is a version of a table. When the flow has ended, its checkpoint says which rows each batch had,
and the log says each row's own watermark. A program's rows are pairs of numbers: (number, other) or what stands in their place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce
from random import Random
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem import Flow, Mainstem
from mainstem.operators import aggregate, distinct, enrich, join, latest, table, top
from mainstem.operators.stage.state_runs import StageManifests
from mainstem.spark.checkpoint.checkpoint_offsets import batch_offsets, last_batch, source_offsets
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.testing.scripted_home import Append
from tests.operators.naive_enrich import Asked, found_version
from tests.operators.naive_join import SIDES, Terms, judged, written
from tests.operators.two_streams import NO_TIME, Row, read

DELAY = "4 microseconds"
LONG = "36500 days"
KEYS = 40
TERMS = Terms("full", 4, 10, 3)
LOOK_UPS = Asked(15, "re-emit")
# Which of them keeps what under which name.
STAGES = ("pairs", "as_of", "known", "newest", "own", "totals", "first", "rests", "both")
NOBODY = -1

Shown = tuple[int, int]


def topics_of_rows(stem: Mainstem) -> None:
    for side, columns in SIDES.items():
        # A row's place is its partition: rows of one key lie in both. Neither the machine's clock nor a quiet partition has a
        # part in it.
        schema = f"place STRING, {columns.schema}"
        stem.create_topic(
            side, schema=schema, key="place", event_time=columns.at, partitions=2, idle_after=LONG, ahead_max=LONG
        )


def appends(seed: int, steps: int) -> list[Append]:
    """Rows for both topics, in their order."""
    script = written(Random(seed), keys=KEYS, steps=steps, rows=KEYS // 2)
    return [step for step in script.steps if isinstance(step, Append) and step.rows.num_rows]


def append(stem: Mainstem, part: list[Append]) -> None:
    """Rows that have watermarks of their own, and are to be seen at once: as one batch, mostly."""
    with stem.producer("rows").transaction() as appending:
        for step in part:
            place = pa.array(["ad"[step.partition]] * step.rows.num_rows)
            appending.append(step.stream, step.rows.append_column("place", place))


class JoinedFlow:
    """The flow of all programs."""

    def __init__(self, stem: Mainstem, sink: Any) -> None:
        self.stem = stem
        self.sink = sink

    def flows(self, stem: Mainstem) -> Iterator[Flow]:
        left, right = (stem.topic(side).stream(watermark=DELAY).drop("place") for side in ("left", "right"))
        yield Flow(reduce(DataFrame.unionByName, programs(left, right)), into=self.sink, name="joined")

    @property
    def checkpoint(self) -> str:
        return FlowStore(self.stem.home, "joined").checkpoint(1)

    @property
    def manifests(self) -> StageManifests:
        return StageManifests(self.checkpoint)

    def state_rows(self) -> dict[str, int]:
        """How many rows of state each stage has."""
        stages = (self.manifests.last() or {"stages": {}})["stages"]
        return {name: sum(bucket["live"] for bucket in of["state"].values()) for name, of in stages.items()}

    def logged(self) -> list[Row]:
        """All rows of both topics, each with its own watermark."""
        return [
            row
            for side, columns in SIDES.items()
            for row in read(side, columns, self.stem.topic(side).to_arrow(watermark=DELAY))
        ]

    def batches(self) -> list[tuple[list[int], list[Row]]]:
        """The numbers of batches that were, and their rows. Each source of the query is cut for itself: where a topic is read
        up to several places, the batch is one with the next."""
        rows, found = self.logged(), []
        numbers: list[int] = []
        before: Mapping[str, Mapping[int, int]] = {}
        for number in range((last_batch(self.checkpoint) or 0) + 1):
            numbers.append(number)
            ends = batch_offsets(self.checkpoint, number)
            read = {(of["topic"], str(of["offsets"])) for of in source_offsets(self.checkpoint, number)}
            if len(read) == len(ends):
                found.append((numbers, [row for row in rows if _before(row, ends) and not _before(row, before)]))
                numbers, before = [], ends
        assert not numbers
        return found


def _before(row: Row, ends: Mapping[str, Mapping[int, int]]) -> bool:
    partition, offset = row.place
    return offset < ends.get(row.side, {}).get(partition, 0)


def programs(left: DataFrame, right: DataFrame) -> list[DataFrame]:
    change = F.when(F.col("other") % 5 == 0, "delete").otherwise("insert")
    # What is made anew has no mark.
    record = F.col("record").withField("change", change).alias("record", metadata={"mainstem.record": "1"})
    versions = right.select("other", "key", "other_at", record)
    newest = table(versions, key="key", order_by="other", name="newest")
    own = table(left, key="key", order_by="number", name="own")
    parts = newest.select((F.col("key") % 5).alias("part"), "other", "record")
    totals = [F.max("other").alias("most"), F.count("*").alias("count")]
    looked_up = enrich(
        left, table(versions, key="key"), on="key", lateness=f"{LOOK_UPS.lateness} microseconds",
        corrections=LOOK_UPS.corrections, name="as_of",
    )  # fmt: skip
    return [
        told("pairs", join(left, right, **TERMS.asked(), name="pairs"), "number", "other"),
        told("as_of", looked_up, "number", "other"),
        told("known", enrich(left, newest, on="key", at=latest(), name="known"), "number", "other"),
        told("newest", newest, "key", "other"),
        told("totals", aggregate(parts, by="part", aggregates=totals, name="totals"), "part", "most * 1000 + count"),
        told("first", top(parts, 2, by="part", order=F.desc("other"), name="first"), "part", "other"),
        told("rests", distinct(newest.select((F.col("other") % 7).alias("rest"), "record"), name="rests"), "rest", "0"),
        told("both", join(own, newest, on="key", how="full", name="both"), "number", "other"),
    ]


def told(name: str, rows: DataFrame, mine: str, theirs: str) -> DataFrame:
    values = [F.coalesce(F.expr(of).cast("int"), F.lit(NOBODY)) for of in (mine, theirs)]
    return rows.select(F.lit(name).alias("program"), values[0].alias("mine"), values[1].alias("theirs"), "record")


# What they should give


def final(rows: list[Row], end: int) -> dict[str, Counter[Shown]]:
    """What stands of each program when all rows have come and time is over; but of what was known when a row came."""
    shown, _, _ = judged(rows, TERMS, end)
    late = too_late(rows)
    versions = [replace(row, gone=row.number % 5 == 0) for row in rows if row.side == "right"]
    found = Counter(
        (row.number, (found_version(row, versions, LOOK_UPS) or [NOBODY])[0])
        for row in rows
        if row.side == "left" and row.time != NO_TIME and row.place not in late
    )
    pairs = Counter({(_shown(left), _shown(right)): count for (left, right), count in shown.items()})
    return {"pairs": pairs, "as_of": found, **tables(rows)}


def too_late(rows: list[Row]) -> set[tuple[int, int]]:
    """The places of rows that came when what was valid at their time was forgotten."""
    return {
        row.place
        for row in rows
        if row.side == "left" and row.time != NO_TIME and row.own > row.time + LOOK_UPS.lateness
    }


def tables(rows: list[Row]) -> dict[str, Counter[Shown]]:
    """What the tables and all that is made of them are after these rows."""
    newest, own = (
        {row.key: row.number for row in sorted(rows, key=lambda row: row.number) if row.side == side}
        for side in ("right", "left")
    )
    newest = {key: number for key, number in newest.items() if number % 5}
    parts: dict[int | None, list[int]] = {}
    for key, number in newest.items():
        parts.setdefault(None if key is None else key % 5, []).append(number)
    both = Counter((number, newest.get(key, NOBODY) if key is not None else NOBODY) for key, number in own.items())
    both.update((NOBODY, number) for key, number in newest.items() if key is None or key not in own)
    return {
        "newest": Counter((_shown(key), number) for key, number in newest.items()),
        "totals": Counter((_shown(part), max(of) * 1000 + len(of)) for part, of in parts.items()),
        "first": Counter((_shown(part), number) for part, of in parts.items() for number in sorted(of)[-2:]),
        "rests": Counter((rest, 0) for rest in {number % 7 for number in newest.values()}),
        "both": both,
    }


def known(before: list[Row], batch: list[Row]) -> Counter[Shown]:
    """What the rows of a batch find in the table as it is after it."""
    newest = dict(tables([*before, *batch])["newest"].keys())
    return Counter((row.number, newest.get(_shown(row.key), NOBODY) if row.key is not None else NOBODY)
                   for row in batch if row.side == "left")  # fmt: skip


def _shown(value: int | None) -> int:
    return NOBODY if value is None else value


def changed(rows: list[dict[str, Any]], program: str) -> Counter[Shown]:
    """What a batch put in and took away."""
    found: Counter[Shown] = Counter()
    for row in rows:
        if row["program"] == program:
            found[row["mine"], row["theirs"]] += -1 if row["record"]["change"] == "delete" else 1
    return found


def late_places(late: list[dict[str, Any]], stage: str) -> Counter[Any]:
    """Who came too late for a stage: the side and place, and whom it would have met."""
    return Counter(
        (row["side"], (row["partition"], row["offset"]),
         None if row["missed_offset"] is None else (row["missed_partition"], row["missed_offset"]))
        for row in late if row["stage"] == stage
    )  # fmt: skip
