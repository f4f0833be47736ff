"""Topics on Kafka as tables: DuckDB over the rows of the topics that a question names, read when it is asked.

All rows of such a topic go through this process: a question is for a person and a topic of some million records. Each topic is
seen as of one moment of each partition; a transaction may be whole in one of them and not yet in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from mainstem.log.embedded.sql import Tables, as_table, translated
from mainstem.log.query_limits import QueryLimits
from mainstem.log.sql_sandbox import SqlSandbox
from mainstem.log.table_names import TableNames, shown_tables

if TYPE_CHECKING:
    from mainstem.log.kafka.kafka_log import KafkaLog

__all__ = ["query"]


def query(log: KafkaLog, sql: str, parameters: Sequence[object], tables: Tables, limits: QueryLimits) -> pa.Table:
    """The answer as a table. `tables` are there beside the topics; where a topic has the same name, it is meant."""
    if (shown := shown_tables(sql, log.topic_names(), tables)) is not None:
        return shown
    try:
        with SqlSandbox.opened(limits) as sandbox:
            topics = set(log.topic_names())
            names = TableNames.of(sql, topics | tables.keys())
            asked = names.applied(sandbox.connection, sql)
            for name, called in names.called.items():
                if name in topics:
                    _register(sandbox, called, log, name)
                else:
                    sandbox.connection.register(called, tables[name]())
            sandbox.lock()
            return sandbox.answer(asked, parameters)
    except duckdb.Error as error:
        raise translated(log, error, tables) from error


def _register(sandbox: SqlSandbox, called: str, log: KafkaLog, name: str) -> None:
    topic = log.open_topic(name)
    moment, settings = topic.moment(), topic.settings
    batches: list[pa.RecordBatch] = []
    for number in range(settings.partitions):
        for batch in moment.read(number, moment.earliest(number), moment.latest(number), None):
            sandbox.check_time()
            batches.append(batch)
    rows = pa.Table.from_batches(batches, settings.record_schema)
    as_table(sandbox.connection, called, rows, settings)
