"""How fast a topic is read, against pyarrow reading the same rows from files of its own."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figure import Figure
from benchmarks.orders import create_orders, files_in, open_home, order_batch
from benchmarks.paired_timing import PairedTiming, timed_in_turns
from benchmarks.run_size import RunSize


def rows_in(batches: Iterable[pa.RecordBatch]) -> int:
    """Take every batch, keep none."""
    return sum(batch.num_rows for batch in batches)


def arrow_file_rows(path: str) -> int:
    """Every batch of an Arrow file, read by `pread` (not mapped)."""
    with pa.OSFile(path) as source:
        reader = pa.ipc.open_file(source)
        return rows_in(reader.get_batch(number) for number in range(reader.num_record_batches))


def parquet_rows(paths: list[str]) -> int:
    """Every row of Parquet files, pages checked."""
    return sum(pq.read_table(path, page_checksum_verification=True).num_rows for path in paths)


def reading(folder: str, size: RunSize) -> list[Figure]:
    """The active segment, then the same rows sealed."""
    with open_home(f"{folder}/reading") as stem:
        # Large enough for all: what is read is one segment that is still blocks.
        topic = create_orders(stem, segment_bytes_max="4 GiB")
        batch = order_batch(topic)
        path = f"{folder}/orders.arrow"
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            for _ in range(size.read_batches):
                topic.append(batch)
                writer.write_batch(batch)
        expected = size.read_batches * batch.num_rows
        if not expected == rows_in(topic.batches()) == arrow_file_rows(path):
            raise AssertionError("the topic and the Arrow file do not hold the same rows")
        active = timed_in_turns(
            lambda: rows_in(topic.batches()), lambda: arrow_file_rows(path), rounds=size.read_rounds
        )
        topic.seal()
        sealed_files = files_in(topic, ".parquet")
        if not expected == rows_in(topic.batches()) == parquet_rows(sealed_files):
            raise AssertionError("the topic and its sealed files do not hold the same rows")
        sealed = timed_in_turns(
            lambda: rows_in(topic.batches()), lambda: parquet_rows(sealed_files), rounds=size.read_rounds
        )
    return [
        _figure("read an active segment: rate of pyarrow on an Arrow file", active, 0.5, expected),
        _figure("read sealed: rate of pyarrow.parquet with page checksums", sealed, 0.7, expected),
    ]


def _figure(name: str, timing: PairedTiming, at_least: float, rows: int) -> Figure:
    return Figure(
        name, timing.rate, at_least=at_least, detail=f"{timing.detail} for {rows:,} rows", facts=timing.facts()
    )
