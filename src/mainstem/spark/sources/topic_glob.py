"""TopicGlob: all topics whose names match a pattern, as one stream (later topics join it) or as one frame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import reduce
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from mainstem.arguments import checked_calls
from mainstem.durations import Duration, duration_us
from mainstem.errors import Invalid, SchemaMismatch, TopicNotFound
from mainstem.log.log import Log
from mainstem.log.record import record_schema
from mainstem.log.rows.schema_evolution import evolve
from mainstem.log.topic import Topic
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.watermark import WATERMARKED_RECORD
from mainstem.spark.build import Build, Leaf
from mainstem.spark.sources.spark_topic import SparkTopic, idle_span, leaf_rows, leaf_stream
from mainstem.spark.spark_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["REFUSED_SCHEMA", "REFUSED_TOPICS", "TOPIC", "TopicGlob", "match_topics", "why_not"]

# The column with the topic of a row.
TOPIC = "topic"

# The topics that a flow over a pattern has skipped, and why.
REFUSED_TOPICS = "mainstem.refused_topics"
REFUSED_SCHEMA = "flow STRING, topics STRING, topic STRING, reason STRING"

# Suffixes and prefix of the names of Mainstem's own topics.
_OWN_ENDS = (".late", ".rejected", ".unreadable")
_OWN_BEGINNING = "mainstem."


def match_topics(glob: str, names: Iterable[str]) -> list[str]:
    """The matching names, without those of Mainstem's own topics (`mainstem.*`, `*.late`, `*.rejected`, ...).

    >>> match_topics("orders*", ["orders", "orders.eu", "orders.late", "orders.emails.rejected", "clicks"])
    ['orders', 'orders.eu']
    """
    return sorted(
        name
        for name in names
        if fnmatchcase(name, glob) and not name.startswith(_OWN_BEGINNING) and not name.endswith(_OWN_ENDS)
    )


def why_not(settings: TopicSettings, wanted: pa.Schema, event_time: str | None) -> str:
    """Why a topic cannot be part of a stream with these columns; empty if it can."""
    stored = settings.stored_schema
    both = [field.with_nullable(True).remove_metadata() for field in wanted if field.name in stored.names]
    if event_time is not None and settings.event_time != event_time:
        return f'its event time is {settings.event_time or "none"}, not "{event_time}"'
    if not both:
        # Its rows are counted, with nulls in all columns.
        return ""
    try:
        evolve(
            pa.schema([stored.field(field.name).with_nullable(True).remove_metadata() for field in both]),
            pa.schema(both),
        )
    except SchemaMismatch as error:
        return error.summary
    return ""


@checked_calls
class TopicGlob:
    """The topics that match a pattern; created by `stem.topics("orders.*")`."""

    def __init__(self, log: Log, glob: str, home: str, session: Callable[[], SparkSession]) -> None:
        self._log = log
        self._glob = glob
        self._home = home
        self._session = session

    def __repr__(self) -> str:
        return f"<TopicGlob {self._glob!r} of {self._log.title}>"

    def names(self) -> list[str]:
        """The topics that match now, sorted. Mainstem's own are never among them."""
        return match_topics(self._glob, self._log.topic_names())

    def stream(
        self,
        *,
        watermark: Duration | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        idle_after: Duration | Literal["never"] | None = None,
    ) -> DataFrame:
        """The records of all of them, existing and new, with the name of the topic in the column `topic` before `record`.

        It has the columns of all of them, null if a topic lacks the column. A topic that is created later joins with
        its first record, with the columns that the stream has, unless one has another type: then it is skipped, and
        a row in the topic `mainstem.refused_topics` says why.

        `idle_after`, as in `topic.stream`: it no longer holds back the other inputs of its flow when none of the topics had an
        append for that long. By default it is never idle.
        """
        delay = None if watermark is None else duration_us(watermark, setting="watermark")
        idle = idle_span(idle_after, delay, f'the topics "{self._glob}"')

        def leaf(number: int) -> tuple[Leaf, str | None]:
            # A flow that runs skips a topic that does not fit; so does its next run.
            refused = self._refused_topics()
            names = self.names()
            shown, event_time = self._unite_columns(delay, [name for name in names if name not in refused] or names)
            return Leaf(
                number, f"topics {self._glob}", shown, delay=delay, idle_after=idle, from_earliest=start == "earliest"
            ), event_time

        def load(leaf: Leaf, build: Build) -> DataFrame:
            asked = {"home": self._home, "log": self._log.address, "topic": self._glob, "start": start, "pattern": True}
            return leaf_rows(self._session(), leaf, build, **asked)

        return leaf_stream(leaf, load)

    def read(self, *, watermark: Duration | None = None) -> DataFrame:
        """A snapshot of the topics, as a DataFrame with the columns of `stream`.

        In each topic a transaction is complete or absent; the topics are read one after another.
        """
        from pyspark.sql import functions as F

        names = self.names()
        delay = None if watermark is None else duration_us(watermark, setting="watermark")
        shown, _ = self._unite_columns(delay, names)
        schema = spark_schema(shown)
        frames = []
        for name in names:
            rows = SparkTopic(self._log, self._log.open_topic(name), self._home, self._session).read(
                watermark=watermark
            )
            there = {TOPIC: F.lit(name), **{column: F.col(f"`{column}`") for column in rows.columns}}
            frames.append(
                rows.select(
                    *(there.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in schema)
                )
            )
        both = reduce(lambda one, other: one.union(other), frames)
        # A union drops the metadata of columns.
        return both.select(*(F.col(f"`{field.name}`").alias(field.name, metadata=field.metadata) for field in schema))

    def _unite_columns(self, delay: int | None, names: Sequence[str] | None = None) -> tuple[pa.Schema, str | None]:
        """The columns of these topics, or of all, and their event time if it is the same."""
        names = self.names() if names is None else names
        topics = [self._log.open_topic(name).settings for name in names]
        if not topics:
            raise TopicNotFound(
                f'no topic matches "{self._glob}"',
                detail=f"The topics are: {', '.join(self._log.topic_names()) or 'none'}.",
                hint="Create one that matches first: the stream takes its columns from it.",
                topic=self._glob,
            )
        columns: dict[str, pa.Field] = {}
        for settings in topics:
            for field in settings.stored_schema:
                known = columns.setdefault(field.name, field.with_nullable(True))
                if _is_wider(field, known):
                    columns[field.name] = field.with_nullable(True)
        if TOPIC in columns:
            raise Invalid(
                f'a column of the topics "{self._glob}" is named "{TOPIC}"',
                detail="The stream adds a column of that name, with the topic of each row.",
                hint="Read the topics one by one, and give the column another name.",
            )
        event_times = {settings.event_time for settings in topics}
        event_time = topics[0].event_time if len(event_times) == 1 else None
        if delay is not None and event_time is None:
            known = ", ".join(f"{settings.name}: {settings.event_time or 'none'}" for settings in topics)
            raise Invalid(
                f'the topics "{self._glob}" have {"no event time" if event_times == {None} else "different event times"}',
                detail=f"The event time of each topic: {known}.",
                hint="Create them with the same event_time=..., or leave watermark out.",
            )
        plain = pa.schema(columns.values())
        for settings in topics:
            if reason := why_not(settings, plain, event_time):
                raise SchemaMismatch(
                    f'the topics "{self._glob}" cannot be read as one stream',
                    detail=f'Topic "{settings.name}": {reason}.',
                    hint="Read them one by one, cast what differs, and union them.",
                )
        record = {} if delay is None else {"record": WATERMARKED_RECORD}
        fields = list(record_schema(plain, event_time, **record))
        return pa.schema([*fields[:-1], pa.field(TOPIC, pa.string()), fields[-1]]), event_time

    def _refused_topics(self) -> set[str]:
        """The topics that a flow over this pattern has skipped."""
        if REFUSED_TOPICS not in self._log.topic_names():
            return set()
        noted = Topic(self._log, self._log.open_topic(REFUSED_TOPICS)).to_arrow(columns=["topics", "topic"])
        return {row["topic"] for row in noted.to_pylist() if row["topics"] == self._glob}


def _is_wider(field: pa.Field, known: pa.Field) -> bool:
    """Whether the type of a column is wider than the known one."""
    if field.type == known.type:
        return False
    try:
        evolve(
            pa.schema([known.with_nullable(True).remove_metadata()]),
            pa.schema([field.with_nullable(True).remove_metadata()]),
        )
    except SchemaMismatch:
        return False
    return True
