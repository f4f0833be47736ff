"""Outbox: messages that an application appends to topics in its own database transaction.

The message is inserted into a table of the database and deleted again, in the transaction of the application. So message
and rows are committed together or not at all, and the table stays empty. A capture with `outbox=True` reads the insert
from the database's log (in SQLite a trigger keeps it) and appends the message to its topic, once, in the order of commits.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mainstem.arguments import checked_call, checked_calls, show_value, type_name
from mainstem.capture.outbox_table import OUTBOX, OUTBOX_COLUMNS, postgres_outbox_sql
from mainstem.errors import Invalid, InvalidRows
from mainstem.log.rows.plain_values import python_value
from mainstem.names import check_name

__all__ = ["Outbox", "outbox"]

ID_CHARACTERS_MAX = 200

Execute = Callable[[Mapping[str, Any]], None]
Headers = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]


@checked_call
def outbox(connection: Any) -> Outbox:
    """The outbox of the database of a connection: a `psycopg.Connection`, a SQLAlchemy `Connection` or `Session`, or a
    `sqlite3.Connection`. A capture of that database with `outbox=True` relays the messages.

    It has one method, `append(topic, row, *, key=None, headers=None, id=None)`, which returns the id of the message.

    >>> import sqlite3
    >>> from mainstem.capture.outbox_table import sqlite_outbox_sql
    >>> connection = sqlite3.connect(":memory:")
    >>> _ = connection.execute(sqlite_outbox_sql())
    >>> len(outbox(connection).append("seats_reserved", {"seat": 12, "holder": "x"}))
    36
    """
    return Outbox(_execute_of(connection))


@checked_calls
class Outbox:
    """Appends messages as a part of the transaction of its connection."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def append(
        self, topic: str, row: Mapping[str, Any], *, key: Any = None, headers: Headers | None = None,
        id: str | None = None,
    ) -> str:  # fmt: skip
        """Append a row to a topic when the transaction commits; returns the id of the message.

        `key`: the value of the topic's key, if the row does not have it: a value, or a dict for several columns. In a topic
        without a key it is the header "key". `headers`: text or bytes by name. `id`: by default random; the record has it
        as the header "id". A topic that does not exist and a row that does not fit it are known only to the relay: they
        are put into `mainstem.capture.<name>.rejected`, with the reason.

        >>> import sqlite3
        >>> from mainstem.capture.outbox_table import sqlite_outbox_sql
        >>> connection = sqlite3.connect(":memory:")
        >>> _ = connection.execute(sqlite_outbox_sql())
        >>> outbox(connection).append("seats_reserved", {"seat": 12}, headers={"trace": "7"}, id="m-1")
        'm-1'
        """
        check_name(topic)
        message = {
            "id": _checked_id(id),
            "topic": topic,
            "key": None if key is None else _json(python_value(_plain_mapping(key)), "key"),
            "payload": _payload(row),
            "headers": None if headers is None else _header_json(headers),
        }
        self._execute(message)
        return str(message["id"])


def _checked_id(given: str | None) -> str:
    if given is None:
        return str(uuid.uuid4())
    if not isinstance(given, str) or not 0 < len(given) <= ID_CHARACTERS_MAX or not given.isprintable():
        raise Invalid(
            f"id {show_value(given)} is not an id of a message",
            detail=f"An id is text of 1 to {ID_CHARACTERS_MAX} printable characters.",
            hint="Leave it out for a random one.",
        )
    return given


