"""Outbox: a row and its event in one transaction of the database.

An application that writes to a database and then to a log can die between the two, and they differ for ever: the *dual
write*. In Mainstem `outbox(connection).append(...)` inserts the event in the application's own transaction, and a
*capture* of the database relays what was committed to its topic, once, in the order of commits.
"""

import random
import sqlite3
import sys
import tempfile
from contextlib import closing, suppress
from pathlib import Path

import mainstem
from mainstem import Capture, Topic
from mainstem.capture import outbox, sqlite
from mainstem.capture.capture_run import CaptureRun


class Died(Exception):
    """The application dies at this point."""


def reserve(path: Path, topic: Topic, row: dict, *, dies: bool) -> None:
    """Reserves a seat and tells of it in both ways; may die before the database has committed."""
    with suppress(Died), closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE seats SET holder = :holder WHERE id = :seat", row)
        topic.append([row])
        outbox(connection).append("reserved", row)
        if dies:
            raise Died


def main(home: str) -> None:
    chance = random.Random(12)
    seats = Path(home) / "seats.db"
    with closing(sqlite3.connect(seats)) as connection, connection:
        connection.execute("CREATE TABLE seats (id INTEGER PRIMARY KEY, holder TEXT)")
        connection.executemany("INSERT INTO seats VALUES (?, NULL)", [(seat,) for seat in range(20)])

    with mainstem.open(Path(home) / "home") as stem:
        topics = [stem.create_topic(name, schema="seat INT, holder STRING") for name in ("dual_write", "reserved")]
        capture = Capture("seats", sqlite(seats, outbox=True))

        def run() -> None:
            CaptureRun(stem.log, str(Path(home) / "home"), capture).run(until="idle")

        run()
        for number in range(100):
            row = {"seat": chance.randrange(20), "holder": f"p-{number}"}
            reserve(seats, topics[0], row, dies=chance.random() < 0.2)
            if number % 30 == 0:
                run()
        run()
        told = [{row["seat"]: row["holder"] for row in topic.to_arrow().to_pylist()} for topic in topics]
        counts = [len(topic.to_arrow()) for topic in topics]

    with closing(sqlite3.connect(seats)) as connection:
        held = dict(connection.execute("SELECT id, holder FROM seats WHERE holder IS NOT NULL").fetchall())
        [(left,)] = connection.execute("SELECT count(*) FROM mainstem_outbox")
    wrong = [sum(one.get(seat) != held.get(seat) for seat in range(20)) for one in told]
    print(f"written twice   {counts[0]} events, seats whose last event is not in the database: {wrong[0]}")
    print(f"by the outbox   {counts[1]} events, seats whose last event is not in the database: {wrong[1]}")
    print(f"rows left in the outbox: {left}")
    if wrong[1] or told[1] != held or left:
        sys.exit(f"different: {told[1]}, expected {held}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
