"""What PostgreSQL's catalog says: whether a table can be captured, its columns and key, and the state of the slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pyarrow as pa
from psycopg import sql

from mainstem.capture.captured_table import CapturedTable, check_columns, is_wanted
from mainstem.capture.postgresql.pgoutput import Relation, RelationColumn
from mainstem.capture.postgresql.postgres_types import PostgresType, arrow_type
from mainstem.capture.source import SourceColumn, SourceTable
from mainstem.errors import Invalid, did_you_mean

if TYPE_CHECKING:
    from mainstem.capture.postgresql.postgres_source import PostgresSource

__all__ = [
    "CatalogTable",
    "SlotFacts",
    "check_server",
    "foreign_holder",
    "publication_tables",
    "read_table",
    "read_types",
    "refuse_setup",
    "signatures",
    "slot_facts",
]

VERSION_MIN = 140000

Session = psycopg.Connection[tuple[Any, ...]]
Types = Mapping[tuple[int, int], PostgresType]


# The server


def check_server(session: Session, source: PostgresSource, slot: str) -> None:
    """Raise `Invalid` with the setting or the GRANT if the server does not stream changes to this user."""
    row = session.execute(
        "SELECT current_setting('server_version_num')::int, current_setting('wal_level'), "
        "r.rolreplication OR r.rolsuper, current_user, current_setting('max_replication_slots')::int, "
        "(SELECT count(*) FROM pg_replication_slots), EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s), "
        "current_setting('max_wal_senders')::int, pg_is_in_recovery() FROM pg_roles r WHERE r.rolname = current_user",
        [slot],
    ).fetchone()
    assert row is not None
    version, level, may_replicate, user, slots_max, slots, there, senders_max, standby = row
    where = f'The server is "{source.shown}".'
    if version < VERSION_MIN:
        raise Invalid(
            f"PostgreSQL {version // 10000} cannot be captured",
            detail=f"{where} Version {VERSION_MIN // 10000} or newer is needed.",
            hint="Upgrade the server.",
        )
    if level != "logical":
        raise Invalid(
            f'wal_level of the server is "{level}", not "logical"',
            detail=f"{where} Its WAL then lacks what logical replication needs. Nothing was changed.",
            hint="As an administrator: ALTER SYSTEM SET wal_level = 'logical'; then restart the server.",
        )
    if not may_replicate:
        role = sql.Identifier(user).as_string(None)
        raise Invalid(
            f'user "{user}" may not read changes',
            detail=f"{where} Logical replication needs the attribute REPLICATION. Nothing was changed.",
            hint=f"As an administrator: ALTER ROLE {role} REPLICATION;",
        )
    if senders_max == 0 or (not there and slots >= slots_max):
        setting, value = ("max_wal_senders", 10) if senders_max == 0 else ("max_replication_slots", slots_max + 4)
        raise Invalid(
            "the server has no replication slot free",
            detail=f"{where} max_replication_slots is {slots_max}, and {slots} are in use; max_wal_senders is {senders_max}. "
            "Nothing was changed.",
            hint=f"As an administrator: ALTER SYSTEM SET {setting} = {value}; then restart the server.",
        )
    if standby and version < 160000:
        raise Invalid(
            "the server is a standby",
            detail=f"{where} Before PostgreSQL 16 a standby cannot be read by logical replication.",
            hint="Give the address of the primary.",
        )


def refuse_setup(source: PostgresSource, capture: str, said: str) -> Invalid:
    """The user lacks a right for the publication."""
    return Invalid(
        f'the database user lacks a right that capture "{capture}" needs',
        detail=f"PostgreSQL says: {said}. Nothing was changed.",
        hint=f"Have an administrator run this, which `mainstem capture setup --print` prints too:\n{source.setup_sql(capture)}",
    )


class SlotFacts(NamedTuple):
    """A replication slot. `left_bytes`: how much more WAL it may hold; None if there is no limit. `foreign`: why it is not a
    slot of a capture of this database."""

    confirmed: int
    held_bytes: int
    left_bytes: int | None
    invalid: str
    foreign: str


def slot_facts(session: Session, name: str) -> SlotFacts | None:
    """None if the slot does not exist."""
    columns = {row[0] for row in session.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'pg_replication_slots'::regclass")}  # fmt: skip
    reason = "invalidation_reason" if "invalidation_reason" in columns else "NULL"
    row = session.execute(
        sql.SQL(
            "SELECT confirmed_flush_lsn - '0/0', pg_current_wal_insert_lsn() - restart_lsn, safe_wal_size, wal_status, {}, "
            "plugin, database = current_database(), database FROM pg_replication_slots WHERE slot_name = %s"
        ).format(sql.SQL(reason)),
        [name],
    ).fetchone()
    if row is None:
        return None
    confirmed, held, left, status, why, plugin, here, database = row
    invalid = foreign = ""
    if status == "lost" or why:
        invalid = str(why or "the WAL that it needs was removed (max_slot_wal_keep_size)")
    elif plugin != "pgoutput":
        foreign = f"it is a slot of {plugin or 'physical replication'}"
    elif not here:
        foreign = f'it is a slot of database "{database}"'
    return SlotFacts(int(confirmed or 0), int(held or 0), None if left is None else int(left), invalid, foreign)


def foreign_holder(session: Session, slot: str, title: str, *, end: bool) -> tuple[int, str] | None:
    """The process of the server that reads the slot for another program. With `end`, that of an older run of the same
    capture is ended."""
    row = session.execute(
        "SELECT s.active_pid, a.application_name FROM pg_replication_slots s "
        "LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE slot_name = %s AND s.active_pid IS NOT NULL",
        [slot],
    ).fetchone()
    if row is None:
        return None
    pid, application = row
    if application == title:
        if end:
            session.execute("SELECT pg_terminate_backend(%s)", [pid])
        return None
    return int(pid), str(application or "")


def publication_tables(session: Session, name: str) -> dict[tuple[str, str], str | None] | None:
    """The published tables and their conditions; None if there is no such publication."""
    if session.execute("SELECT FROM pg_publication WHERE pubname = %s", [name]).fetchone() is None:
        return None
    version = session.info.server_version
    condition = "pg_get_expr(r.prqual, r.prrelid)" if version >= 150000 else "NULL"
    rows = session.execute(
        sql.SQL(
            "SELECT n.nspname, c.relname, {} FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid "
            "JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.pubname = %s"
        ).format(sql.SQL(condition)),
        [name],
    )
    return {(schema, table): where for schema, table, where in rows}


# Tables


class CatalogColumn(NamedTuple):
    """A column of a table; `filled`: rows that were there before it may have a value. `version`: the transaction that
    last changed it."""

    name: str
    number: int
    type_and_modifier: tuple[int, int]
    filled: bool
    version: str


@dataclass(frozen=True)
class CatalogTable:
    """A table as it is now. `signature`: another text after each change of the table."""

    captured: CapturedTable
    oid: int
    table: SourceTable
    columns: tuple[CatalogColumn, ...]
    types: Types
    whole_before: bool
    signature: str

    def relation(
        self, source: PostgresSource, columns: Sequence[tuple[str, int, int]], types: Types,
        mask: Callable[[bytes], bytes],
    ) -> Relation:  # fmt: skip
        """How rows with these columns are captured. The table may have others now."""
        found = []
        for place, (name, oid, modifier) in enumerate(columns):
            if not is_wanted(self.captured, name, self.table.key):
                continue
            postgres = types[oid, modifier]
            data_type = _topic_type(source, self.captured, name, postgres)
            masked = name in self.captured.masked
            if masked:
                postgres, data_type = PostgresType(25, name="text"), pa.string()
            found.append(RelationColumn(name, place, postgres, data_type, mask if masked else None))
        places = {name: place for place, (name, _, _) in enumerate(columns)}
        key = tuple(places[name] for name in self.table.key if name in places)
        # A column that it lacks may be one that it has under another name.
        missing = {column.name for column in self.table.columns} - places.keys()
        renamed = bool(missing) and bool(places.keys() - {column.name for column in self.columns})
        return Relation(replace(self.table, renamed=renamed), tuple(found), key, before=self.captured.before == "row")

    @property
    def sql_name(self) -> sql.Composed:
        return sql.SQL("{}.{}").format(
            sql.Identifier(self.captured.schema or "public"), sql.Identifier(self.captured.table)
        )

    def chunk_sql(
        self, names: Sequence[str], after: tuple[str, ...] | None, rows: int, where: str | None
    ) -> sql.Composed:
        """The next rows in the order of the key."""
        conditions: list[sql.Composable] = []
        if after is not None:
            conditions.append(sql.SQL("({}) > ({})").format(self._compared_key, self.key_sql(after)))
        return self._select_sql(names, conditions, rows, where)

    def keys_sql(self, names: Sequence[str], keys: Sequence[tuple[str, ...]]) -> sql.Composed:
        """The rows with these keys, at least one, in the order of the key."""
        listed = sql.SQL(", ").join(sql.SQL("({})").format(self.key_sql(key)) for key in keys)
        return self._select_sql(names, [sql.SQL("({}) IN ({})").format(self._compared_key, listed)], len(keys), None)

    def key_sql(self, key: tuple[str, ...]) -> sql.Composed:
        """The values of a key."""
        pairs = zip(self.table.key, key, strict=True)
        return sql.SQL(", ").join(self._cast(sql.Literal(one), name) for name, one in pairs)

    @property
    def _compared_key(self) -> sql.Composed:
        # A domain over an enum has no operators of its own. A cast to the type under a domain hides no index.
        return sql.SQL(", ").join(self._cast(sql.Identifier(name), name) for name in self.table.key)

    def _select_sql(
        self, names: Sequence[str], conditions: list[sql.Composable], rows: int, where: str | None
    ) -> sql.Composed:
        # Conditions of the user are the user's own SQL.
        conditions += [sql.SQL("({})").format(sql.SQL(one)) for one in (self.captured.where, where) if one]
        return sql.SQL("SELECT {} FROM {} {} ORDER BY {} LIMIT {}").format(
            sql.SQL(", ").join(map(sql.Identifier, names)),
            self.sql_name,
            sql.SQL("WHERE {}").format(sql.SQL(" AND ").join(conditions)) if conditions else sql.SQL(""),
            sql.SQL(", ").join(map(sql.Identifier, self.table.key)),
            sql.Literal(rows),
        )

    def find_sql(self, names: Sequence[str], key: Mapping[str, Any]) -> sql.Composed:
        """One row by its key, as text. Without parameters: beside them psycopg takes a % in a name for one."""
        return sql.SQL("SELECT {} FROM {} WHERE {}").format(
            sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names),
            self.sql_name,
            sql.SQL(" AND ").join(
                sql.SQL("{} = {}").format(
                    self._cast(sql.Identifier(name), name), self._cast(sql.Literal(key[name]), name)
                )
                for name in self.table.key
            ),
        )

    def _cast(self, value: sql.Composable, name: str) -> sql.Composed:
        """A value in the type of a column; of a domain, in the one under it."""
        column = next(column for column in self.columns if column.name == name)
        found = self.types[column.type_and_modifier]
        # As format_type() gives it: quoted where it must be.
        return sql.SQL("{}::{}").format(value, sql.SQL(found.base or found.name))


def _topic_type(source: PostgresSource, captured: CapturedTable, column: str, postgres: PostgresType) -> pa.DataType:
    return source.types.get(f"{captured.name}.{column}") or arrow_type(postgres)


_COLUMNS = """
SELECT a.attname, a.attnum, a.atttypid, a.atttypmod,
       a.atthasmissing OR a.atthasdef OR a.attidentity <> '', a.xmin::text
