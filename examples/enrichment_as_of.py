"""Enrichment: page views with the ZIP code that was valid then (stream-table join, by event time).

A page view has a user, a table has the user's address. People move: joined with the current table, the same log gives
other results each time it is replayed, and old views move to new addresses. In Mainstem `enrich(views, table(moves,
key="user"), on="user")` takes the row that was valid at the time of the view, in every replay, and says which one that
was.
"""

import random
import sys
import tempfile
from datetime import UTC, datetime, timedelta

import mainstem
from mainstem import Flow
from mainstem.operators import enrich, table

START = datetime(2026, 1, 1, tzinfo=UTC)
BY_DUCKDB = """
    SELECT views.view AS view, moves.zip AS zip FROM views ASOF LEFT JOIN moves
    ON views.user = moves.user AND views.seen_at >= moves.moved_at ORDER BY view"""
BY_TODAY = """
    SELECT views.view AS view, latest.zip AS zip FROM views LEFT JOIN
    (SELECT user, arg_max(zip, moved_at) AS zip FROM moves GROUP BY user) AS latest USING (user) ORDER BY view"""


def events() -> tuple[list[dict], list[dict]]:
    """Five people, who move three times in a month, and their page views."""
    chance = random.Random(11)
    moves = [
        {"user": user, "zip": f"{chance.randint(10_000, 99_999)}", "moved_at": START + timedelta(days=day, hours=user)}
        for day in (0, 9, 20)
        for user in range(5)
    ]
    times = sorted(chance.randint(5, 30 * 24) for _ in range(100))
    views = [
        {"view": number, "user": chance.randint(0, 5), "seen_at": START + timedelta(hours=hours)}
        for number, hours in enumerate(times)
    ]
    return moves, views


def flows(stem: mainstem.Mainstem):
    moves = table(stem.topic("moves").stream(watermark="1 hour"), key="user", order_by="moved_at")
    views = stem.topic("views").stream(watermark="1 hour")
    yield Flow(enrich(views, moves, on="user").select("view", "zip", "record"), into=stem.view("seen", key="view"))


def main(home: str) -> None:
    moved, seen = events()
    with mainstem.open(home) as stem:
        moves = stem.create_topic("moves", schema="user int, zip string, moved_at timestamp", event_time="moved_at")
        views = stem.create_topic("views", schema="view int, user int, seen_at timestamp", event_time="seen_at")
        with stem.start(flows) as running:
            # All moves of the month are appended before the first page view.
            moves.append(moved)
            views.append(seen)
            teller = stem.producer("teller")
            for topic in (moves, views):
                teller.declare_watermark(topic, START + timedelta(days=40))
            running.wait_until_idle()
        found = stem.view("seen").to_arrow().to_pylist()
        with stem.rebuild("seen", flows) as replay:
            replay.wait()
            again = replay.difference()
        expected, today = stem.query(BY_DUCKDB).to_pylist(), stem.query(BY_TODAY).to_pylist()

    wandered = sum(one != other for one, other in zip(today, expected, strict=True))
    print(f"with the addresses of today {wandered} of {len(seen)} page views are in the wrong place")
    print(f"with those valid then {sum(map(dict.__ne__, found, expected))} are")
    print(f"replayed: {again.same} the same, {again.changed + again.added + again.removed} different")
    if (found, again.same) != (expected, len(seen)):
        sys.exit(f"different: {found}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
