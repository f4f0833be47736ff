"""Deliberately broken views: a test that does not notice them notices nothing.

    with view_mutant("batch committed apart from the rows"): ...

Each is a patch of one function; processes that are forked inside inherit it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pyarrow as pa

from mainstem.batch import Batch
from mainstem.views import view
from mainstem.views.merge_batch import MergedBatch
from mainstem.views.sqlite import sqlite_backend as view_versions
from mainstem.views.sqlite import sqlite_snapshot as view_snapshot
from mainstem.views.sqlite import sqlite_writer as view_writer
from mainstem.views.sqlite.sqlite_backend import ViewVersions
from mainstem.views.sqlite.sqlite_history import SqliteHistory
from mainstem.views.sqlite.sqlite_snapshot import ViewSnapshot
from mainstem.views.sqlite.sqlite_writer import ViewWriter
from mainstem.views.sqlite.view_file import Connections, ViewFile
from mainstem.views.sqlite.view_folder import ViewFolder
from mainstem.views.view_store import WrittenRows

Patch = tuple[object, str, object]


def _nothing(*_: object, **__: object) -> None:
    """In place of what should have been done."""


def _epoch_checked_outside_the_transaction() -> list[Patch]:
    check, commit = ViewWriter._check_epoch, ViewWriter.commit

    def before(self: ViewWriter, merged: MergedBatch, batch: Batch) -> WrittenRows:
        check(self)
        return commit(self, merged, batch)

    def unchecked(self: ViewWriter) -> tuple[int, int]:
        return self._connection.execute("SELECT batch, recording FROM progress").fetchone()

    return [
        (ViewWriter, "commit", before),
        (ViewWriter, "_check_epoch", unchecked),
        (ViewWriter, "_check_fence", _nothing),
    ]


def _epoch_not_checked_before_the_commit() -> list[Patch]:
    return [(ViewWriter, "_check_fence", _nothing)]


def _epoch_not_written() -> list[Patch]:
    return [(ViewWriter, "_begin_run", _nothing), (ViewFolder, "raise_fence", _nothing)]


def _batch_committed_apart_from_the_rows() -> list[Patch]:
    write = ViewWriter._write_progress

    def apart(self: ViewWriter, batch: Batch, before: int) -> None:
        self._connection.execute("COMMIT")
        self._connection.execute("BEGIN IMMEDIATE")
        write(self, batch, before)

    return [(ViewWriter, "_write_progress", apart)]


def _batch_committed_before_the_rows() -> list[Patch]:
    write = ViewWriter._write_rows

    def early(self: ViewWriter, merged: MergedBatch) -> int:
        self._connection.execute("UPDATE progress SET batch = batch + 1")
        self._connection.execute("COMMIT")
        self._connection.execute("BEGIN IMMEDIATE")
        return write(self, merged)

    return [(ViewWriter, "_write_rows", early)]


def _offsets_committed_apart_from_the_rows() -> list[Patch]:
    write = ViewWriter._write_offsets

    def apart(self: ViewWriter, offsets: Any) -> None:
        write(self, offsets)
        self._connection.execute("COMMIT")
        self._connection.execute("BEGIN IMMEDIATE")

    return [(ViewWriter, "_write_offsets", apart)]


def _held_batch_written_again() -> list[Patch]:
    check = ViewWriter._check_epoch
    return [(ViewWriter, "_check_epoch", lambda self: (-1, check(self)[1]))]


def _deletes_not_recorded() -> list[Patch]:
    made = ViewFile.triggers.func

    def broken(self: ViewFile) -> dict[str, str]:
        return {name: statement for name, statement in made(self).items() if name != "record_delete"}

    return [(ViewFile, "triggers", property(broken))]


def _rows_that_are_the_same_recorded() -> list[Patch]:
    made = ViewFile.upsert.func
    return [(ViewFile, "upsert", property(lambda self: made(self).partition(" WHERE NOT")[0]))]


def _changes_trimmed_at_once() -> list[Patch]:
    def broken(self: ViewWriter, last: int, now: int) -> None:
        self._connection.execute("DELETE FROM changes WHERE position < ?", (last,))

    return [(ViewWriter, "_trim", broken)]


def _flip_without_the_difference() -> list[Patch]:
    return [(view_versions, "_changes", lambda pair: [])]


def _flip_while_the_old_one_is_written() -> list[Patch]:
    """The last position is looked up, and something is committed, before the flip."""
    last = ViewVersions._last_position
    return [(ViewVersions, "_last_position", lambda self, connection: last(self, connection) - 1)]


def _snapshot_of_two_moments() -> list[Patch]:
    batches = ViewSnapshot.batches

    def broken(self: ViewSnapshot, position: int | None = None) -> Iterator[pa.RecordBatch]:
        self.release()
        return batches(self, position)

    return [(ViewSnapshot, "batches", broken)]


def _token_and_row_of_two_moments() -> list[Patch]:
    """What is applied is looked up after the row was read."""
    return [(view, "missing_of", lambda wanted, applied: {})]


def _live_version_looked_up_once() -> list[Patch]:
    return [(view_snapshot, "TRIES", 1)]


def _live_version_not_looked_up_again() -> list[Patch]:
    def broken(folder: ViewFolder, connections: Connections) -> ViewSnapshot:
        facts = folder.facts()
        return view_snapshot._pinned(folder, connections, facts, facts.live)

    return [(view_snapshot, "_pinned_live", broken)]


def _null_keys_dropped_silently() -> list[Patch]:
    merge = view_writer.merge_batch

    def broken(*arguments: Any, **others: Any) -> MergedBatch:
        merged = merge(*arguments, **others)
        return MergedBatch(merged.upserts, merged.deletes, ())

    return [(view_writer, "merge_batch", broken)]


def _first_row_of_a_key_counts() -> list[Patch]:
    merge = view_writer.merge_batch
    return [
        (view_writer, "merge_batch", lambda rows, *a, **o: merge(rows.take(list(range(rows.num_rows))[::-1]), *a, **o))
    ]


def _history_claimed_that_was_trimmed() -> list[Patch]:
    return [(SqliteHistory, "begin_at", _nothing)]


def _history_not_carried_to_another_version() -> list[Patch]:
    return [(SqliteHistory, "carry", lambda self, last: self.end())]


def _last_change_undone_instead_of_the_first() -> list[Patch]:
    made = ViewFile.select_rows_before.func
    return [
        (ViewFile, "select_rows_before", property(lambda self: made(self).replace("min(position)", "max(position)")))
    ]


def _history_trimmed_as_changes_are() -> list[Patch]:
    too_old = SqliteHistory.too_old
    # A minute, as the test says of changes, for a history of fifty.
    return [(SqliteHistory, "too_old", lambda self, before, last: too_old(self, before + 49 * 60_000_000, last))]


def _reached_committed_before_the_batch() -> list[Patch]:
    reach = SqliteHistory.reach

    def apart(self: SqliteHistory, offsets: Any, position: int) -> None:
        reach(self, offsets, position)
        self._connection.execute("COMMIT")
        self._connection.execute("BEGIN IMMEDIATE")

    return [(SqliteHistory, "reach", apart)]


VIEW_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    name.removeprefix("_").replace("_", " "): made
    for name, made in list(globals().items())
    if callable(made) and getattr(made, "__annotations__", {}).get("return") == "list[Patch]"
}


@contextmanager
def view_mutant(name: str) -> Iterator[None]:
    """Views, broken in one way, inside."""
    with ExitStack() as stack:
        for target, attribute, broken in VIEW_MUTANTS[name]():
            stack.enter_context(mock.patch.object(target, attribute, broken))
        yield
