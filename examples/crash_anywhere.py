"""Exactly-once processing (effectively-once): killed in the middle of a batch, and run again.

Spark alone repeats a batch without a recorded commit, so a sink would count it twice. In Mainstem a sink commits the
rows and the number of the batch in one transaction: an uncommitted batch is repeated, and a committed one is skipped.
Here each run counts another hundred clicks and is killed (SIGKILL) at another point of its batch.
"""

import multiprocessing
import os
import random
import sys
import tempfile
from collections import Counter

from pyspark.sql import functions as F

import mainstem
from mainstem import Flow

# The name of the point, and what is written when the process dies at it.
POINTS = {
    "sink_rows_computed": "rows computed, nothing written",
    "view_rows_written": "rows written, not committed",
    "batch_written": "rows committed, Spark not told",
}


def flows(stem: mainstem.Mainstem):
    clicks = stem.topic("clicks").stream()
    yield Flow(clicks.groupBy("page").agg(F.count("*").alias("clicks")), into=stem.view("per_page", key="page"))


def run(home: str) -> None:
    with mainstem.open(home) as stem:
        stem.run(flows, until="idle")


def killed(home: str, point: str) -> bool:
    """Run the program in a process that dies at this point."""
    os.environ["MAINSTEM_CRASH_AT"] = point
    process = multiprocessing.get_context("spawn").Process(target=run, args=[home])
    process.start()
    del os.environ["MAINSTEM_CRASH_AT"]
    process.join()
    return process.exitcode == -9


def main(home: str) -> None:
    chance = random.Random(7)
    pages = [chance.choice(["home", "search", "basket"]) for _ in range(400)]
    deaths, counted = [], []
    with mainstem.open(home) as stem:
        topic = stem.create_topic("clicks", schema="page string", partitions=2)
        view = stem.view("per_page", key="page")
        for number, (point, there) in enumerate(POINTS.items()):
            topic.append([{"page": page} for page in pages[100 * number : 100 * (number + 1)]])
            deaths.append(killed(home, point))
            counted.append(sum(view.to_arrow().column("clicks").to_pylist()) if view.exists else 0)
            print(f"killed: {there:33}the view has counted {counted[-1]} of {100 * (number + 1)} clicks")
        topic.append([{"page": page} for page in pages[300:]])
        run(home)
        found = {row["page"]: row["clicks"] for row in view.to_arrow().to_pylist()}
    print(f"not killed: the view has counted {sum(found.values())} of 400 clicks")
    if (deaths, counted, found) != ([True] * 3, [0, 0, 100], dict(Counter(pages))):
        sys.exit(f"different: {found}, {counted}, {deaths}, expected {Counter(pages)}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
