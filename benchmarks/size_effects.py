"""What grows with the data and what does not: the cost of an append, memory, the time to open a home."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection

from benchmarks.figure import Figure
from benchmarks.follow_latency import received
from benchmarks.orders import create_orders, files_in, open_home, order_batch
from benchmarks.own_memory import OwnMemory
from benchmarks.paired_timing import timed_in_turns
from benchmarks.run_size import RunSize

GIGABYTE = 1_000_000_000
MEGABYTE = 1_000_000
MEMORY_MEGABYTES_MAX = 256


def append_much(home: str, told: Connection, size: int) -> None:
    """In another process: append so many bytes, and say how far its memory grew."""
    with open_home(home) as stem:
        topic = create_orders(stem, "large")
        batch = order_batch(topic)
        memory = OwnMemory()
        for _ in range(-(-size // batch.nbytes)):
            topic.append(batch)
            memory.look()
    told.send(memory.grown_max)


def read_much(home: str, told: Connection, size: int) -> None:
    """In another process: read all of the topic, and say how far its memory grew."""
    with open_home(home) as stem:
        topic = stem.topic("large")
        memory = OwnMemory()
        read = 0
        for batch in topic.batches(columns=topic.schema.names):
            read += batch.nbytes
            memory.look()
        if read < size:
            raise AssertionError(f"{read:,} bytes were read instead of {size:,}")
    told.send(memory.grown_max)


def in_another_process(work: Callable[[str, Connection, int], None], home: str, size: int) -> float:
    """What the work says at its end."""
    context = multiprocessing.get_context("spawn")
    hears, told = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(home, told, size))
    process.start()
    process.join()
    return received(hears)


def volume(folder: str, size: RunSize) -> list[Figure]:
    """Fill a topic, read it, and append to it in turns with a small one."""
    home = f"{folder}/volume"
    total = int(size.gigabytes * GIGABYTE)
    appending = in_another_process(append_much, home, total)
    reading = in_another_process(read_much, home, total)
    shown = f"{size.gigabytes:g} GB"
    figures = [
        Figure(f"{what} {shown}: own memory added", grown / MEGABYTE, " MB", at_most=MEMORY_MEGABYTES_MAX)
        for what, grown in (("append", appending), ("read", reading))
    ]
    with open_home(home) as stem:
        large, small = stem.topic("large"), create_orders(stem, "small")
        batch, row = order_batch(small), order_batch(small, 1)
        while sum(batch.nbytes for batch in small.batches()) < MEGABYTE:
            small.append(batch)
        for name, rows, rounds in (("10,000 rows", batch, size.appends), ("1 row", row, size.appends * 10)):
            timing = timed_in_turns(
                lambda: large.append(rows),  # noqa: B023
                lambda: small.append(rows),  # noqa: B023
                rounds=rounds,
                warm_up=3,
            )
            figures.append(
                Figure(f"append {name} with {shown} in the topic: times with 1 MB", timing.slowdown, at_most=1.1,
                       detail=timing.detail, facts=timing.facts())
            )  # fmt: skip
    return figures


def opening(folder: str, size: RunSize) -> list[Figure]:
    """A home with many segments against one with few, as blocks and sealed."""
    homes = {count: f"{folder}/opening-{count}" for count in (size.few_segments, size.many_segments)}
    figures = []
    for state in ("blocks", "sealed"):
        for count, home in homes.items():
            with open_home(home) as stem:
                # So small that every append begins a new segment.
                topic = create_orders(stem, segment_bytes_max=1)
                if state == "sealed":
                    topic.seal()
                else:
                    row = order_batch(topic, 1)
                    for _ in range(count):
                        topic.append(row)
                found = len(files_in(topic, ".parquet" if state == "sealed" else ".blocks"))
                if found < count:
                    raise AssertionError(f"{found} segments ({state}) instead of {count}")
        timing = timed_in_turns(
            lambda: _open(homes[size.many_segments]), lambda: _open(homes[size.few_segments]), rounds=size.read_rounds
        )
        figures.append(
            Figure(
                f"open a home of {size.many_segments:,} segments ({state}): times one of {size.few_segments}",
                timing.slowdown,
                at_most=10.0,
                detail=timing.detail,
                facts=timing.facts(),
            )
        )
    return figures


def _open(home: str) -> None:
    with open_home(home) as stem:
        stem.topic("orders")
