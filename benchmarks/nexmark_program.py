"""One query of Nexmark on one side: `python -m benchmarks.nexmark_program QUERY SIDE --folder DATA --events N [--into view]`.

SIDE is ours (a flow over topics) or plain Spark over Parquet files: spark2 and spark6 (that many files a batch, state in
memory, which is Spark's default) and rocksdb (six files). Runs the query twice in one session. The first run is the
warm-up: its rows are kept and checked against DuckDB's answer. The second is measured; its rows are dropped, or go where
`--into` says: ours into a view or a topic, plain Spark's into Parquet files.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import mainstem
from benchmarks import process_tree
from benchmarks.measured_run import Measured, Stopwatch, tell
from benchmarks.nexmark_events import SCHEMAS, Nexmark
from benchmarks.nexmark_files import NexmarkFiles
from benchmarks.nexmark_queries import QUERIES, WATERMARK, Query
from benchmarks.nexmark_topics import clear
from benchmarks.nowhere import Nowhere
from mainstem.batch import Batch, Written
from mainstem.flows import program
from mainstem.flows.flow import Flow
from mainstem.spark.columnar_rows import ColumnarRows, ColumnTask, SendRows
from mainstem.spark.spark_session import spark_session
from mainstem.stem import Mainstem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OURS = "ours"
INTO = ("nowhere", "view", "topic")


@dataclass(frozen=True)
class PlainSide:
    """How plain Spark is run: how many files are a batch, and where its state is."""

    files: int
    store: str = "HDFSBackedStateStoreProvider"


PLAIN_SIDES = {
    "spark2": PlainSide(2),
    "spark6": PlainSide(6),
    "rocksdb": PlainSide(6, "RocksDBStateStoreProvider"),
}
SIDES = (OURS, *PLAIN_SIDES)
# Batches of all sides but spark2 have about the same number of rows.
FILES_OF_OURS = 6

# What Mainstem's session has for Mainstem's sake must not slow down the other side, and its state must fit into memory.
PLAIN_SETTINGS = {
    "spark.hadoop.parquet.page.verify-checksum.enabled": "false",
    "spark.scheduler.mode": "FIFO",
    "spark.driver.memory": "6g",
}


class Checked(Nowhere):
    """A sink that keeps the rows of each batch as Parquet files."""

    column_task: ColumnTask = SendRows()

    def __init__(self, name: str, folder: str) -> None:
        super().__init__(name)
        self.folder = folder

    def write(self, rows: DataFrame, batch: Batch) -> Written:
        keep_batch(rows, batch.number, self.folder)
        return Written(0)

    def write_columns(self, rows: ColumnarRows, batch: Batch) -> Written:
        table = rows.to_table()
        place = pa.repeat(pa.scalar(0, pa.int64()), table.num_rows)
        if "record" in table.column_names:
            change = pc.struct_field(table.column("record"), ["change"])
            table = table.filter(pc.fill_null(pc.not_equal(change, "delete"), True))
            place = pc.struct_field(table.column("record"), ["offset"])
            table = table.drop_columns(["record"])
        os.makedirs(f"{self.folder}/batch={batch.number}")
        path = f"{self.folder}/batch={batch.number}/rows.parquet"
        pq.write_table(table.append_column("place", place), path)
        return Written(table.num_rows)


def keep_batch(rows: DataFrame, number: int, folder: str) -> None:
    """Write a batch's rows, but not its deletes; `place` is their order in the batch, where there is one."""
    from pyspark.sql import functions as F

    place = F.lit(0)
    if "record" in rows.columns:
        rows, place = rows.where("NOT record.change <=> 'delete'"), F.col("record.offset")
    rows.withColumn("place", place).drop("record").write.mode("overwrite").parquet(f"{folder}/batch={number}")


def kept_rows(query: Query, folder: str) -> str:
    """The rows that were kept, as SQL; of rows that replace each other the last."""
    rows = f"FROM read_parquet('{folder}/*/*.parquet', hive_partitioning = true)"
    if not query.updates:
        return rows
    order = f"PARTITION BY {', '.join(query.key)} ORDER BY batch DESC, place DESC"
    return f"{rows} QUALIFY row_number() OVER ({order}) = 1"


