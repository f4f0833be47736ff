"""Views in a PostgreSQL database: one table with all of them, and a schema for each version of a view.

    <first schema of the search path>
        mainstem_views     view | facts: as in view.json of a view in SQLite
        <view>             a plain view for every view of Mainstem: SELECT * FROM revenue shows the live version
    mainstem_<view>_<id>_v<n>
        the tables of version n: see postgres_tables.py

Everything that changes together changes in one transaction. The row of a view in `mainstem_views` is locked while its
versions are created, switched or dropped. `options=-csearch_path%3Dshop` in the address selects another schema than
`public`, so that several homes can share a database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import pyarrow as pa
from psycopg import errors

from mainstem.batch import FlowRun
from mainstem.clock import Clock
from mainstem.crash_points import reach
from mainstem.errors import Invalid, MainstemError
from mainstem.log.rows.schema_ddl import schema_from_ddl
from mainstem.names import quote_name
from mainstem.postgres.postgres_address import PostgresAddress
from mainstem.postgres.postgres_pool import LOCK_MS_MAX, PostgresPool, Session, pool_of
from mainstem.views.postgres.postgres_tables import NAME_BYTES_MAX, PostgresTables, plain_view
from mainstem.views.postgres.postgres_view_errors import translate_view_errors
from mainstem.views.postgres.postgres_watch import PostgresWatch, channel_of
from mainstem.views.postgres.postgres_writer import PostgresWriter
from mainstem.views.sql.sql_history import SqlHistory
from mainstem.views.sql.sql_snapshot import SqlSnapshot
from mainstem.views.version_pair import Difference, VersionPair
from mainstem.views.view_facts import Facts, check_not_live, check_version, no_such_view

__all__ = ["PostgresBackend", "PostgresStore", "PostgresVersions"]


# Creates, compares, switches and drops versions of a view in PostgreSQL, while others read and write it.
#
# Each of these is one transaction that locks the view's row in `mainstem_views`. A switch also locks the `progress` of both
# versions, so that no batch is committed to either during the switch; and it points the plain view at the new version in
# the same commit.


class PostgresVersions:
    """The versions of one view."""

    def __init__(self, store: PostgresStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def new(self, schema: pa.Schema, number: int | None = None) -> int:
        """Create an empty version beside the live one; returns its number."""
        with self._store.begin_write() as connection:
            facts = self._store.facts_in(connection, "FOR UPDATE")
            made = max(facts.numbers()) + 1 if number is None else number
            if made not in facts.numbers():
                self._store.add_version(connection, facts, schema, made, self._clock.now())
            return made

    def drop(self, number: int) -> None:
        """Remove a version that is not live."""
        with self._store.begin_write() as connection:
            facts = self._check_facts(connection, number)
            check_not_live(self._store.view, facts, number)
            self._store.write_facts(connection, facts.without_version(number))
            connection.execute(f"DROP SCHEMA {quote_name(self._store.tables(facts, number).name)} CASCADE")

    def use(self, number: int) -> None:
        """Make a version the live one, atomically for readers; subscribers get the difference."""
        with self._store.begin_write() as connection:
            facts = self._check_facts(connection, number)
            if number == facts.live:
                return
            old, new = (self._store.tables(facts, one) for one in (facts.live, number))
            for tables in (old, new):
                connection.execute(f"SELECT 1 FROM {tables.table('progress')} FOR UPDATE")
            position = SqlHistory(connection, old).last_position()
            compatible = SqlHistory(connection, new).take_over(old, facts, position, self._clock.now())
            connection.execute(f"UPDATE {old.table('progress')} SET recording = 0")
            self._store.write_facts(connection, facts.with_live(number, position, compatible=compatible))
            _show(connection, old, new)
            reach("view_version_ready")
        reach("view_version_used")

    def difference(self, before: int, after: int, limit: int, skip: int) -> Difference:
        """How version `after` differs from version `before`, each in its current state."""
        with self._store.begin_read() as connection:
            facts = self._store.facts_in(connection)
            for number in (before, after):
                check_version(self._store.view, facts, number)
            pair = VersionPair(self._store.tables(facts, after), self._store.tables(facts, before))
            return pair.difference(connection, limit, skip)

    def _check_facts(self, connection: Session, number: int) -> Facts:
        facts = self._store.facts_in(connection, "FOR UPDATE")
        check_version(self._store.view, facts, number)
        return facts


def _show(connection: Session, old: PostgresTables, new: PostgresTables) -> None:
    """Point the plain view at the new version; its privileges stay."""
    name = quote_name(new.view)
    # PostgreSQL replaces a view in place, with its grants and dependents, if its existing columns are unchanged.
    kept = [(one.name, one.type) for one in new.schema][: len(old.schema)] == [
        (one.name, one.type) for one in old.schema
    ]
    if kept:
        connection.execute(f"CREATE OR REPLACE VIEW {name} AS {plain_view(new)}")
        return
    grants = connection.execute(
        "SELECT a.grantee::regrole::text, a.privilege_type, a.is_grantable FROM pg_class AS c, aclexplode(c.relacl) AS a "
        "WHERE c.oid = to_regclass($1) AND a.grantee <> c.relowner AND a.grantee <> 0 UNION ALL "
        "SELECT 'PUBLIC', a.privilege_type, a.is_grantable FROM pg_class AS c, aclexplode(c.relacl) AS a "
        "WHERE c.oid = to_regclass($1) AND a.grantee = 0",
        (name,),
    ).fetchall()
    connection.execute(f"DROP VIEW IF EXISTS {name}")
    connection.execute(f"CREATE VIEW {name} AS {plain_view(new)}")
    for grantee, privilege, grantable in grants:
        connection.execute(f"GRANT {privilege} ON {name} TO {grantee}{' WITH GRANT OPTION' * bool(grantable)}")


# A transaction sees what was committed at its first read. It reads the view's facts first, so the live version and its rows
# are of one moment. A table that a transaction has read cannot be dropped before it ends; if the version was dropped between
# the reads of the facts and of the version, the transaction starts again.
READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# A drop during a read is rare; after this many in a row the read gives up.
TRIES = 10
WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
REGISTRY = "CREATE TABLE IF NOT EXISTS mainstem_views (view text PRIMARY KEY, facts text NOT NULL)"
# An arbitrary number for the advisory lock under which the first view is created.
REGISTRY_LOCK = 0x6D61696E
# Columns that every table of PostgreSQL has.
OWN_COLUMNS = frozenset(["tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"])


class PostgresBackend:
    """A database that stores views."""

    def __init__(self, address: str) -> None:
        self._parsed = PostgresAddress.parse(address)
        self._pool = pool_of(self._parsed)

    def __repr__(self) -> str:
        return f"<PostgresBackend {self._parsed.shown}>"

    @property
    def address(self) -> str:
        return self._parsed.url

    def names(self) -> list[str]:
        return view_names(self._pool)

    def store(self, view: str) -> PostgresStore:
        return PostgresStore(self._pool, view)

    def close(self) -> None:
        self._pool.close()


# Each of these two costs ten times as much as reading a row.
@lru_cache(maxsize=256)
def _decode(text: str, path: str, view: str) -> Facts:
    return Facts.decode(text.encode(), path, view)


@lru_cache(maxsize=256)
def _tables(view: str, view_id: str, version: int, key: tuple[str, ...], ddl: str) -> PostgresTables:
    return PostgresTables(view, version, key, schema_from_ddl(ddl), view_id)


def view_names(pool: PostgresPool) -> list[str]:
    """The views of the database, sorted."""
    with translate_view_errors(pool.address, "mainstem_views"), pool.borrow(READ) as connection:
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
        with self.begin_read() as connection:
            return self.facts_in(connection)

    def facts_in(self, connection: Session, lock: str = "") -> Facts:
        """The facts as this transaction sees them; with "FOR UPDATE" they are locked until it ends."""
        try:
            found = connection.execute(
                f"SELECT facts FROM mainstem_views WHERE view = $1 {lock}", (self.view,)
            ).fetchone()
        except errors.UndefinedTable as error:
            raise no_such_view(self.view, [], f'The database "{self.title}"') from error
        if found is None:
            names = [name for (name,) in connection.execute("SELECT view FROM mainstem_views ORDER BY view")]
            raise no_such_view(self.view, names, f'The database "{self.title}"')
        return _decode(found[0], f"{self.title}, table mainstem_views", self.view)

    def tables(self, facts: Facts, version: int) -> PostgresTables:
        """The tables of a version that the facts name."""
        ddl = next(one.schema for one in facts.versions if one.number == version)
        return _tables(self.view, facts.id, version, facts.key, ddl)

    @contextmanager
    def begin_read(self) -> Iterator[Session]:
        """A transaction that reads one snapshot."""
        with translate_view_errors(self.pool.address, self.view), self.pool.borrow(READ) as connection:
            yield connection

    @contextmanager
    def begin_write(self) -> Iterator[Session]:
        """A transaction that is committed at the end, if nothing was raised."""
        with translate_view_errors(self.pool.address, self.view), self.pool.borrow(WRITE) as connection:
            connection.execute(f"SET LOCAL lock_timeout = {LOCK_MS_MAX}")
            yield connection
            connection.execute("COMMIT")

    # Creating and dropping

    def check(self, schema: pa.Schema) -> None:
        if len(self.view) > NAME_BYTES_MAX:
            raise self._refusal(f"its name has {len(self.view)} characters", f"{NAME_BYTES_MAX} at most")
        for name in schema.names:
            if name in OWN_COLUMNS:
                raise self._refusal(f'it has a column "{name}"', "a system column of that name in every table")
            if len(name.encode()) > NAME_BYTES_MAX:
                raise self._refusal(
                    f'the name of column "{name[:40]}..." is too long', f"{NAME_BYTES_MAX} bytes at most"
                )

    def _refusal(self, complaint: str, limit: str) -> MainstemError:
        return Invalid(
            f'view "{self.view}" cannot be stored in PostgreSQL: {complaint}',
            detail=f"PostgreSQL has {limit}.",
            hint='Give it another name; for a column: frame.withColumnRenamed("old name", "new name").',
        )

    def create(self, facts: Facts, schema: pa.Schema) -> None:
        with self.begin_write() as connection:
            connection.execute(f"SELECT pg_advisory_xact_lock({REGISTRY_LOCK})")
            connection.execute(REGISTRY)
            there = connection.execute("SELECT 1 FROM mainstem_views WHERE view = $1", (self.view,)).fetchone()
            if there:
                return
            tables = PostgresTables(self.view, facts.live, facts.key, schema, facts.id)
            tables.create(connection, recording=1)
            connection.execute(f"CREATE VIEW {quote_name(self.view)} AS {plain_view(tables)}")
            insert = "INSERT INTO mainstem_views (view, facts) VALUES ($1, $2)"
            connection.execute(insert, (self.view, facts.encode().decode()))

    def add_version(self, connection: Session, facts: Facts, schema: pa.Schema, number: int, created_at: int) -> None:
        """Create a version beside the others, in a transaction that has locked the facts."""
        PostgresTables(self.view, number, facts.key, schema, facts.id).create(connection, recording=0)
        self.write_facts(connection, facts.with_version(number, schema, created_at))

    def write_facts(self, connection: Session, facts: Facts) -> None:
        """Replace the facts of the view, in a transaction that has locked them."""
        update = "UPDATE mainstem_views SET facts = $2 WHERE view = $1"
        connection.execute(update, (self.view, facts.encode().decode()))
        connection.execute("SELECT pg_notify($1, '')", (channel_of(facts.id),))

    def keep_changes(
        self, changes_max: int | None, changes_age_us: int | None, history_age_us: int | None = None
    ) -> None:
        settings = changes_max, changes_age_us, history_age_us
        if (facts := self.facts()).with_retention(*settings) != facts:
            with self.begin_write() as connection:
                self.write_facts(connection, self.facts_in(connection, "FOR UPDATE").with_retention(*settings))

    def remove(self) -> None:
        with self.begin_write() as connection:
            facts = self.facts_in(connection, "FOR UPDATE")
            connection.execute("DELETE FROM mainstem_views WHERE view = $1", (self.view,))
            connection.execute(f"DROP VIEW IF EXISTS {quote_name(self.view)}")
            for number in facts.numbers():
                connection.execute(f"DROP SCHEMA {quote_name(self.tables(facts, number).name)} CASCADE")
            connection.execute("SELECT pg_notify($1, '')", (channel_of(facts.id),))

    # Parts

    @contextmanager
    def live(self) -> Iterator[SqlSnapshot]:
        for left in reversed(range(TRIES)):
            with self.begin_read() as connection:
                facts = self.facts_in(connection)
                try:
                    snapshot = self._pin(connection, facts, facts.live)
                except errors.UndefinedTable:
                    if not left:
                        raise
                    continue
                yield snapshot
                return

    @contextmanager
    def at(self, version: int) -> Iterator[SqlSnapshot]:
        with self.begin_read() as connection:
            facts = self.facts_in(connection)
            check_version(self.view, facts, version)
            yield self._pin(connection, facts, version)

    def _pin(self, connection: Session, facts: Facts, version: int) -> SqlSnapshot:
        tables = self.tables(facts, version)
        # Locks the version too: it cannot be dropped until the transaction ends.
        connection.execute(f"SELECT 1 FROM {tables.table('progress')}")
        return SqlSnapshot(connection, tables, facts, f"{self.title}, schema {tables.name}")

    def versions(self, clock: Clock) -> PostgresVersions:
        return PostgresVersions(self, clock)

    def writer(self, run: FlowRun, clock: Clock) -> PostgresWriter:
        return PostgresWriter(self, run, clock=clock)

    def watch(self) -> PostgresWatch:
        return PostgresWatch(self.pool, self.facts().id)

    def close(self) -> None:
        self.pool.close()
