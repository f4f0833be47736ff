"""A filter over bids from a log, into nowhere: `python -m benchmarks.kafka_program SIDE --home HOME [--log ADDRESS]`.

SIDE is embedded, json or arrow (the topic of that codec), or spark: the same rows by Spark's own Kafka source and
`from_json`. Runs twice, measures the second time and prints what it used.
"""

from __future__ import annotations

import argparse
import glob
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import process_tree
from benchmarks.measured_run import Measured, Stopwatch, tell
from benchmarks.nexmark_events import SCHEMAS
from benchmarks.nexmark_topics import clear
from benchmarks.nowhere import Nowhere
from mainstem.flows.flow import Flow
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.stem import Mainstem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIDES = ("embedded", "json", "arrow", "spark")
TOPICS = {"embedded": "bids", "json": "bids", "spark": "bids", "arrow": "bids_arrow"}
CONNECTOR = Path(sys.prefix) / "kafka" / "connector"


def wanted(bids: DataFrame) -> DataFrame:
    return bids.where("price > 1000").select("auction", "bidder", "price", "at")


def run_ours(stem: Mainstem, topic: str, name: str) -> None:
    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(wanted(stem.topic(topic).stream()), into=Nowhere(name))

    stem.run(flows, until="idle")


def run_spark(stem: Mainstem, servers: str, topic: str) -> None:
    from pyspark.sql import functions as F

    source = stem.spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    # As many as a batch of ours has at most.
    source = (
        source.option("subscribe", topic).option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 500_000)
    )
    rows = source.option("kafka.isolation.level", "read_committed").load()
    parsed = rows.select(F.from_json(F.col("value").cast("string"), SCHEMAS["bids"]).alias("row")).select("row.*")
    with tempfile.TemporaryDirectory(dir=stem.home) as folder:
        writer = wanted(parsed).writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()


def measure(stem: Mainstem, side: str) -> Measured:
    _ = stem.spark
    topic = stem.topic(TOPICS[side])
    count = topic.read().count()

    def run(name: str) -> None:
        if side == "spark":
            assert isinstance(stem.log, KafkaLog)
            run_spark(stem, stem.log.kafka_settings.servers, stem.log.kafka_name(topic.name))
        else:
            run_ours(stem, topic.name, name)

    run("q_warm_up")
    with Stopwatch() as watch:
        run("q_measured")
    return watch.measured(count)


def main() -> None:
    process_tree.adopt_orphans()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka_program", description=(__doc__ or ""))
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--home", required=True, help="the home")
    parser.add_argument("--log", default="", help="the address of its log, if it is on Kafka")
    arguments = parser.parse_args()
    if arguments.side == "spark":
        jars = ",".join(sorted(glob.glob(f"{CONNECTOR}/*.jar")))
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars} pyspark-shell"
    log = KafkaLog(arguments.log, home=arguments.home) if arguments.log else EmbeddedLog(arguments.home)
    with Mainstem(log, home=arguments.home, spark="local[2]") as stem:
        try:
            tell(measure(stem, arguments.side))
        finally:
            clear(stem)


if __name__ == "__main__":
    main()
