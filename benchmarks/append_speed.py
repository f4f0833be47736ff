"""How fast rows are appended, against writing and syncing the same bytes to one file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from statistics import median

import pyarrow as pa

from benchmarks.figure import Figure
from benchmarks.orders import create_orders, open_home, order_batch, partitions_of
from benchmarks.paired_timing import PairedTiming, seconds_of, shown_seconds, timed_in_turns
from benchmarks.plain_file import PlainFile
from benchmarks.run_size import RunSize
from mainstem.log.topic import Topic

THREADS = 32


def written_by(topic: Topic, append: Callable[[], object]) -> list[bytes]:
    """The bytes that an append leaves in each partition's segment."""
    partitions = partitions_of(topic)
    before = [partition.published_end() for partition in partitions]
    append()
    after = [partition.published_end() for partition in partitions]
    return [bytes(new.position - old.position) for old, new in zip(before, after, strict=True) if new != old]


def against_plain_file(folder: str, topic: Topic, append: Callable[[], object], rounds: int) -> PairedTiming:
    """An append in turns with the same bytes, in as many pieces, each synced."""
    pieces = written_by(topic, append)
    with PlainFile(f"{folder}/plain") as plain:
        return timed_in_turns(append, lambda: plain.write_synced(pieces), rounds=rounds, warm_up=3)


class FsyncCount:
    """Counts fsyncs, of whatever thread."""

    def __init__(self) -> None:
        self.total = 0
        self._guard = threading.Lock()

    def add(self) -> None:
        with self._guard:
            self.total += 1


def batches(folder: str, size: RunSize) -> list[Figure]:
    """Batches of 10,000 rows, with one partition and with four."""
    figures = []
    for partitions in (1, 4):
        with open_home(f"{folder}/batches-{partitions}") as stem:
            topic = create_orders(stem, partitions=partitions)
            batch = order_batch(topic)
            timing = against_plain_file(folder, topic, lambda: topic.append(batch), size.appends)  # noqa: B023
        figures.append(
            Figure(
                f"append 10,000 rows, {partitions} partition{'s' if partitions > 1 else ''}: rate of a plain file's",
                timing.rate,
                at_least=0.5 if partitions == 1 else None,
                detail=timing.detail,
                facts=timing.facts(),
            )
        )
    return figures


def single(folder: str, size: RunSize) -> list[Figure]:
    """One row at a time by one thread: as an Arrow batch and as a dict."""
    with open_home(f"{folder}/single") as stem:
        topic = create_orders(stem)
        row = order_batch(topic, 1)
        dicts = row.to_pylist()
        arrow = against_plain_file(folder, topic, lambda: topic.append(row), size.appends * 10)
        plain = against_plain_file(folder, topic, lambda: topic.append(dicts), size.appends * 10)
    return [
        Figure("append 1 row, one thread: times a bare write + fdatasync", arrow.slowdown, at_most=1.5,
               detail=arrow.detail, facts=arrow.facts()),
        Figure("append 1 row as a dict, one thread: times a bare write + fdatasync", plain.slowdown, at_most=1.5,
               detail=plain.detail, facts=plain.facts()),
    ]  # fmt: skip


def threads(folder: str, size: RunSize) -> list[Figure]:
    """One row at a time by 32 threads: how many fsyncs that takes."""
    figures = []
    for partitions in (1, 4):
        fsyncs = FsyncCount()
        with open_home(f"{folder}/threads-{partitions}", synced=fsyncs.add) as stem:
            topic = create_orders(stem, partitions=partitions)
            rows = [order_batch(topic, 1, seed=number) for number in range(THREADS)]
            topic.append(rows[0])
            begun = fsyncs.total
            seconds = seconds_of(lambda: append_from_threads(topic, rows, size.appends))  # noqa: B023
            used = fsyncs.total - begun
        appends = THREADS * size.appends
        figures.append(
            Figure(
                f"append 1 row, {THREADS} threads, {partitions} partition{'s' if partitions > 1 else ''}: "
                "fsyncs per append",
                used / appends,
                at_most=0.1 if partitions == 1 else None,
                detail=f"{used} fsyncs for {appends} appends, {appends / seconds:,.0f} appends a second",
                facts={"appends_per_second": appends / seconds},
            )
        )
    return figures


def append_from_threads(topic: Topic, rows: list[pa.RecordBatch], appends: int) -> None:
    """Every thread appends its row so many times; the error of one is raised."""
    errors: list[Exception] = []

    def work(row: pa.RecordBatch) -> None:
        try:
            for _ in range(appends):
                topic.append(row)
        except Exception as error:  # noqa: BLE001 - raised by who waits for the threads
            errors.append(error)

    running = [threading.Thread(target=work, args=(row,)) for row in rows]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]


def sealing(folder: str, size: RunSize) -> list[Figure]:
    """The longest append while a thread of the same process seals, against the longest write + fdatasync meanwhile."""
    with open_home(f"{folder}/sealing") as stem, PlainFile(f"{folder}/plain") as plain:
        topic = create_orders(stem, segment_bytes_max="32 MiB")
        batch = order_batch(topic)
        row = order_batch(topic, 1)
        piece = written_by(topic, lambda: topic.append(row))
        for _ in range(size.sealed_batches):
            topic.append(batch)
        alone = [seconds_of(lambda: topic.append(row)) for _ in range(200)]
        sealer = threading.Thread(target=topic.seal)
        appends, fsyncs = [], []
        begun = time.perf_counter()
        sealer.start()
        while sealer.is_alive():
            appends.append(seconds_of(lambda: topic.append(row)))
            fsyncs.append(seconds_of(lambda: plain.write_synced(piece)))
        seconds = time.perf_counter() - begun
        sealer.join()
    waited = max(0.0, max(appends) - max(alone))
    return [
        Figure(
            "longest append while sealing, beyond the longest before: times the longest fsync meanwhile",
            waited / max(fsyncs),
            at_most=1.0,
            detail=f"sealing took {shown_seconds(seconds)}; appends {shown_seconds(median(appends))} median, "
            f"{shown_seconds(max(appends))} longest; write + fdatasync {shown_seconds(median(fsyncs))} median, "
            f"{shown_seconds(max(fsyncs))} longest; longest append before {shown_seconds(max(alone))}",
            facts={
                "append_seconds_median": median(appends),
                "append_seconds_max": max(appends),
                "fsync_seconds_median": median(fsyncs),
                "fsync_seconds_max": max(fsyncs),
                "append_seconds_max_before": max(alone),
                "appends": len(appends),
            },
        )
    ]
