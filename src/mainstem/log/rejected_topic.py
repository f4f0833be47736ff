"""The way into the topic of a queue's rejected messages."""

from __future__ import annotations

import pyarrow as pa

from mainstem.errors import TopicNotFound
from mainstem.log.log import Log, TopicBackend
from mainstem.log.readable_values import readable_part
from mainstem.log.rows import check_rows
from mainstem.log.topic_settings import TopicSettings


class RejectedTopic:
    """Appends rejected messages once, whichever process does it. Made at the first one."""

    def __init__(self, log: Log, name: str) -> None:
        self._log = log
        self._name = name

    def append(self, sequence: int, rows: pa.Table) -> None:
        topic = self.make(rows.schema)
        # What an older Mainstem took, and nobody can read: the origin topic still has it.
        rows = readable_part(rows)
        producer = self._log.shared_producer(f"mainstem.{self._name}")
        topic.append(check_rows(rows, topic.settings), producer=producer, sequence=sequence)

    def make(self, schema: pa.Schema) -> TopicBackend:
        """The topic, made or widened where it must be."""
        try:
            topic = self._log.open_topic(self._name)
        except TopicNotFound:
            return self._log.create_topic(TopicSettings.of(self._name, schema=schema))
        missing = [field for field in schema if field.name not in topic.settings.schema.names]
        widened = [
            field
            for field in schema
            if field.name in topic.settings.schema.names
            and not topic.settings.schema.field(field.name).type.equals(field.type)
        ]
        if missing or widened:
            # The origin topic was altered since: its new columns stand where they stand there.
            topic.alter({"schema": schema})
        return topic