FROM pg_attribute a
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attnum
"""

_KEY = """
SELECT a.attname
FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k(number, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE i.indrelid = %s AND k.place <= i.indnkeyatts AND {}
ORDER BY k.place
"""

# The rows of the catalog that describe a table; each has another xmin after a change. The slot's publication is named like
# the slot.
_SIGNATURES = """
SELECT c.oid, md5(concat_ws('|', n.nspname, c.relname, c.relkind, c.relreplident, c.relfilenode,
    (SELECT string_agg(concat_ws(' ', a.attnum, a.xmin), ',' ORDER BY a.attnum) FROM pg_attribute a
     WHERE a.attrelid = c.oid AND a.attnum > 0),
    (SELECT string_agg(concat_ws(' ', i.indexrelid, i.indisprimary, i.indisreplident, i.indkey), ',' ORDER BY i.indexrelid)
     FROM pg_index i WHERE i.indrelid = c.oid),
    (SELECT string_agg(concat_ws(' ', t.relid, p.relfilenode), ',' ORDER BY t.relid)
     FROM pg_partition_tree(c.oid) t JOIN pg_class p ON p.oid = t.relid WHERE c.relkind = 'p'),
    (SELECT r.oid FROM pg_publication_rel r JOIN pg_publication b ON b.oid = r.prpubid
     WHERE b.pubname = %s AND r.prrelid = c.oid)))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s)
