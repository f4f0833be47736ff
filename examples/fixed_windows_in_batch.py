"""Unbounded data handled as batch: fixed windows, run by run.

A batch job takes the rows since its last run, one file per hour, and assigns them to that hour. Rows in transit at the
full hour are then counted in the wrong one. In Mainstem `windowed` over `topic.read()` gives the result for all
existing rows, by event time, whenever they came; the same function over `topic.stream()` gives the same final result.
"""

import random
import sys
import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import functions as F

import mainstem
from mainstem import Flow
from mainstem.operators import tumbling, windowed

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
BY_DUCKDB = """
    SELECT hour(sold_at) AS hour, store, count(*) AS sales, sum(cents) AS cents FROM sales GROUP BY ALL ORDER BY ALL"""


def sales() -> list[tuple[datetime, dict]]:
    """When each was appended, and the sale; some are appended twenty minutes late."""
    chance = random.Random(2)
    found = []
    for number in range(300):
        at = NOON + timedelta(seconds=36 * number)
        sale = {"store": chance.choice(["Berlin", "Paris"]), "cents": chance.randint(100, 9000), "sold_at": at}
        found.append((at + timedelta(minutes=chance.choice([0, 0, 0, 20])), sale))
    return sorted(found, key=lambda one: one[0])


def per_hour(rows):
    aggregates = [F.count("*").alias("sales"), F.sum("cents").alias("cents")]
    return windowed(rows, tumbling("1 hour"), by="store", aggregates=aggregates)


def flows(stem: mainstem.Mainstem):
    yield Flow(per_hour(stem.topic("sales").stream(watermark="30 minutes")), into=stem.topic("hours"))


def plain(rows: list[dict]) -> list[dict]:
    values = [{name: row[name] for name in ("store", "sales", "cents")} for row in rows]
    found = [{"hour": row["window"]["start"].hour} | of for row, of in zip(rows, values, strict=True)]
    return sorted(found, key=lambda row: (row["hour"], row["store"]))


def main(home: str) -> None:
    came = sales()
    with mainstem.open(home) as stem:
        topic = stem.create_topic("sales", schema="store string, cents bigint, sold_at timestamp", event_time="sold_at")
        for first in range(0, len(came), 10):
            topic.append([sale for _, sale in came[first : first + 10]])
        stem.producer("shop").declare_watermark(topic, NOON + 4 * HOUR)
        in_batch = plain(per_hour(topic.read()).toArrow().to_pylist())
        stem.run(flows, until="idle")
        in_stream = plain(stem.topic("hours").to_arrow().to_pylist())
        expected = stem.query(BY_DUCKDB).to_pylist()

    naive = [sum(NOON + n * HOUR <= at < NOON + (n + 1) * HOUR for at, _ in came) for n in range(3)]
    right = [sum(row["sales"] for row in in_batch if row["hour"] == 12 + number) for number in range(3)]
    print("by the file they came in:", naive, "sales at 12, 13 and 14 o'clock")
    print("by when they happened:   ", right)
    if in_batch != expected or in_stream != expected:
        sys.exit(f"different: {in_batch} and {in_stream}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
