"""The queries as programs of Mainstem: `python -m benchmarks.flows_program q0 --home HOME --folder DATA --events N`.

Runs one query over the topic `bids` of a home that `fill` made, checks its answer and prints what it used. What only
passes through goes nowhere, as in plain Spark; windows go into a view, joined rows into a topic.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import mainstem
from benchmarks import process_tree
from benchmarks.measured_run import Measured, Stopwatch, tell
from benchmarks.nexmark import KEYS, SCHEMAS, Kind, Nexmark
from benchmarks.nexmark_files import NexmarkFiles
from benchmarks.nexmark_queries import QUERIES, WATERMARK, Query
from mainstem.batch import Batch, FlowRun, Written
from mainstem.flows.flow import Flow
from mainstem.stem import Mainstem

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Program = Callable[[Mainstem], Iterator[Flow]]

# As many rows as the file that plain Spark's check reads.
FEW_ROWS = 10
CHECKED_ROWS = 250_000
# As many as there are cores: plain Spark reads as many files at a time.
PARTITIONS = 2
# What a producer that reads files or a socket gathers before it appends.
APPEND_ROWS = 10_000


class Nowhere:
    """A sink that takes rows and keeps none, as Spark's own `noop` does."""

    kind = "nowhere"
    version = 1
    committed_batch = -1

    def __init__(self, name: str) -> None:
        self.name = name

    def accept(self, schema: pa.Schema) -> None:
        """It takes all rows."""

    def writer(self, run: FlowRun, schema: pa.Schema) -> Nowhere:
        return self

    def write(self, rows: DataFrame, batch: Batch) -> Written:
        rows.write.format("noop").mode("append").save()
        return Written(0)

    def close(self) -> None:
        """Nothing is open."""


def fill(stem: Mainstem, topic: str, market: Nexmark, kind: Kind = "bids", *, rows: int | None = None) -> None:
    """Make a topic of a market's events, or of the first of them."""
    made = stem.create_topic(topic, schema=SCHEMAS[kind], key=KEYS[kind], event_time="at", partitions=PARTITIONS)
    left = market.count(kind) if rows is None else min(rows, market.count(kind))
    for batch in market.batches(kind, rows_max=APPEND_ROWS):
        made.append(batch.slice(0, left))
        left -= min(left, batch.num_rows)
        if not left:
            return


def fill_home(home: str, market: Nexmark, *, sealed: bool) -> None:
    """The topics that the queries read: all bids, those for the check, all auctions, and a few of them."""
    with mainstem.open(home, upkeep="manual") as stem:
        fill(stem, "bids", market)
        fill(stem, "checked", market, rows=CHECKED_ROWS)
        fill(stem, "auctions", market, "auctions")
        fill(stem, "few", market, "auctions", rows=FEW_ROWS)
        if sealed:
            for topic in stem.topics():
                stem.topic(topic).seal()


def program(query: Query, name: str, side: str, *, into: str, topic: str = "bids") -> Program:
    """The query over a topic as a program of one flow, and where its rows go."""

    def flows(stem: Mainstem) -> Iterator[Flow]:
        source = stem.topic(topic)
        bids = source.stream(watermark=WATERMARK) if query.stateful else source.stream()
        rows = query.frame(bids, stem.spark.read.parquet(side))
        sink: Any = Nowhere(name)
        if into == "table":
            sink = stem.view(name, key=list(query.key))
        elif into == "rows":
            sink = stem.topic(name)
        yield Flow(rows, into=sink)

    return flows


def answer_of(stem: Mainstem, query: Query, name: str) -> pa.Table:
    """What the sink holds now."""
    table = stem.view(name).to_arrow() if query.target == "table" else stem.topic(name).to_arrow()
    return table.drop_columns([column for column in ("record",) if column in table.column_names])


def measure(stem: Mainstem, files: NexmarkFiles, query: Query) -> Measured:
    """Run the query over all bids, twice, and measure the second time; then check what it wrote, or what it writes of the first ones."""
    _ = stem.spark  # up before the measuring begins, as on the other side
    with Stopwatch() as warm_up:
        stem.run(program(query, "q_warm_up", files.side, into=query.target), until="idle")
    with Stopwatch() as watch:
        with stem.start(program(query, "q_measured", files.side, into=query.target)) as running:
            running.wait_until_idle()
            batches = sum(handle.batches for handle in running)
    if query.target == "nowhere":
        stem.run(program(query, "q_checked", files.side, into="rows", topic="checked"), until="idle")
        found = files.check(query, answer_of(stem, query, "q_checked"), files="bids-00000.parquet")
    else:
        found = files.check(query, answer_of(stem, query, "q_measured"))
    return watch.measured(files.rows, warm_up_cpu_seconds=warm_up.cpu_seconds, batches=batches, answer_rows=found)


def clear(stem: Mainstem) -> None:
    """Take away what the programs made, so that the next run begins like this one."""
    for topic in stem.topics():
        if topic.startswith("q"):
            stem.delete_topic(topic)
    for folder in ("flows", "views"):
        shutil.rmtree(f"{stem.home}/{folder}", ignore_errors=True)


def main() -> None:
    process_tree.adopt_orphans()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flows_program", description=(__doc__ or ""))
    parser.add_argument("query", choices=QUERIES)
    parser.add_argument("--home", required=True, help="the home with the topics")
    parser.add_argument("--folder", required=True, help="where the files of the bids are")
    parser.add_argument("--events", type=int, required=True, help="of how many events they are")
    arguments = parser.parse_args()
    files = NexmarkFiles(arguments.folder, Nexmark(events=arguments.events))
    with mainstem.open(arguments.home, upkeep="manual") as stem:
        try:
            tell(measure(stem, files, QUERIES[arguments.query]))
        finally:
            clear(stem)


if __name__ == "__main__":
    main()
