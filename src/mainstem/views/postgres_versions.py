"""Making, comparing, using and dropping versions of a view in PostgreSQL, while others read and write it.

Each of these is one transaction that holds the view's row in `mainstem_views`. Putting a version to use also holds the
`progress` of both versions, so that no batch is committed to either between its last change and the flip; and it points
the plain view at the new version in the same commit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from mainstem.clock import Clock
from mainstem.crash_points import reach
from mainstem.errors import Conflict
from mainstem.views.postgres_columns import comparable, selected
from mainstem.views.postgres_history import PostgresHistory
from mainstem.views.postgres_pool import Session
from mainstem.views.postgres_tables import PostgresTables, plain_view
from mainstem.views.stored_columns import quoted
from mainstem.views.version_pair import Difference, Kind, VersionPair, difference_of
from mainstem.views.view_facts import Facts, Segment, no_such_version
from mainstem.views.view_store import KeptSince

if TYPE_CHECKING:
    from mainstem.views.postgres_place import PostgresStore

__all__ = ["PostgresVersions"]


class PostgresVersions:
    """The versions of one view."""

    def __init__(self, store: PostgresStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def new(self, schema: pa.Schema, number: int | None = None) -> int:
        """Make an empty version beside the live one; its number."""
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
                    hint="Use another one first, or drop the whole view.",
                )
            left = tuple(version for version in facts.versions if version.number != number)
            # A history with a part missing leads nowhere: it begins after the last part of this version.
            served = [index for index, segment in enumerate(facts.history) if segment.version == number]
            history = facts.history[max(served, default=-1) + 1 :]
            self._store.write_facts(connection, replace(facts, versions=left, history=history))
            connection.execute(f"DROP SCHEMA {quoted(self._store.tables(facts, number).name)} CASCADE")

    def use(self, number: int) -> None:
        """Make a version the live one. Readers see the one or the other; followers get the difference."""
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
        """Write the way from the old version to the new one as changes of the new one; False where there is none."""
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
        """How version `after` differs from version `before`, each as it is now."""
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
    """Statements that write what leads from the old rows to the new ones, behind position $1, as rows of the new one."""
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
    """Point the plain view at the new version; whoever was allowed to read it still is."""
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
