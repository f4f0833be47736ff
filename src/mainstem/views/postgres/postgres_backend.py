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
from dataclasses import replace
from functools import lru_cache

import psycopg
import pyarrow as pa
from psycopg import errors

from mainstem.batch import FlowRun
from mainstem.clock import Clock
from mainstem.crash_points import reach
from mainstem.errors import Conflict, Invalid, MainstemError
from mainstem.log.rows.schema_ddl import schema_from_ddl, schema_to_ddl
from mainstem.views.postgres.postgres_address import PostgresAddress, translated
from mainstem.views.postgres.postgres_columns import comparable, selected
from mainstem.views.postgres.postgres_history import PostgresHistory
from mainstem.views.postgres.postgres_pool import LOCK_MS_MAX, PostgresPool, Session, pool_of
from mainstem.views.postgres.postgres_snapshot import READ, PostgresSnapshot, pinned_live, pinned_version
from mainstem.views.postgres.postgres_tables import NAME_BYTES_MAX, PostgresTables, plain_view
from mainstem.views.postgres.postgres_watch import PostgresWatch, channel_of
from mainstem.views.postgres.postgres_writer import PostgresWriter
from mainstem.views.sqlite.sqlite_columns import quoted
from mainstem.views.version_pair import Difference, Kind, VersionPair, difference_of
from mainstem.views.view_facts import Facts, Segment, VersionFacts, no_such_version, no_such_view
from mainstem.views.view_store import KeptSince

__all__ = ["PostgresBackend", "PostgresStore", "PostgresVersions"]


# Making, comparing, using and dropping versions of a view in PostgreSQL, while others read and write it.
#
# Each of these is one transaction that holds the view's row in `mainstem_views`. Putting a version to use also holds the
# `progress` of both versions, so that no batch is committed to either between its last change and the flip; and it points
# the plain view at the new version in the same commit.


