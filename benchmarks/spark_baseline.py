"""The queries in plain Structured Streaming, tuned: what Mainstem is measured against.

`python -m benchmarks.spark_baseline q0 --folder DATA --events N [--form json]` runs one query over files that
`NexmarkFiles` wrote, checks its answer and prints what it used.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import TYPE_CHECKING

from benchmarks import process_tree
from benchmarks.measured_run import Measured, Stopwatch, tell
from benchmarks.nexmark import SCHEMAS, Nexmark
from benchmarks.nexmark_files import NexmarkFiles
from benchmarks.nexmark_queries import QUERIES, WATERMARK, Query
from mainstem.spark.spark_session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# A file is a task, and two cores take two at a time.
FILES_PER_BATCH = 2
CHECKED_FILES = "bids-00000"
IN_MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
# What Mainstem's session has for Mainstem's sake: nothing of it is to slow down the other side.
PLAIN = {"spark.hadoop.parquet.page.verify-checksum.enabled": "false", "spark.scheduler.mode": "FIFO"}


def session(state: str = "rocksdb") -> SparkSession:
    """A session as Mainstem tunes it, with state in RocksDB, or in memory as Spark has it by itself."""
    store = {"spark.sql.streaming.stateStore.providerClass": IN_MEMORY} if state == "memory" else {}
    return spark_session("local[*]", PLAIN | store)


def read_stream(spark: SparkSession, files: NexmarkFiles, form: str, *, only: str = "*") -> DataFrame:
    """The bids as a stream of files."""
    reader = spark.readStream.schema(SCHEMAS["bids"]).option("maxFilesPerTrigger", FILES_PER_BATCH)
    folder = files.json if form == "json" else files.parquet
    return reader.option("pathGlobFilter", f"{only}.{form}").format(form).load(folder)


def rows_of(spark: SparkSession, files: NexmarkFiles, query: Query, form: str, *, only: str = "*") -> DataFrame:
    """What the query gives."""
    bids = read_stream(spark, files, form, only=only)
    if query.stateful:
        bids = bids.withWatermark("at", WATERMARK)
    return query.frame(bids, spark.read.parquet(files.side))


def start(rows: DataFrame, query: Query, folder: str, *, into: str) -> StreamingQuery:
    """Start it: into nowhere, or into Parquet files, in the mode the query has in Mainstem."""
    writer = rows.writeStream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    if into == "nowhere":
        return writer.format("noop").start()
    if query.mode == "append":
        return writer.format("parquet").start(f"{folder}/out")

    # Spark's own files take appended rows only.
    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{folder}/out/batch={number}")

    return writer.outputMode("update").foreachBatch(write).start()


def answer_of(query: Query, folder: str) -> str:
    """The rows that were written, as SQL; of updated rows the latest."""
    if query.mode == "append":
        return f"SELECT * FROM '{folder}/out/*.parquet'"
    key = ", ".join(query.key)
    everything = f"SELECT * FROM read_parquet('{folder}/out/*/*.parquet', hive_partitioning = true)"
    return f"FROM ({everything}) QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY batch DESC) = 1"


def measure(files: NexmarkFiles, query: Query, form: str, state: str, folder: str) -> Measured:
    """Run the query over all files, twice, and measure the second time; then check what it wrote, or what it writes of the first file."""
    spark = session(state)
    into = "nowhere" if query.target == "nowhere" else "files"

    def run(name: str, *, into: str, only: str = "*") -> StreamingQuery:
        running = start(rows_of(spark, files, query, form, only=only), query, f"{folder}/{name}", into=into)
        running.awaitTermination()
        return running

    with Stopwatch() as warm_up:
        run("warm_up", into=into)
    with Stopwatch() as watch:
        batches = len(run("measured", into=into).recentProgress)
    if into == "nowhere":
        run("checked", into="files", only=CHECKED_FILES)
        found = files.check(query, answer_of(query, f"{folder}/checked"), files=f"{CHECKED_FILES}.parquet")
    else:
        found = files.check(query, answer_of(query, f"{folder}/measured"))
    spark.stop()
    return watch.measured(files.rows, warm_up_cpu_seconds=warm_up.cpu_seconds, batches=batches, answer_rows=found)


def main() -> None:
    process_tree.adopt_orphans()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_baseline", description=(__doc__ or ""))
    parser.add_argument("query", choices=QUERIES)
    parser.add_argument("--folder", required=True, help="where the files of the bids are")
    parser.add_argument("--events", type=int, required=True, help="of how many events they are")
    parser.add_argument("--form", choices=["parquet", "json"], default="parquet")
    parser.add_argument("--state", choices=["memory", "rocksdb"], default="rocksdb")
    arguments = parser.parse_args()
    files = NexmarkFiles(arguments.folder, Nexmark(events=arguments.events))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        tell(measure(files, QUERIES[arguments.query], arguments.form, arguments.state, folder))


if __name__ == "__main__":
    main()
