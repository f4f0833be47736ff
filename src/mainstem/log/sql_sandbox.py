"""SqlSandbox: a DuckDB instance for one statement, which can read only the tables given to it.

What keeps a statement from files, the network and the home:

    statement       one, a SELECT (also VALUES, FROM, DESCRIBE, SHOW, SUMMARIZE), or EXPLAIN of one
    syntax tree     only nodes that read: `WITH a AS (COPY ... TO ...) SELECT` is a SELECT to DuckDB, and writes
    configuration   no external access but the files of the snapshot, no extensions, no variables of the program,
                    no temporary files (their folder would be open to every statement), then locked
    limits          half of the machine's memory for DuckDB and as much for the result; rows; time if requested

The statement runs in its own thread, so that Ctrl-C and the timeout end it: DuckDB handles no signals.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby
from typing import Any

import duckdb
import pyarrow as pa

from mainstem.durations import show_duration, show_size
from mainstem.errors import Invalid, TopicNotFound, did_you_mean
from mainstem.log.log import Log
from mainstem.log.query_limits import QUERY_THREAD, QueryLimits
from mainstem.log.topic_settings import TopicSettings

__all__ = [
    "SqlSandbox",
    "TableNames",
    "Tables",
    "as_table",
    "first_line",
    "latest_rows",
    "quote",
    "show_tables",
    "translate_error",
]

# Rows by table name; loaded only if the query names the table.
Tables = Mapping[str, Callable[[], pa.Table]]


# The configuration of the sandbox; a statement cannot change it.
CLOSED: dict[str, str | int | float | list[str]] = {
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "memory_limit": "50%",
    "python_enable_replacements": False,
    "temp_directory": "",
}
# Nodes of a syntax tree that only read. Those that write (INSERT, UPDATE, DELETE, COPY) have other types.
READING = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
# The prefix of an explained statement.
EXPLAIN = re.compile(r"\s*EXPLAIN\b\s*(?:ANALYZE\b)?", re.IGNORECASE)
_UNKNOWN_COLUMN = re.compile(r'Referenced column "([^"]+)" not found')
_QUOTED = re.compile(r"""'[^']*'|"[^"]*\"""")
EXPLAIN_WITH_OPTIONS = re.compile(EXPLAIN.pattern + r"\s*\([^()]*\)", re.IGNORECASE)
# How often the timeout and Ctrl-C are checked.
SLICE_SECONDS = 0.1
# How long to wait for an interrupted statement; one that does not react ends with the process.
PATIENCE_SECONDS = 0.8
# How often the interrupt is repeated: DuckDB ignores one that comes before the statement has begun.
REPEAT_SECONDS = 0.02