class PlainSpark:
    """Plain Structured Streaming, tuned: what Mainstem is measured against."""

    def __init__(self, files: NexmarkFiles, query: Query, side: PlainSide, into: str, folder: str) -> None:
        self._files, self._query, self._side, self._into, self._folder = files, query, side, into, folder
        os.environ["MAINSTEM_WARM_WORKERS"] = "off"
        store = f"org.apache.spark.sql.execution.streaming.state.{side.store}"
        settings = PLAIN_SETTINGS | {"spark.sql.streaming.stateStore.providerClass": store}
        self._spark: SparkSession = spark_session("local[*]", settings)

    def check(self) -> int:
        self._run("checked", keep=True)
        return self._files.check(self._query, kept_rows(self._query, f"{self._folder}/checked/out"))

    def run(self) -> int:
        return self._run("measured", keep=self._into != "nowhere")

    def close(self) -> None:
        self._spark.stop()

    def _run(self, name: str, *, keep: bool) -> int:
        folder = f"{self._folder}/{name}"
        writer = self._frame().writeStream.option("checkpointLocation", f"{folder}/checkpoint")
        writer = writer.outputMode("update" if self._query.updates else "append").trigger(availableNow=True)
        if keep:
            writer = writer.foreachBatch(lambda rows, number: keep_batch(rows, number, f"{folder}/out"))
        else:
            writer = writer.format("noop")
        running = writer.start()
        running.awaitTermination()
        return sum(progress.numInputRows > 0 for progress in running.recentProgress)

    def _frame(self) -> DataFrame:
        inputs: dict[str, DataFrame] = {"side": self._spark.read.parquet(self._files.side)}
        for kind in self._query.reads:
            reader = self._spark.readStream.schema(SCHEMAS[kind]).option("maxFilesPerTrigger", self._side.files)
            rows = reader.parquet(self._files.of(kind))
            inputs[kind] = rows.withWatermark("at", WATERMARK) if self._query.watermark else rows
        return self._query.spark(inputs)


class Ours:
    """The query as a program of Mainstem."""

    def __init__(self, files: NexmarkFiles, query: Query, home: str, into: str, folder: str) -> None:
        self._files, self._query, self._into, self._folder = files, query, into, folder
        # There is no public setting for it: a flow takes what suits it.
        for limit in ("ROWS_MAX", "LIGHT_ROWS_MAX"):
            setattr(program, limit, files.rows_of_files(query, FILES_OF_OURS))
        self._stem = mainstem.open(home, upkeep="manual")
        clear(self._stem)  # an earlier run may have been killed
        _ = self._stem.spark

    def check(self) -> int:
        self._run("q_checked")
        if self._into == "nowhere":
            return self._files.check(self._query, kept_rows(self._query, self._folder))
        stored = self._stem.view("q_checked") if self._into == "view" else self._stem.topic("q_checked")
        return self._files.check(self._query, stored.to_arrow())

    def run(self) -> int:
        return self._run("q_measured")

    def close(self) -> None:
        clear(self._stem)
        self._stem.close()

    def _sink(self, stem: Mainstem, name: str) -> Any:
        if self._into == "view":
            return stem.view(name, key=list(self._query.key))
        if self._into == "topic":
            return stem.topic(name)
        return Checked(name, self._folder) if name == "q_checked" else Nowhere(name)

    def _run(self, name: str) -> int:
        def flows(stem: Mainstem) -> Iterator[Flow]:
            inputs: dict[str, DataFrame] = {"side": stem.spark.read.parquet(self._files.side)}
            for kind in self._query.reads:
                topic = stem.topic(kind)
                inputs[kind] = topic.stream(watermark=WATERMARK) if self._query.watermark else topic.stream()
            yield Flow(self._query.mainstem(inputs), into=self._sink(stem, name))

        with self._stem.start(flows) as running:
            running.wait_until_idle()
            return sum(handle.batches for handle in running)


def measure(side: PlainSpark | Ours, rows: int) -> Measured:
    """Check the answer, which is the warm-up; then measure."""
    with Stopwatch() as warm_up:
        answer_rows = side.check()
    with Stopwatch() as watch:
        batches = side.run()
    side.close()
    return watch.measured(rows, warm_up_cpu_seconds=warm_up.cpu_seconds, batches=batches, answer_rows=answer_rows)


def main() -> None:
    process_tree.adopt_orphans()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark_program", description=(__doc__ or ""))
    parser.add_argument("query", choices=QUERIES)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--folder", required=True, help="where the files are")
    parser.add_argument("--home", required=True, help="the home with the topics")
    parser.add_argument("--events", type=int, required=True, help="of how many events they are")
    parser.add_argument("--into", choices=INTO, default="nowhere")
    arguments = parser.parse_args()
    files = NexmarkFiles(arguments.folder, Nexmark(events=arguments.events))
    query = QUERIES[arguments.query]
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        side: PlainSpark | Ours
        if arguments.side == OURS:
            side = Ours(files, query, arguments.home, arguments.into, folder)
        else:
            side = PlainSpark(files, query, PLAIN_SIDES[arguments.side], arguments.into, folder)
        tell(measure(side, files.rows(query)))


if __name__ == "__main__":
    main()
