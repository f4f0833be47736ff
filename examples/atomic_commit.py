"""Atomic commit: output and input offsets, all or nothing.

A consumer that writes to two places and commits its offset can die between any two of the three. In Mainstem a
*transaction* spans topics and a group's offsets: one synced entry decides it. The transaction of a dead process is
aborted by the next one, and none of its records was ever visible.
"""

import multiprocessing
import os
import signal
import sys
import tempfile

import mainstem

POINTS = ["after the first topic", "after the second topic", "after the offsets", "after the commit"]


def ship(home: str, point: str | None) -> None:
    """Turns each order into a payment and a shipment; dies at the given point."""

    def reached(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    with mainstem.open(home) as stem, stem.topic("orders").join_group("shipping") as member:
        orders = member.poll(rows_max=3).select(["order_id"])
        with stem.transaction() as transaction:
            transaction.append("payments", orders)
            reached("after the first topic")
            transaction.append("shipments", orders)
            reached("after the second topic")
            transaction.commit_offsets(member)
            reached("after the offsets")
        reached("after the commit")


def main(home: str) -> None:
    found = {}
    with mainstem.open(home) as stem:
        orders = stem.create_topic("orders", schema="order_id string")
        orders.append([{"order_id": f"o-{number}"} for number in range(6)])
        outputs = [stem.create_topic(name, schema="order_id string") for name in ("payments", "shipments")]
        for point in [*POINTS, None]:
            process = multiprocessing.get_context("spawn").Process(target=ship, args=[home, point])
            process.start()
            process.join()
            counts = [len(topic.to_arrow()) for topic in outputs]
            found[point] = [*counts, orders.group("shipping").describe().partitions[0].committed]
            shown = f"killed {point}" if point else "not killed"
            print(f"{shown:30}payments {counts[0]}, shipments {counts[1]}, committed {found[point][2]}")
        found["rows"] = [topic.to_arrow().column("order_id").to_pylist() for topic in outputs]

    expected = {point: [0, 0, 0] for point in POINTS[:3]} | {POINTS[3]: [3, 3, 3], None: [6, 6, 6]}
    expected["rows"] = [[f"o-{number}" for number in range(6)]] * 2
    if found != expected:
        sys.exit(f"different: {found}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
