"""Replaying old messages.

Reading a log changes only a position, and each reader has its own: yesterday can be processed again with corrected
code, into another output, while the live consumers continue. In Mainstem: `topic.batches(start=..., stop=...)` with a
time, an offset or the *token* of an append; a group's committed offsets do not change.
"""

import random
import sys
import tempfile

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

import mainstem


def sales(seed: int) -> pa.Table:
    chance = random.Random(seed)
    stores, amounts = zip(
        *((chance.choice(["Berlin", "Paris"]), chance.randint(1, 100)) for _ in range(500)), strict=True
    )
    return pa.table({"store": stores, "amount": amounts})


REVENUE = "SELECT store, sum(amount) AS revenue FROM {} GROUP BY store ORDER BY store"


def shown(rows: list[dict]) -> str:
    return ", ".join(f"{row['store']} {row['revenue']}" for row in rows)


def main(home: str) -> None:
    yesterday, today = sales(1), sales(2)
    with mainstem.open(home) as stem:
        topic = stem.create_topic("sales", schema="store string, amount bigint")
        version_1 = stem.create_topic("output.v1", schema="store string, amount bigint")
        version_2 = stem.create_topic("output.v2", schema="store string, amount bigint")
        topic.append(yesterday)
        with topic.join_group("live") as live:
            batch = live.poll()
            version_1.append(batch.filter(pc.equal(batch.column("store"), "Berlin")))  # omits Paris
            live.commit()
            midnight = topic.append(today).appended_at
            behind = [topic.group("live").lag().records]
            for batch in topic.batches(start="earliest", stop=midnight):
                version_2.append(batch)
            behind.append(topic.group("live").lag().records)
            waiting = live.poll().num_rows
        first, replayed = (stem.query(REVENUE.format(f'"output.{it}"')).to_pylist() for it in ("v1", "v2"))

    print("yesterday, version 1:", shown(first), "(forgot Paris)")
    print("yesterday, version 2:", shown(replayed))
    print("the live group: {} records behind before the replay, {} after it;".format(*behind), f"it read {waiting}")
    found = [replayed, behind, waiting]
    expected = [duckdb.sql(REVENUE.format("yesterday")).to_arrow_table().to_pylist(), [500, 500], 500]
    if found != expected:
        sys.exit(f"different: {found}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
