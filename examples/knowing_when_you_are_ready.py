"""Knowing when you are ready: late rows ignored, late rows corrected.

Requests are counted for each minute. Most of those that come now are of the 38th and 39th minute; is the 37th complete?
That is never certain. Either the window is closed and a late row is dropped, and counted as such; or the count is
emitted again with the late row, and the earlier count is retracted. In Mainstem the *watermark* determines when a
window is emitted; without `lateness` a late row goes to the topic `<flow>.late`; with it and `results="retract"` it is
a correction.
"""

import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta

from pyspark.sql import functions as F

import mainstem
from mainstem import Flow
from mainstem.operators import tumbling, windowed

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def requests(*minutes: int) -> list[dict]:
    """One every two seconds; in some minutes more."""
    times = [NOON + timedelta(minutes=minute, seconds=2 * number) for minute in minutes for number in range(30)]
    return [{"path": path, "at": at} for at in times for path in ["/", "/cart"][: 1 + at.minute % 2]]


def flows(stem: mainstem.Mainstem):
    came = stem.topic("requests").stream(watermark="10 seconds")
    count = F.count("*").alias("requests")
    yield Flow(windowed(came, tumbling("1 minute"), aggregates=count), into=stem.topic("once"))
    corrected = windowed(came, tumbling("1 minute"), aggregates=count, lateness="1 hour", results="retract")
    yield Flow(corrected, into=stem.topic("corrected"))


def signed(rows: list[dict]) -> Counter:
    """The sum of the rows, minus the retracted ones."""
    total: Counter = Counter()
    for row in rows:
        sign = -1 if row["record"]["change"] == "delete" else 1
        total[row["window"]["start"].minute] += sign * row["requests"]
    return total


def main(home: str) -> None:
    straggler = {"path": "/slow", "at": NOON + timedelta(minutes=37, seconds=21)}
    with mainstem.open(home) as stem:
        topic = stem.create_topic("requests", schema="path string, at timestamp", event_time="at")
        with stem.start(flows) as running:
            for appended in (requests(37, 38), [*requests(39), straggler]):
                topic.append(appended)
                running.wait_until_idle()
        once, late = stem.topic("once").to_arrow().to_pylist(), stem.topic("once.late").to_arrow().to_pylist()
        corrected = stem.topic("corrected").to_arrow().to_pylist()

    changes = [
        f"{row['record']['change']} {row['requests']}" for row in corrected if row["window"]["start"].minute == 37
    ]
    ignored = Counter(row["window_start"].minute for row in late)
    print("12:37, ignored:  ", signed(once)[37], "requests, and", ignored[37], "came too late")
    print("12:37, corrected:", ", ".join(changes))
    happened = Counter(row["at"].minute for row in [*requests(37, 38), straggler])
    if signed(corrected) != happened or signed(once) + ignored != happened:
        sys.exit(f"different: {signed(corrected)}, {signed(once)} and {ignored}, happened {happened}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
