"""SparkTopic: a topic as a DataFrame, as a streaming DataFrame, and as the sink of a flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from mainstem.arguments import checked_calls
from mainstem.batch import FlowRun
from mainstem.clock import as_us
from mainstem.durations import Duration, duration_us
from mainstem.errors import Invalid, SchemaMismatch
from mainstem.log.log import Log, TopicBackend
from mainstem.log.partition_reads import Position, offsets_at, stops_at
from mainstem.log.record import RECORD, RECORD_MARK, record_schema
from mainstem.log.rows.rows import check_rows
from mainstem.log.topic import Topic
from mainstem.log.topic_reads import MomentReads
from mainstem.log.watermark import WATERMARKED_RECORD
from mainstem.spark.build import NEVER_IDLE, Build, Leaf, current_build
from mainstem.spark.checkpoint.native_history import NativeHistory
from mainstem.spark.sources.topic_read import READ_RECORD, with_watermark
from mainstem.spark.sources.topic_request import OPTION, ROWS_MAX, TOPIC_SOURCE, TOPICS_SOURCE, Start, TopicRequest
from mainstem.spark.spark_session import has_times
from mainstem.spark.spark_types import check_no_times, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mainstem.spark.sources.topic_writer import TopicWriter

__all__ = ["SparkTopic", "history_rows", "idle_span", "leaf_rows", "leaf_stream"]


# The rows of sealed files from Spark's own file source, with the columns of the topic source.


OPTIONS = {
    # The age of a file counts from its seal. By default Spark skips files a week older than the newest it has seen.
    "maxFileAge": "36500d",
    # Files are identified by their unique names: by another path a file would be read twice.
    "fileNameOnly": "true",
    # Dates are in the proleptic Gregorian calendar.
    "datetimeRebaseMode": "CORRECTED",
}


def history_rows(spark: SparkSession, history: NativeHistory, shown: pa.Schema, delay: int | None) -> DataFrame:
    """The portions as they are placed, with the columns of `shown`; Spark reads only the columns that the flow needs.

    A column that was added later is null in older files, and one that was widened has its current type.
    """
    record = RECORD if delay is None else READ_RECORD
    stored = shown.set(len(shown) - 1, pa.field("record", record, metadata=RECORD_MARK))
    reader = spark.readStream.schema(spark_schema(stored)).options(**OPTIONS)
    rows = reader.parquet(f"file://{history.read}")
    return rows if delay is None else with_watermark(rows, delay)


# One stream of a program: of a topic, or of all topics that match a pattern.


def leaf_stream(
    new_leaf: Callable[[int], tuple[Leaf, str | None]], load: Callable[[Leaf, Build], DataFrame]
) -> DataFrame:
    """The next stream of the program that is being built, with Spark's watermark if it has a delay.

    `new_leaf` returns the leaf and its event-time column.
    """
    current = current_build()
    build, number = (Build(), -1) if current is None else (current, current.number())
    if build.run is not None and number not in build.leaves:
        return build.frames[number]
    new, event_time = new_leaf(number)
    leaf = build.leaves.setdefault(number, new)
    rows = load(leaf, build)
    if leaf.delay is not None:
        rows = rows.withWatermark(str(event_time), f"{leaf.delay} microseconds")
    if build.run is None:
        build.frames[number] = rows
    return rows


def leaf_rows(spark: SparkSession, leaf: Leaf, build: Build, **asked: Any) -> DataFrame:
    """The rows of a stream from our own source; `asked`: further fields of its request."""
    columns = tuple(leaf.schema.names) if leaf.columns is None else leaf.columns
    run = build.run or FlowRun("", 0, 1)
    request = TopicRequest(
        columns=columns, delay=leaf.delay, flow=run.flow, epoch=run.epoch, version=run.version, leaf=leaf.number,
        slices=spark.sparkContext.defaultParallelism, wait_ms=build.wait_ms, only_topics=build.only_topics,
        condition=leaf.condition, clock=build.clock, together=build.together, idle=leaf.idle, **asked,
    )  # fmt: skip
    if build.rows_max != ROWS_MAX and (build.rows_max < ROWS_MAX or not request.pattern):
        request = replace(request, rows_max=build.rows_max)
    build.requests.append(request)
    shown = leaf.schema.names if leaf.filled else columns
    schema = spark_schema(pa.schema([leaf.schema.field(name) for name in shown]))
    source = TOPICS_SOURCE if request.pattern else TOPIC_SOURCE
    return spark.readStream.format(source).schema(schema).option(OPTION, request.to_option()).load()


@checked_calls
class SparkTopic(Topic):
    """A topic in a program: a `Topic` with DataFrames."""

    kind = "topic"
    # A topic has no versions.
    version = 1
    takes_columns = True

    def __init__(self, log: Log, backend: TopicBackend, home: str, session: Callable[[], SparkSession]) -> None:
        super().__init__(log, backend)
        self._home = home
        self._session = session

    # Into Spark

    def read(
        self, *, watermark: Duration | None = None, start: Position = "earliest", stop: Position = "latest"
    ) -> DataFrame:
        """A snapshot of the topic as a DataFrame with `record` as the last column: transactions are complete or absent.

        It does not change, whatever happens to the topic, for as long as it or a frame derived from it is in use. `start`
        and `stop` are as in `batches`. With `watermark`, it has `record.watermark` as in `stream`.
        """
        from mainstem.spark.sources.topic_read import read_topic

        delay = self._delay(watermark)
        shown = self.shown_schema(delay)
        spark = self._session()
        if not has_times(spark):
            check_no_times(shown, f'topic "{self.name}"')
        frozen = read_topic(spark, self.backend, self._home, shown, start, stop, delay)
        return self._read_elsewhere(spark, shown, start, stop, delay) if frozen is None else frozen

    def _read_elsewhere(
        self, spark: SparkSession, shown: pa.Schema, start: Position, stop: Position, delay: int | None
    ) -> DataFrame:
        """From the log itself, up to its current end."""
        numbers = list(range(self.settings.partitions))
        reads = MomentReads(self.backend, self.backend.moment())
        starts = offsets_at("earliest", reads, numbers) | offsets_at(start, reads, numbers)
        request = TopicRequest(
            home=self._home, log=self._log.address, topic=self.name, columns=tuple(shown.names), delay=delay,
            start=_by_text(starts), stop=_by_text(stops_at(stop, reads, numbers)),
            slices=spark.sparkContext.defaultParallelism,
        )  # fmt: skip
        reader = spark.read.format(TOPIC_SOURCE).schema(spark_schema(shown)).option(OPTION, request.to_option())
        return reader.load()

    def stream(
        self,
        *,
        watermark: Duration | None = None,
        start: Position = "earliest",
        idle_after: Duration | Literal["never"] | None = None,
    ) -> DataFrame:
        """The topic's records, existing and new, as a streaming DataFrame with `record` as the last column.

        With `watermark` the event-time column gets Spark's watermark with that delay, and `record.watermark` is the
        watermark in the log when the record was appended.

        A flow's watermark is the lowest of its inputs. With `idle_after` this input no longer holds back the others when its
        topic had no append for that long; later rows may be late. By default it is never idle, except as the table of an
        `enrich` by time: there the default is the topic's own `idle_after`, and "never" turns it off.
        """
        delay = self._delay(watermark)
        idle = idle_span(idle_after, delay, f'topic "{self.name}"')

        def leaf(number: int) -> tuple[Leaf, str | None]:
            shown = self.shown_schema(delay)
            event_time = None if delay is None else self.settings.event_time
            return Leaf(
                number, self.name, shown, delay=delay, idle_after=idle, from_earliest=start == "earliest",
                start=_by_text(start) if isinstance(start, Mapping) else None,
            ), event_time  # fmt: skip

        return leaf_stream(leaf, lambda leaf, build: self._load(leaf, build, start))

    def _load(self, leaf: Leaf, build: Build, start: Position) -> DataFrame:
        spark = self._session()
        if build.files is not None:
            return history_rows(spark, build.files, leaf.schema, leaf.delay)
        if build.mode == "real-time":
            from mainstem.spark.real_time.real_time_rows import real_time_rows

            return real_time_rows(spark, self._log, self.name, leaf, start)
        cuts = build.cuts.get(self.name)
        if cuts is not None and start == "latest":
            raise Invalid(
                f'what was computed from topic "{self.name}" cannot be recomputed',
                detail='The flow starts at "latest", and the offsets at which it started are not recorded.',
                hint='Read it from "earliest", from a time or from offsets.',
            )
        history = None if build.after is None else build.after.end
        return leaf_rows(
            spark, leaf, build, home=self._home, log=self._log.address, topic=self.name, start=_position_to_json(start),
            history=history, cuts=cuts,
        )  # fmt: skip

    def shown_schema(self, delay: int | None = None) -> pa.Schema:
        """The columns a frame of this topic has, with their marks."""
        settings = self.settings
        record = RECORD if delay is None else WATERMARKED_RECORD
        stored = pa.schema([field.with_nullable(True) for field in settings.stored_schema])
        fields = list(record_schema(stored, settings.event_time, record=record))
        for place, name in enumerate(settings.key):
            at = stored.get_field_index(name)
            marks = {**(fields[at].metadata or {}), b"mainstem.key": str(place).encode()}
            fields[at] = fields[at].with_metadata(marks)
        return pa.schema(fields)

    def _delay(self, watermark: Duration | None) -> int | None:
        if watermark is None:
            return None
        if self.settings.event_time is None:
            raise Invalid(
                f'topic "{self.name}" has no event time',
                detail="A watermark is the event time up to which all rows are expected to have arrived.",
                hint="Create the topic with event_time=..., or leave watermark out.",
            )
        return duration_us(watermark, setting="watermark")

    # As a sink

    def accept(self, schema: pa.Schema) -> None:
        """Raise if rows of this schema could not be appended."""
        settings = self.settings
        check_rows(schema.empty_table(), settings)
        needed = {*settings.key, settings.event_time, *(field.name for field in settings.schema if not field.nullable)}
        if missing := sorted(name for name in needed - {None} if name is not None and name not in schema.names):
            raise SchemaMismatch(
                f'topic "{self.name}" needs the column "{missing[0]}", which the rows lack',
                detail=f"Their columns are: {', '.join(schema.names)}. The key, the event time and NOT NULL columns are "
                "required.",
                hint=f'Keep "{missing[0]}" in the rows, or write into another topic.',
                column=missing[0],
            )

    def writer(self, run: FlowRun, schema: pa.Schema) -> TopicWriter:
        """Begin a run of a flow into this topic."""
        from mainstem.spark.sources.topic_writer import TopicWriter

        return TopicWriter(self._log, self, run)


def idle_span(idle_after: Duration | Literal["never"] | None, delay: int | None, source: str) -> int | None:
    """The `idle_after` of a stream in microseconds, as a `Leaf` has it."""
    if idle_after is None or idle_after == "never":
        return None if idle_after is None else NEVER_IDLE
    if delay is None:
        raise Invalid(
            f"the stream of {source} has idle_after= but no watermark",
            detail="idle_after is the time after which an idle input no longer holds back the watermark of its flow.",
            hint="Give it a watermark too: stream(watermark=..., idle_after=...); or leave idle_after out.",
        )
    return duration_us(idle_after, setting="idle_after")


def _position_to_json(start: Position) -> Start:
    """A position that can be written as JSON."""
    if isinstance(start, datetime):
        return {"at": as_us(start)}
    return _by_text(start) if isinstance(start, Mapping) else start


def _by_text(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in offsets.items()}
