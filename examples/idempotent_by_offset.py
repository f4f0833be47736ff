"""Idempotence: a target without transactions (a webhook, a mail, a card terminal).

A request and the record that it was made cannot be one atomic step. So it is made at least once, with an id that is the
same each time: the receiver drops duplicates. In Mainstem a record's topic, partition and offset never change, and a
flow writes each record to its topic once: together they are that id. Here a *group* charges cards from a topic that a
*flow* fills, and is killed after the request, before its commit.
"""

import json
import multiprocessing
import os
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import mainstem
from mainstem import Flow


def flows(stem: mainstem.Mainstem):
    unpaid = stem.topic("orders").stream().where("NOT paid").select("order_id", "amount")
    yield Flow(unpaid, into=stem.topic("charges"))


def charge(home: str, dies_after: int | None) -> None:
    """Sends a request for every charge; dies between a request and its commit."""
    with mainstem.open(home) as stem, stem.topic("charges").join_group("terminal") as member:
        while batch := member.poll(rows_max=4):
            for number, row in enumerate(batch.to_pylist()):
                with (Path(home) / "requests").open("a") as terminal:
                    place = row["record"]
                    request_id = f"charges-{place['partition']}-{place['offset']}"
                    terminal.write(json.dumps({"id": request_id, "amount": row["amount"]}) + "\n")
                if number == dies_after:
                    os.kill(os.getpid(), signal.SIGKILL)
            member.commit()


def main(home: str) -> None:
    orders = [{"order_id": f"o-{n}", "amount": 10 * n, "paid": n % 3 == 0} for n in range(1, 16)]
    with mainstem.open(home) as stem:
        stem.create_topic("orders", schema="order_id string, amount bigint, paid boolean").append(orders)
        stem.run(flows, until="idle")
    for dies_after in (1, 2, None):
        process = multiprocessing.get_context("spawn").Process(target=charge, args=[home, dies_after])
        process.start()
        process.join()

    requests = [json.loads(line) for line in (Path(home) / "requests").read_text().splitlines()]
    charged: Counter[str] = Counter()
    for request in {request["id"]: request for request in requests}.values():
        charged[request["id"]] += request["amount"]
    due = sorted(order["amount"] for order in orders if not order["paid"])
    print(f"{len(due)} charges, {len(requests)} requests: some were made again after a crash")
    print(f"taken by whoever ignores the id: {sum(request['amount'] for request in requests)}")
    print(f"taken by whoever drops an id that was there: {sum(charged.values())} of {sum(due)}")
    if (sorted(charged.values()), len(requests)) != (due, len(due) + 5):
        sys.exit(f"different: {charged}, {len(requests)} requests, expected {due}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
