"""Sessions across batches: a session that spans two batches is one session.

A job that looks for sessions in each batch by itself finds every session that spans two batches in two pieces, and has
to merge them afterwards. In Mainstem `windowed(rows, sessions(gap=...))` keeps open sessions from one batch to the
next; the division into batches does not matter.
"""

import random
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise

from pyspark.sql import functions as F

import mainstem
from mainstem import Flow
from mainstem.operators import sessions, windowed

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
GAP = timedelta(minutes=30)


def clicks() -> list[dict]:
    """Some bursts of clicks of four users, in order."""
    chance = random.Random(30)
    found = []
    for user in ["ada", "bob", "cleo", "dan"]:
        at = NOON + timedelta(minutes=chance.randint(0, 60))
        for _ in range(40):
            at += timedelta(minutes=chance.choice([1, 3, 8, 20, 29, 95]))
            found.append({"user": user, "at": at})
    return sorted(found, key=lambda click: click["at"])


def sessions_of(rows: list[dict]) -> list[tuple]:
    """User, start, end and clicks of each session, in plain Python."""
    found = []
    for user, own in groupby(sorted(rows, key=lambda row: (row["user"], row["at"])), key=lambda row: row["user"]):
        times = [row["at"] for row in own]
        cuts = [0, *(n + 1 for n, (one, two) in enumerate(pairwise(times)) if two - one >= GAP), len(times)]
        found += [(user, times[first], times[end - 1] + GAP, end - first) for first, end in pairwise(cuts)]
    return sorted(found)


def flows(stem: mainstem.Mainstem):
    rows = stem.topic("clicks").stream(watermark="5 minutes")
    visits = windowed(rows, sessions(gap="30 minutes"), by="user", aggregates=F.count("*").alias("clicks"))
    yield Flow(visits, into=stem.topic("visits"))


def main(home: str) -> None:
    rows = clicks()
    pieces = [rows[first : first + 40] for first in range(0, len(rows), 40)]
    with mainstem.open(home) as stem:
        topic = stem.create_topic("clicks", schema="user string, at timestamp", event_time="at")
        with stem.start(flows) as running:
            for piece in pieces:
                topic.append(piece)
                running.wait_until_idle()
            # The day is over: open sessions are complete.
            stem.producer("shop").declare_watermark(topic, rows[-1]["at"] + GAP)
            running.wait_until_idle()
        visits = stem.topic("visits").to_arrow().to_pylist()

    found = sorted((row["user"], row["window"]["start"], row["window"]["end"], row["clicks"]) for row in visits)
    alone = sum(len(sessions_of(piece)) for piece in pieces)
    print(f"{len(pieces)} batches, each looked at alone: {alone} sessions, some of them pieces of one")
    print(
        f"{len(pieces)} batches, one after the other: {len(found)} sessions, the longest of {max(r[3] for r in found)} clicks"
    )
    if found != sessions_of(rows):
        sys.exit(f"different: {found}, expected {sessions_of(rows)}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
