"""The storage of a view: the protocol behind `View`, and its parts.

    ViewBackend        where the views of a home are stored: SQLite files in it, or a PostgreSQL database
    └── ViewStore    one view there: its facts, its versions, its commits
        ├── VersionSnapshot  one version as it is at one moment
        ├── VersionWriter    applies the batches of one run to one version, each of them once
        ├── VersionControl   creates, compares, switches and drops versions
        └── CommitWatch      waits for commits

Every backend passes the contract suite of a view.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from mainstem.batch import Batch, FlowRun, Written
from mainstem.clock import Clock
from mainstem.log.rows.merged_rows import Rejection
from mainstem.views.version_pair import Difference
from mainstem.views.view_facts import Facts

__all__ = [
    "Commit",
    "CommitWatch",
    "KeptSince",
    "KeyChange",
    "Page",
    "PreparedRows",
    "Progress",
    "VersionControl",
    "VersionSnapshot",
    "VersionWriter",
    "ViewBackend",
    "ViewStore",
    "WrittenRows",
]

# Flow, epoch, last batch, and the time at which it was applied.
Progress = tuple[str | None, int, int, int | None]


class KeptSince(NamedTuple):
    """The start of a view's history: its state right after this position, which it had from `at` on.

    The position is -1 if nothing is missing: before its first change, and before the first batch.
    """

    position: int
    at: int


@dataclass(frozen=True)
class Page:
    """Some rows of a view, sorted by key. `view.page(after=page.after)` returns the next ones.

    `after` is the key of the last row, a value for each column of the key; None if no row follows.
    """

    rows: pa.Table
    after: tuple[Any, ...] | None


class Commit(NamedTuple):
    """A commit of changes: the position of its last one, when it was made, and its batch (-1 for a switch of versions)."""

    position: int
    at: int
    batch: int


@dataclass(frozen=True)
class KeyChange:
    """One change of the row with a key: its position, when and by which batch it was committed, and the row before and after.

    `change` is insert, update or delete; `before` is None for an insert, `after` for a delete. `batch` is -1 for a change by a
    switch of versions.
    """

    position: int
    change: str
    at: datetime | None
    batch: int
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class VersionSnapshot(Protocol):
    """A snapshot of a version. Valid until the end of the `with` that returned it."""

    @property
    def facts(self) -> Facts: ...
    @property
    def version(self) -> int: ...
    @property
    def schema(self) -> pa.Schema: ...
    @property
    def location(self) -> str:
        """Where this version is stored, in words."""

    def get(self, key: Any, position: int | None = None) -> dict[str, Any] | None:
        """The row with this key, in the form that users give; as it was right after a position."""

    def count(self, position: int | None = None) -> int:
        """The number of rows; as it was right after a position."""

    def bytes(self) -> int: ...
    def batches(self, position: int | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, sorted by key; as they were right after a position."""

    def to_arrow(self, position: int | None = None) -> pa.Table: ...
    def page(self, after: Any, limit: int, position: int | None = None) -> Page:
        """Up to `limit` rows after a key, in the order of `batches`; as they were right after a position."""

    def offsets(self) -> dict[str, dict[int, int]]:
        """The end offsets applied, by topic and partition."""

    def progress(self) -> Progress: ...
    def positions(self) -> tuple[int, int]:
        """The first change that is kept and the last one; there are gaps for the times when it was not live."""

    def changes(self, after: int, until: int) -> pa.Table:
        """Changes as rows with `record`: an update is a delete of the old row followed by an insert of the new one."""

    def key_changes(self, key: Any, after: int, until: int | None, limit: int) -> list[KeyChange]:
        """The changes that are kept of the row with a key after a position, and up to another, at most `limit`, newest first."""

    def commits(self) -> list[tuple[int, int]]:
        """The last position and the batch of each commit that is kept, in order; for a switch of versions the batch is -1."""

    def last_commit(self, at: int) -> Commit | None:
        """The last commit that is not later than `at`; None if none is kept."""

    # History, if the view keeps one

    def kept_since(self) -> KeptSince | None:
        """How far back its history goes; None if it keeps none."""

    def position_at(self, at: int) -> int | None:
        """The last position of the last commit that is not later than `at`; None if none is kept."""

    def position_reached(self, topic: str, partition: int, end: int) -> int | None:
        """The first position at which a source was applied up to `end`; None if it never was."""

    def reached_offsets(self) -> list[tuple[int, str, int, int]]:
        """Position, topic, partition, and the offset applied from this position on; in the order of positions."""


