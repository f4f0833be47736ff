"""A sealed segment: one Parquet file, which any tool can read.

Its columns are the topic's, then one struct `record`: partition, offset, appended_at, change, headers, and
observed_up_to and stated_watermark, from which the watermark at each record is computed. Rows are in the order of their
offsets, without aborted records and markers (the manifest covers their offsets). Pages have checksums, and so has every
16 KiB of the file (`mainstem.blocks` in its metadata); the checksum of the whole file is in the manifest. A file never
changes: compaction writes a new one.

The metadata also records which transactions wrote the records (`mainstem.transactions`; see `transaction_cut`): a flow
ends its batches where no transaction is split, even far back in history.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mainstem.durable_files import Files, remove_if_there
from mainstem.log.embedded.read.sealed_check import BLOCKS, BlockChecksums, check_ranges, corrupt_segment, span_of
from mainstem.log.embedded.read.topic_schemas import UNREADABLE, Reading, TopicSchemas
from mainstem.log.record import RECORD
from mainstem.log.rows.schema_evolution import fit
from mainstem.log.transaction_cut import NO_SPANS, TransactionSpans
from mainstem.log.watermark import times_of, watermarks, with_watermark

TIME = pa.timestamp("us", "UTC")
SEALED_RECORD = pa.struct([*RECORD, ("observed_up_to", TIME), ("stated_watermark", TIME)])

# The leaf columns of the `record` that readers get.
RECORD_COLUMNS = [f"record.{field.name}" for field in RECORD]

OFFSET = "record.offset"

# DuckDB and Spark read row groups: large enough for fast scans, small enough for a reader's memory.
ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 32 << 20


TRANSACTIONS = b"mainstem.transactions"


class SealedFile(NamedTuple):
    """A written file: its size, the checksum of its bytes, and its number of rows."""

    bytes: int
    crc32c: int
    rows: int


def sealed_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of the file: all columns are nullable, since a tombstone has only the key."""
    fields = [field.with_nullable(True) for field in schema]
    return pa.schema([*fields, pa.field("record", SEALED_RECORD)])


def write_sealed(
    files: Files, path: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], spans: TransactionSpans = NO_SPANS
) -> SealedFile:
    """Write the file, synced when this returns; the caller syncs the directory. A failed write leaves nothing.

    `spans`: the transactions that wrote its records, each with all its spans in this partition.
    """
    noted = {TRANSACTIONS: spans.to_text()} if len(spans.numbers) else {}
    try:
        rows, body, blocks = _write_rows(files, path, schema, batches, noted)
        handle = files.open(path)
        try:
            files.sync(handle)
            size = files.size(handle)
            crc = blocks.with_rest(files.pread(handle, size - body, body))
        finally:
            files.close(handle)
    except Exception:
        # The disk may be full; what cannot be removed now is removed by the next pass.
        with suppress(OSError):
            remove_if_there(files, path)
        raise
    return SealedFile(size, crc, rows)


def _write_rows(
    files: Files, path: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], noted: Mapping[bytes, str]
) -> tuple[int, int, BlockChecksums]:
    """Returns the number of rows, their size in bytes, and the checksums of those bytes."""
    written = 0
    held: list[pa.RecordBatch] = []
    held_rows = held_bytes = 0
    with (
        files.arrow_output(path) as sink,
        pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True, version="2.6") as writer,
    ):
        for batch in batches:
            held.append(batch)
            held_rows += batch.num_rows
            held_bytes += batch.nbytes
            if held_rows >= ROW_GROUP_ROWS or held_bytes >= ROW_GROUP_BYTES:
                written += _write_group(writer, held, schema)
                held_rows = held_bytes = 0
        written += _write_group(writer, held, schema)
        body = sink.tell()
        handle = files.open(path)
        try:
            blocks = BlockChecksums.of(files, handle, body)
        finally:
            files.close(handle)
        writer.add_key_value_metadata({BLOCKS: blocks.to_text(), **noted})
    return written, body, blocks


def _write_group(writer: pq.ParquetWriter, held: list[pa.RecordBatch], schema: pa.Schema) -> int:
    table = pa.Table.from_batches(held, schema)
    held.clear()
    if len(table):
        # Combined first: many small chunks would be written value by value.
        writer.write_table(table.combine_chunks(), row_group_size=ROW_GROUP_ROWS)
    return len(table)


