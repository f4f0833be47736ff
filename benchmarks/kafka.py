"""The log in a home beside one on Kafka: `python -m benchmarks.kafka [--rows 500000] [--only append,flow] [--json]`.

Starts a real broker of its own. Rates are rows per CPU-second: of appends that of producer and broker together, both with
every append on disk before it is acknowledged; of flows that of the program alone. Prints a table, and as the last line all
of it as one line of JSON (with --json only that).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from benchmarks import process_tree
from benchmarks.figure import Figure, table
from benchmarks.flows_run import say
from benchmarks.kafka_growth import growth
from benchmarks.kafka_latency import latencies
from benchmarks.measured_run import Stopwatch, run_measured
from benchmarks.nexmark_events import KEYS, SCHEMAS, Nexmark
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.kafka_broker import KafkaBroker

APPEND_ROWS = 10_000


class Bench:
    """Two homes with the same rows, one with its log on a broker."""

    # Whether tables and pictures are put into docs/.
    writes_docs = False
    # How long each way through a flow is watched.
    latency_seconds = 60.0

    def __init__(self, folder: str, rows: int, broker: KafkaBroker) -> None:
        self.rows = rows
        self.folder = folder
        self.address = f"kafka://{broker.address}"
        self._servers = broker.address
        self.homes = {name: f"{folder}/{name}" for name in ("embedded", "kafka")}
        for home in self.homes.values():
            Path(home).mkdir()
        self._rates: dict[str, float] = {}

    def batches(self) -> Iterable[pa.RecordBatch]:
        left = self.rows
        for batch in Nexmark(events=2 * self.rows).batches("bids", rows_max=APPEND_ROWS):
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
            if not left:
                return

    def fill(self) -> dict[str, float]:
        """Append everything everywhere, once; gives the rates."""
        if self._rates:
            return self._rates
        batches = list(self.batches())
        with Mainstem(EmbeddedLog(self.homes["embedded"]), home=self.homes["embedded"]) as stem:
            self._rates["embedded"] = self._appended(self._made(stem, "bids"), batches)
        with Mainstem(KafkaLog(self.address, home=self.homes["kafka"]), home=self.homes["kafka"]) as stem:
            for name, codec in (("bids", "json"), ("bids_arrow", "arrow")):
                topic = self._made(stem, name, codec=codec)
                self._flush_always(name)
                self._rates[codec] = self._appended(topic, batches)
        return self._rates

    def _made(self, stem: Mainstem, name: str, **more: str) -> Topic:
        return stem.create_topic(name, schema=SCHEMAS["bids"], key=KEYS["bids"], event_time="at", partitions=2, **more)

    def _flush_always(self, topic: str) -> None:
        """Have the broker sync each group of messages before it acknowledges it, as the embedded log does."""
        entry = ConfigEntry("flush.messages", "1", incremental_operation=AlterConfigOpType.SET)
        asked = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        client = AdminClient({"bootstrap.servers": self._servers})
        for answer in client.incremental_alter_configs([asked]).values():
            answer.result(10)

    def _appended(self, topic: Topic, batches: list[pa.RecordBatch]) -> float:
        say(f"appending to {topic}")
        # What a first append costs (connections, compilation) is not what appends cost.
        topic.append(batches[0].slice(0, 1))
        with Stopwatch() as watch:
            for batch in batches:
                topic.append(batch)
        return self.rows / watch.cpu_seconds


def append(bench: Bench) -> list[Figure]:
    rates = bench.fill()
    return [
        Figure(
            f"append in batches of {APPEND_ROWS:,}: rate of Kafka's producer and broker, {codec}",
            rates["embedded"] / rates[codec],
            at_least=5.0 if codec == "json" else None,
            detail=f"{rates['embedded'] / 1e3:,.0f} against {rates[codec] / 1e3:,.0f} thousand rows per CPU-second",
        )
        for codec in ("json", "arrow")
    ]


def flow(bench: Bench) -> list[Figure]:
    bench.fill()
    rates = {}
    for side in ("embedded", "json", "arrow", "spark"):
        say(f"flow: {side}")
        home = bench.homes["embedded" if side == "embedded" else "kafka"]
        more = [] if side == "embedded" else ["--log", bench.address]
        rates[side] = run_measured("benchmarks.kafka_program", side, "--home", home, *more).rate
    shown = {side: f"{rate / 1e3:,.0f}" for side, rate in rates.items()}

    def figure(title: str, side: str, other: str, goal: float | None = None) -> Figure:
        detail = f"{shown[side]} against {shown[other]} thousand rows per CPU-second"
        return Figure(title, rates[side] / rates[other], at_least=goal, detail=detail)

    return [
        figure("a flow from the embedded log: rate of one from Kafka, json", "embedded", "json"),
        figure("a flow from the embedded log: rate of one from Kafka, arrow", "embedded", "arrow"),
        figure("a flow from Kafka, arrow: rate of one from Kafka, json", "arrow", "json", 3.0),
        figure("a flow from Kafka, json: rate of Spark's own Kafka source with from_json", "json", "spark"),
    ]


def latency(bench: Bench) -> list[Figure]:
    return latencies(bench.folder, bench.address, bench.latency_seconds)


SUBJECTS: dict[str, Callable[[Bench], list[Figure]]] = {
    "append": append,
    "flow": flow,
    "latency": latency,
    "growth": growth,
}


def main() -> None:
    process_tree.adopt_orphans()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka", description=(__doc__ or ""))
    parser.add_argument("--rows", type=int, default=500_000, help="how many bids there are")
    parser.add_argument(
        "--only", default=",".join(SUBJECTS), metavar="NAME,...", help=f"some of: {', '.join(SUBJECTS)}"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each latency is watched")
    parser.add_argument("--json", action="store_true", help="print the line of JSON alone")
    parser.add_argument("--docs", action="store_true", help="put the table and the picture of growth into docs/")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="mainstem-kafka-bench-")
    broker = KafkaBroker()
    figures: list[Figure] = []
    try:
        bench = Bench(folder, arguments.rows, broker)
        bench.writes_docs = arguments.docs
        bench.latency_seconds = arguments.seconds
        for name in arguments.only.split(","):
            found = SUBJECTS[name](bench)
            print(table(found), file=sys.stderr, flush=True)
            figures += found
    finally:
        broker.close()
        shutil.rmtree(folder)
    if not arguments.json:
        print(table(figures))
    print(json.dumps({"figures": [figure.to_json() for figure in figures], "rows": arguments.rows}))


if __name__ == "__main__":
    main()
