"""Topics as tables: DuckDB over sealed files and records that are not sealed yet.

All topics of a query are read as of one moment: all of a transaction or none of it. DuckDB does not verify the
checksums of Parquet files, so each sealed file is checked whole against the manifest before it is handed over, once
in a process: files never change under their name.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from mainstem.errors import FellOff, Unavailable
from mainstem.log.embedded.read.partition_reader import Visible
from mainstem.log.embedded.read.sealed_check import check_once, was_checked
from mainstem.log.embedded.topic_store import TopicStore, pool_was_shut_down
from mainstem.log.query_limits import QueryLimits
from mainstem.log.record import RECORD
from mainstem.log.rows.readable_values import unreadable_value
from mainstem.log.rows.row_errors import refused_record
from mainstem.log.sql_sandbox import (
    SqlSandbox,
    TableNames,
    Tables,
    first_line,
    latest_rows,
    quote,
    show_tables,
    translate_error,
)

if TYPE_CHECKING:
    from mainstem.log.embedded.embedded_log import EmbeddedLog

# A sealed file may be compacted or dropped before DuckDB reads it; then the query is repeated.
TRIES = 5

RECORD_PACKED = "struct_pack(" + ", ".join(f'"{f.name}" := record."{f.name}"' for f in RECORD) + ") AS record"


def query(log: EmbeddedLog, sql: str, parameters: Sequence[object], tables: Tables, limits: QueryLimits) -> pa.Table:
    """The result as a table. `tables` can be queried beside the topics; a topic of the same name takes precedence."""
    if (shown := show_tables(sql, log.topic_names(), tables)) is not None:
        return shown
    for left in reversed(range(TRIES)):
        try:
            return _query(log, sql, parameters, tables, limits)
        except (duckdb.IOException, FileNotFoundError, FellOff) as error:
            if not left:
                raise Unavailable(
                    "the files of a topic kept changing while the query was prepared",
                    detail=first_line(error),
                    hint="Run the query again.",
                ) from error
        except duckdb.Error as error:
            if isinstance(error, duckdb.InvalidInputException | duckdb.ConversionException):
                _name_unreadable(log, sql, error)
            raise translate_error(log, error, tables, sql) from error
    raise AssertionError


def _query(log: EmbeddedLog, sql: str, parameters: Sequence[object], tables: Tables, limits: QueryLimits) -> pa.Table:
    with SqlSandbox.open(limits) as sandbox:
        topics = set(log.topic_names())
        names = TableNames.of(sql, topics | tables.keys())
        asked = names.apply_to(sandbox.connection, sql)
        stores = [log.open_topic(name).store for name in names.called if name in topics]
        for store in stores:
            store.refresh()
        seen = log.transactions.at_one_moment(lambda moment: [store.visible(moment) for store in stores])
        files: list[str] = []
        for store, visible in zip(stores, seen, strict=True):
            files += _register(sandbox.connection, names.called[store.name], store, visible, limits.until)
        for name, called in names.called.items():
            if name not in topics:
                sandbox.connection.register(called, tables[name]())
        sandbox.lock(files)
        return sandbox.answer(asked, parameters)


def _name_unreadable(log: EmbeddedLog, sql: str, error: duckdb.Error) -> None:
    """Raise `InvalidRows` if a topic in the query has a row that DuckDB cannot read: its error does not say which."""
    for name in TableNames.of(sql, log.topic_names()).called:
        moment = log.open_topic(name).moment()
        for number in range(log.open_topic(name).settings.partitions):
            for batch in moment.read(number, moment.earliest(number), moment.latest(number), None):
                if (found := unreadable_value(batch)) is not None:
                    raise refused_record(
                        batch, found.row, f'"{name}" partition {number}', "read", f'column "{found.path}", {found.reason}',
                        column=found.path, detail=f"DuckDB says: {first_line(error)}",
                        hint="Leave the column out of the query; or copy the other rows to a new topic, which rejects such values.",
                    ) from error  # fmt: skip


def _register(
    connection: duckdb.DuckDBPyConnection,
    called: str,
    store: TopicStore,
    visible: dict[int, Visible],
    until: int | None,
) -> list[str]:
    """Register the topic as a view of that name; returns the files that it reads."""
    files: dict[int, list[str]] = {}
    tail: list[pa.RecordBatch] = []
    checks: list[tuple[str, int, int, tuple[int, int]]] = []
    for number, partition in enumerate(store.partitions):
        manifest = partition.manifest_file.read()
        end = visible[number].end
        if manifest.cleaned > end:
            # Compacted meanwhile by records after this moment: a key might be missing completely.
            raise FileNotFoundError(partition.folder)
        read_to = manifest.start
        for entry in manifest.segments:
            if entry.end > end or any(
                first < entry.end and last > entry.base for first, last in visible[number].hidden
            ):
                break  # decided and sealed after this moment: hidden below
            path = f"{partition.folder}/{entry.file}"
            files.setdefault(entry.schema_version, []).append(path)
            checks.append((path, entry.bytes, entry.crc32c, (entry.base, entry.end)))
            read_to = entry.end
        tail += store.readers[number].read(store.schemas, read_to, visible[number])
    _check(store, checks)
    settings = store.settings
    connection.register(f"tail of {called}", pa.Table.from_batches(tail, settings.record_schema))
    parts = [f"SELECT * FROM {quote(f'tail of {called}')}"]
    for version, paths in files.items():
        columns = ", ".join(quote(column) for column in settings.schema_of(version).names)
        listed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
        parts.append(f"SELECT {columns}, {RECORD_PACKED} FROM read_parquet([{listed}])")
    shown = latest_rows(" UNION ALL BY NAME ".join(parts), settings, until)
    connection.execute(f"CREATE TEMP VIEW {quote(called)} AS {shown}")
    return [path for paths in files.values() for path in paths]


def _check(store: TopicStore, checks: list[tuple[str, int, int, tuple[int, int]]]) -> None:
    fresh = [check for check in checks if not was_checked(store.files, check[0], check[2])]
    if not fresh:
        return
    try:
        with ThreadPoolExecutor(2) as pool:
            for _ in pool.map(lambda check: check_once(store.files, *check), fresh):
                pass
    except RuntimeError as error:
        if not pool_was_shut_down(error):
            raise
        for check in fresh:
            check_once(store.files, *check)
