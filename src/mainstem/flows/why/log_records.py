"""LogRecords: the records of topics within some limits, read by DuckDB over the sealed files and what is not sealed yet.

DuckDB reads the columns that the limits name, and of those only the groups of rows whose statistics allow a match. The rest of a
record is read for those that match.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.clock import as_datetime
from mainstem.flows.why.batch_reports import UNKNOWN
from mainstem.flows.why.limits import Equal, Limit
from mainstem.flows.why.traced_rows import Inexact, freeze
from mainstem.log.log import Log, Promise, TopicBackend
from mainstem.log.record import RECORD, record_schema
from mainstem.log.rows.schema_evolution import fit
from mainstem.log.sql_sandbox import quote
from mainstem.log.watermark import WATERMARKED_RECORD, times_of, watermarks, with_watermark

__all__ = ["LogRecords", "Span"]

# From which offset of each partition up to which (not included), by topic.
Span = Mapping[int, tuple[int, int]]
# More records are not what a person looks at.
RECORDS_MAX = 1_000_000
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
_TIMES = ("observed_up_to", "stated_watermark")


class LogRecords:
    """The records of topics that a flow had read by some batch: `spans` by topic; a topic that is missing is read whole."""

    def __init__(self, log: Log, spans: Mapping[str, Span]) -> None:
        self._log = log
        self._spans = spans
        # What of a topic is no longer there, in words; and up to which offsets compaction may have removed records.
        self.lost: dict[str, str] = {}
        self.compacted: dict[str, dict[int, int]] = {}
        # The first offset of each partition that was read, by topic.
        self.first_read: dict[str, dict[int, int]] = {}

    def read(self, source: str, delay: int | None, limits: Sequence[Limit]) -> pa.Table:
        """The records, in the order of partition and offset, with `record` as the last column; its watermark if there is a delay."""
        if source.startswith(("view ", "topics ")):
            raise Inexact(f"it reads {'the ' + source if source.startswith('view ') else 'the topics ' + source[7:]}")
        topic = self._log.open_topic(source)
        spans = self._spans_of(topic)
        # Kafka does not record the watermark of each record: then nothing says which of them were late.
        delay = delay if Promise.WATERMARKS in self._log.promises else None
        found = [self._sealed(topic, delay, limits, spans), self._unsealed(topic, delay, limits, spans)]
        table = pa.concat_tables([it for it in found if it is not None])
        if table.num_rows > RECORDS_MAX:
            raise Inexact(f"it may have been made of more than {RECORDS_MAX:,} records")
        record = table.column("record").combine_chunks()
        first = self.first_read.setdefault(source, {})
        for number in record.field("partition").unique().to_pylist():
            offsets = record.field("offset").filter(pc.equal(record.field("partition"), number))
            first[number] = min(first.get(number, offsets[0].as_py()), pc.min(offsets).as_py())
        order = np.lexsort((np.asarray(record.field("offset")), np.asarray(record.field("partition"))))
        return table.take(pa.array(order))

    def _spans_of(self, topic: TopicBackend) -> dict[int, tuple[int, int]]:
        known = self._spans.get(topic.name)
        found = {}
        for number in range(topic.settings.partitions):
            # A partition that the flow has not read has no place in the span.
            first, stop = (0, topic.latest(number)) if known is None else known.get(number, (0, 0))
            if first == UNKNOWN:
                if stop > 0:
                    raise Inexact(f"it is not known at which offsets of {topic.name} the flow began")
                first = 0
            if (cleaned := _cleaned(topic, number)) > first and stop > first:
                self.compacted.setdefault(topic.name, {})[number] = cleaned
            earliest = topic.earliest(number)
            if earliest > first and stop > first:
                self.lost[topic.name] = f"no longer has its records before offset {earliest:,} of partition {number}"
            found[number] = max(first, earliest), min(stop, topic.latest(number))
        return found

    def _sealed(
        self, topic: TopicBackend, delay: int | None, limits: Sequence[Limit], spans: dict[int, tuple[int, int]]
    ) -> pa.Table | None:
        """Those of sealed files; `spans` are left with what is not sealed."""
        sealed = topic.sealed_files()
        if sealed is None:
            return None
        paths, bounds = [], []
        for number, segments in sealed.segments.items():
            first, stop = spans.get(number, (0, 0))
            chosen = [it for it in segments if it.rows and it.base < stop and it.end > first]
            paths += [sealed.path(number, segment) for segment in chosen]
            if chosen:
                bounds.append(f'(record.partition = {number} AND record."offset" BETWEEN {first} AND {stop - 1})')
            if segments and number in spans:
                spans[number] = max(first, segments[-1].end), stop
        if not paths:
            return None
        where, values = _conditions(limits, topic.settings.schema)
        # A time without a zone is one of UTC; what a file lacks, its topic got later.
        listed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
        files = f"read_parquet([{listed}], union_by_name = true)"
        columns = {*topic.settings.schema.names, "record"}
        with _connected() as connection:
            described = connection.execute(f"SELECT * FROM {files} LIMIT 0").description or ()
            shown = ", ".join(quote(name) for name, *_ in described if name in columns)
            where.append(f"({' OR '.join(bounds)})")
            sql = f"SELECT {shown} FROM {files} WHERE {' AND '.join(where)} LIMIT {RECORDS_MAX + 1}"
            rows = connection.sql(sql, params=values).to_arrow_table()
        return _shown(topic, rows, delay)

    def _unsealed(
        self, topic: TopicBackend, delay: int | None, limits: Sequence[Limit], spans: Mapping[int, tuple[int, int]]
    ) -> pa.Table:
        moment = topic.moment()
        batches = [
            batch for number, (first, stop) in spans.items() if first < stop for batch in moment.read(number, first, stop, None, delay)
        ]  # fmt: skip
        schema = _schema(topic, delay)
        if not batches:
            return schema.empty_table()
        rows = pa.Table.from_batches(batches)
        where, values = _conditions(limits, topic.settings.schema)
        if where:
            numbered = rows.append_column("mainstem_row", pa.array(np.arange(rows.num_rows)))
            used = [name for name in numbered.column_names if name == "mainstem_row" or name in _columns_in(limits)]
            with _connected() as connection:
                connection.register("unsealed", numbered.select(used))
                sql = f"SELECT mainstem_row FROM unsealed WHERE {' AND '.join(where)} ORDER BY 1"
                chosen = connection.sql(sql, params=values).to_arrow_table()
            rows = rows.take(chosen.column(0))
        return rows.cast(schema)


def _cleaned(topic: TopicBackend, partition: int) -> int:
    """Up to which offset compaction may have removed records."""
    found = topic.compaction(partition)
    if found is not None:
        return found.cleaned
    # A log that does not tell.
    return topic.latest(partition) if topic.settings.keep.compacted else 0


def _connected() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _columns_in(limits: Sequence[Limit]) -> set[str]:
    return {str(limit.of[1]) for limit in limits}


def _conditions(limits: Sequence[Limit], schema: pa.Schema) -> tuple[list[str], list[Any]]:
    """SQL conditions, and their parameters."""
    found: list[str] = []
    values: list[Any] = []
    for limit in limits:
        path = limit.of[1:]
        if path[0] not in schema.names and path[0] != "record":
            continue
        column = ".".join(map(quote, path))
        if isinstance(limit, Equal):
            given = [value for value in limit.values if value is not None]
            if any(isinstance(value, dict | list) or freeze(value) == "NaN" for value in given):
                continue
            parts = [f"{column} IN ({', '.join('?' * len(given))})"] if given else []
            parts += [f"{column} IS NULL"] if None in limit.values else []
            found.append(f"({' OR '.join(parts) or 'FALSE'})")
            values += given
        else:
            of = schema.field(path[0]).type if path[0] in schema.names else None
            low, high = max(limit.low, _FIRST), min(limit.high, _LAST)
            if len(path) > 1 or of is None or not pa.types.is_timestamp(of):
                continue
            # A time without a zone is one of UTC, as for Spark in UTC.
            times = [as_datetime(at) if of.tz else as_datetime(at).replace(tzinfo=None) for at in (low, high)]
            found.append(f"{column} BETWEEN ? AND ?")
            values += times
    return found, values


def _schema(topic: TopicBackend, delay: int | None) -> pa.Schema:
    settings = topic.settings
    record = RECORD if delay is None else WATERMARKED_RECORD
    schema = record_schema(settings.stored_schema, settings.event_time, record=record)
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _shown(topic: TopicBackend, rows: pa.Table, delay: int | None) -> pa.Table:
    """Records of sealed files as readers get them: with the topic's current columns, and the watermark of each."""
    schema = _schema(topic, delay)
    plain = pa.schema(list(schema)[:-1])
    stored = rows.column("record").combine_chunks()
    record = pa.StructArray.from_arrays([stored.field(it.name).cast(it.type) for it in RECORD], fields=list(RECORD))
    if delay is not None:
        times = [times_of(stored.field(name).cast(pa.timestamp("us", "UTC"))) for name in _TIMES]
        record = with_watermark(record, watermarks(times[0], times[1], delay))
    batch = rows.select([name for name in rows.column_names if name != "record"]).combine_chunks()
    batches = batch.to_batches() or [pa.RecordBatch.from_pylist([], schema=batch.schema)]
    fitted = [fit(it, plain) if it.num_columns else it for it in batches]
    columns = [
        pa.chunked_array([it.column(place) for it in fitted]).cast(plain.field(place).type)
        for place in range(len(plain))
    ]
    return pa.table([*columns, record], schema=schema)
