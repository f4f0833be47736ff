"""NewTopic: a topic that a program names before it exists: a flow of that program makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from mainstem.errors import TopicNotFound, did_you_mean
from mainstem.log.log import Log, TopicBackend
from mainstem.log.topic_settings import TopicSettings
from mainstem.log_on_spark.build import current_build
from mainstem.log_on_spark.flow_run import FlowRun
from mainstem.log_on_spark.spark_topic import SparkTopic
from mainstem.log_on_spark.topic_writer import TopicWriter
from mainstem.names import check_own_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["NewTopic"]

# As many as most machines have cores for; a topic made by hand says otherwise.
PARTITIONS = 4


class NewTopic(SparkTopic):
    """A topic by its name and by what is going to be in it. Its settings come from the rows of the flow that makes it:
    the marks on their columns say which of them are key and event time."""

    def __init__(self, log: Log, name: str, home: str, session: Callable[[], SparkSession]) -> None:
        self._name = check_own_name(name, "topic")
        self._log = log
        self._home = home
        self._session = session
        build = current_build()
        self._planned = None if build is None else build.schemas.get(f"topic:{name}")

    @property
    def name(self) -> str:
        return self._name

    @property
    def settings(self) -> TopicSettings:
        if self._planned is None:
            self._missing()
        return made_from(self._name, self._planned)

    @property
    def backend(self) -> TopicBackend:  # type: ignore[override]
        if self._name not in self._log.topic_names():
            self._missing()
        return self._log.open_topic(self._name)

    def _missing(self) -> NoReturn:
        known = self._log.topic_names()
        raise TopicNotFound(
            f'topic "{self._name}" does not exist',
            detail=f"{self._log.title[0].upper()}{self._log.title[1:]} has {len(known)} topics"
            + (f": {', '.join(known[:10])}." if known else "."),
            hint=did_you_mean(self._name, known)
            or f'Create it with: mainstem topic create {self._name} --schema "..." or let an earlier flow make it.',
        )

    def accept(self, schema: pa.Schema) -> None:
        made_from(self._name, schema)

    def writer(self, run: FlowRun, schema: pa.Schema) -> TopicWriter:
        backend = self._log.create_topic(made_from(self._name, schema))
        topic = SparkTopic(self._log, backend, self._home, self._session)
        return topic.writer(run, schema)


def made_from(name: str, schema: pa.Schema) -> TopicSettings:
    """The settings of a topic for rows of this schema."""
    fields = [field for field in schema if field.name != "record"]
    keys = {}
    event_time = None
    for field in fields:
        marks = field.metadata or {}
        if b"mainstem.key" in marks:
            keys[int(marks[b"mainstem.key"])] = field.name
        if b"mainstem.event_time" in marks and pa.types.is_timestamp(field.type):
            event_time = field.name
    # A part of a key is no key: rows of one key would be torn apart, or others put together.
    whole = sorted(keys) == list(range(len(keys)))
    key = tuple(keys[place] for place in sorted(keys)) if whole and keys else None
    plain = pa.schema([field.remove_metadata() for field in fields])
    return TopicSettings.of(name, schema=plain, key=key, event_time=event_time, partitions=PARTITIONS)
