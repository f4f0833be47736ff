"""A producer that declares a watermark.

A delay is a guess: too short and rows come late, too long and all results wait. A producer that knows better can
declare that no earlier event will follow. The lowest declaration of all producers counts, and the windows up to it are
complete. In Mainstem that is `producer.declare_watermark(topic, at)`.
"""

import sys
import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import functions as F

import mainstem
from mainstem import Flow
from mainstem.operators import tumbling, windowed

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BY_DUCKDB = """
    SELECT minute(read_at) AS minute, sensor, count(*) AS readings, sum(value) AS total
    FROM readings WHERE read_at < TIMESTAMPTZ '2026-01-01 12:05:00+00' GROUP BY ALL ORDER BY ALL"""


def readings(sensor: str) -> list[dict]:
    return [{"sensor": sensor, "value": n * n % 17, "read_at": NOON + timedelta(seconds=20 * n)} for n in range(18)]


def flows(stem: mainstem.Mainstem):
    # A long delay: for an hour nothing is emitted.
    rows = stem.topic("readings").stream(watermark="1 hour")
    aggregates = [F.count("*").alias("readings"), F.sum("value").alias("total")]
    yield Flow(windowed(rows, tumbling("1 minute"), by="sensor", aggregates=aggregates), into=stem.topic("minutes"))


def main(home: str) -> None:
    with mainstem.open(home) as stem:
        topic = stem.create_topic(
            "readings", schema="sensor string, value int, read_at timestamp", event_time="read_at"
        )
        north, south = stem.producer("north"), stem.producer("south")
        north.declare_watermark(topic, NOON)
        south.declare_watermark(topic, NOON)
        with stem.start(flows) as running:

            def shown(what: str) -> None:
                running.wait_until_idle()
                print(f"{what:30} {stem.topic('minutes').to_arrow().num_rows:2} results")

            north.append(topic, readings("n"))
            south.append(topic, readings("s"))
            shown("six minutes of two sensors:")
            north.declare_watermark(topic, NOON + timedelta(minutes=6))
            shown("north is done with 12:05:")
            south.declare_watermark(topic, NOON + timedelta(minutes=5))
            shown("south is done with 12:04:")
        found = [
            {"minute": row["window"]["start"].minute} | {name: row[name] for name in ("sensor", "readings", "total")}
            for row in stem.topic("minutes").to_arrow().to_pylist()
        ]
        expected = stem.query(BY_DUCKDB).to_pylist()
    found.sort(key=lambda row: (row["minute"], row["sensor"]))
    if found != expected:
        sys.exit(f"different: {found}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
