"""Mainstem: an opened home, from which everything else is reached."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mainstem.durations import Duration
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.embedded.upkeep import UpkeepMode
from mainstem.log.log import Log
from mainstem.log.producer import Producer
from mainstem.log.topic import Topic
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.transaction import Transaction
from mainstem.names import check_name

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Mainstem", "open"]


def open(home: str | os.PathLike[str], *, upkeep: UpkeepMode = "background") -> Mainstem:
    """Open a home, the directory that holds the log; it is made if there is none.

    A thread in the background seals, compacts and drops what is due in it; with `upkeep="manual"` that is left to
    other processes, or to `topic.seal()`, `topic.compact()` and `topic.drop_expired()`.

    >>> import mainstem, tempfile
    >>> with mainstem.open(tempfile.mkdtemp()) as stem:
    ...     stem.topics()
    []
    """
    return Mainstem(EmbeddedLog(home, upkeep=upkeep))


class Mainstem:
    """An opened home. Used with `with`, or closed with `close()`; what is acknowledged needs neither. Thread-safe.

    >>> import mainstem, tempfile
    >>> stem = mainstem.open(tempfile.mkdtemp())
    >>> stem.create_topic("orders", schema="order_id STRING, amount DOUBLE").append([{"order_id": "o-1", "amount": 2.0}]).count
    1
    >>> stem.query("SELECT sum(amount) AS total FROM orders").to_pylist()
    [{'total': 2.0}]
    >>> stem.close()
    """

    def __init__(self, log: Log) -> None:
        self.log = log

    def __repr__(self) -> str:
        return f"<Mainstem on {self.log.title}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all files."""
        self.log.close()

    # Topics

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self.log.topic_names()

    def topic(self, topic: str | Topic) -> Topic:
        """A topic that is there."""
        return topic if isinstance(topic, Topic) else Topic(self.log, self.log.open_topic(topic))

    def create_topic(self, name: str, *, schema: str | pa.Schema, **settings: Any) -> Topic:
        """Create a topic, or open it if it is there with the same settings; with others it is a `Conflict`.

        `schema`: Spark DDL or a pyarrow Schema. Settings: `key` (a column or several), `event_time`, `partitions`,
        `keep` ("7 days", "10 GiB", "forever", `Keep(...)`), `archive`, `idle_after`, `ahead_max`, `record_bytes_max`,
        `segment_bytes_max`, `segment_age_max`.
        """
        check_name(name, "topic")
        return Topic(self.log, self.log.create_topic(TopicSettings.of(name, schema=schema, **settings)))

    def delete_topic(self, topic: str | Topic) -> None:
        """Delete a topic with its records, groups and queues."""
        self.log.delete_topic(topic if isinstance(topic, str) else topic.name)

    # Writing

    def producer(self, name: str) -> Producer:
        """Begin a run of a producer: its appends can be repeated, and older runs of it are fenced."""
        check_name(name, "producer")
        return Producer(self.log, self.log.open_producer(name))

    def transaction(self, *, timeout: Duration = "1 minute") -> Transaction:
        """A transaction over any topics and a group's offsets."""
        return Transaction(self.log, timeout=timeout)

    # Asking

    def query(self, sql: str, parameters: Sequence[object] = ()) -> pa.Table:
        """Ask in SQL (DuckDB); topics are tables, `?` stands for a parameter. Of a compacted topic one sees the latest
        record of each key."""
        return self.log.query(sql, parameters)
