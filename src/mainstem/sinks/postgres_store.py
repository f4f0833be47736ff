"""PostgresStore: a table of a PostgreSQL database that a flow keeps current.

    products                  the rows: the flow's columns, and whatever others added
    mainstem_next_products    the next version, while the store is filled again
    mainstem_stores           the fences: store, copy (live | beside), state (filling | current), flow, batch, ...

A batch is copied into temporary tables first. Then rows and fence are changed in one transaction that holds the fence's
row. To switch, the next version is merged into the table in one transaction: readers see all of it or nothing, and
columns, indexes and privileges that others gave to the table stay.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.types as kinds
from psycopg import errors

from mainstem.arguments import text
from mainstem.crash_points import reach
from mainstem.errors import Conflict, Invalid, NotFound
from mainstem.log.rows.column_types import is_nested
from mainstem.log.rows.nested_json import from_json
from mainstem.names import quote_name
from mainstem.postgres.postgres_address import PostgresAddress
from mainstem.postgres.postgres_columns import copy_rows, encode_column, postgres_type, unfit, wire_type
from mainstem.postgres.postgres_errors import translate_errors
from mainstem.postgres.postgres_pool import Encoded, Session, pool_of
from mainstem.sinks.store_backend import Copy, Fence, FenceMoved, Fences, StoreBackend, StoreChange

__all__ = ["PostgresStore"]

FENCES = "mainstem_stores"
# PostgreSQL silently truncates longer names.
NAME_BYTES_MAX = 63
COLUMNS_MAX = 1_600
# What PostgreSQL itself has in every table.
SYSTEM_COLUMNS = ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid")
READ, WRITE = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"


class PostgresStore(StoreBackend):
    """A table, as "products" or "sales.products"."""

    def __init__(self, url: str, table: str) -> None:
        self._address = PostgresAddress.parse(url)
        self._pool = pool_of(self._address)
        schema, _, name = text(table, "table").rpartition(".")
        self._schema, self._table = schema, name
        for part in table.rsplit(".", 1):
            if not 0 < len(part.encode()) <= NAME_BYTES_MAX or "\0" in part:
                raise Invalid(
                    f"PostgreSQL cannot have a table named {table!r}",
                    detail=f"A name has 1 to {NAME_BYTES_MAX} bytes, without U+0000.",
                    hint='Give a name such as "products", or "sales.products" with a schema.',
                )
        if name.startswith("mainstem_"):
            raise Invalid(
                f'table "{table}" cannot be a store',
                detail="Tables whose names begin with mainstem_ are made by Mainstem for itself.",
                hint="Give it another name.",
            )
        self._title = f'table "{table}"'
        self.location = f"{self._address.shown}, {self._title}"
        # The server shows it, so that what an older run left behind can be found.
        self._session_name = f"mainstem store {zlib.crc32(f'{self._address.shown} {table}'.encode()):08x}"
        self._writing: Session | None = None
        # The columns for which the connection has temporary tables.
        self._staged = ""

    # Names

    def _named(self, name: str) -> str:
        return f"{quote_name(self._schema)}.{quote_name(name)}" if self._schema else quote_name(name)

    def _rows(self, copy: Copy) -> str:
        if copy == "live":
            return self._named(self._table)
        name = f"mainstem_next_{self._table}"
        if len(name.encode()) > NAME_BYTES_MAX:
            name = f"mainstem_next_{zlib.crc32(self._table.encode()):08x}"
        return self._named(name)

    # Checks

    def check(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        if len(schema) > COLUMNS_MAX:
            raise Invalid(
                f"{self._title} cannot have {len(schema)} columns",
                detail=f"PostgreSQL allows {COLUMNS_MAX}.",
                hint="Select the columns that are needed, or combine some in a struct.",
            )
        for name in schema.names:
            if len(name.encode()) > NAME_BYTES_MAX or "\0" in name or name in SYSTEM_COLUMNS:
                raise Invalid(
                    f'PostgreSQL cannot have a column named "{name}"',
                    detail=f"A name has at most {NAME_BYTES_MAX} bytes, without U+0000, and is none of {', '.join(SYSTEM_COLUMNS)}.",
                    hint=f'Rename it: rows.withColumnRenamed("{name}", "...").',
                    column=name,
                )

    def unfit(self, column: pa.Array, field: pa.Field, key: tuple[str, ...]) -> Mapping[int, str]:
        return unfit(column, field, key)

    def refused(self, change: StoreChange) -> Mapping[int, str]:
        """Rows that break a rule which others gave to the table, such as a CHECK constraint. They are tried and rolled back."""
        rows, reasons = change.upserts, dict[int, str]()
        if rows is None:
            return {}
        with self._transaction() as connection:
            if not self._has_rules(connection, change):
                return {}
            self._stage(connection, change.fence)
            connection.execute("SAVEPOINT untried")
            if change.deletes is not None and change.deletes.num_rows:
                self._delete(connection, change, change.deletes)
            # Halves of what is refused are tried again, until the rows are found.
            waiting = [(0, rows.num_rows)]
            while waiting:
                first, last = waiting.pop()
                reason = self._refusal(connection, change, rows.slice(first, last - first))
                if reason and last - first == 1:
                    reasons[first] = reason
                elif reason:
                    middle = (first + last) // 2
                    waiting += [(middle, last), (first, middle)]
            connection.execute("ROLLBACK TO SAVEPOINT untried")
        return reasons

    def _has_rules(self, connection: Session, change: StoreChange) -> bool:
        table, key = f"{_literal(self._rows(change.copy))}::regclass", ", ".join(map(_literal, change.fence.key))
        rules = (
            f"pg_constraint WHERE conrelid = {table} AND contype IN ('c', 'f', 't', 'u', 'x')",
            f"pg_index WHERE indrelid = {table} AND indisunique AND NOT indisprimary",
            f"pg_trigger WHERE tgrelid = {table} AND NOT tgisinternal",
            f"pg_attribute WHERE attrelid = {table} AND attnum > 0 AND attnotnull AND attname NOT IN ({key})",
        )
        found = connection.query("SELECT " + " OR ".join(f"EXISTS (SELECT 1 FROM {rule})" for rule in rules))
        return found == [(1,)]

    def _refusal(self, connection: Session, change: StoreChange, rows: pa.Table) -> str:
        """Why the rows are refused; else they are written until the end of the trial."""
        connection.execute("SAVEPOINT tried")
        try:
            connection.execute(f"DELETE FROM {_UPSERTS}")
            self._upsert(connection, change, rows)
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except _RULES as error:
            connection.execute("ROLLBACK TO SAVEPOINT tried")
            return f"PostgreSQL refuses the row: {self._address.safe(error)}"
        connection.execute("RELEASE SAVEPOINT tried")
        return ""

    # Fences

    def fences(self) -> Fences:
        with translate_errors(self._address, self._title), self._pool.borrow(READ) as connection:
            return self._read_fences(connection)

    def _read_fences(self, connection: Session) -> Fences:
        tables = ", ".join(
            f"to_regclass({_literal(name)})" for name in (self._named(FENCES), *map(self._rows, _COPIES))
        )
        ((fences, *copies),) = connection.query(f"SELECT {tables}")
        known = {} if fences is None else self._kept(connection)
        if copies[0] is not None and "live" not in known:
            raise Conflict(
                f"{self._title} is there already, and no flow has made it",
                detail=f"{self._address.shown} has no fence for it in {FENCES}: its rows would be mixed with the flow's.",
                hint="Give another table, or drop this one: the flow makes it. Columns can be added to it afterwards.",
            )
        # Without its table a fence says nothing.
        found = [known.get(copy) if there is not None else None for copy, there in zip(_COPIES, copies, strict=True)]
        return Fences(*found)

    def _kept(self, connection: Session, lock: str = "") -> dict[str, Fence]:
        select = f"SELECT copy, fence FROM {self._named(FENCES)} WHERE store = $1 ORDER BY copy{lock}"
        return {copy: Fence.from_json(fence) for copy, fence in connection.query(select, self._table)}

    def _put_fence(self, connection: Session, copy: Copy, fence: Fence) -> None:
        state = "filling" if fence.filling else "current"
        columns = "store, copy, state, flow, version, epoch, batch, applied_at, fence"
        connection.write(
            f"INSERT INTO {self._named(FENCES)} ({columns}) VALUES ($1, $2, $3, $4, $5, $6, $7, now(), $8) "
            "ON CONFLICT (store, copy) DO UPDATE SET "
            + ", ".join(f"{name} = excluded.{name}" for name in columns.split(", ")[2:]),
            self._table, copy, state, fence.flow, fence.version, fence.epoch, fence.batch, fence.to_json(),
        )  # fmt: skip

    # Writing

    @contextmanager
    def _transaction(self) -> Iterator[Session]:
        with translate_errors(self._address, self._title):
            connection = self._writing or self._connect()
            try:
                connection.execute(WRITE)
                yield connection
                connection.execute("COMMIT")
            except FenceMoved:
                connection.execute("ROLLBACK")
                raise
            except _RULES as error:
                self._writing = None
                connection.close()
                raise Conflict(
                    f"{self._title} refuses a change of its flow",
                    detail=f"PostgreSQL says: {self._address.safe(error)}. It is in {self._address.shown}.",
                    hint="A constraint or a trigger that others have made forbids it: remove it, or give the flow another table.",
                ) from error
            except BaseException:
                # Whatever became of it: the next transaction begins on a new connection.
                self._writing = None
                with suppress(psycopg.Error):
                    connection.close()
                raise

    def _connect(self) -> Session:
        connection = self._pool.connect_writer(self._session_name)
        self._writing, self._staged = connection, ""
        return connection

    def _locked(self, connection: Session) -> Fences:
        """The fences, which nobody else changes until the end of the transaction."""
        if connection.query(f"SELECT to_regclass({_literal(self._named(FENCES))}) IS NULL") == [(1,)]:
            return self._read_fences(connection)
        self._kept(connection, lock=" FOR UPDATE")
        return self._read_fences(connection)

    def commit(self, change: StoreChange) -> None:
        begins = self._writing is None
        with self._transaction() as connection:
            if change.expected is None:
                self._create(connection, change)
                return
            if begins and self._read_fences(connection).of(change.copy) == change.expected:
                self._end_others(connection)
            found = self._locked(connection).of(change.copy)
            if found != change.expected:
                raise FenceMoved(found)
            self._add_columns(connection, change)
            # First the deletes: a row may take over a unique value.
            for table, write in ((change.deletes, self._delete), (change.upserts, self._upsert)):
                if table is not None and table.num_rows:
                    self._stage(connection, change.fence)
                    write(connection, change, table)
            if change.upserts is not None:
                reach("sink_rows_written")
            self._put_fence(connection, change.copy, change.fence)
            if change.upserts is not None:
                reach("store_batch_written")

    def _end_others(self, connection: Session) -> None:
        """End the sessions that an older run, or this one before its connection broke, left inside a transaction."""
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 AND pid <> pg_backend_pid() "
            "AND datname = current_database() AND usename = current_user AND state <> 'idle'",
            (self._session_name,),
        )

    def _create(self, connection: Session, change: StoreChange) -> None:
        # Two runs may begin at once.
        connection.execute("SELECT pg_advisory_xact_lock(6014730212)")
        columns = (
            "store text, copy text, state text, flow text, version integer, epoch bigint, batch bigint, "
            "applied_at timestamptz, fence text, PRIMARY KEY (store, copy)"
        )
        connection.execute(f"CREATE TABLE IF NOT EXISTS {self._named(FENCES)} ({columns})")
        known = self._locked(connection)
        found = known.of(change.copy)
        if found is not None:
            raise FenceMoved(found)
        fence, live = change.fence, known.live
        if change.copy == "beside" and live is not None and _fits(live, fence):
            # With the rules that others gave to it: what they refuse must be known before the switch.
            like = "INCLUDING CONSTRAINTS INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING IDENTITY INCLUDING INDEXES"
            connection.execute(f"CREATE TABLE {self._rows('beside')} (LIKE {self._rows('live')} {like})")
            self._change_columns(connection, "beside", live, fence)
            self._put_fence(connection, "beside", fence)
            return
        made = [f"{quote_name(field.name)} {_type(field, fence.key)}" for field in fence.schema]
        made.append(f"PRIMARY KEY ({_names(fence.key)})")
        connection.execute(f"CREATE TABLE {self._rows(change.copy)} ({', '.join(made)})")
        self._put_fence(connection, change.copy, fence)

    def _add_columns(self, connection: Session, change: StoreChange) -> None:
        assert change.expected is not None
        if change.fence.columns == change.expected.columns:
            return
        known = change.expected.schema.names
        for field in change.fence.schema:
            if field.name not in known:
                try:
                    connection.execute(
                        f"ALTER TABLE {self._rows(change.copy)} ADD COLUMN {quote_name(field.name)} "
                        f"{_type(field, change.fence.key)}"
                    )
                except errors.DuplicateColumn as error:
                    raise Conflict(
                        f'{self._title} has a column "{field.name}" that the flow has not made',
                        detail=f"The rows of the flow have a column of that name now. It is in {self._address.shown}.",
                        hint="Rename one of the two.",
                    ) from error

    def _stage(self, connection: Session, fence: Fence) -> None:
        """Create the temporary tables of this connection, unless it has them."""
        if self._staged == fence.columns:
            return
        for table, names in ((_UPSERTS, fence.schema.names), (_DELETES, list(fence.key))):
            columns = (f"{quote_name(name)} {wire_type(fence.schema.field(name).type)[0]}" for name in names)
            connection.execute(f"DROP TABLE IF EXISTS {table}")
            made = f"CREATE TEMPORARY TABLE {table.partition('.')[2]} ({', '.join(columns)}) ON COMMIT DELETE ROWS"
            connection.execute(made)
        self._staged = fence.columns

    def _upsert(self, connection: Session, change: StoreChange, rows: pa.Table) -> None:
        schema, key = change.fence.schema, change.fence.key
        _copy_in(connection, _UPSERTS, rows)
        sent = ", ".join(_cast(quote_name(field.name), field, key) for field in schema)
        connection.execute(_merge(self._rows(change.copy), schema, key, f"SELECT {sent} FROM {_UPSERTS}"))

    def _delete(self, connection: Session, change: StoreChange, rows: pa.Table) -> None:
        schema, key = change.fence.schema, change.fence.key
        _copy_in(connection, _DELETES, rows)
        same = " AND ".join(
            f"o.{quote_name(name)} = {_cast(f'd.{quote_name(name)}', schema.field(name), key)}" for name in key
        )
        connection.execute(f"DELETE FROM {self._rows(change.copy)} AS o USING {_DELETES} AS d WHERE {same}")

    def switch(self, expected: Fences, fence: Fence) -> None:
        live, beside = self._rows("live"), self._rows("beside")
        with self._transaction() as connection:
            found = self._locked(connection)
            if found != expected:
                raise FenceMoved(found.beside if found.beside != expected.beside else None)
            before = expected.live
            if before is not None and not _fits(before, fence):
                self._check_no_others(connection, before)
                connection.execute(f"DROP TABLE {live}")
                before = None
            if before is None:
                connection.execute(f"ALTER TABLE {beside} RENAME TO {quote_name(self._table)}")
            else:
                self._merge_next(connection, before, fence)
            connection.execute(
                f"DELETE FROM {self._named(FENCES)} WHERE store = $1 AND copy = $2", (self._table, "beside")
            )
            self._put_fence(connection, "live", fence)

    def _merge_next(self, connection: Session, before: Fence, fence: Fence) -> None:
        live, beside, key = self._rows("live"), self._rows("beside"), fence.key
        connection.execute("SET LOCAL enable_hashjoin = on")
        self._change_columns(connection, "live", before, fence)
        same = " AND ".join(f"n.{quote_name(name)} = o.{quote_name(name)}" for name in key)
        connection.execute(f"DELETE FROM {live} AS o WHERE NOT EXISTS (SELECT 1 FROM {beside} AS n WHERE {same})")
        connection.execute(_merge(live, fence.schema, key, f"SELECT {_names(fence.schema.names)} FROM {beside}"))
        connection.execute(f"DROP TABLE {beside}")

    def _change_columns(self, connection: Session, copy: Copy, before: Fence, fence: Fence) -> None:
        for name in before.schema.names:
            if name not in fence.schema.names:
                connection.execute(f"ALTER TABLE {self._rows(copy)} DROP COLUMN {quote_name(name)}")
        for field in fence.schema:
            if field.name not in before.schema.names:
                added = f"{quote_name(field.name)} {_type(field, fence.key)}"
                connection.execute(f"ALTER TABLE {self._rows(copy)} ADD COLUMN {added}")

    def _check_no_others(self, connection: Session, before: Fence) -> None:
        """Raise if others added columns to the table, which would be lost with it."""
        found = connection.query(
            f"SELECT attname FROM pg_attribute WHERE attrelid = {_literal(self._rows('live'))}::regclass AND attnum > 0 "
            "AND NOT attisdropped"
        )
        others = [name for (name,) in found if name not in before.schema.names]
        if others:
            raise Conflict(
                f"{self._title} has columns that no flow has made: {', '.join(others)}",
                detail="Its key or the type of a column changes, so it has to be made again, and they would be lost.",
                hint="Drop them, or give the flow another table.",
            )

    def drop(self, copy: Copy) -> None:
        with self._transaction() as connection:
            ours = connection.query(f"SELECT to_regclass({_literal(self._named(FENCES))}) IS NOT NULL") == [(1,)]
            (there,) = connection.query(f"SELECT to_regclass({_literal(self._rows(copy))}) IS NOT NULL")
            if there == (1,) and not (ours and copy in self._kept(connection, lock=" FOR UPDATE")):
                raise Conflict(
                    f"{self._rows(copy)} is there already, and no flow has made it",
                    detail=f"It is in the way of {self._title}, in {self._address.shown}.",
                    hint="Rename or drop it.",
                )
            connection.execute(f"DROP TABLE IF EXISTS {self._rows(copy)}")
            if ours:
                connection.execute(
                    f"DELETE FROM {self._named(FENCES)} WHERE store = $1 AND copy = $2", (self._table, copy)
                )

    # Reading

    def get(self, fence: Fence, key: Mapping[str, pa.Scalar]) -> dict[str, Any] | None:
        parts, values = [], []
        for number, (name, value) in enumerate(key.items()):
            field = fence.schema.field(name)
            column = pa.array([value.as_py()], field.type)
            if unfit(column, field, fence.key):
                return None
            parts.append(f"{quote_name(name)} = {_cast(f'${number + 1}', field, fence.key)}")
            values.append(Encoded(encode_column(column)[0].as_py(), wire_type(field.type)[1]))
        select = f"SELECT {_selected(fence)} FROM {self._rows('live')} WHERE {' AND '.join(parts)}"
        with self._reading() as connection:
            rows = connection.query(select, *values)
        return _batch(rows, fence.schema).to_pylist()[0] if rows else None

    def read(self, fence: Fence, copy: Copy = "live") -> Iterator[pa.RecordBatch]:
        with self._reading() as connection:
            for rows in connection.stream(f"SELECT {_selected(fence)} FROM {self._rows(copy)}"):
                yield _batch(rows, fence.schema)

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        try:
            with translate_errors(self._address, self._title), self._pool.borrow(READ) as connection:
                yield connection
        except (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName) as error:
            raise NotFound(
                f"{self._title} is not there, or not as the flow has made it",
                detail=f"PostgreSQL says: {self._address.safe(error)}.",
                hint="Run its flow: it fills it from the log.",
            ) from error

    def close(self) -> None:
        if self._writing is not None:
            self._writing.close()
            self._writing = None


_COPIES: tuple[Copy, ...] = ("live", "beside")
# Raised by constraints and triggers.
_RULES = (psycopg.IntegrityError, psycopg.DataError, errors.RaiseException)
_UPSERTS, _DELETES = "pg_temp.mainstem_store_upserts", "pg_temp.mainstem_store_deletes"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _names(names: Sequence[str], alias: str = "") -> str:
    return ", ".join(f"{alias}{quote_name(name)}" for name in names)


def _type(field: pa.Field, key: tuple[str, ...]) -> str:
    """The declared type of a column. Nested values are JSON; in the key they are text, since PostgreSQL cannot compare JSON."""
    return "json" if is_nested(field.type) and field.name not in key else postgres_type(field.type)


def _cast(column: str, field: pa.Field, key: tuple[str, ...]) -> str:
    """SQL that converts a sent value to the type of its column."""
    name = _type(field, key)
    return f"{column}::{name}" if name == "json" or kinds.is_decimal(field.type) else column


def _comparable(column: str, field: pa.Field, key: tuple[str, ...]) -> str:
    return f"{column}::text" if _type(field, key) == "json" else column


def _merge(table: str, schema: pa.Schema, key: tuple[str, ...], select: str) -> str:
    """Insert or replace rows; an equal row is not touched."""
    insert = f"INSERT INTO {table} AS o ({_names(schema.names)}) {select} ON CONFLICT ({_names(key)})"
    values = [field for field in schema if field.name not in key]
    if not values:
        return f"{insert} DO NOTHING"
    changed = ", ".join(f"{quote_name(field.name)} = excluded.{quote_name(field.name)}" for field in values)
    old, new = (
        ", ".join(_comparable(f"{alias}.{quote_name(field.name)}", field, key) for field in values)
        for alias in ("o", "excluded")
    )
    return f"{insert} DO UPDATE SET {changed} WHERE ({old}) IS DISTINCT FROM ({new})"


def _copy_in(connection: Session, table: str, rows: pa.Table) -> None:
    columns = [column.combine_chunks() if column.num_chunks != 1 else column.chunk(0) for column in rows.columns]
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT binary)") as copy:
        copy.write(copy_rows(columns))


def _selected(fence: Fence) -> str:
    return ", ".join(
        f"{quote_name(field.name)}::text"
        if is_nested(field.type) or kinds.is_decimal(field.type)
        else quote_name(field.name)
        for field in fence.schema
    )


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    return pa.record_batch(
        [_arrow(list(values), field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


# Kind of type -> the type of its values as `Session` reads them.
_READ: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (kinds.is_boolean, pa.int8()),
    (kinds.is_decimal, pa.string()),
    (kinds.is_date, pa.int32()),
    (kinds.is_time, pa.int64()),
    (kinds.is_timestamp, pa.int64()),
    (kinds.is_floating, pa.float64()),
)


def _arrow(values: list[Any], data_type: pa.DataType) -> pa.Array:
    if is_nested(data_type):
        return from_json(values, data_type)
    form = next((form for is_of, form in _READ if is_of(data_type)), data_type)
    return pa.array(values, form).cast(data_type)


def _fits(before: Fence, fence: Fence) -> bool:
    """Whether the table of one can take the rows of the other."""
    known = {field.name: field.type for field in before.schema}
    return before.key == fence.key and all(known.get(field.name, field.type) == field.type for field in fence.schema)
