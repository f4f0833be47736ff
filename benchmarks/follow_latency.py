"""How soon another process sees an append, and what a follower costs that waits."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from statistics import median

from benchmarks.figure import Figure
from benchmarks.orders import create_orders, open_home, order_batch
from benchmarks.paired_timing import shown_seconds
from benchmarks.run_size import RunSize

# Longer than anything here takes: a process that is gone ends the run instead of hanging it.
WAIT_SECONDS = 60


def tell_what_comes(home: str, told: Connection, count: int) -> None:
    """In another process: say when each row was seen (the monotonic clock is the same in all processes)."""
    with open_home(home) as stem:
        rows = stem.topic("orders").follow(start="earliest", wait=f"{WAIT_SECONDS} seconds")
        told.send(0.0)
        seen = 0
        while seen < count:
            batch = next(rows)
            at = time.monotonic()
            for _ in range(batch.num_rows):
                told.send(at)
                seen += 1


def wait_for_nothing(home: str, told: Connection, seconds: int) -> None:
    """In another process: follow a topic to which nobody appends, and say what share of a core that used."""
    with open_home(home) as stem:
        topic = stem.topic("orders")
        list(topic.follow(start="latest", wait="100 milliseconds"))  # what only the first time costs
        used, begun = time.process_time(), time.monotonic()
        list(topic.follow(start="latest", wait=f"{seconds} seconds"))
        told.send((time.process_time() - used) / (time.monotonic() - begun))


def received(connection: Connection) -> float:
    """The next thing a process says."""
    if not connection.poll(WAIT_SECONDS):
        raise TimeoutError("the other process said nothing")
    return float(connection.recv())


def following(folder: str, size: RunSize) -> list[Figure]:
    """Append, wait until the other process says it saw the row, and so on."""
    home = f"{folder}/following"
    context = multiprocessing.get_context("spawn")
    with open_home(home) as stem:
        topic = create_orders(stem)
        row = order_batch(topic, 1)
        hears, told = context.Pipe(duplex=False)
        follower = context.Process(target=tell_what_comes, args=(home, told, size.followed))
        follower.start()
        received(hears)
        appends, until_seen = [], []
        for _ in range(size.followed):
            begun = time.monotonic()
            topic.append(row)
            appends.append(time.monotonic() - begun)
            until_seen.append(received(hears) - begun)
        follower.join(WAIT_SECONDS)
        idle = context.Process(target=wait_for_nothing, args=(home, told, size.idle_seconds))
        idle.start()
        share = received(hears)
        idle.join(WAIT_SECONDS)
    return [
        Figure(
            "append until seen by another process, p50: times the append",
            median(until_seen) / median(appends),
            at_most=2.0,
            detail=f"{shown_seconds(median(until_seen))} against {shown_seconds(median(appends))}",
            facts={"seen_seconds": median(until_seen), "append_seconds": median(appends)},
        ),
        Figure("an idle follower: share of a core", share * 100, " %", at_most=1.0, detail=f"{size.idle_seconds} s"),
    ]
