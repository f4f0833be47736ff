"""A program with state whose executors and Python workers are killed under it: python -m tests.flows.killed_executors HOME LOG VIEWS SPARK KILLS

Two flows through stages: windows that are corrected, and an operator that numbers the orders of each store. KILLS times more
orders come, and with them an end: in turns of an executor, Java and all, in the middle of a stage; and of a Python worker that
has written the state of a bucket and told nobody yet.

A third flow numbers the orders as well, and keeps its state in its worker's memory: a mutant, which must come out wrong. Two
more are without stages: into a topic, and Spark's own state into a view.
"""

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import functions as F

import mainstem
from mainstem.crash_points import VARIABLE
from mainstem.flows.flow import Flow
from mainstem.operators import Process, each_row, hopping, process, windowed
from mainstem.stem import Mainstem
from tests.flows.kafka_shop import SCHEMA, orders

# Workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 90
# In the home, where everybody sees it: a file for each that is to be killed, renamed by whoever does it.
WANTED, DONE = "kill", "killed"
VIEWS = ("panes", "numbered", "forgotten", "revenue")


class Numbered(Process):
    """Numbers the orders of each store; ends its executor where it is told to."""

    output = "order_id BIGINT, number BIGINT"
    bounded_by = "there are three stores"
    folder = ""

    @dataclass
    class State:
        count: int = 0

    def on_rows(self, key: Any, rows: Any, state: Any, timers: Any) -> Iterator[dict[str, int]]:
        for row in rows:
            state.count += 1
            yield {"order_id": row["order_id"], "number": state.count}
        end_executor(self.folder)


COUNTS: dict[str, int] = {}


class Forgetful(Numbered):
    """With its state in this process."""

    def on_rows(self, key: Any, rows: Any, state: Any, timers: Any) -> Iterator[dict[str, int]]:
        for row in rows:
            COUNTS[key] = COUNTS.get(key, 0) + 1
            yield {"order_id": row["order_id"], "number": COUNTS[key]}


def end_executor(folder: str) -> None:
    """Kill the Java above this worker and its daemon, if somebody wants that and nobody else has done it."""
    for wanted in sorted(Path(folder).glob(f"{WANTED}-*")):
        try:
            wanted.rename(wanted.with_name(wanted.name.replace(WANTED, DONE, 1)))
        except FileNotFoundError:
            continue
        executor = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
        assert "CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_text()
        os.kill(executor, signal.SIGKILL)
        # Not a row more comes from here.
        os.kill(os.getpid(), signal.SIGKILL)


def prepare(stem: Mainstem) -> None:
    stem.create_topic("orders", schema=SCHEMA, key="store", event_time="at", partitions=2)
    stem.create_topic("big_orders", schema=SCHEMA, key="store", event_time="at", partitions=2)


def part(number: int) -> list[dict[str, Any]]:
    """Some orders, each tenth of them two minutes after its time."""
    rows = orders(number * ROWS, ROWS)
    return [{**row, "at": row["at"] - timedelta(minutes=2 * (row["order_id"] % 10 == 0))} for row in rows]


def flows(stem: Mainstem) -> Iterator[Flow]:
    rows = stem.topic("orders").stream(watermark="10 seconds")
    # Which rows are late is another log's affair; what they come to in the end is not.
    panes = windowed(
        rows, hopping("2 minutes", slide="1 minute"), by="store", aggregates=[F.sum("amount").alias("revenue")],
        early=each_row(), late=each_row(), lateness="1 day", results="retract",
    )  # fmt: skip
    yield Flow(panes.drop("pane"), into=stem.view("panes", key=["window", "store"]))
    numbered = type("Numbered", (Numbered,), {"folder": f"{stem.home}/ends"})
    yield Flow(process(rows, by="store", using=numbered), into=stem.view("numbered", key="order_id"))
    yield Flow(process(rows, by="store", using=Forgetful), into=stem.view("forgotten", key="order_id"))
    yield Flow(rows.where("amount > 90").drop("record"), into=stem.topic("big_orders"))
    totals = rows.groupBy("store").agg(F.sum("amount").alias("revenue"), F.count("*").alias("orders"))
    yield Flow(totals, into=stem.view("revenue", key="store"))


def answers(stem: Mainstem) -> dict[str, list[str]]:
    found = {name: stem.view(name).to_arrow() for name in VIEWS}
    found["big_orders"] = stem.topic("big_orders").to_arrow().drop_columns(["record"])
    return {name: sorted(map(str, rows.to_pylist())) for name, rows in found.items()}


def main(home: str, log: str, views: str, spark: str, kills: str) -> None:
    ends = Path(home, "ends")
    ends.mkdir(exist_ok=True)
    with mainstem.open(home, log=log, views=views, spark=spark) as stem, stem.start(flows) as running:
        running.wait_until_idle()
        first = len(stem.topic("orders").to_arrow(columns=["order_id"])) // ROWS
        environment = stem.spark.sparkContext.environment
        for number in range(int(kills)):
            if number % 2:
                environment[VARIABLE] = f"stage_runs_written:1@{ends}/{DONE}-{number}"
            else:
                (ends / f"{WANTED}-{number}").touch()
            stem.topic("orders").append(part(first + number))
            running.wait_until_idle()
            environment.pop(VARIABLE, None)


if __name__ == "__main__":
    main(*sys.argv[1:])