class PostgresVersions:
    """The versions of one view."""

    def __init__(self, store: PostgresStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def new(self, schema: pa.Schema, number: int | None = None) -> int:
        """Create an empty version beside the live one; returns its number."""
        with self._store.writing() as connection:
            facts = self._store.facts_in(connection, "FOR UPDATE")
            made = max(facts.numbers()) + 1 if number is None else number
            if made not in facts.numbers():
                self._store.add_version(connection, facts, schema, made, self._clock.now())
            return made

    def drop(self, number: int) -> None:
        """Remove a version that is not live."""
        with self._store.writing() as connection:
            facts = self._checked(connection, number)
            if number == facts.live:
                raise Conflict(
                    f'version {number} of view "{self._store.view}" is the live one',
                    detail=f"It has the versions {', '.join(map(str, facts.numbers()))}.",
                    hint="Switch to another version first, or drop the whole view.",
                )
            left = tuple(version for version in facts.versions if version.number != number)
            # A history with a part missing leads nowhere: it begins after the last part of this version.
            served = [index for index, segment in enumerate(facts.history) if segment.version == number]
            history = facts.history[max(served, default=-1) + 1 :]
            self._store.write_facts(connection, replace(facts, versions=left, history=history))
            connection.execute(f"DROP SCHEMA {quoted(self._store.tables(facts, number).name)} CASCADE")

    def use(self, number: int) -> None:
        """Make a version the live one, atomically for readers; subscribers get the difference."""
        with self._store.writing() as connection:
            facts = self._checked(connection, number)
            if number == facts.live:
                return
            old, new = (self._store.tables(facts, one) for one in (facts.live, number))
            for tables in (old, new):
                connection.execute(f"SELECT 1 FROM {tables.table('progress')} FOR UPDATE")
            position = _last_position(connection, old)
            compatible = self._write_difference(connection, new, old, facts, position)
            segment = Segment(number, position)
            history = (*facts.history, segment) if compatible else (segment,)
            connection.execute(f"UPDATE {old.table('progress')} SET recording = 0")
            self._store.write_facts(connection, replace(facts, live=number, history=history))
            _show(connection, old, new)
            reach("view_version_ready")
        reach("view_version_used")

    def _write_difference(
        self, connection: Session, new: PostgresTables, old: PostgresTables, facts: Facts, position: int
    ) -> bool:
        """Write the difference between the old version and the new one as changes of the new one; False if there is none."""
        served = [
            facts.history[index + 1].after
            for index, segment in enumerate(facts.history[:-1])
            if segment.version == new.version
        ]
        changes, commits, kept = new.table("changes"), new.table("commits"), max(served, default=-1)
        connection.execute(f"UPDATE {new.table('progress')} SET recording = 1")
        connection.execute(f"DELETE FROM {changes} WHERE position > $1", (kept,))
        connection.execute(f"DELETE FROM {commits} WHERE end_position > $1", (kept,))
        pair, history = _pair(new, old), PostgresHistory(connection, new)
        if pair.compatible and facts.history_age_us:
            history.carry(old, position)
        else:
            history.end()
        none = f"INSERT INTO {changes} (position, change) VALUES ($1, 'none') ON CONFLICT (position) DO NOTHING"
        connection.execute(none, (position,))
        if pair.compatible:
            for statement in _changes(pair, new, old):
                connection.execute(statement, (_last_position(connection, new),))
        last, now = _last_position(connection, new), self._clock.now()
        if last > position:
            connection.execute(f"INSERT INTO {commits} VALUES ($1, $2, 0, -1)", (last, now))
        if facts.history_age_us:
            # Of other columns, or of a time when there was none yet, nothing can be told: then it begins here.
            history.keep(KeptSince(last, now))
            history.put_to_use(last)
        return pair.compatible

    def difference(self, before: int, after: int) -> Difference:
        """How version `after` differs from version `before`, each in its current state."""
        with self._store.reading() as connection:
            facts = self._store.facts_in(connection)
            for number in (before, after):
                if number not in facts.numbers():
                    raise no_such_version(self._store.view, facts, number)
            pair = _pair(self._store.tables(facts, after), self._store.tables(facts, before))
            return difference_of(pair, before, after, lambda sql: connection.execute(sql, binary=True).fetchall())

    def _checked(self, connection: Session, number: int) -> Facts:
        facts = self._store.facts_in(connection, "FOR UPDATE")
        if number not in facts.numbers():
            raise no_such_version(self._store.view, facts, number)
        return facts


def _last_position(connection: Session, tables: PostgresTables) -> int:
    found = connection.execute(f"SELECT max(position) FROM {tables.table('changes')}").fetchone()
    assert found is not None
    return int(found[0])


def _pair(new: PostgresTables, old: PostgresTables) -> VersionPair:
    return VersionPair(
        new.key,
        new.schema,
        old.schema,
        new=new.rows,
        old=old.rows,
        is_same="IS NOT DISTINCT FROM",
        comparable=comparable,
        selected=selected,
    )


def _changes(pair: VersionPair, new: PostgresTables, old: PostgresTables) -> list[str]:
    """Statements that write the changes from the old rows to the new ones, after position $1, as rows of the new one."""
    known = set(old.schema.names)
    was = new.row_of([f"o.{quoted(name)}" if name in known else "NULL" for name in new.schema.names])
    kinds: list[tuple[Kind, str, str, str]] = [
        ("removed", "delete", was, "NULL"),
        ("changed", "update", was, "n"),
        ("added", "insert", "NULL", "n"),
    ]
    statements = []
    for kind, change, before, after in kinds:
        order = ", ".join(f"{'o' if kind == 'removed' else 'n'}.{quoted(name)}" for name in pair.key)
        statements.append(
            f"INSERT INTO {new.table('changes')} (position, change, old, new) "
            f"SELECT $1::bigint + row_number() OVER (ORDER BY {order}), '{change}', {before}, {after} "
            f"FROM {pair.source(kind)}"
        )
    return statements


def _show(connection: Session, old: PostgresTables, new: PostgresTables) -> None:
    """Point the plain view at the new version; its privileges stay."""
    name = quoted(new.view)
    # PostgreSQL replaces a view in place, with its grants and all that depends on it, while its columns stay as they are.
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


WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
REGISTRY = "CREATE TABLE IF NOT EXISTS mainstem_views (view text PRIMARY KEY, facts text NOT NULL)"
# Any number that nobody else is likely to lock: two that make the first view at once would get in each other's way.
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
        return _decoded(found[0], f"{self.title}, table mainstem_views", self.view)

    def tables(self, facts: Facts, version: int) -> PostgresTables:
        """The tables of a version that the facts name."""
        ddl = next(one.schema for one in facts.versions if one.number == version)
        return _tables(self.view, facts.id, version, facts.key, ddl)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A transaction that reads one snapshot."""
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
                raise self._refused(f'it has a column "{name}"', "a system column of that name in every table")
            if len(name.encode()) > NAME_BYTES_MAX:
                raise self._refused(
                    f'the name of column "{name[:40]}..." is too long', f"{NAME_BYTES_MAX} bytes at most"
                )

    def _refused(self, complaint: str, limit: str) -> MainstemError:
        return Invalid(
            f'view "{self.view}" cannot be stored in PostgreSQL: {complaint}',
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
        """Create a version beside the others, in a transaction that has locked the facts."""
        make_version(connection, PostgresTables(self.view, facts.id, number, facts.key, schema), recording=0)
        added = VersionFacts(number, schema_to_ddl(schema), created_at)
        self.write_facts(connection, replace(facts, versions=(*facts.versions, added)))

    def write_facts(self, connection: Session, facts: Facts) -> None:
        """Replace the facts of the view, in a transaction that has locked them."""
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
