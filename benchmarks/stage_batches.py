"""What a small batch through a stage costs: with the plan that was built once, against one built for every batch.

    python -m benchmarks.stage_batches [--rounds 20] [--rows 1000]

CPU of the whole process tree, batch by batch in turns. The baseline is the way that is taken where a plan cannot be bound.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from statistics import median
from unittest import mock

import mainstem
from benchmarks.figure import Figure, table
from benchmarks.process_tree import adopt_orphans, cpu_seconds
from mainstem import Flow, Mainstem
from mainstem.flows.staged_batches import BatchOnItsWay
from mainstem.operators import tumbling, windowed

START = datetime(2026, 1, 1, tzinfo=UTC)


def flows(stem: Mainstem) -> Iterator[Flow]:
    orders = stem.topic("orders").stream(watermark="1 minute")
    counted = windowed(
        orders, tumbling("1 minute"), by="store", aggregates=["count(*) AS orders", "sum(amount) AS amount"]
    )
    yield Flow(counted, into=stem.view("counted", key=["store", "window"]))


def measure(rounds: int, rows: int, warm_up: int = 6) -> list[Figure]:
    """CPU seconds of a batch, bound and built anew, in turns."""
    adopt_orphans()
    seconds: dict[str, list[float]] = {"bound": [], "built": []}
    with tempfile.TemporaryDirectory() as home, mainstem.open(home, spark="local[2]") as stem:
        orders = stem.create_topic(
            "orders", schema="store STRING, amount BIGINT, at TIMESTAMP", key="store", event_time="at", partitions=2
        )
        with stem.start(flows) as running:
            for number in range(2 * (warm_up + rounds)):
                way = "bound" if number % 2 else "built"
                batch = [
                    {"store": f"s{row % 50}", "amount": row, "at": START + timedelta(seconds=number, milliseconds=row)}
                    for row in range(rows)
                ]
                before = cpu_seconds()
                with mock.patch.object(BatchOnItsWay, "bind", BatchOnItsWay.bind if way == "bound" else lambda _: None):
                    orders.append(batch)
                    running.wait_until_idle()
                if number >= 2 * warm_up:
                    seconds[way].append(cpu_seconds() - before)
    bound, built = median(seconds["bound"]), median(seconds["built"])
    return [
        Figure("CPU of a batch, plan bound", bound * 1000, " ms", detail=f"{rows} rows, {rounds} batches"),
        Figure("CPU of a batch, plan built", built * 1000, " ms", detail=f"{rows} rows, {rounds} batches"),
        Figure("bound as a share of built", bound / built),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rows", type=int, default=1000)
    chosen = parser.parse_args()
    print(table(measure(chosen.rounds, chosen.rows)))


if __name__ == "__main__":
    main()
