"""The kappa architecture: reprocessing is another run over the same log, with the same code.

There is no batch layer beside the stream: version 2 of a job reads the whole history into its own output, beside
version 1, and when it has caught up, readers are switched to it. In Mainstem that is `stem.rebuild(view, flows)`, or
`mainstem view rebuild`: it shows the differences row by row, switches without a gap, and can switch back.
"""

import random
import sys
import tempfile
from collections import Counter

from pyspark.sql import functions as F

import mainstem
from mainstem import Flow


def version_1(stem: mainstem.Mainstem):
    trips = stem.topic("trips").stream()
    yield Flow(trips.groupBy("city").agg(F.sum("fare").alias("fares")), into=stem.view("fares", key="city"))


def version_2(stem: mainstem.Mainstem):
    """Trips that never began are not counted."""
    trips = stem.topic("trips").stream().where("minutes > 0")
    yield Flow(trips.groupBy("city").agg(F.sum("fare").alias("fares")), into=stem.view("fares", key="city"))


def main(home: str) -> None:
    chance = random.Random(5)
    trips = [
        {
            "city": chance.choice(["Graz", "Linz", "Wien"]),
            "minutes": chance.randint(0, 20),
            "fare": chance.randint(3, 30),
        }
        for _ in range(600)
    ]
    for trip in trips:
        trip["minutes"] = max(trip["minutes"], int(trip["city"] == "Linz"))
    with mainstem.open(home) as stem:
        stem.create_topic("trips", schema="city string, minutes int, fare bigint", partitions=2).append(trips)
        view = stem.view("fares", key="city")
        stem.run(version_1, until="idle")
        seen = [as_dict(view)]
        with stem.rebuild(view, version_2) as rebuild:
            rebuild.wait()
            found = rebuild.difference()
            seen.append(as_dict(view))
            rebuild.apply()
        seen.append(as_dict(view))
        view.use(1)
        seen.append(as_dict(view))

    print("version 1:", seen[0])
    print(f"version 2 beside it: {found.same} row the same, {found.changed} changed, such as {found.changed_rows[0]}")
    print("switched: ", seen[2])
    print("and back: ", seen[3])
    all_fares, begun = Counter[str](), Counter[str]()
    for trip in trips:
        all_fares[trip["city"]] += trip["fare"]
        begun[trip["city"]] += trip["fare"] if trip["minutes"] else 0
    if seen != [all_fares, all_fares, begun, all_fares]:
        sys.exit(f"different: {seen}, expected {all_fares} and {begun}")
    print("equal")


def as_dict(view: mainstem.View) -> dict[str, int]:
    return {row["city"]: row["fares"] for row in view.to_arrow().to_pylist()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
