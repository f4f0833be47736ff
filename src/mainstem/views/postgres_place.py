"""Views in a PostgreSQL database: one table that names them all, and a schema for each version of each.

    <first schema of the search path>
        mainstem_views     view | facts: what view.json is for a view in a file
        <view>             a plain view for every view of Mainstem: SELECT * FROM revenue shows the live version
    mainstem_<view>_<id>_v<n>
        the tables of version n: see postgres_tables.py

Everything that changes together changes in one transaction. The row of a view in `mainstem_views` is locked while its
versions are made, used or dropped. `options=-csearch_path%3Dshop` in the address chooses another schema than `public`, so
several homes share a database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

import psycopg
import pyarrow as pa
from psycopg import errors

from mainstem.clock import Clock
from mainstem.errors import Invalid, MainstemError
from mainstem.log.schema_ddl import schema_from_ddl, schema_to_ddl
from mainstem.log_on_spark.flow_run import FlowRun
from mainstem.views.postgres_address import PostgresAddress
from mainstem.views.postgres_errors import translated
from mainstem.views.postgres_pool import LOCK_MS_MAX, PostgresPool, Session, pool_of
from mainstem.views.postgres_snapshot import READ, PostgresSnapshot, pinned_live, pinned_version
from mainstem.views.postgres_tables import NAME_BYTES_MAX, PostgresTables, plain_view
from mainstem.views.postgres_versions import PostgresVersions
from mainstem.views.postgres_watch import PostgresWatch, channel_of
from mainstem.views.postgres_writer import PostgresWriter
from mainstem.views.stored_columns import quoted
from mainstem.views.view_facts import Facts, VersionFacts, no_such_view

__all__ = ["PostgresPlace", "PostgresStore"]

WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
REGISTRY = "CREATE TABLE IF NOT EXISTS mainstem_views (view text PRIMARY KEY, facts text NOT NULL)"
# Any number that nobody else is likely to lock: two that make the first view at once would get in each other's way.
REGISTRY_LOCK = 0x6D61696E
# Columns that every table of PostgreSQL has.
OWN_COLUMNS = frozenset(["tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"])


class PostgresPlace:
    """A database that views are kept in."""

    def __init__(self, address: str) -> None:
        self._parsed = PostgresAddress.parse(address)
        self._pool = pool_of(self._parsed)

    def __repr__(self) -> str:
        return f"<PostgresPlace {self._parsed.shown}>"

    @property
    def address(self) -> str:
        return self._parsed.url

    def names(self) -> list[str]:
        return view_names(self._pool)

    def store(self, view: str) -> PostgresStore:
        return PostgresStore(self._pool, view)

    def close(self) -> None:
        self._pool.close()


# Both cost ten times as much as asking for a row does.
@lru_cache(maxsize=256)
def _decoded(text: str, path: str, view: str) -> Facts:
    return Facts.decode(text.encode(), path, view)


@lru_cache(maxsize=256)
def _tables(view: str, view_id: str, version: int, key: tuple[str, ...], ddl: str) -> PostgresTables:
    return PostgresTables(view, view_id, version, key, schema_from_ddl(ddl))


def view_names(pool: PostgresPool) -> list[str]:
    """The views of the database, sorted."""
    with translated(pool.address, "mainstem_views"), pool.borrowed(READ) as connection:
        if connection.execute("SELECT to_regclass('mainstem_views')").fetchone() == (None,):
            return []
        return sorted(name for (name,) in connection.execute("SELECT view FROM mainstem_views"))


class PostgresStore:
    """One view in the database. Thread-safe."""

    def __init__(self, pool: PostgresPool, view: str) -> None:
        self.view = view
        self.pool = pool

    @property
    def title(self) -> str:
        return self.pool.address.shown

    @property
    def location(self) -> str:
        return self.pool.address.without_password

    def exists(self) -> bool:
        return self.view in view_names(self.pool)

    def facts(self) -> Facts:
        with self.reading() as connection:
            return self.facts_in(connection)

    def facts_in(self, connection: Session, lock: str = "") -> Facts:
        """The facts as this transaction sees them; with "FOR UPDATE" nobody else changes them until it ends."""
        try:
            found = connection.execute(
                f"SELECT facts FROM mainstem_views WHERE view = $1 {lock}", (self.view,)
            ).fetchone()
        except errors.UndefinedTable as error:
            raise no_such_view(self.view, [], f'The database "{self.title}"') from error
        if found is None:
            names = [name for (name,) in connection.execute("SELECT view FROM mainstem_views ORDER BY view")]
            raise no_such_view(self.view, names, f'The database "{self.title}"')
        return _decoded(found[0], f"{self.title}, table mainstem_views", self.view)

    def tables(self, facts: Facts, version: int) -> PostgresTables:
        """The tables of a version that the facts name."""
        ddl = next(one.schema for one in facts.versions if one.number == version)
        return _tables(self.view, facts.id, version, facts.key, ddl)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A transaction that sees one moment."""
        with translated(self.pool.address, self.view), self.pool.borrowed(READ) as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A transaction that is committed at the end, if nothing was raised."""
        with translated(self.pool.address, self.view), self.pool.borrowed(WRITE) as connection:
            connection.execute(f"SET LOCAL lock_timeout = {LOCK_MS_MAX}")
            yield connection
            connection.execute("COMMIT")

    # Making and dropping

    def check(self, schema: pa.Schema) -> None:
        if len(self.view) > NAME_BYTES_MAX:
            raise self._refused(f"its name has {len(self.view)} characters", f"{NAME_BYTES_MAX} at most")
        for name in schema.names:
            if name in OWN_COLUMNS:
                raise self._refused(f'it has a column "{name}"', "a column of that name in every table, its own")
            if len(name.encode()) > NAME_BYTES_MAX:
                raise self._refused(
                    f'the name of column "{name[:40]}..." is too long', f"{NAME_BYTES_MAX} bytes at most"
                )

    def _refused(self, complaint: str, limit: str) -> MainstemError:
        return Invalid(
            f'view "{self.view}" cannot be kept in PostgreSQL: {complaint}',
            detail=f"PostgreSQL has {limit}.",
            hint='Give it another name; for a column: frame.withColumnRenamed("old name", "new name").',
        )

    def create(self, facts: Facts, schema: pa.Schema) -> None:
        with self.writing() as connection:
            connection.execute(f"SELECT pg_advisory_xact_lock({REGISTRY_LOCK})")
            connection.execute(REGISTRY)
            there = connection.execute("SELECT 1 FROM mainstem_views WHERE view = $1", (self.view,)).fetchone()
            if there:
                return
            tables = PostgresTables(self.view, facts.id, facts.live, facts.key, schema)
            make_version(connection, tables, recording=1)
            connection.execute(f"CREATE VIEW {quoted(self.view)} AS {plain_view(tables)}")
            insert = "INSERT INTO mainstem_views (view, facts) VALUES ($1, $2)"
            connection.execute(insert, (self.view, facts.encode().decode()))

    def add_version(self, connection: Session, facts: Facts, schema: pa.Schema, number: int, created_at: int) -> None:
        """Make a version beside the others, in a transaction that has locked the facts."""
        make_version(connection, PostgresTables(self.view, facts.id, number, facts.key, schema), recording=0)
        added = VersionFacts(number, schema_to_ddl(schema), created_at)
        self.write_facts(connection, replace(facts, versions=(*facts.versions, added)))

    def write_facts(self, connection: Session, facts: Facts) -> None:
        """Replace what the view says of itself, in a transaction that has locked it."""
        update = "UPDATE mainstem_views SET facts = $2 WHERE view = $1"
        connection.execute(update, (self.view, facts.encode().decode()))
        connection.execute("SELECT pg_notify($1, '')", (channel_of(facts.id),))

    def keep_changes(
        self, changes_max: int | None, changes_age_us: int | None, history_age_us: int | None = None
    ) -> None:
        settings = changes_max, changes_age_us, history_age_us
        if (facts := self.facts()).keeping(*settings) != facts:
            with self.writing() as connection:
                self.write_facts(connection, self.facts_in(connection, "FOR UPDATE").keeping(*settings))

    def remove(self) -> None:
        with self.writing() as connection:
            facts = self.facts_in(connection, "FOR UPDATE")
            connection.execute("DELETE FROM mainstem_views WHERE view = $1", (self.view,))
            connection.execute(f"DROP VIEW IF EXISTS {quoted(self.view)}")
            for number in facts.numbers():
                connection.execute(f"DROP SCHEMA {quoted(self.tables(facts, number).name)} CASCADE")
            connection.execute("SELECT pg_notify($1, '')", (channel_of(facts.id),))

    # Parts

    @contextmanager
    def live(self) -> Iterator[PostgresSnapshot]:
        with translated(self.pool.address, self.view), pinned_live(self) as snapshot:
            yield snapshot

    @contextmanager
    def at(self, version: int) -> Iterator[PostgresSnapshot]:
        with translated(self.pool.address, self.view), pinned_version(self, version) as snapshot:
            yield snapshot

    def versions(self, clock: Clock) -> PostgresVersions:
        return PostgresVersions(self, clock)

    def writer(self, run: FlowRun, clock: Clock) -> PostgresWriter:
        return PostgresWriter(self, run, clock=clock)

    def watch(self) -> PostgresWatch:
        return PostgresWatch(self.pool, self.facts().id)

    def close(self) -> None:
        self.pool.close()


def make_version(connection: psycopg.Connection[tuple[object, ...]], tables: PostgresTables, *, recording: int) -> None:
    """The tables of a version, empty."""
    for statement in tables.definitions():
        connection.execute(statement)
    for name, value in tables.about():
        connection.execute(f"INSERT INTO {tables.table('about')} VALUES ($1, $2)", (name, value))
    connection.execute(f"INSERT INTO {tables.table('progress')} VALUES (1, NULL, 0, -1, NULL, $1, -1)", (recording,))
    connection.execute(f"INSERT INTO {tables.table('changes')} (position, change) VALUES (0, 'none')")
