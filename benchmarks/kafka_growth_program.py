"""Windows over bids on Kafka, on a Spark cluster of its own: `python -m benchmarks.kafka_growth_program TOPIC --workers N --home HOME --log ADDRESS`.

Each worker has one core. Runs twice, measures the second time and prints what it used: driver, master, workers, executors and
all their Python, but not the broker.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from benchmarks import process_tree
from benchmarks.measured_run import Measured, Stopwatch, tell
from benchmarks.nexmark_queries import WATERMARK
from benchmarks.nexmark_topics import clear
from benchmarks.nowhere import Nowhere
from mainstem.flows.flow import Flow
from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.operators import tumbling, windowed
from mainstem.spark.spark_session import spark_session
from mainstem.stem import Mainstem
from tests.spark_cluster import SparkCluster

# As many buckets for one worker as for two: else it would not be the same flow.
SETTINGS = {"spark.sql.shuffle.partitions": "4"}


def run(stem: Mainstem, topic: str, name: str) -> None:
    def flows(stem: Mainstem) -> Iterator[Flow]:
        bids = stem.topic(topic).stream(watermark=WATERMARK)
        aggregates = ["count(*) AS bids", "max(price) AS price"]
        yield Flow(windowed(bids, tumbling("10 seconds"), by="auction", aggregates=aggregates), into=Nowhere(name))

    stem.run(flows, until="idle")


def measure(stem: Mainstem, topic: str) -> Measured:
    count = stem.topic(topic).read().count()
    run(stem, topic, "growth_warm_up")
    with Stopwatch() as watch:
        run(stem, topic, "growth_measured")
    return watch.measured(count)


def main() -> None:
    process_tree.adopt_orphans()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka_growth_program", description=(__doc__ or ""))
    parser.add_argument("topic")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--home", required=True, help="the home")
    parser.add_argument("--log", required=True, help="the address of its log")
    arguments = parser.parse_args()
    cluster = SparkCluster(arguments.workers)
    try:
        spark = spark_session(cluster.address, SETTINGS)
        with Mainstem(KafkaLog(arguments.log, home=arguments.home), home=arguments.home, spark=spark) as stem:
            try:
                tell(measure(stem, arguments.topic))
            finally:
                clear(stem)
        spark.stop()
    finally:
        cluster.close()


if __name__ == "__main__":
    main()
