"""What is sealed, read back: a count and an aggregate, the columns that are read, the memory that a replay takes.

`python -m benchmarks.flows_history scan HOME | columns HOME few|2|10 | replay HOME` is one measured part in a process of its own.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import mainstem
from benchmarks import process_tree
from benchmarks.figure import Figure
from benchmarks.flows_run import FlowsRun, Where, say
from benchmarks.measured_run import Measured, Stopwatch, run_measured, tell
from benchmarks.nexmark_events import Nexmark
from benchmarks.nexmark_topics import clear, fill
from benchmarks.nowhere import Nowhere
from benchmarks.orders import files_in
from benchmarks.paired_timing import shown_seconds, timed_in_turns
from mainstem.flows.flow import Flow
from mainstem.stem import Mainstem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCAN_ROUNDS = 9
ALL_COLUMNS = ["id", "item", "description", "first_bid", "reserve", "at", "closes_at", "seller", "category", "extra"]
TWO_COLUMNS = ["id", "category"]
MODULE = "benchmarks.flows_history"


def scan(run: FlowsRun) -> list[Figure]:
    """`.read().count()` and one aggregate over sealed history, against spark.read.parquet on the same files."""
    say("scan: read() and spark.read.parquet in turns")
    facts = run_measured(MODULE, "scan", run.home("sealed")).facts
    return [
        Figure(
            f"{name} over sealed history: times spark.read.parquet",
            facts[f"{part}_slowdown"],
            at_most=1.2,
            detail=f"{shown_seconds(facts[f'{part}_ours'])} against {shown_seconds(facts[f'{part}_plain'])}",
            facts=facts,
        )
        for name, part in [(".read().count()", "count"), ("an aggregate of .read()", "aggregate")]
    ]


def columns(run: FlowsRun) -> list[Figure]:
    """Bytes that a flow over two of ten columns asks the system for, against one over all ten."""
    figures = []
    wheres: list[Where] = ["sealed", "tail"]
    for where in wheres:
        say(f"columns: two and ten, {where}")
        few, two, ten = (run_measured(MODULE, "columns", run.home(where), number) for number in ("few", "2", "10"))
        # What a flow reads that finds ten rows: Python's and Java's own files, in the driver and in the workers.
        read, baseline = two.bytes_read - few.bytes_read, ten.bytes_read - few.bytes_read
        figures.append(
            Figure(
                f"bytes read for 2 of 10 columns, {where}: share of those for all",
                read / baseline,
                at_most=0.2,
                detail=f"{read / two.rows:.0f} against {baseline / ten.rows:.0f} bytes a row",
                facts={"bytes_read": read, "baseline_bytes_read": baseline, "with_few_rows": few.bytes_read},
            )
        )
    return figures


def replay(run: FlowsRun) -> list[Figure]:
    """A view made from the whole log: the memory it takes at the most, against that for a tenth of the rows."""
    peaks = []
    for rows in (run.rebuild_rows // 10, run.rebuild_rows):
        say(f"replay: {rows:,} rows")
        home = f"{run.folder}/replay-{rows}"
        with mainstem.open(home, upkeep="manual") as stem:
            fill(stem, "bids", Nexmark(events=rows * 50 // 46 + 50), rows=rows)
            stem.topic("bids").seal()
        peaks.append(run_measured(MODULE, "replay", home))
        shutil.rmtree(home)
    less, more = peaks
    return [
        Figure(
            f"memory at most for a view from {run.rebuild_rows:,} rows: times that for a tenth of them",
            more.bytes_peak / less.bytes_peak,
            at_most=1.2,
            detail=f"{more.bytes_peak / 1e6:,.0f} MB against {less.bytes_peak / 1e6:,.0f} MB, "
            f"{more.rows / more.seconds / 1e3:,.0f} thousand rows/s",
            facts={"bytes_peak": more.bytes_peak, "baseline_bytes_peak": less.bytes_peak, "rows": more.rows},
        )
    ]


# What runs in a process of its own.


def measure_scan(home: str) -> Measured:
    from pyspark.sql import functions as F

    with mainstem.open(home, upkeep="manual") as stem:
        topic = stem.topic("bids")
        paths = files_in(topic, ".parquet")

        def aggregated(rows: DataFrame) -> Any:
            return rows.agg(F.sum("price"), F.max("at"), F.max("channel")).collect()

        def plain() -> DataFrame:
            return stem.spark.read.parquet(*paths)

        with Stopwatch() as watch:
            counted, expected = topic.read().count(), plain().count()
            assert counted == expected, f"read() counts {counted}, spark.read.parquet {expected}"
            assert aggregated(topic.read()) == aggregated(plain())
            count = timed_in_turns(lambda: topic.read().count(), lambda: plain().count(), rounds=SCAN_ROUNDS)
            aggregate = timed_in_turns(
                lambda: aggregated(topic.read()), lambda: aggregated(plain()), rounds=SCAN_ROUNDS
            )
        facts = {"files": float(len(paths))}
        for part, timing in (("count", count), ("aggregate", aggregate)):
            facts |= {
                f"{part}_slowdown": timing.slowdown,
                f"{part}_ours": timing.facts()["subject_seconds"],
                f"{part}_plain": timing.facts()["baseline_seconds"],
            }
        return watch.measured(counted, **facts)


def measure_columns(home: str, number: str) -> Measured:
    names = TWO_COLUMNS if number == "2" else ALL_COLUMNS

    def program(name: str) -> Callable[[Mainstem], Iterator[Flow]]:
        def flows(stem: Mainstem) -> Iterator[Flow]:
            rows = stem.topic("few" if number == "few" else "auctions").stream()
            yield Flow(rows.select(*names), into=Nowhere(name))

        return flows

    with mainstem.open(home, upkeep="manual") as stem:
        try:
            # The first time Java also reads its own classes.
            stem.run(program("q_first"), until="idle")
            with Stopwatch() as watch:
                stem.run(program("q_second"), until="idle")
            return watch.measured(stem.query("SELECT count(*) AS rows FROM auctions").to_pylist()[0]["rows"])
        finally:
            clear(stem)


def measure_replay(home: str) -> Measured:
    from pyspark.sql import functions as F

    def flows(stem: Mainstem) -> Iterator[Flow]:
        bids = stem.topic("bids").stream(watermark="1 second")
        counts = bids.groupBy(F.window("at", "10 seconds"), "auction").agg(F.count("*").alias("bids"))
        yield Flow(counts, into=stem.view("bids_per_auction", key=["window", "auction"]))

    with mainstem.open(home, upkeep="manual") as stem:
        with Stopwatch() as watch:
            stem.run(flows, until="idle")
        rows = stem.query("SELECT count(*) AS rows FROM bids").to_pylist()[0]["rows"]
        counted = stem.view("bids_per_auction").query("SELECT sum(bids)::BIGINT AS bids FROM bids_per_auction")
        assert counted.to_pylist() == [{"bids": rows}], f"the view counts {counted.to_pylist()}, the topic has {rows}"
        return watch.measured(rows)


def main() -> None:
    process_tree.adopt_orphans()
    part, home, *more = sys.argv[1:]
    parts: dict[str, Callable[..., Measured]] = {
        "scan": measure_scan,
        "columns": measure_columns,
        "replay": measure_replay,
    }
    tell(parts[part](os.path.abspath(home), *more))


if __name__ == "__main__":
    main()
