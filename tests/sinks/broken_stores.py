"""Stores that break one promise each, made of the one of the guide: the test kit must catch them."""

from contextlib import contextmanager

from mainstem.sinks import Fences
from tests.sinks.own_store import COLUMNS, SqliteStore


class WithoutTransaction(SqliteStore):
    """Each statement is a commit of its own: a batch and a switch come in parts."""

    @contextmanager
    def transaction(self, kind="IMMEDIATE"):
        with super().transaction(kind) as (database, found):
            database.execute("COMMIT")
            yield database, found
            database.execute("BEGIN")


class FillingInPlace(SqliteStore):
    """The next version is filled into the rows that readers see."""

    def commit(self, change):
        super().commit(change)
        if change.copy == "beside":
            with self.transaction() as (database, _):
                beside = f"SELECT 'live', key, row FROM {self.table} WHERE copy = 'beside' AND key <> 'fence'"
                database.execute(f"REPLACE INTO {self.table} {beside}")


class WithoutLock(SqliteStore):
    """Another process can write between the look at the fence and the commit."""

    @contextmanager
    def transaction(self, kind="IMMEDIATE"):
        found = self.fences() if kind == "IMMEDIATE" else None
        with super().transaction(kind) as (database, now):
            yield database, now if found is None else found


class SwitchingAnyway(SqliteStore):
    """The switch does not compare the fences."""

    def switch(self, expected, fence):
        super().switch(self.fences(), fence)


class TakingForeignTables(SqliteStore):
    """A table that no flow has made is replaced."""

    def read_fences(self, database):
        made = database.execute("SELECT sql FROM sqlite_master WHERE name = ?", [self.table]).fetchone()
        if made and not made[0].endswith(COLUMNS):
            database.execute(f"DROP TABLE {self.table}")
            return Fences(None, None)
        return super().read_fences(database)