"""

# Made as a partition: by the transaction that made the table, whose columns of the system never change.
_PARTS = """
SELECT t.relid::bigint::text, i.xmin = a.xmin, p.relfilenode::text
FROM pg_partition_tree(%s) t JOIN pg_class p ON p.oid = t.relid JOIN pg_inherits i ON i.inhrelid = t.relid
JOIN pg_attribute a ON a.attrelid = t.relid AND a.attname = 'tableoid'
WHERE t.isleaf ORDER BY t.relid
"""


def signatures(session: Session, publication: str, oids: Sequence[int]) -> dict[int, str]:
    """For each table that exists, a text that is another one after each change of the table."""
    return dict(session.execute(_SIGNATURES, [publication, list(oids)]))


def renamed_table(session: Session, captured: CapturedTable, oid: int) -> Invalid | None:
    """The error of a table that has another name now; None if it does not exist."""
    row = session.execute(
        "SELECT CASE n.nspname WHEN 'public' THEN c.relname ELSE n.nspname || '.' || c.relname END FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s",
        [oid],
    ).fetchone()
    if row is None or row[0] == captured.name:
        return None
    return Invalid(
        f'table "{captured.name}" was renamed to "{row[0]}"',
        detail="A table is captured by its name. Nothing after the change was captured.",
        hint=f'Rename it back; or capture it under its new name: CapturedTable("{row[0]}", into=...) reads it again.',
    )


def read_table(session: Session, publication: str, source: PostgresSource, captured: CapturedTable) -> CatalogTable:
    """A table as it is now; raises `Invalid` if it cannot be captured."""
    schema, name = captured.schema or "public", captured.table
    row = session.execute(
        "SELECT c.oid, c.relkind, c.relreplident, c.relfilenode, has_table_privilege(c.oid, 'SELECT') FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
        [schema, name],
    ).fetchone()
    if row is None:
        raise _no_such_table(session, captured)
    oid, kind, identity, storage, may_read = row
    signature = signatures(session, publication, [oid]).get(oid, "")
    if kind not in ("r", "p"):
        raise Invalid(
            f'"{captured.name}" is not a table',
            detail="Views, foreign tables and sequences have no changes of their own in the WAL.",
            hint="Capture the tables that it reads.",
        )
    which = sql.SQL("i.indisreplident") if identity == "i" else sql.SQL("i.indisprimary")
    key = tuple(one[0] for one in session.execute(sql.SQL(_KEY).format(which), [oid]))
    columns = tuple(
        CatalogColumn(one, number, (type_oid, modifier), bool(filled), version)
        for one, number, type_oid, modifier, filled, version in session.execute(_COLUMNS, [oid])
    )
    types = read_types(session, [column.type_and_modifier for column in columns])
    _check_table(session, captured, oid, columns, key, identity, may_read=may_read)
    described = tuple(
        SourceColumn(
            column.name,
            pa.string() if column.name in captured.masked
            else _topic_type(source, captured, column.name, types[column.type_and_modifier]),
            column.number, types[column.type_and_modifier].name, column.filled, column.version,
        )
        for column in columns
        if is_wanted(captured, column.name, key)
    )  # fmt: skip
    parts = session.execute(_PARTS, [oid]).fetchall() if kind == "p" else []
    stored = " ".join(part[2] for part in parts) if kind == "p" else str(storage)
    described_parts = {part[0]: (bool(part[1]), str(part[2])) for part in parts}
    table = SourceTable(captured.name, described, key, stored, str(oid), described_parts)
    return CatalogTable(captured, oid, table, columns, types, identity == "f", signature)


def _check_table(
    session: Session, captured: CapturedTable, oid: int, columns: Sequence[CatalogColumn], key: Sequence[str],
    identity: str, *, may_read: bool,
) -> None:  # fmt: skip
    quoted = (
        sql.SQL("{}.{}")
        .format(sql.Identifier(captured.schema or "public"), sql.Identifier(captured.table))
        .as_string(None)
    )
    if not may_read:
        user = session.info.user
        raise Invalid(
            f'user "{user}" may not read table "{captured.name}"',
            detail="A snapshot reads the table. Nothing was changed.",
            hint=f"As its owner: GRANT SELECT ON {quoted} TO {sql.Identifier(user).as_string(None)};",
        )
    _check_storage(session, captured, oid)
    if not key or identity == "n":
        raise Invalid(
            f'table "{captured.name}" has no key',
            detail="Without a key its changes cannot be assigned to rows; and once it is published, PostgreSQL would refuse "
            "every UPDATE and DELETE of the application. Nothing was changed.",
            hint=f"ALTER TABLE {quoted} ADD PRIMARY KEY (...);"
            if not key and identity != "n"
            else f"ALTER TABLE {quoted} REPLICA IDENTITY DEFAULT; and give it a primary key if it has none.",
        )
    if (captured.before == "row" or captured.where is not None) and identity != "f":
        setting = 'before="row"' if captured.before == "row" else f"where={captured.where!r}"
        raise Invalid(
            f'table "{captured.name}" is captured with {setting}, but the WAL does not have its old rows',
            detail="PostgreSQL writes only the old key, unless REPLICA IDENTITY is FULL. Nothing was changed.",
            hint=f"ALTER TABLE {quoted} REPLICA IDENTITY FULL;",
        )
    if hidden := next((one for one in captured.masked if one in key), None):
        raise Invalid(
            f'key column "{hidden}" of table "{captured.name}" cannot be masked',
            detail="A row is looked up by its key in the database, which a hash does not find.",
            hint="Mask other columns, or give the table another key.",
        )
    check_columns(captured, [column.name for column in columns], key)


def _check_storage(session: Session, captured: CapturedTable, oid: int) -> None:
    """Raise `Invalid` if the WAL has not all rows that a reader of the table sees, or not as the table itself does."""
    row = session.execute(
        "SELECT c.relpersistence, c.relkind, (SELECT i.inhrelid::regclass::text FROM pg_inherits i WHERE i.inhparent = c.oid "
        "LIMIT 1), (SELECT p.oid::regclass::text FROM pg_partition_tree(c.oid) t JOIN pg_class p ON p.oid = t.relid "
        "WHERE t.isleaf AND p.relreplident <> c.relreplident AND c.relkind = 'p' LIMIT 1) FROM pg_class c WHERE c.oid = %s",
        [oid],
    ).fetchone()
    assert row is not None
    persistence, kind, child, part = row
    if persistence != "p":
        raise Invalid(
            f'table "{captured.name}" is unlogged or temporary',
            detail="Its changes are not in the WAL. Nothing was changed.",
            hint=f"ALTER TABLE {captured.name} SET LOGGED;",
        )
    if kind == "r" and child is not None:
        raise Invalid(
            f'table "{captured.name}" has children that inherit from it',
            detail=f'A reader sees the rows of "{child}" too, but their changes are in the WAL as those of another table. '
            "Nothing was changed.",
            hint="Capture each child as a table of its own, or make it a partitioned table.",
        )
    if part is not None:
        raise Invalid(
            f'partition "{part}" of table "{captured.name}" has another REPLICA IDENTITY than the table',
            detail="PostgreSQL writes old rows as the partition says, and would refuse some changes of the application. "
            "Nothing was changed.",
            hint=f"ALTER TABLE {part} REPLICA IDENTITY ...; as the table has it.",
        )


def _no_such_table(session: Session, captured: CapturedTable) -> Invalid:
    rows = session.execute(
        "SELECT CASE n.nspname WHEN 'public' THEN c.relname ELSE n.nspname || '.' || c.relname END FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') "
        "AND n.nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1 LIMIT 1000"
    )
    names = [row[0] for row in rows]
    listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return Invalid(
        f'table "{captured.name}" does not exist',
        detail=f'Database "{session.info.dbname}" has the tables: {listed or "none that this user can see"}.',
        hint=did_you_mean(captured.name, names) or "Write a schema other than public before it: sales.orders.",
    )


def read_types(session: Session, wanted: Sequence[tuple[int, int]]) -> Types:
    """The types with their modifiers; a domain is its base type."""
    found: dict[tuple[int, int], PostgresType] = {}
    for oid, modifier in set(wanted):
        row = session.execute(
            "WITH RECURSIVE base AS (SELECT oid, typbasetype, typtypmod, typtype, typcategory, typelem FROM pg_type "
            "WHERE oid = %s UNION ALL SELECT t.oid, t.typbasetype, CASE WHEN b.typtypmod >= 0 THEN b.typtypmod ELSE "
            "t.typtypmod END, t.typtype, t.typcategory, t.typelem FROM base b JOIN pg_type t ON t.oid = b.typbasetype) "
            "SELECT oid, typtypmod, typcategory, typelem, typtype, format_type(%s, %s), format_type(oid, -1) FROM base "
            "WHERE typbasetype = 0",
            [oid, oid, modifier],
        ).fetchone()
        if row is None:
            found[oid, modifier] = PostgresType(oid, modifier, f"type {oid}")
            continue
        base, base_modifier, category, element, kind, name, under = row
        chosen, under = (modifier, "") if base == oid else (base_modifier, under)
        found[oid, modifier] = PostgresType(base, chosen, name, element if category == "A" else 0, kind == "e", under)
    return found