class PreparedRows(Protocol):
    """A batch as it will be written."""

    @property
    def rows(self) -> int: ...
    @property
    def rejections(self) -> tuple[Rejection, ...]: ...


@dataclass(frozen=True)
class WrittenRows(Written):
    """The result of a batch: `rows` keys were written, `changes` of them were new or changed."""

    changes: int = 0
    rejections: tuple[Rejection, ...] = ()


class VersionWriter(Protocol):
    """Writes one version of a view for one run of a flow. One thread at a time."""

    run: FlowRun

    @property
    def committed_batch(self) -> int:
        """The number of the last committed batch; -1 if there is none."""

    def holds(self, number: int) -> bool:
        """Whether this batch is committed already."""

    def prepare(self, rows: pa.Table) -> PreparedRows:
        """The rows as they will be written; its `rejections` are known before anything is written."""

    def apply(self, rows: pa.Table, batch: Batch) -> WrittenRows:
        """Commit the rows and the batch together. Idempotent: a committed batch changes nothing."""

    def commit(self, merged: Any, batch: Batch) -> WrittenRows:
        """Commit prepared rows and the batch together. Idempotent: a committed batch changes nothing."""

    def close(self) -> None: ...


class VersionControl(Protocol):
    """The versions of one view."""

    def new(self, schema: pa.Schema, number: int | None = None) -> int: ...
    def drop(self, number: int) -> None: ...
    def use(self, number: int) -> None: ...
    def difference(self, before: int, after: int, limit: int, skip: int) -> Difference: ...


class CommitWatch(Protocol):
    """Any commit after its creation ends the next `wait`."""

    def wait(self, seconds: float) -> bool: ...
    def close(self) -> None: ...


class ViewStore(Protocol):
    """The storage of one view. Thread-safe."""

    view: str

    @property
    def title(self) -> str:
        """Where it is, in words; never with a password."""

    @property
    def location(self) -> str:
        """The same with everything that makes it unique, such as the options of an address."""

    def exists(self) -> bool: ...
    def facts(self) -> Facts:
        """Its current facts; raises `ViewNotFound` if there is no view."""

    def check(self, schema: pa.Schema) -> None:
        """Raise if it cannot have such columns."""

    def create(self, facts: Facts, schema: pa.Schema) -> None:
        """Create the view with its first version; does nothing if another process was first."""

    def keep_changes(
        self, changes_max: int | None, changes_age_us: int | None, history_age_us: int | None = None
    ) -> None:
        """Set the retention of changes, by number and age, and of the history; None leaves a setting unchanged."""

    def live(self) -> AbstractContextManager[VersionSnapshot]:
        """The live version, now."""

    def at(self, version: int) -> AbstractContextManager[VersionSnapshot]:
        """One version, now."""

    def versions(self, clock: Clock) -> VersionControl: ...
    def writer(self, run: FlowRun, clock: Clock) -> VersionWriter: ...
    def watch(self) -> CommitWatch: ...
    def remove(self) -> None:
        """Drop the view with all its versions."""

    def close(self) -> None:
        """Close what is open."""


class ViewBackend(Protocol):
    """The storage of the views of a home. Thread-safe."""

    @property
    def address(self) -> str | None:
        """The address for other processes of this home, with the password; None: in the home itself."""

    def names(self) -> list[str]:
        """The names of the views, sorted."""

    def store(self, view: str) -> ViewStore: ...
    def close(self) -> None: ...
