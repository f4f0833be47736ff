"""Time-agnostic processing: filtering a stream.

Of all requests only those for one site are needed. Each row is processed by itself: its event time does not matter,
there is no state, and rows may come in any order. In Mainstem that is plain Spark, `.where(...)`, between a topic and a
sink; the condition is applied where the topic is read.
"""

import random
import sys
import tempfile

import mainstem
from mainstem import Flow

SITES = ["example.com", "example.org", "example.net"]


def requests(first: int, end: int) -> list[dict]:
    chance = random.Random(first)
    return [
        {"request": number, "site": chance.choice(SITES), "status": chance.choice([200, 200, 200, 404])}
        for number in range(first, end)
    ]


def flows(stem: mainstem.Mainstem):
    found = stem.topic("requests").stream().where("site = 'example.org'").drop("site")
    yield Flow(found, into=stem.topic("example_org"))


def main(home: str) -> None:
    with mainstem.open(home) as stem:
        topic = stem.create_topic("requests", schema="request bigint, site string, status int", partitions=2)
        with stem.start(flows) as running:
            for first in (0, 5000):
                topic.append(requests(first, first + 5000))
                running.wait_until_idle()
                kept = stem.topic("example_org").to_arrow()
                print(f"{first + 5000:6} requests came, {kept.num_rows} of them for example.org")
            state = running["example_org"].progress.state_rows
        print("rows kept from one batch to the next:", state)
        found = kept.select(["request", "status"]).sort_by("request").to_pylist()
        sql = "SELECT request, status FROM requests WHERE site = 'example.org' ORDER BY request"
        expected = stem.query(sql).to_pylist()
    if found != expected:
        sys.exit(f"different: {len(found)} rows, expected {len(expected)}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
