"""How a flow on Kafka grows: the same windows with one and two workers of a Spark cluster, over 2, 4 and 8 partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import growth_picture
from benchmarks.figure import Figure
from benchmarks.flows_run import say
from benchmarks.measured_run import Measured, run_measured
from benchmarks.nexmark_events import KEYS, SCHEMAS
from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.stem import Mainstem

if TYPE_CHECKING:
    from benchmarks.kafka import Bench

WORKERS, PARTITIONS = (1, 2), (2, 4, 8)


def fill(bench: Bench) -> None:
    """The same bids in topics of so many partitions."""
    home = bench.homes["kafka"]
    with Mainstem(KafkaLog(bench.address, home=home), home=home) as stem:
        for partitions in PARTITIONS:
            say(f"filling a topic of {partitions} partitions")
            topic = stem.create_topic(
                f"bids_{partitions}", schema=SCHEMAS["bids"], key=KEYS["bids"], event_time="at", partitions=partitions
            )
            for batch in bench.batches():
                topic.append(batch)


def growth(bench: Bench) -> list[Figure]:
    fill(bench)
    found: dict[tuple[int, int], Measured] = {}
    for workers in WORKERS:
        for partitions in PARTITIONS:
            say(f"growth: {workers} workers, {partitions} partitions")
            place = ("--home", bench.homes["kafka"], "--log", bench.address)
            found[workers, partitions] = run_measured(
                "benchmarks.kafka_growth_program", f"bids_{partitions}", "--workers", str(workers), *place
            )
    if bench.writes_docs:
        growth_picture.write(found)
    return [_figure(partitions, found[1, partitions], found[2, partitions]) for partitions in PARTITIONS]


def _figure(partitions: int, one: Measured, two: Measured) -> Figure:
    def shown(it: Measured) -> str:
        return (
            f"{it.rows / it.seconds / 1e3:,.0f} thousand rows/s, {it.cpu_seconds / it.rows * 1e6:,.1f} us of CPU a row"
        )

    return Figure(
        f"windows over {partitions} partitions: speed with two workers of that with one",
        (two.rows / two.seconds) / (one.rows / one.seconds),
        detail=f"{shown(two)} against {shown(one)}",
        facts={
            "one_rows_per_second": one.rows / one.seconds,
            "two_rows_per_second": two.rows / two.seconds,
            "one_cpu_us": one.cpu_seconds / one.rows * 1e6,
            "two_cpu_us": two.cpu_seconds / two.rows * 1e6,
        },
    )
