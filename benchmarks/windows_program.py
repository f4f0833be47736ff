"""Windows by Spark itself and by Mainstem, over the same topic: `python -m benchmarks.windows_program SHAPE SIDE --home HOME`.

SHAPE is tumbling, hopping, sessions or early; SIDE is spark or ours. Both sides read the topic `bids` in the same way, both
hand their rows to a sink that keeps them as they come. Runs twice, measures the second time and prints what it used; the
facts have a sum over the rows that both sides must agree on.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

import mainstem
from benchmarks import process_tree
from benchmarks.flows_program import clear
from benchmarks.measured_run import Measured, Stopwatch, tell
from benchmarks.nexmark_queries import WATERMARK
from mainstem.batch import Batch, FlowRun, Written
from mainstem.flows.flow import Flow
from mainstem.operators import every, hopping, sessions, tumbling, windowed
from mainstem.stem import Mainstem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHAPES = ("tumbling", "hopping", "sessions", "early")


class Kept:
    """A sink that keeps rows in memory, as they come."""

    kind = "kept"
    version = 1
    committed_batch = -1

    def __init__(self, name: str) -> None:
        self.name = name
        self.tables: list[pa.Table] = []

    def accept(self, schema: pa.Schema) -> None:
        """It takes all rows."""

    def writer(self, run: FlowRun, schema: pa.Schema) -> Kept:
        return self

    def write(self, rows: DataFrame, batch: Batch) -> Written:
        self.tables.append(rows.toArrow())
        return Written(self.tables[-1].num_rows)

    def close(self) -> None:
        """Nothing is open."""


def aggregates() -> list[Any]:
    from pyspark.sql import functions as F

    return [F.count("*").alias("bids"), F.max("price").alias("price")]


def by_spark(shape: str, bids: DataFrame) -> DataFrame:
    """The windows as Spark has them."""
    from pyspark.sql import functions as F

    if shape == "sessions":
        return bids.groupBy(F.session_window("at", "10 seconds").alias("window"), "bidder").agg(*aggregates())
    slide = {"hopping": "2 seconds"}.get(shape)
    window = F.window("at", "10 seconds") if slide is None else F.window("at", "10 seconds", slide)
    return bids.groupBy(window, "auction").agg(*aggregates())


def by_mainstem(shape: str, bids: DataFrame) -> DataFrame:
    """The same windows by the operator."""
    if shape == "sessions":
        return windowed(bids, sessions("10 seconds"), by="bidder", aggregates=aggregates())
    if shape == "early":
        return windowed(
            bids,
            tumbling("10 seconds"),
            by="auction",
            aggregates=aggregates(),
            early=every("1 second"),
            results="retract",
        )
    kind = hopping("10 seconds", slide="2 seconds") if shape == "hopping" else tumbling("10 seconds")
    return windowed(bids, kind, by="auction", aggregates=aggregates())


def run_spark(stem: Mainstem, shape: str) -> tuple[int, list[pa.Table]]:
    """All bids through Spark's own windows, shown once, when they are over."""
    tables: list[pa.Table] = []

    def keep(rows: DataFrame, number: int) -> None:
        tables.append(rows.toArrow())

    rows = by_spark(shape, stem.topic("bids").stream(watermark=WATERMARK))
    with tempfile.TemporaryDirectory(dir=stem.home) as folder:
        writer = rows.writeStream.outputMode("append").option("checkpointLocation", folder)
        query = writer.foreachBatch(keep).start()
        query.processAllAvailable()
        query.stop()
    return len(tables), tables


def run_ours(stem: Mainstem, shape: str, name: str) -> tuple[int, list[pa.Table]]:
    """All bids through the operator."""
    sink = Kept(name)

    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(by_mainstem(shape, stem.topic("bids").stream(watermark=WATERMARK)), into=sink)

    stem.run(flows, until="idle")
    return len(sink.tables), sink.tables


def answer_of(tables: list[pa.Table], until: int) -> dict[str, float]:
    """What both sides must agree on: of the windows that end before a time, how many there are, and their bids and prices.

    What was taken back counts against it.
    """
    windows, bids, price = 0, 0, 0
    for table in tables:
        ends = pc.cast(pc.struct_field(table.column("window"), "end"), pa.int64())
        shown = table.filter(pc.less_equal(ends, until))
        if "pane" in shown.column_names:
            change = pc.struct_field(shown.column("record"), "change")
            final = pc.equal(pc.struct_field(shown.column("pane"), "timing"), "on_time")
            shown = shown.filter(pc.and_(final, pc.not_equal(change, "delete")))
        windows += shown.num_rows
        bids += pc.sum(shown.column("bids")).as_py() or 0
        price += pc.sum(shown.column("price")).as_py() or 0
    return {"windows": windows, "window_bids": bids, "window_price": price}


def measure(stem: Mainstem, shape: str, side: str) -> Measured:
    _ = stem.spark
    bids = stem.topic("bids")
    rows = bids.backend
    count = sum(rows.latest(number) for number in range(bids.settings.partitions))
    run: Callable[[str], tuple[int, list[pa.Table]]] = lambda name: (  # noqa: E731
        run_spark(stem, shape) if side == "spark" else run_ours(stem, shape, name)
    )
    with Stopwatch() as warm_up:
        run("q_warm_up")
    with Stopwatch() as watch:
        batches, tables = run("q_measured")
    last = max((pc.max(pc.cast(bids.to_arrow(columns=["at"]).column("at"), pa.int64())).as_py() or 0) - 5_000_000, 0)
    return watch.measured(count, warm_up_cpu_seconds=warm_up.cpu_seconds, batches=batches, **answer_of(tables, last))


def main() -> None:
    process_tree.adopt_orphans()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.windows_program", description=(__doc__ or ""))
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("side", choices=["spark", "ours"])
    parser.add_argument("--home", required=True, help="the home with the topic")
    arguments = parser.parse_args()
    with mainstem.open(arguments.home, upkeep="manual") as stem:
        try:
            tell(measure(stem, arguments.shape, arguments.side))
        finally:
            clear(stem)


if __name__ == "__main__":
    main()
