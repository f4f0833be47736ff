"""Stream analytics: rates, rolling averages, percentiles, this hour against last week's.

How often something happens, how long it takes on average and at worst, and whether that is unusual: aggregates over
windows matter, single events do not. In Mainstem a rate is a count over a `tumbling` window, a rolling average one over
a `hopping` window, and `compare_with` adds the result of the same hour a week earlier.
"""

import random
import sys
import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import functions as F

import mainstem
from mainstem import Flow
from mainstem.operators import compare_with, hopping, tumbling, windowed

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)
LAST = MONDAY + timedelta(days=7, hours=9)
BY_DUCKDB = """
    WITH hours AS (SELECT time_bucket(INTERVAL 1 hour, asked_at) AS hour, count(*) AS requests,
                          quantile_cont(ms, 0.95) AS slow FROM requests GROUP BY ALL)
    SELECT hours.hour, hours.requests, before.requests AS requests_earlier, hours.slow,
           (SELECT avg(ms) FROM requests WHERE asked_at >= hours.hour - INTERVAL 2 hour AND asked_at < hours.hour + INTERVAL 1 hour) AS mean
    FROM hours LEFT JOIN hours AS before ON before.hour = hours.hour - INTERVAL 7 day ORDER BY 1"""


def requests() -> list[dict]:
    """Eight days; more by day than by night, and twice as many on the last morning."""
    chance = random.Random(95)
    found = []
    for hour in range(7 * 24 + 10):
        many = (20 if 8 <= hour % 24 <= 18 else 5) * (2 if MONDAY + hour * HOUR == LAST else 1)
        times = sorted(chance.randrange(3600) for _ in range(many))
        found += [
            {"ms": chance.randint(5, 400), "asked_at": MONDAY + hour * HOUR + timedelta(seconds=s)} for s in times
        ]
    return found


def flows(stem: mainstem.Mainstem):
    rows = stem.topic("requests").stream(watermark="1 minute")
    slow = F.percentile("ms", 0.95).alias("slow")
    per_hour = windowed(rows, tumbling("1 hour"), aggregates=[F.count("*").alias("requests"), slow])
    yield Flow(compare_with(per_hour, earlier="7 days"), into=stem.view("hours", key="window"))
    rolling = windowed(rows, hopping("3 hours", slide="1 hour"), aggregates=F.avg("ms").alias("mean"))
    yield Flow(rolling, into=stem.view("rolling", key="window"))


def main(home: str) -> None:
    with mainstem.open(home) as stem:
        topic = stem.create_topic("requests", schema="ms int, asked_at timestamp", event_time="asked_at")
        topic.append(requests())
        stem.producer("web").declare_watermark(topic, LAST + HOUR)
        stem.run(flows, until="idle")
        means = {row["window"]["end"]: row["mean"] for row in stem.view("rolling").to_arrow().to_pylist()}
        found = [
            {"hour": row["window"]["start"], "mean": means[row["window"]["end"]]} | row
            for row in stem.view("hours").to_arrow().to_pylist()
        ]
        expected = stem.query(BY_DUCKDB).to_pylist()

    last = found[-1]
    print(f"Monday 9 to 10: {last['requests']} requests, {last['requests'] / 60:.2f} a minute")
    print(f"of three hours the mean is {last['mean']:.0f} ms; in this one 95 of 100 took at most {last['slow']:.0f} ms")
    print(f"a week earlier: {last['requests_earlier']} requests; now {last['requests_ratio']:.1f} times as many")
    for row, right in zip(found, expected, strict=True):
        same = all(row[name] == right[name] for name in ("hour", "requests", "requests_earlier"))
        if not same or max(abs(row[name] - right[name]) for name in ("mean", "slow")) > 1e-9:
            sys.exit(f"different: {row}, expected {right}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