def read_spans(files: Files, path: str) -> TransactionSpans:
    """The transactions recorded in a sealed file."""
    try:
        with files.arrow_input(path) as source:
            noted = (pq.read_metadata(source).metadata or {}).get(TRANSACTIONS)
            return NO_SPANS if noted is None else TransactionSpans.from_text(noted)
    except (pa.ArrowInvalid, pa.ArrowSerializationError, ValueError, zlib.error, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise corrupt_segment(path, None) from error


def read_sealed(
    files: Files,
    path: str,
    *,
    columns: Sequence[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    record_columns: Sequence[str] = tuple(RECORD_COLUMNS),
) -> Iterator[pa.RecordBatch]:
    """The rows with offsets from `start` up to `stop`, with the requested columns and `record`; each page is
    verified."""
    try:
        with files.arrow_input(path) as source:
            file = pq.ParquetFile(source, page_checksum_verification=True)
            wanted = [name for name in file.schema_arrow.names if name != "record"]
            if columns is not None:
                wanted = [name for name in wanted if name in columns]
            leaf = _offset_leaf(file)
            for group in range(file.num_row_groups):
                described = file.metadata.row_group(group)
                statistics = described.column(leaf).statistics
                if statistics.max < start or (stop is not None and statistics.min >= stop):
                    continue
                # Without gaps the offsets are known: a third of what reading one narrow column takes.
                known = OFFSET in record_columns and statistics.max - statistics.min + 1 == described.num_rows
                read = [*wanted, *(name for name in record_columns if not (known and name == OFFSET))]
                check_ranges(files, path, _ranges(file, group, _leaves(file, read)))
                table = file.read_row_group(group, columns=read)
                if known:
                    table = _add_offsets(table, statistics.min, described.num_rows)
                if statistics.min < start or (stop is not None and statistics.max >= stop):
                    table = _between(table, start, stop)
                yield from table.to_batches()
    except (pa.ArrowInvalid, pa.ArrowSerializationError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise corrupt_segment(path, span_of(files, path)) from error


def read_for_reader(
    files: Files, path: str, schemas: TopicSchemas, reading: Reading, *, start: int, stop: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The same for readers: the topic's current columns, each batch with the offset to continue from."""
    plain, shown = schemas.output_schemas(reading)
    record_type = RECORD if reading.delay is None else SEALED_RECORD
    leaves = [f"record.{at.name}" for at in record_type if _is_needed(at.name, reading)]
    for piece in read_sealed(files, path, columns=plain.names, start=start, stop=stop, record_columns=leaves):
        for first in range(0, piece.num_rows, reading.rows_max):
            batch = piece.slice(first, reading.rows_max)
            record = batch.column(batch.num_columns - 1)
            resume = record.field("offset")[-1].as_py() + 1
            if len(leaves) < len(record_type):
                record = _add_nulls(record, record_type)
            if reading.delay is not None:
                record = add_watermark(record, reading.delay)
            try:
                rows = fit(batch.select(batch.schema.names[:-1]), plain) if plain.names else batch.select([])
            except UNREADABLE as error:
                raise schemas.other_columns(record.field("offset")[0].as_py(), error) from error
            yield resume, pa.RecordBatch.from_arrays([*rows.columns, record], schema=shown)


def _is_needed(field: str, reading: Reading) -> bool:
    return (
        reading.fields is None or field in ("offset", "observed_up_to", "stated_watermark") or field in reading.fields
    )


def _add_nulls(record: pa.StructArray, wanted: pa.StructType) -> pa.StructArray:
    """All fields of a type: null, where they were not read."""
    there = {at.name for at in record.type}
    values = [record.field(at.name) if at.name in there else pa.nulls(len(record), at.type) for at in wanted]
    return pa.StructArray.from_arrays(values, fields=list(wanted))


def _add_offsets(table: pa.Table, first: int, count: int) -> pa.Table:
    """The rows of a row group, with their offsets in `record`."""
    parts = {"offset": pa.array(np.arange(first, first + count, dtype=np.int64))}
    fields = {"offset": SEALED_RECORD.field("offset")}
    if "record" in table.column_names:
        record = table.column("record").combine_chunks()
        parts |= {field.name: record.field(field.name) for field in record.type}
        fields |= {field.name: field for field in record.type}
        table = table.drop_columns(["record"])
    names = [field.name for field in SEALED_RECORD if field.name in parts]
    whole = pa.StructArray.from_arrays([parts[name] for name in names], fields=[fields[name] for name in names])
    return table.append_column("record", whole) if table.num_columns else pa.table({"record": whole})


def _offset_leaf(file: pq.ParquetFile) -> int:
    return next(i for i in range(len(file.schema)) if file.schema.column(i).path == OFFSET)


def _leaves(file: pq.ParquetFile, columns: Sequence[str]) -> list[int]:
    """The indexes of the leaf columns of these columns."""
    paths = [file.schema.column(index).path for index in range(len(file.schema))]
    within = tuple(f"{name}." for name in columns)
    return [index for index, path in enumerate(paths) if path in columns or path.startswith(within)]


def _ranges(file: pq.ParquetFile, group: int, leaves: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The byte ranges of these leaf columns of a row group."""
    described = file.metadata.row_group(group)
    for leaf in leaves:
        chunk = described.column(leaf)
        start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
        yield start, start + chunk.total_compressed_size


def _between(table: pa.Table, start: int, stop: int | None) -> pa.Table:
    """A range of offsets, as a slice: rows are in the order of their offsets."""
    offsets = pc.struct_field(table.column("record"), "offset").to_numpy()
    first = int(np.searchsorted(offsets, start))
    last = len(offsets) if stop is None else int(np.searchsorted(offsets, stop))
    return table.slice(first, max(0, last - first))


def add_watermark(record: pa.StructArray, delay: int) -> pa.StructArray:
    """The `record` of a sealed file for readers that requested the watermark."""
    *shown, observed, declared = record.flatten()
    plain = pa.StructArray.from_arrays(shown, fields=list(RECORD))
    return with_watermark(plain, watermarks(times_of(observed), times_of(declared), delay))