class SqlSandbox:
    """Register tables, lock it, then query it. For one thread.

    >>> with SqlSandbox.open(QueryLimits()) as sandbox:
    ...     sandbox.connection.register("numbers", pa.table({"n": [1, 2, 3]})) and None
    ...     sandbox.lock()
    ...     sandbox.answer("SELECT max(n) AS most FROM numbers WHERE n > ?", [1]).to_pylist()
    [{'most': 3}]
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, limits: QueryLimits) -> None:
        self.connection = connection
        self._limits = limits
        self._until = None if limits.seconds is None else time.monotonic() + limits.seconds
        self._run: _Run | None = None
        self._locked = False

    @classmethod
    @contextmanager
    def open(cls, limits: QueryLimits) -> Iterator[SqlSandbox]:
        """Yields a sandbox and closes it."""
        memory = {} if limits.memory_bytes is None else {"memory_limit": f"{limits.memory_bytes} bytes"}
        connection = duckdb.connect(":memory:", config={**CLOSED, **memory})
        connection.execute("SET TimeZone = 'UTC'")
        sandbox = cls(connection, limits)
        try:
            yield sandbox
        finally:
            # Closing a connection waits for its statement; one that does not react is left until the process ends.
            if sandbox._run is None or sandbox._run.ended.is_set():
                connection.close()

    def check_time(self) -> None:
        """Raise after the timeout; called while rows of a table are collected."""
        if self._until is not None and time.monotonic() > self._until:
            raise self._too_long()

    def lock(self, files: Sequence[str] = ()) -> None:
        """Deny all external access except to these files. Required before the first query."""
        listed = ", ".join(_text(path) for path in files)
        self.connection.execute(f"SET allowed_paths = [{listed}]")
        self.connection.execute("SET enable_external_access = false")
        self.connection.execute("SET lock_configuration = true")
        self._locked = True

    def answer(self, sql: str, parameters: Sequence[object]) -> pa.Table:
        """Run the statement, if it is read-only."""
        assert self._locked
        split_statement(self.connection, sql)
        self._run = _Run()
        try:
            self._run.start(lambda: self._rows(sql, parameters))
            # In slices: a signal that comes just before a wait is handled only after it.
            while not self._run.ended.wait(SLICE_SECONDS):
                self.check_time()
        except BaseException:
            self._run.end(self.connection)
            raise
        try:
            return self._run.result()
        except duckdb.PermissionException as error:
            raise Invalid(
                "a query can read only topics and views",
                detail=_error_text(error),
                hint="Read a file in your program, or append its rows to a topic: mainstem topic append.",
            ) from error
        except duckdb.OutOfMemoryException as error:
            raise Invalid(
                f"the query needs more than {self._memory_text()}",
                detail=_error_text(error),
                hint="Read less: fewer columns, a WHERE, a LIMIT.",
            ) from error

    def _rows(self, sql: str, parameters: Sequence[object]) -> pa.Table:
        memory = _bytes(self.connection)
        asked = self.connection.sql(sql, params=list(parameters))
        if asked is None:
            return pa.table({})
        batches: list[pa.RecordBatch] = []
        rows = size = 0
        with asked.to_arrow_reader(100_000) as reader:
            for batch in reader:
                batches.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows > self._limits.rows:
                    if self._limits.cut:
                        batches[-1] = batch.slice(0, batch.num_rows - rows + self._limits.rows + 1)
                        break
                    raise _too_large(f"more than {self._limits.rows:,} rows", "That is the limit, rows_max")
                if size > memory:
                    raise _too_large(f"more than {self._memory_text()}", f"That is {memory:,} bytes")
            return pa.Table.from_batches(batches, reader.schema)

    def _memory_text(self) -> str:
        given = self._limits.memory_bytes
        return "half of this machine's memory" if given is None else show_size(given)

    def _too_long(self) -> Invalid:
        return Invalid(
            f"the query took longer than {show_duration(timedelta(seconds=self._limits.seconds or 0))}",
            detail="It was cancelled; a query changes nothing.",
            hint="Read less (fewer columns, a WHERE, a LIMIT), or raise the timeout.",
        )


@dataclass
class _Failure:
    error: BaseException


class _Run:
    """A call in its own thread, and its result."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._outcome: pa.Table | _Failure | None = None

    def start(self, call: Callable[[], pa.Table]) -> None:
        # A daemon, so that the process can end while DuckDB does not react.
        threading.Thread(target=self._go, args=(call,), name=QUERY_THREAD, daemon=True).start()

    def _go(self, call: Callable[[], pa.Table]) -> None:
        try:
            self._outcome = call()
        except BaseException as error:  # noqa: BLE001 - raised where it was asked
            self._outcome = _Failure(error)
        finally:
            self.ended.set()

    def end(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Interrupt it, and wait briefly for its end."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not self.ended.is_set() and time.monotonic() < until:
            connection.interrupt()
            self.ended.wait(REPEAT_SECONDS)

    def result(self) -> pa.Table:
        if isinstance(self._outcome, _Failure):
            raise self._outcome.error
        return self._outcome


def split_statement(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[str, str]:
    """The EXPLAIN before a statement, usually empty, and the SELECT. Raises `Invalid` if it does not only read; DuckDB
    reports syntax errors."""
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise Invalid(
            "a query is one statement" if statements else "the query is empty",
            detail=f"This text has {len(statements)}.",
            hint="Run one SELECT per call.",
        )
    kind = statements[0].type
    if kind == duckdb.StatementType.EXPLAIN:
        for pattern in (EXPLAIN_WITH_OPTIONS, EXPLAIN):
            if (found := pattern.match(sql)) and _selects(connection, sql[found.end() :]):
                return found[0], sql[found.end() :]
    elif kind == duckdb.StatementType.SELECT and _reads(connection, sql):
        return "", sql
    pivot = kind == duckdb.StatementType.MULTI
    raise Invalid(
        f"a query only reads, and this one is {'PIVOT without its columns' if pivot else _first_word(sql)}",
        detail="Allowed are SELECT (also with WITH, FROM first, VALUES), DESCRIBE, SHOW, SUMMARIZE, and EXPLAIN of these.",
        hint="Name the columns: PIVOT ... ON column IN (...)." if pivot else _way_to_write(_first_word(sql)),
    )


def _way_to_write(word: str) -> str:
    """How to do what a statement that writes was meant to do."""
    file = 'Write a result to a file in your program or in the shell: mainstem query "SELECT ..." --format csv > answer.csv'
    if word in ("DELETE", "UPDATE", "TRUNCATE", "MERGE"):
        return (
            "A topic is append-only: append the new row; or, if it has a key, a deletion of the key, in Python: "
            'topic.delete(["o-1"]). Views of table(stream) follow it, and a topic that keeps the latest record per key drops '
            "the old one. A whole topic is deleted with mainstem topic delete NAME."
        )
    if word in ("INSERT", "COPY"):
        return (
            f"A topic is append-only: append rows with topic.append(rows), or mainstem topic append NAME FILE. {file}"
        )
    if word in ("CREATE", "DROP", "ALTER"):
        return f"Topics are created, altered and deleted with mainstem topic, views are made by programs. {file}"
    return f"Rows are changed by append and delete. {file}"


def query_hint(error: duckdb.Error, sql: str, columns: Iterable[str]) -> str:
    """A hint for a common mistake: text in double quotes, a ? without a value, a reserved word; empty for any other.

    >>> query_hint(duckdb.BinderException('Referenced column "Rome" not found'), 'SELECT store = "Rome"', ["store"])
    "Text is in single quotes: 'Rome'. In double quotes it is the name of a column."
    """
    text = str(error)
    if (found := _UNKNOWN_COLUMN.search(text)) and f'"{found[1]}"' in sql:
        return f"Text is in single quotes: '{found[1]}'. In double quotes it is the name of a column."
    if "Values were not provided for the following parameters" in text:
        return 'Give a value for each ?: query(sql, ["Berlin"]), or on the command line --parameter Berlin.'
    return reserved_hint(error, sql, columns)


def reserved_hint(error: duckdb.Error, sql: str, columns: Iterable[str]) -> str:
    """A hint if a query failed to parse and has a column, without quotes, that is a reserved word; else empty.

    >>> reserved_hint(duckdb.ParserException('syntax error at or near "from"'), "SELECT window FROM n", ["window", "n"])
    'window is a reserved word of SQL: as a column it is quoted, "window".'
    """
    if not isinstance(error, duckdb.ParserException):
        return ""
    bare = _QUOTED.sub(" ", sql).lower()
    with duckdb.connect() as connection:
        found = [
            name
            for name in dict.fromkeys(columns)
            if re.search(rf"(?<!\w){re.escape(name.lower())}(?!\w)", bare) and _is_reserved(connection, name)
        ]
    if not found:
        return ""
    words = " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)
    quoted = ", ".join(f'"{name}"' for name in found)
    if len(found) > 1:
        return f"{words} are reserved words of SQL: as columns they are quoted, {quoted}."
    return f"{words} is a reserved word of SQL: as a column it is quoted, {quoted}."


def _is_reserved(connection: duckdb.DuckDBPyConnection, name: str) -> bool:
    """Whether a word cannot be a column without quotes. Some that DuckDB does not list as reserved cannot either, such as "at"."""
    if not re.fullmatch(r"[a-zA-Z_]\w*", name):
        return False
    try:
        connection.extract_statements(f"SELECT {name} FROM t ORDER BY {name} DESC")
    except duckdb.Error:
        return True
    return False


def _selects(connection: duckdb.DuckDBPyConnection, sql: str) -> bool:
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error:
        return False
    return [found.type for found in statements] == [duckdb.StatementType.SELECT] and _reads(connection, sql)


def _reads(connection: duckdb.DuckDBPyConnection, sql: str) -> bool:
    """Whether every query in the statement only reads. A CTE may write."""
    return all(node["type"] in READING for node in queries(syntax_tree(connection, sql)))


def syntax_tree(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    """DuckDB's syntax tree of a SELECT."""
    tree: dict[str, Any] = json.loads(connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()[0][0])
    if tree["error"]:
        raise Invalid(
            "the query cannot be checked",
            detail=f"DuckDB says: {tree.get('error_message', 'nothing')}",
            hint="Write it in another way; a query that cannot be checked is not run.",
        )
    return tree


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All objects of a syntax tree."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def queries(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The query nodes of a tree, with their common table expressions."""
    return (node for node in nodes(tree) if "cte_map" in node)


def quote(name: str) -> str:
    """The name as a quoted SQL identifier.

    >>> quote('orders.emails')
    '"orders.emails"'
    """
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _bytes(connection: duckdb.DuckDBPyConnection) -> int:
    return int(connection.execute("SELECT parse_formatted_bytes(current_setting('memory_limit'))").fetchall()[0][0])


def _error_text(error: duckdb.Error) -> str:
    return f"DuckDB says: {str(error).partition(chr(10))[0][:300]}"


def _first_word(sql: str) -> str:
    found = re.match(r"\s*(\w+)", sql)
    word = found[1].upper()[:20] if found else "another statement"
    return f"{word} of a statement that writes" if word in ("EXPLAIN", "WITH", "SELECT", "FROM") else word


def _too_large(what: str, fact: str) -> Invalid:
    return Invalid(
        f"the result has {what}",
        detail=f"{fact}; a result is held in memory.",
        hint="Add a LIMIT, a WHERE or a GROUP BY; to read all rows of a topic, batch by batch: topic.batches() or mainstem topic read TOPIC.",
    )


# TableNames: the topics and views that a statement names, and their names in DuckDB.
#
# In DuckDB `orders` and `Orders` are one name; in a home they are two topics. The exact name counts: if a statement
# names both, its references get distinct names in DuckDB's syntax tree, with the old name as their alias. If the home
# has only one of them, any spelling finds it, as in SQL.


SHOW_TABLES = re.compile(r"\s*SHOW\s+(ALL\s+)?TABLES\s*;?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TableNames:
    """`called` has every table that the statement may name, with its name in DuckDB."""

    called: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, sql: str, names: Iterable[str]) -> TableNames:
        """
        >>> TableNames.of('SELECT * FROM ORDERS', ["orders", "returns"]).called
        {'orders': 'orders'}
        >>> TableNames.of('SELECT * FROM "Orders"', ["orders", "Orders"]).called
        {'Orders': 'Orders'}
        >>> TableNames.of('FROM orders SELECT *, (SELECT max(n) FROM "Orders")', ["orders", "Orders"]).called
        {'Orders': 'Orders #0', 'orders': 'orders #1'}
        """
        called: dict[str, str] = {}
        mentioned = sorted(
            (name for name in names if _mentions(sql, name, re.IGNORECASE)), key=lambda n: (n.lower(), n)
        )
        for _, alike in groupby(mentioned, key=str.lower):
            group = list(alike)
            exact = group if len(group) == 1 else [name for name in group if _mentions(sql, name, 0)]
            called |= {name: name if len(exact) == 1 else f"{name} #{place}" for place, name in enumerate(exact)}
        return cls(called)

    def apply_to(self, connection: duckdb.DuckDBPyConnection, sql: str) -> str:
        """The statement with the names that the tables have in DuckDB."""
        renamed = {name: called for name, called in self.called.items() if name != called}
        if not renamed:
            return sql
        before, select = split_statement(connection, sql)
        tree = syntax_tree(connection, select)
        own = {entry["key"] for query in queries(tree) for entry in query["cte_map"]["map"]}
        for node in nodes(tree):
            name = node.get("table_name")
            if node.get("type") == "BASE_TABLE" and name in renamed and name not in own:
                node["table_name"] = renamed[name]
                node["qualified_name"]["path"][-1] = renamed[name]
                node["alias"] = node["alias"] or name
        rows = connection.execute("SELECT json_deserialize_sql(?::json)", [json.dumps(tree)]).fetchall()
        return f"{before} {rows[0][0]}"


def show_tables(sql: str, topics: Iterable[str], views: Iterable[str]) -> pa.Table | None:
    """The answer to SHOW TABLES: all topics and views that a query can name; None for another statement.

    DuckDB has only the tables that a statement names, so its own answer would be empty.

    >>> show_tables("show tables;", ["orders"], ["revenue"]).to_pylist()
    [{'name': 'orders', 'kind': 'topic'}, {'name': 'revenue', 'kind': 'view'}]
    """
    if SHOW_TABLES.fullmatch(sql) is None:
        return None
    # If a topic and a view share a name, the topic counts.
    kinds = dict(sorted((dict.fromkeys(views, "view") | dict.fromkeys(topics, "topic")).items()))
    return pa.table({"name": pa.array(kinds, pa.string()), "kind": pa.array(kinds.values(), pa.string())})


def _mentions(sql: str, name: str, flags: int) -> bool:
    """Whether the statement contains the name as a word. A false positive costs little."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", sql, flags) is not None


def as_table(
    connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table, settings: TopicSettings, until: int | None = None
) -> None:
    """Register a topic's rows as a view of its name."""
    connection.register(f"rows of {name}", rows)
    shown = latest_rows(f"SELECT * FROM {quote(f'rows of {name}')}", settings, until)
    connection.execute(f"CREATE TEMP VIEW {quote(name)} AS {shown}")


def latest_rows(rows: str, settings: TopicSettings, until: int | None = None) -> str:
    """For a compacted topic, the latest record of each key that is not deleted; for others, all records. With `until`, of the
    records that were appended up to that time."""
    if until is not None:
        rows = f"SELECT * FROM ({rows}) WHERE epoch_us(record.appended_at) <= {until}"
    if settings.keep.compacted:
        key = ", ".join(quote(column) for column in settings.key)
        rows = (
            f"SELECT * FROM (SELECT * FROM ({rows}) QUALIFY row_number() OVER (PARTITION BY {key} "
            "ORDER BY record.appended_at DESC, record.offset DESC) = 1) WHERE record.change <> 'delete'"
        )
    return rows


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _columns_in(log: Log, sql: str, tables: Tables) -> Iterator[str]:
    """The columns of the topics and views that a query names."""
    topics = set(log.topic_names())
    for name in TableNames.of(sql, topics | tables.keys()).called:
        yield from log.open_topic(name).settings.schema.names if name in topics else tables[name]().schema.names


def translate_error(log: Log, error: duckdb.Error, tables: Tables, sql: str) -> Invalid | TopicNotFound:
    """The error of Mainstem for an error of DuckDB."""
    text = first_line(error).removeprefix(f"{type(error).__name__.removesuffix('Exception')} Error: ")
    topics = log.topic_names()
    names = [*topics, *tables]
    if isinstance(error, duckdb.CatalogException) and "Table with name" in text:
        asked = text.split("Table with name ")[1].split(" ")[0].strip('"')
        if asked in names:
            # shop.orders is a table "orders" of a schema "shop" in SQL.
            return TopicNotFound(
                f"the query names {asked} without quotes",
                detail=f"In SQL a dot divides a schema from a table, so the name must be quoted: {quote(asked)}.",
                hint=f"Write: FROM {quote(asked)}",
                topic=asked,
            )
        return TopicNotFound(
            f'topic "{asked}" does not exist',
            detail=f"{log.title[0].upper()}{log.title[1:]} has these topics: {', '.join(topics) or 'none'}."
            + (f" There are these views: {', '.join(tables)}." if tables else ""),
            hint=did_you_mean(asked, names)
            or "A table in a query is a topic or a view; quote names with a dot or a dash.",
            topic=asked,
        )
    detail = "\n".join(line for line in str(error).splitlines()[1:] if line.strip())
    return Invalid(
        f"the query cannot be run: {text[:200]}",
        detail=detail or f"DuckDB says: {first_line(error)}",
        hint=query_hint(error, sql, _columns_in(log, sql, tables))
        or f"Topics and views are tables: {', '.join(names)}; names with a dot or a dash, and SQL keywords, are quoted "
        'as in "orders.emails.rejected". Their columns: mainstem topic describe NAME. Each ? needs a value.',
    )
