"""A pipeline of jobs: the output of one team's job is the input of others', each at its own speed.

As with files between programs, a writer need not know its readers, and a slow or stopped reader blocks nobody: the log
keeps the unread records. In Mainstem a *flow* writes to a *topic*, and that topic is read like any other, by flows of
the same program or of others.
"""

import random
import sys
import tempfile
from collections import Counter

from pyspark.sql import functions as F

import mainstem
from mainstem import Flow


def lines(seed: int) -> list[dict]:
    chance = random.Random(seed)
    paths, statuses = ["/", "/basket", "/search"], ["200", "200", "200", "404", "500"]
    return [{"line": f"{chance.choice(paths)} {chance.choice(statuses)}"} for _ in range(300)] + [{"line": "garbled"}]


def intake(stem: mainstem.Mainstem):
    """The first team: lines become requests."""
    parts = F.split("line", " ")
    requests = stem.topic("lines").stream().where("line LIKE '/% %'")
    yield Flow(
        requests.select(parts[0].alias("path"), parts[1].cast("int").alias("status")), into=stem.topic("requests")
    )


def traffic(stem: mainstem.Mainstem):
    """The second team, which follows at once."""
    requests = stem.topic("requests").stream()
    yield Flow(requests.groupBy("path").agg(F.count("*").alias("requests")), into=stem.view("traffic", key="path"))


def errors(stem: mainstem.Mainstem):
    """The third team, which runs once a night."""
    failed = stem.topic("requests").stream().where("status >= 500")
    yield Flow(failed.groupBy("path").agg(F.count("*").alias("errors")), into=stem.view("errors", key="path"))


def main(home: str) -> None:
    found = {}
    with mainstem.open(home) as stem:
        topic = stem.create_topic("lines", schema="line string")
        for morning in (1, 2):
            topic.append(lines(morning))
            stem.run(intake, until="idle")
            stem.run(traffic, until="idle")
            counted = sum(stem.view("traffic").to_arrow().column("requests").to_pylist())
            kept = len(stem.topic("requests").to_arrow())
            print(f"day {morning}: {kept} requests in the topic, {counted} in traffic, errors has not run yet")
        stem.run(errors, until="idle")
        for name in ("traffic", "errors"):
            found[name] = {
                row["path"]: row[name.replace("traffic", "requests")] for row in stem.view(name).to_arrow().to_pylist()
            }
            print(f"{name:8}{found[name]}")

    split = [row["line"].split() for row in lines(1) + lines(2) if row["line"] != "garbled"]
    expected = {
        "traffic": Counter(path for path, _ in split),
        "errors": Counter(path for path, status in split if status == "500"),
    }
    if found != expected:
        sys.exit(f"different: {found}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
