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
from mainstem.views.sql.sql_history import SqlHistory
from mainstem.views.sql.sql_snapshot import SqlSnapshot
from mainstem.views.sql.sql_writer import SqlWriter
from mainstem.views.sqlite import sqlite_backend
from mainstem.views.sqlite import sqlite_writer as view_writer
from mainstem.views.sqlite.sqlite_backend import SqliteStore
from mainstem.views.sqlite.sqlite_writer import ViewWriter
from mainstem.views.sqlite.view_file import SqliteConnection, ViewFile
from mainstem.views.sqlite.view_folder import ViewFolder
from mainstem.views.view_store import WrittenRows

Patch = tuple[object, str, object]


def _nothing(*_: object, **__: object) -> None:
    """In place of what should have been done."""


def _epoch_checked_outside_the_transaction() -> list[Patch]:
    check, commit = ViewWriter._check_epoch, ViewWriter.commit

    def before(self: ViewWriter, merged: MergedBatch, batch: Batch) -> WrittenRows:
        check(self, self._progress(self._connection)[1])
        return commit(self, merged, batch)

    return [(ViewWriter, "commit", before), (ViewWriter, "_check_epoch", _nothing)]


def _epoch_not_checked_before_the_commit() -> list[Patch]:
    # Nor is the fence, before the rows are written.
    return [(ViewWriter, "_check_epoch", SqlWriter._check_epoch)]


def _epoch_not_written() -> list[Patch]:
    return [(ViewWriter, "_claim", _nothing), (ViewFolder, "raise_fence", _nothing)]


def _commit_and_begin(connection: SqliteConnection) -> None:
    connection.execute("COMMIT")
    connection.execute("BEGIN IMMEDIATE")


def _batch_committed_apart_from_the_rows() -> list[Patch]:
    write = ViewWriter._write_progress

    def apart(self: ViewWriter, connection: SqliteConnection, *others: Any) -> None:
        _commit_and_begin(connection)
        write(self, connection, *others)

    return [(ViewWriter, "_write_progress", apart)]


def _batch_committed_before_the_rows() -> list[Patch]:
    write = ViewWriter._write_rows

    def early(self: ViewWriter, connection: SqliteConnection, *others: Any) -> int:
        connection.execute("UPDATE progress SET batch = batch + 1")
        _commit_and_begin(connection)
        return write(self, connection, *others)

    return [(ViewWriter, "_write_rows", early)]


def _offsets_committed_apart_from_the_rows() -> list[Patch]:
    write = SqliteConnection.write_many

    def apart(self: SqliteConnection, sql: str, rows: Any) -> None:
        write(self, sql, rows)
        if "main.offsets" in sql:
            _commit_and_begin(self)

    return [(SqliteConnection, "write_many", apart)]


def _held_batch_written_again() -> list[Patch]:
    progress = ViewWriter._progress

    def broken(self: ViewWriter, connection: SqliteConnection) -> tuple[str | None, int, int, int]:
        flow, epoch, _, recording = progress(self, connection)
        return flow, epoch, -1, recording

    return [(ViewWriter, "_progress", broken)]


def _deletes_not_recorded() -> list[Patch]:
    made = ViewFile.triggers.func

    def broken(self: ViewFile) -> dict[str, str]:
        return {name: statement for name, statement in made(self).items() if name != "record_delete"}

    return [(ViewFile, "triggers", property(broken))]


def _rows_that_are_the_same_recorded() -> list[Patch]:
    made = ViewFile.upsert.func
    return [(ViewFile, "upsert", property(lambda self: made(self).partition(" WHERE NOT")[0]))]


def _changes_trimmed_at_once() -> list[Patch]:
    def broken(self: SqlHistory, facts: Any, last: int, now: int) -> None:
        self._connection.write(f"DELETE FROM {self._changes} WHERE position < $1", last)

    return [(SqlHistory, "trim", broken)]


def _flip_without_the_difference() -> list[Patch]:
    return [(SqlHistory, "_difference", lambda self, pair: [])]


def _flip_while_the_old_one_is_written() -> list[Patch]:
    """The last position is looked up, and something is committed, before the flip."""

    class Before(SqlHistory):
        def last_position(self) -> int:
            return super().last_position() - 1

        def take_over(self, *others: Any) -> bool:
            return SqlHistory(self._connection, self._tables).take_over(*others)

    return [(sqlite_backend, "SqlHistory", Before)]


def _snapshot_of_two_moments() -> list[Patch]:
    batches = SqlSnapshot.batches

    def broken(self: SqlSnapshot, position: int | None = None) -> Iterator[pa.RecordBatch]:
        self._connection.write("ROLLBACK")
        return batches(self, position)

    return [(SqlSnapshot, "batches", broken)]


def _token_and_row_of_two_moments() -> list[Patch]:
    """What is applied is looked up after the row was read."""
    return [(view, "missing_of", lambda wanted, applied: {})]


def _live_version_looked_up_once() -> list[Patch]:
    return [(sqlite_backend, "TRIES", 1)]


def _live_version_not_looked_up_again() -> list[Patch]:
    def broken(self: SqliteStore) -> tuple[SqliteConnection, SqlSnapshot]:
        facts = self.facts()
        return self._pin(facts, facts.live)

    return [(SqliteStore, "_pin_live", broken)]


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
    return [(SqlHistory, "begin_at", _nothing)]


def _history_not_carried_to_another_version() -> list[Patch]:
    return [(SqlHistory, "carry", _nothing)]


def _last_change_undone_instead_of_the_first() -> list[Patch]:
    made = ViewFile.select_rows_before.func
    return [
        (
            ViewFile,
            "select_rows_before",
            property(lambda self: made(self).replace("min(c.position)", "max(c.position)")),
        )
    ]


def _history_trimmed_as_changes_are() -> list[Patch]:
    too_old = SqlHistory._too_old
    # A minute, as the test says of changes, for a history of fifty.
    return [
        (
            SqlHistory,
            "_too_old",
            lambda self, trimmed, before, last: too_old(self, trimmed, before + 49 * 60_000_000, last),
        )
    ]


def _reached_committed_before_the_batch() -> list[Patch]:
    reach = SqlHistory.reach

    def apart(self: SqlHistory, offsets: Any, position: int) -> None:
        reach(self, offsets, position)
        self._connection.write("COMMIT")
        self._connection.write("BEGIN IMMEDIATE")

    return [(SqlHistory, "reach", apart)]


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
