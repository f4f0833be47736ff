"""Views in the home itself: a directory for each, a SQLite file for each of its versions."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pyarrow as pa

from mainstem.clock import Clock
from mainstem.log.embedded.waking import Watch
from mainstem.log_on_spark.flow_run import FlowRun
from mainstem.views.view_connection import Connections
from mainstem.views.view_facts import Facts
from mainstem.views.view_folder import ViewFolder, view_names
from mainstem.views.view_snapshot import ViewSnapshot, live_snapshot, version_snapshot
from mainstem.views.view_versions import ViewVersions
from mainstem.views.view_writer import ViewWriter

__all__ = ["SqlitePlace", "SqliteStore"]


class SqlitePlace:
    """The directory `views` of a home."""

    address = None

    def __init__(self, home: str) -> None:
        self._home = home

    def names(self) -> list[str]:
        return view_names(self._home)

    def store(self, view: str) -> SqliteStore:
        return SqliteStore(self._home, view)

    def close(self) -> None:
        """Nothing is open but what a view itself has."""


class SqliteStore:
    """One view in its directory. Thread-safe."""

    def __init__(self, home: str, view: str) -> None:
        self.view = view
        self.folder = ViewFolder(home, view)
        self.connections = Connections()

    @property
    def title(self) -> str:
        return self.folder.path

    @property
    def location(self) -> str:
        return self.folder.path

    def exists(self) -> bool:
        return self.folder.exists()

    def facts(self) -> Facts:
        return self.folder.facts()

    def check(self, schema: pa.Schema) -> None:
        """SQLite takes every name and every type that a topic does."""

    def create(self, facts: Facts, schema: pa.Schema) -> None:
        self.folder.create(facts, schema)

    def keep_changes(
        self, changes_max: int | None, changes_age_us: int | None, history_age_us: int | None = None
    ) -> None:
        self.folder.keep_changes(changes_max, changes_age_us, history_age_us)

    def live(self) -> AbstractContextManager[ViewSnapshot]:
        return live_snapshot(self.folder, self.connections)

    def at(self, version: int) -> AbstractContextManager[ViewSnapshot]:
        return version_snapshot(self.folder, self.connections, version)

    def versions(self, clock: Clock) -> ViewVersions:
        return ViewVersions(self.folder, clock)

    def writer(self, run: FlowRun, clock: Clock) -> ViewWriter:
        return ViewWriter(self.folder, run, clock=clock)

    def watch(self) -> Watch:
        return Watch([f"{self.folder.path}/wake"])

    def remove(self) -> None:
        self.connections.close()
        self.folder.remove()

    def close(self) -> None:
        self.connections.close()
