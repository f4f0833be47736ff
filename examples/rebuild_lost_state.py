"""Rebuilding state after a failure: all derived data is lost, and the log still exists.

State that can be recomputed from its input needs no backup. In Mainstem a flow's *checkpoint* and its *view* are such
state. If both are lost, the next run rebuilds them. If only one is lost, continuing would count twice or leave a gap:
that is refused, and the error says what to do.
"""

import random
import shutil
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from pyspark.sql import functions as F

import mainstem
from mainstem import Flow, FlowFailed


def flows(stem: mainstem.Mainstem):
    readings = stem.topic("readings").stream()
    hottest = readings.groupBy("sensor").agg(F.count("*").alias("readings"), F.max("degrees").alias("hottest"))
    yield Flow(hottest, into=stem.view("hottest", key="sensor"))


def main(home: str) -> None:
    chance = random.Random(3)
    readings = []
    for _ in range(500):
        sensor, low, high = chance.choice([("attic", 12, 41), ("cellar", 8, 19), ("roof", -9, 36)])
        readings.append({"sensor": sensor, "degrees": round(chance.triangular(low, high))})
    with mainstem.open(home) as stem:
        topic = stem.create_topic("readings", schema="sensor string, degrees int", partitions=2)
        topic.append(readings[:300])
        stem.run(flows, until="idle")
        first = stem.view("hottest").to_arrow().to_pylist()
        print("before:                 ", shown(first))

        shutil.rmtree(Path(home) / "flows" / "hottest" / "v1")
        try:
            stem.run(flows, until="idle")
            refused = ""
        except FlowFailed as error:
            refused = getattr(error.__cause__, "summary", "")
        print("checkpoint lost alone:  ", refused)

        shutil.rmtree(Path(home) / "flows" / "hottest")
        shutil.rmtree(Path(home) / "views" / "hottest")
        topic.append(readings[300:])
        stem.run(flows, until="idle")
        found = stem.view("hottest").to_arrow().to_pylist()
        print("both lost, and run again:", shown(found))

    by_sensor = defaultdict(list)
    for reading in readings:
        by_sensor[reading["sensor"]].append(reading["degrees"])
    expected = [
        {"sensor": it, "readings": len(by_sensor[it]), "hottest": max(by_sensor[it])} for it in sorted(by_sensor)
    ]
    if found != expected or not refused:
        sys.exit(f"different: {found}, expected {expected}")
    print("equal")


def shown(rows: list[dict]) -> str:
    return ", ".join(f"{row['sensor']} {row['hottest']} of {row['readings']}" for row in rows)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
