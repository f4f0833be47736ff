"""What a batch of 1,000 rows costs, by phase: `python -m benchmarks.small_batch [--only filter,window] [--rounds 40]`.

CPU of a batch of a warm flow into a view, by the threads and processes that do its parts, in milliseconds (mean of all
rounds; the median of the whole batch). Beside it Spark's own phases, which are wall time. `--profile` prints the functions of
the driver that take most.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from statistics import mean, median
from typing import Any

from pyspark.sql import functions as F

import mainstem
from benchmarks.figure import Figure, table
from benchmarks.process_tree import TICKS_PER_SECOND, adopt_orphans, cpu_by_part, cpu_seconds
from mainstem import Flow, Mainstem
from mainstem.operators import join, tumbling, windowed

START = datetime(2026, 1, 1, tzinfo=UTC)
GOALS = {"filter": 150, "aggregate": 150, "window": 250, "join": 250}


def flows_of(kind: str) -> Callable[[Mainstem], Iterator[Flow]]:
    def flows(stem: Mainstem) -> Iterator[Flow]:
        orders = stem.topic("orders").stream(watermark="1 minute")
        if kind == "filter":
            rows, key = orders.where("amount % 2 = 0").select("store", "amount", "record"), ["store"]
        elif kind == "aggregate":
            rows = orders.groupBy(F.window("at", "1 minute"), "store").agg(F.count("*").alias("orders"))
            key = ["window", "store"]
        elif kind == "window":
            sums = ["count(*) AS orders", "sum(amount) AS amount"]
            rows, key = windowed(orders, tumbling("1 minute"), by="store", aggregates=sums), ["window", "store"]
        else:
            paid = (
                stem.topic("payments")
                .stream(watermark="1 minute")
                .select("number", F.col("amount").alias("paid"), "at", "record")
            )
            rows = join(
                orders.select("number", "amount", F.col("at").alias("placed_at"), "record"),
                paid,
                on="number",
                within="1 minute",
            )
            rows, key = rows.select("number", "amount", "paid"), ["number"]
        yield Flow(rows, into=stem.view("result", key=key))

    return flows


def measure(kind: str, rounds: int, rows: int, warm_up: int, profile: cProfile.Profile | None) -> list[Figure]:
    """The cost of a batch of one kind of flow."""
    with tempfile.TemporaryDirectory() as home, mainstem.open(home, upkeep="manual") as stem:
        for name in ("orders", "payments"):
            stem.create_topic(
                name, schema="number BIGINT, store STRING, amount BIGINT, at TIMESTAMP", event_time="at", partitions=2
            )
        used: list[float] = []
        phases: list[dict[str, int]] = []
        before: Counter[str] = Counter()
        with stem.start(flows_of(kind)) as running:
            for number in range(warm_up + rounds):
                batch = [
                    {
                        "number": number * rows + row,
                        "store": f"s{row % 50}",
                        "amount": row,
                        "at": START + timedelta(seconds=number, milliseconds=row % 1000),
                    }
                    for row in range(rows)
                ]
                # In one transaction, so that one batch has the rows of both.
                with stem.transaction() as transaction:
                    transaction.append("orders", batch)
                    if kind == "join":
                        transaction.append("payments", batch)
                if number == warm_up:
                    before = cpu_by_part()
                began = cpu_seconds()
                if profile is not None and number >= warm_up:
                    _profile_batches(profile)
                running.wait_until_idle()
                if number >= warm_up:
                    used.append(cpu_seconds() - began)
                    phases.append(dict(running["result"].progress.phases))
            parts = cpu_by_part() - before
            batches = running["result"].batches
    share = {name: 1000 * ticks / TICKS_PER_SECOND / rounds for name, ticks in parts.items()}
    figures = [
        Figure(f"{kind}: CPU of a batch", median(used) * 1000, " ms", at_most=GOALS[kind], detail=f"{batches} batches"),
        Figure(f"{kind}: mean", mean(used) * 1000, " ms"),
    ]
    figures += [Figure(f"  {name}", value, " ms") for name, value in sorted(share.items(), key=lambda it: -it[1])]
    names = sorted({name for found in phases for name in found})
    walls = {name: median(found.get(name, 0) for found in phases) for name in names}
    return [*figures, *(Figure(f"  wall: {name}", value, " ms") for name, value in walls.items())]


def _profile_batches(profile: cProfile.Profile) -> None:
    """Profile the driver's part of the batches from here on."""
    from mainstem.spark.checkpoint.batch_gate import BatchGate

    plain: Any = getattr(BatchGate.batch, "plain", BatchGate.batch)

    class Profiled:
        def __init__(self, gate: BatchGate, number: int) -> None:
            self._within = plain(gate, number)

        def __enter__(self) -> None:
            self._within.__enter__()
            profile.enable()

        def __exit__(self, *error: Any) -> Any:
            profile.disable()
            return self._within.__exit__(*error)

    def batch(gate: BatchGate, number: int) -> Profiled:
        return Profiled(gate, number)

    made: Any = batch
    made.plain = plain
    BatchGate.batch = made  # type: ignore[method-assign]


def main() -> None:
    adopt_orphans()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.small_batch", description=(__doc__ or "").partition("\n\n")[2]
    )
    parser.add_argument("--only", default=",".join(GOALS), help=f"some of: {', '.join(GOALS)}")
    parser.add_argument("--rounds", type=int, default=40, help="batches that are measured")
    parser.add_argument("--warm-up", type=int, default=40, help="batches before them")
    parser.add_argument("--rows", type=int, default=1000, help="rows of a batch")
    parser.add_argument("--profile", action="store_true", help="print what the driver does in a batch")
    chosen = parser.parse_args()
    for kind in chosen.only.split(","):
        profile = cProfile.Profile(time.thread_time) if chosen.profile else None
        print(table(measure(kind, chosen.rounds, chosen.rows, chosen.warm_up, profile)), flush=True)
        if profile is not None and profile.getstats():
            pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