def _plain_mapping(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _payload(row: Mapping[str, Any]) -> str:
    if not isinstance(row, Mapping):
        raise InvalidRows(
            f"row is {type_name(row)}, not a dict",
            detail="A message is one row of a topic. Nothing was inserted.",
            hint='For example: outbox(connection).append("seats_reserved", {"seat": 12}).',
        )
    if wrong := next((name for name in row if not isinstance(name, str)), None):
        raise InvalidRows(
            f"row has the column {show_value(wrong)}, which is not text",
            detail="Names of columns are text. Nothing was inserted.",
            hint="Give a dict with the names of the topic's columns.",
        )
    return _json({name: python_value(_pairs(value)) for name, value in row.items()}, "row")


def _pairs(value: Any) -> Any:
    """A MAP whose keys are not text is written as a list of pairs: JSON's objects have text only."""
    if isinstance(value, Mapping):
        items = [(key, _pairs(item)) for key, item in value.items()]
        return dict(items) if all(isinstance(key, str) for key, _ in items) else [list(item) for item in items]
    if isinstance(value, list | tuple):
        return [_pairs(item) for item in value]
    return value


def _json(value: Any, what: str) -> str:
    try:
        # In ASCII: no database has to store a NUL or half a surrogate.
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRows(
            f"the {what} of a message cannot be written as JSON",
            detail=f"{error}. Nothing was inserted.",
            hint="Use text, numbers, Booleans, bytes, decimals, dates, times, lists and dicts.",
        ) from error


def _header_json(headers: Headers) -> str:
    pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    found = []
    for pair in pairs:
        name, value = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (None, None)
        if not isinstance(name, str) or not isinstance(value, str | bytes):
            raise Invalid(
                f"{show_value(pair)} is not a header",
                detail="A header has a name, and a value of text or bytes. Nothing was inserted.",
                hint='For example: headers={"trace": "7"}.',
            )
        found.append([name, value if isinstance(value, str) else {"base64": base64.b64encode(value).decode()}])
    return _json(found, "headers")


# Connections


def _execute_of(connection: Any) -> Execute:
    """A function that inserts a message and deletes it again, on this connection."""
    if isinstance(connection, sqlite3.Connection):
        return lambda message: _append_sqlite(connection, message)
    psycopg = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(connection, psycopg.Connection):
        return lambda message: _append_psycopg(connection, message)
    if psycopg is not None and isinstance(connection, psycopg.AsyncConnection):
        raise _unknown(
            connection, "It is asynchronous.", "Insert through a synchronous connection: psycopg.connect(url)."
        )
    if hasattr(connection, "sync_session") or hasattr(connection, "sync_connection"):
        raise _unknown(
            connection, "It is asynchronous.", "await session.run_sync(lambda one: outbox(one).append(...))."
        )
    engine = sys.modules.get("sqlalchemy.engine")
    if engine is not None and isinstance(connection, engine.Connection):
        return lambda message: _append_sqlalchemy(connection, message)
    orm = sys.modules.get("sqlalchemy.orm")
    if orm is not None and isinstance(connection, orm.Session | orm.scoped_session):
        return lambda message: _append_sqlalchemy(connection.connection(), message)
    raise _unknown(
        connection,
        "It is neither a psycopg.Connection, nor a SQLAlchemy Connection or Session, nor a sqlite3.Connection.",
        "Give the connection in whose transaction the application writes, not its cursor, engine or pool.",
    )


def _unknown(connection: Any, why: str, hint: str) -> Invalid:
    return Invalid(f"{type_name(connection)} has no outbox", detail=why, hint=hint)


def _no_transaction() -> Invalid:
    return Invalid(
        "the connection of the outbox is in autocommit mode, outside of a transaction",
        detail="Message and rows would be two transactions, and a crash between them would leave one. Nothing was inserted.",
        hint="Begin a transaction around both: with connection.transaction(): ..., or BEGIN and COMMIT.",
    )


def _no_table(database: str) -> Invalid:
    how = (
        f"An administrator makes it with: {postgres_outbox_sql()}; and the application needs INSERT, SELECT and DELETE on it."
        if database == "PostgreSQL"
        else 'Run a capture of this file with outbox=True, or make it with "mainstem capture setup".'
    )
    return Invalid(
        f'the table of the outbox, "{OUTBOX}", does not exist',
        detail=f"This {database} database has none: no capture relays its messages. The transaction cannot be committed with "
        "the message.",
        hint=how,
    )


_COLUMNS = ", ".join(OUTBOX_COLUMNS)
_NAMED = ", ".join(f":{name}" for name in OUTBOX_COLUMNS)
_PSYCOPG = ", ".join(f"%({name})s" for name in OUTBOX_COLUMNS)


def _append_sqlite(connection: sqlite3.Connection, message: Mapping[str, Any]) -> None:
    # Python 3.12 has `autocommit`; with its older way, isolation_level None is autocommit.
    automatic = getattr(connection, "autocommit", -1)
    if not connection.in_transaction and (
        automatic is True or (automatic == -1 and connection.isolation_level is None)
    ):
        raise _no_transaction()
    try:
        connection.execute(f"INSERT INTO {OUTBOX} ({_COLUMNS}) VALUES ({_NAMED})", message)
        connection.execute(f"DELETE FROM {OUTBOX} WHERE id = :id", {"id": message["id"]})
    except sqlite3.OperationalError as error:
        raise (_no_table("SQLite") if _says_missing(error) else error) from error


def _says_missing(error: BaseException | None) -> bool:
    return f"no such table: {OUTBOX}" in str(error)


def _append_psycopg(connection: Any, message: Mapping[str, Any]) -> None:
    from psycopg import errors, pq

    if connection.autocommit and connection.info.transaction_status == pq.TransactionStatus.IDLE:
        raise _no_transaction()
    try:
        connection.execute(f"INSERT INTO public.{OUTBOX} ({_COLUMNS}) VALUES ({_PSYCOPG})", dict(message))
        connection.execute(f"DELETE FROM public.{OUTBOX} WHERE id = %(id)s", {"id": message["id"]})
    except errors.UndefinedTable as error:
        raise _no_table("PostgreSQL") from error


def _append_sqlalchemy(connection: Any, message: Mapping[str, Any]) -> None:
    sqlalchemy = sys.modules["sqlalchemy"]
    text = sqlalchemy.text
    dialect = connection.dialect.name
    if dialect not in ("postgresql", "sqlite"):
        raise _unknown(connection, f"Its database is {dialect}.", "Databases with an outbox are PostgreSQL and SQLite.")
    _check_sqlalchemy(connection)
    table = f"public.{OUTBOX}" if dialect == "postgresql" else OUTBOX
    try:
        connection.execute(text(f"INSERT INTO {table} ({_COLUMNS}) VALUES ({_NAMED})"), dict(message))
        connection.execute(text(f"DELETE FROM {table} WHERE id = :id"), {"id": message["id"]})
    except sqlalchemy.exc.DBAPIError as error:
        # 42P01: undefined_table, under the names that two drivers have for it.
        state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
        if state == "42P01" or _says_missing(error.orig):
            raise _no_table("PostgreSQL" if dialect == "postgresql" else "SQLite") from error
        raise


def _check_sqlalchemy(connection: Any) -> None:
    """SQLAlchemy begins transactions of its own, but in autocommit mode they are none."""
    driver = connection.connection.dbapi_connection
    if isinstance(driver, sqlite3.Connection):
        if driver.isolation_level is None and not driver.in_transaction:
            raise _no_transaction()
    elif connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT" or (
        getattr(driver, "autocommit", False) is True
    ):
        raise _no_transaction()
