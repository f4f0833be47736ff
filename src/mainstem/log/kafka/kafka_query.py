"""Topics on Kafka as tables: DuckDB over the rows of the topics that a question names, read when it is asked.

All rows of such a topic go through this process: a question is for a person and a topic of some million records. Each topic is
seen as of one moment of each partition; a transaction may be whole in one of them and not yet in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from mainstem.log.embedded.sql import Tables, as_table, mentions, translated

if TYPE_CHECKING:
    from mainstem.log.kafka.kafka_log import KafkaLog

__all__ = ["query"]


def query(log: KafkaLog, sql: str, parameters: Sequence[object], tables: Tables) -> pa.Table:
    """The answer as a table. `tables` are there beside the topics; where a topic has the same name, it is meant."""
    try:
        with duckdb.connect(":memory:") as connection:
            connection.execute("SET python_enable_replacements = false")
            connection.execute("SET TimeZone = 'UTC'")
            topics = [name for name in log.topic_names() if mentions(sql, name)]
            for name in topics:
                _register(connection, log, name)
            for name, rows in tables.items():
                if name not in topics and mentions(sql, name):
                    connection.register(name, rows())
            answer = connection.sql(sql, params=list(parameters))
            return pa.table({}) if answer is None else answer.to_arrow_table()
    except duckdb.Error as error:
        raise translated(log, error, tables) from error


def _register(connection: duckdb.DuckDBPyConnection, log: KafkaLog, name: str) -> None:
    topic = log.open_topic(name)
    moment, settings = topic.moment(), topic.settings
    batches = [
        batch
        for number in range(settings.partitions)
        for batch in moment.read(number, moment.earliest(number), moment.latest(number), None)
    ]
    rows = pa.Table.from_batches(batches, settings.record_schema)
    as_table(connection, name, rows, settings)
