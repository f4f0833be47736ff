"""Stores that break one promise each, made of the one of the guide: the test kit must catch them."""

import os
from contextlib import contextmanager
from pathlib import Path

from mainstem.sinks import Fences
from tests.sinks.own_store import COLUMNS, SqliteStore
from tests.waiting import wait_until


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
    """Another process can write between the look at the fence and the commit, and does: the first time two of them wait for
    each other there. The process that opened the store first, that of the test, waits for nobody."""

    def __init__(self, path, table):
        super().__init__(path, table)
        self.opened = Path(f"{path}.opened_by")
        self.opened.mkdir(exist_ok=True)
        self.waits = bool([*self.opened.iterdir()]) and not self._mine.exists()
        self._mine.touch()

    @property
    def _mine(self):
        return self.opened / str(os.getpid())

    @contextmanager
    def transaction(self, kind="IMMEDIATE"):
        found = self.fences() if kind == "IMMEDIATE" else None
        if found is not None and self.waits:
            self.waits = False
            Path(f"{self._mine}.looked").touch()
            wait_until(lambda: len([*self.opened.glob("*.looked")]) == 2)
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
