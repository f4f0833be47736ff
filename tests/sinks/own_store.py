"""SqliteStore: a table of a SQLite file that a flow keeps current."""

import sqlite3
from contextlib import closing, contextmanager

import pyarrow as pa

from mainstem import Conflict, Invalid, Unavailable
from mainstem.sinks import Fence, FenceMoved, Fences


class SqliteStore:
    keyless = False

    def __init__(self, path, table):
        self.path, self.location = path, f'{path}, table "{table}"'
        self.tables = {"live": table, "beside": f"{table}_next"}

    # Checks

    def check(self, schema, key):
        for field in schema:
            if not (pa.types.is_integer(field.type) or field.type in (pa.string(), pa.binary())):
                raise Invalid(
                    f'SqliteStore cannot have column "{field.name}", which is {field.type}',
                    detail="It has integers, text and bytes.",
                    hint=f'Convert it: rows.withColumn("{field.name}", F.col("{field.name}").cast("string")).',
                )

    def unfit(self, column, field, key):
        return {}

    # Fences

    @contextmanager
    def transaction(self, kind="IMMEDIATE"):
        try:
            with closing(sqlite3.connect(self.path, isolation_level=None, timeout=30)) as database:
                database.execute(f"BEGIN {kind}")
                if kind == "IMMEDIATE":
                    database.execute("CREATE TABLE IF NOT EXISTS mainstem_fences (name TEXT PRIMARY KEY, fence TEXT)")
                yield database
                database.execute("COMMIT")  # not reached after an error: then closing rolls back
        except sqlite3.OperationalError as error:
            raise Unavailable(
                f"{self.location} cannot be used", detail=f"SQLite says: {error}.", hint="Check the file."
            ) from error

    def fences(self):
        with self.transaction("DEFERRED") as database:
            return self.read_fences(database)

    def read_fences(self, database):
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        known = dict(database.execute("SELECT name, fence FROM mainstem_fences")) if "mainstem_fences" in tables else {}
        if self.tables["live"] in tables - known.keys():
            raise Conflict(f"{self.location} exists", detail="No flow has made it.", hint="Give another table.")
        return Fences(
            *(Fence.from_json(known[n]) if n in tables & known.keys() else None for n in self.tables.values())
        )

    def put_fence(self, database, name, fence):
        database.execute("INSERT OR REPLACE INTO mainstem_fences VALUES (?, ?)", (name, fence.to_json()))

    # Writing

    def commit(self, change):
        name, fence, table = self.tables[change.copy], change.fence, quoted(self.tables[change.copy])
        with self.transaction() as database:
            found = self.read_fences(database).of(change.copy)
            if found != change.expected:
                raise FenceMoved(found)
            if found is None:
                columns = ", ".join(map(quoted, fence.schema.names))
                database.execute(f"CREATE TABLE {table} ({columns}, PRIMARY KEY ({listed(fence.key)}))")
            for added in fence.schema.names if found is not None else ():
                if added not in found.schema.names:
                    database.execute(f"ALTER TABLE {table} ADD COLUMN {quoted(added)}")
            if change.deletes:
                delete = f"DELETE FROM {table} WHERE ({listed(fence.key)}) = ({marks(fence.key)})"
                database.executemany(delete, zip(*change.deletes.to_pydict().values(), strict=True))
            if change.upserts:
                names = fence.schema.names
                insert = f"INSERT OR REPLACE INTO {table} ({listed(names)}) VALUES ({marks(names)})"
                database.executemany(insert, zip(*change.upserts.to_pydict().values(), strict=True))
            self.put_fence(database, name, fence)

    def switch(self, expected, fence):
        live, beside = self.tables.values()
        with self.transaction() as database:
            found = self.read_fences(database)
            if found != expected:
                raise FenceMoved(found.beside)
            database.execute(f"DROP TABLE IF EXISTS {quoted(live)}")
            database.execute(f"ALTER TABLE {quoted(beside)} RENAME TO {quoted(live)}")
            database.execute("DELETE FROM mainstem_fences WHERE name = ?", (beside,))
            self.put_fence(database, live, fence)

    def drop(self, copy):
        with self.transaction() as database:
            database.execute(f"DROP TABLE IF EXISTS {quoted(self.tables[copy])}")
            database.execute("DELETE FROM mainstem_fences WHERE name = ?", (self.tables[copy],))

    # Reading

    def get(self, fence, key):
        names, table = fence.schema.names, quoted(self.tables["live"])
        select = f"SELECT {listed(names)} FROM {table} WHERE ({listed(key)}) = ({marks(key)})"
        with self.transaction("DEFERRED") as database:
            row = database.execute(select, [value.as_py() for value in key.values()]).fetchone()
        return dict(zip(names, row, strict=True)) if row else None

    def read(self, fence, copy="live"):
        with self.transaction("DEFERRED") as database:
            rows = database.execute(f"SELECT {listed(fence.schema.names)} FROM {quoted(self.tables[copy])}")
            while some := rows.fetchmany(10_000):
                columns = zip(zip(*some, strict=True), fence.schema, strict=True)
                yield pa.record_batch([pa.array(c, field.type) for c, field in columns], schema=fence.schema)

    def close(self):
        pass


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


def listed(names):
    return ", ".join(map(quoted, names))


def marks(names):
    return ", ".join("?" * len(names))
