"""SqliteStore: a table of a SQLite file that a flow keeps current."""

import sqlite3
from contextlib import closing, contextmanager

from mainstem import Conflict
from mainstem.sinks import FenceMoved, Fences, StoreBackend, unavailable_when

COLUMNS = "(copy, key, row, PRIMARY KEY (copy, key))"


class SqliteStore(StoreBackend):
    def __init__(self, path, table):
        self.path, self.table, self.location = path, table, f'{path}, table "{table}"'

    @contextmanager
    def transaction(self, kind="IMMEDIATE"):
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=30)
        with unavailable_when(sqlite3.OperationalError, self.location), closing(connection) as database:
            database.execute(f"BEGIN {kind}")
            yield database, self.read_fences(database)
            database.execute("COMMIT")  # not reached after an error: then closing rolls back

    def read_fences(self, database):
        made = database.execute("SELECT sql FROM sqlite_master WHERE name = ?", [self.table]).fetchone()
        if made and not made[0].endswith(COLUMNS):
            raise Conflict(f"{self.location} exists", detail="No flow has made it.", hint="Give another table.")
        fences = f"SELECT copy, row FROM {self.table} WHERE key = 'fence'"
        return Fences.from_texts(dict(database.execute(fences)) if made else {})

    def fences(self):
        with self.transaction("DEFERRED") as (_, found):
            return found

    def commit(self, change):
        with self.transaction() as (database, found):
            if found.of(change.copy) != change.expected:
                raise FenceMoved(found.of(change.copy))
            database.execute(f"CREATE TABLE IF NOT EXISTS {self.table} {COLUMNS}")
            delete = f"DELETE FROM {self.table} WHERE copy = ? AND key = ?"
            database.executemany(delete, [(change.copy, key) for key in change.delete_texts()])
            put = [*change.upsert_texts(), ("fence", change.fence.to_json())]
            database.executemany(f"REPLACE INTO {self.table} VALUES (?, ?, ?)", [(change.copy, *row) for row in put])

    def switch(self, expected, fence):
        with self.transaction() as (database, found):
            if found != expected:
                raise FenceMoved(found.beside)
            database.execute(f"DELETE FROM {self.table} WHERE copy = 'live'")
            database.execute(f"UPDATE {self.table} SET copy = 'live'")
            database.execute(f"UPDATE {self.table} SET row = ? WHERE key = 'fence'", [fence.to_json()])

    def drop(self, copy):
        with self.transaction() as (database, found):
            if found.of(copy):
                database.execute(f"DELETE FROM {self.table} WHERE copy = ?", [copy])

    def read(self, fence, copy="live", where="key <> 'fence'", *values):
        with self.transaction("DEFERRED") as (database, _):
            rows = database.execute(f"SELECT row FROM {self.table} WHERE copy = ? AND {where}", [copy, *values])
            while some := rows.fetchmany(10_000):
                yield fence.rows_from([text for (text,) in some])

    def get(self, fence, key):
        found = [row for rows in self.read(fence, "live", "key = ?", fence.key_text(key)) for row in rows.to_pylist()]
        return found[0] if found else None
