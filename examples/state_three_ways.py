"""Where a stateful job keeps its state: three ways, the same result.

On the local disk, with a log of its changes; in memory, saved with every checkpoint; or in an external database that
every batch queries. In Mainstem a *flow* uses the first, since its state may exceed the memory; the second is one
setting of Spark; the third is a reader that keeps its offsets in the database's transaction.
"""

import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from pyspark.sql import functions as F

import mainstem
from mainstem import Flow

STORE = "spark.sql.streaming.stateStore.providerClass"
IN_MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
TABLES = "CREATE TABLE counts (word PRIMARY KEY, count); CREATE TABLE read (partition PRIMARY KEY, offset)"
UPSERT = "INSERT INTO counts VALUES (?, 1) ON CONFLICT (word) DO UPDATE SET count = count + 1"


def count_in_flow(stem: mainstem.Mainstem, topic: mainstem.Topic, halves: list) -> tuple[dict, float, Path]:
    def flows(stem: mainstem.Mainstem):
        words = stem.topic(topic.name).stream()
        yield Flow(words.groupBy("word").agg(F.count("*").alias("count")), into=stem.view(topic.name, key="word"))

    with stem.start(flows) as running:
        for half in halves:
            begun = time.perf_counter()
            topic.append(half)
            running.wait_until_idle()
            took = time.perf_counter() - begun
    counts = {row["word"]: row["count"] for row in stem.view(topic.name).to_arrow().to_pylist()}
    return counts, took, Path(stem.home, "flows", topic.name)


def count_elsewhere(stem: mainstem.Mainstem, topic: mainstem.Topic, halves: list) -> tuple[dict, float, Path]:
    path = Path(tempfile.mkdtemp(dir=stem.home))
    database = sqlite3.connect(path / "counts.sqlite")
    database.executescript(TABLES)
    for half in halves:
        begun = time.perf_counter()
        topic.append(half)
        for batch in topic.batches(start=dict(database.execute("SELECT * FROM read")) or "earliest"):
            place = batch.column("record")[-1].as_py()
            with database:
                database.executemany(UPSERT, ((word,) for word in batch.column("word").to_pylist()))
                database.execute("REPLACE INTO read VALUES (?, ?)", (place["partition"], place["offset"] + 1))
    return dict(database.execute("SELECT * FROM counts")), time.perf_counter() - begun, path


def main(home: str) -> None:
    words = [{"word": f"w{number}"} for number in random.Random(9).choices(range(2000), k=20_000)]
    expected = Counter(row["word"] for row in words)
    different = []
    with mainstem.open(home) as stem:
        usual = stem.spark.conf.get(STORE)
        for title, count, store in [
            ("local disk, with a log of changes", count_in_flow, usual),
            ("memory, with checkpoints", count_in_flow, IN_MEMORY),
            ("a database elsewhere", count_elsewhere, usual),
        ]:
            stem.spark.conf.set(STORE, store)
            topic = stem.create_topic(title.split(",")[0].replace(" ", "_"), schema="word string")
            counts, took, folder = count(stem, topic, [words[:10_000], words[10_000:]])
            kept = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) >> 10
            print(f"{title:34} {len(counts)} words; 10,000 more: {1000 * took:.0f} ms, {kept} KiB kept (measured)")
            different += [title] * (counts != expected)
        stem.spark.conf.set(STORE, usual)
    sys.exit(f"different: {different}") if different else print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
