"""DeltaStore: a Delta Lake table, in a folder, that a flow keeps current.

    lake/products              the table: the flow's columns, and whatever others added
    lake/.products.next        the next version, while the store is filled again
    lake/.products.damaged     what was in the way, the last time that the table could not be read

A batch is one Delta commit, with the fence in it (`delta_fence`). It must come right after the table version in which the fence
was read, so of two writers one wins; if the other one was somebody's OPTIMIZE, the batch is tried again. To switch, one commit
overwrites the table with the rows of the next version: readers see all of it or nothing, and older versions stay.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.types as kinds
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError

from mainstem.arguments import path_text
from mainstem.crash_points import reach
from mainstem.durable_files import REAL_FILES
from mainstem.errors import Conflict, DiskFull, Invalid, MainstemError, NotFound, Unavailable
from mainstem.log.rows.column_types import inner_fields, is_nested
from mainstem.log.rows.schema_ddl import type_to_ddl
from mainstem.sinks.delta_fence import facts_property, facts_text, fence_properties, has_fence, owner, read_fence
from mainstem.sinks.delta_folder import (
    commit_file,
    dataset,
    find_row,
    has_its_files,
    is_empty,
    scanner,
    sync_commit,
    was_ours,
)
from mainstem.sinks.file_commits import folder_lock
from mainstem.sinks.store_backend import Copy, Fence, FenceMoved, Fences, StoreBackend, StoreChange

__all__ = ["DeltaStore"]

logger = logging.getLogger("mainstem.store")

# Delta allows no others without column mapping, which many readers lack.
REFUSED_CHARACTERS = " ,;{}()\n\r\t="
# Deltalake confuses such paths with URLs, and may then write somewhere else.
REFUSED_IN_PATHS = "%[]\\^|\x7f"
# How often others may commit while a batch is written.
ATTEMPTS_MAX = 20
# Every batch adds a file or more, and each one costs a reader an open. Compaction rewrites the files below 100 MB.
COMPACT_EVERY, FILES_MIN = 50, 10
# Removes files that no table version of the last week has, which is Delta's default.
VACUUM_EVERY = 1_000
# In messages of errors about features of Delta that deltalake has not: the table is whole.
UNSUPPORTED = "Unsupported"
# In messages of errors that pass: they say nothing about the table.
PASSING = ("No space left", "Disk quota", "Too many open files", "Permission denied", "Input/output error", "timed out")


class _Left(NamedTuple):
    """A table after a commit of ours, and the identity of the file of that commit."""

    copy: Copy
    table: DeltaTable
    fence: Fence
    entry: tuple[int, int, int]


class DeltaStore(StoreBackend):
    """A Delta table in a local folder. Others may add columns, set values in them, and run OPTIMIZE and VACUUM meanwhile."""

    keyless = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given = path_text(path, "path")
        if "://" in given:
            raise Invalid(
                f'"{given}" is not a local path',
                detail="A Delta store is written into a local folder; object stores are not supported.",
                hint='Give a folder, such as "lake/products"; it may be a mounted file system.',
            )
        self.path = os.path.abspath(given)
        if found := [character for character in self.path if character in REFUSED_IN_PATHS or ord(character) < 32]:
            raise Invalid(
                f'"{given}" cannot be the path of a Delta table',
                detail=f"It holds {found[0]!r}, which deltalake takes for a part of a URL.",
                hint='Give a folder with a plain name, such as "lake/products".',
            )
        self._folder, self._name = os.path.split(self.path)
        self.location = f'Delta table "{self.path}"'
        # As the last commit has left it.
        self._left: _Left | None = None

    def _path(self, copy: Copy) -> str:
        return self.path if copy == "live" else f"{self._folder}/.{self._name}.next"

    # Checks

    def check(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        for name in key:
            if is_nested(schema.field(name).type):
                raise Invalid(
                    f'column "{name}" cannot be a key of a Delta table',
                    detail=f"It is {type_to_ddl(schema.field(name).type)}; Delta's MERGE compares no nested values.",
                    hint="Use columns of simple types as the key, or a text made of it.",
                    column=name,
                )
        _check_fields(list(schema), "")

    # Fences

    def fences(self) -> Fences:
        with self._translated():
            try:
                beside = self._fence("beside")
            except (DeltaError, OSError):
                if os.path.isdir(self._path("beside")):
                    raise
                beside = None  # Meanwhile it has become the live one, which is read after it.
            live = self._fence("live")
        if live is not None and beside is not None and owner(live) == owner(beside):
            beside = None  # It has become the live one, and whoever did that was killed before removing it.
        return Fences(live, beside)

    def _fence(self, copy: Copy) -> Fence | None:
        table = self._open(copy)
        return None if table is None or not has_its_files(table, self._path(copy)) else self._fence_of(table)

    def _open(self, copy: Copy) -> DeltaTable | None:
        """The table; None if there is none, or one of ours that cannot be read."""
        path = self._path(copy)
        try:
            return DeltaTable(path)
        except (DeltaError, OSError) as error:
            if any(text in str(error) for text in (*PASSING, UNSUPPORTED)):
                raise
            if is_empty(path) or was_ours(path):
                return None
            raise self._foreign(f"It has files and no Delta table that can be read: {_first_line(error)}.") from error

    def _fence_of(self, table: DeltaTable) -> Fence | None:
        if not has_fence(table):
            raise self._foreign("It is a Delta table that no flow of Mainstem has made.")
        fence = read_fence(table)
        if fence is not None and (missing := set(fence.schema.names) - set(_schema(table).names)):
            raise Conflict(
                f"{self.location} lacks columns that its flow has made: {', '.join(sorted(missing))}",
                detail="Somebody has dropped them.",
                hint="Restore an older version of the table, or move the folder away: the flow fills it from the log.",
            )
        return fence

    def _foreign(self, detail: str) -> Conflict:
        return Conflict(
            f'"{self.path}" has content that no flow has written',
            detail=f"{detail} Its rows would be mixed with the flow's.",
            hint="Give another path, or move the folder away: the flow creates it, and fills it from the log.",
        )

    # Writing

    def commit(self, change: StoreChange) -> None:
        with self._translated():
            if change.expected is None:
                self._create(change.copy, change.fence)
                return
            table = self._committed(change)
            if change.copy == "live" and change.expected.epoch != change.fence.epoch:
                self._remove_leftover(change.fence)
            if table.version() and table.version() % COMPACT_EVERY == 0:
                self._tidy(change)

    def _create(self, copy: Copy, fence: Fence) -> None:
        path = self._path(copy)
        os.makedirs(self._folder, exist_ok=True)
        if not is_empty(path):
            with folder_lock(f"{self._folder}/.{self._name}.lock"):
                if (found := self._fence(copy)) is not None:
                    raise FenceMoved(found)
                # Ours and damaged: kept, until the next one that is.
                self._move(path, damaged := f"{self._folder}/.{self._name}.damaged")
                logger.warning('%s was damaged, and is filled again; it is kept as "%s"', self.location, damaged)
        try:
            DeltaTable.create(
                path,
                Schema.from_arrow(fence.schema),
                mode="error",
                configuration=facts_property(fence),
                commit_properties=fence_properties(fence, 0),
                raise_if_key_not_exists=False,
            )
        except DeltaError:
            if (found := self._fence(copy)) is not None:
                raise FenceMoved(found) from None
            raise
        sync_commit(path, 0)
        REAL_FILES.sync_directory(self._folder)

    def _committed(self, change: StoreChange) -> DeltaTable:
        """Commit a change right after the table version that has the expected fence."""
        for _ in range(ATTEMPTS_MAX):
            table, found = self._current(change.copy)
            if table is None or found != change.expected:
                raise FenceMoved(found)
            version = table.version()
            try:
                if self._prepare(table, change):
                    continue
                self._write(table, change)
            except CommitFailedError as error:
                if UNSUPPORTED in str(error):
                    raise
                continue
            path = self._path(change.copy)
            sync_commit(path, version + 1)
            if table.version() == version:
                table.update_incremental()
            if table.version() == version + 1:
                self._left = _Left(
                    change.copy, table, change.fence, REAL_FILES.identity(commit_file(path, version + 1))
                )
            return table
        raise self._busy()

    def _current(self, copy: Copy) -> tuple[DeltaTable | None, Fence | None]:
        """The table and its fence. It is read again only if somebody has committed since, or has set it back."""
        left, self._left = self._left, None
        if left is not None and left.copy == copy:
            path, version = self._path(copy), left.table.version()
            with suppress(FileNotFoundError):
                if REAL_FILES.identity(commit_file(path, version)) == left.entry and not os.path.exists(
                    commit_file(path, version + 1)
                ):
                    return left.table, left.fence
        table = self._open(copy)
        return table, None if table is None else self._fence_of(table)

    def _prepare(self, table: DeltaTable, change: StoreChange) -> bool:
        """Add facts and columns that the table lacks, which changes neither rows nor fence; whether it lacked any."""
        assert change.expected is not None
        if facts_text(change.expected) == facts_text(change.fence):
            return False
        present = {field.name: field.type for field in _schema(table)}
        declared = facts_property(change.fence)
        if not declared.items() <= table.metadata().configuration.items():
            for field in change.fence.schema:
                if field.name in present and field.name not in change.expected.schema.names:
                    raise Conflict(
                        f'{self.location} has a column "{field.name}" that the flow has not made',
                        detail="The rows of the flow have a column of that name now.",
                        hint="Rename one of the two.",
                    )
            table.alter.set_table_properties(declared, raise_if_not_exists=False, commit_properties=_ONCE)
            return True
        if all(name in present for name in change.fence.schema.names):
            return False
        nothing = change.fence.schema.empty_table()
        write_deltalake(table, nothing, mode="append", schema_mode="merge", commit_properties=_ONCE)
        return True

    def _write(self, table: DeltaTable, change: StoreChange) -> None:
        fence, version = change.fence, table.version()
        properties = fence_properties(fence, version + 1)
        upserts = fence.schema.empty_table() if change.upserts is None else change.upserts
        deletes = change.deletes is not None and change.deletes.num_rows > 0
        if fence.key and (upserts.num_rows or deletes):
            source = _with_deletes(upserts, change.deletes) if deletes else upserts
            _merge(table, source, fence.key, upserts.schema.names, properties, deletes=deletes)
        elif upserts.num_rows:
            write_deltalake(table, upserts, mode="append", schema_mode="merge", commit_properties=properties)
        if table.version() == version:
            # Delta does not commit a MERGE that changed nothing.
            table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
        if change.upserts is not None:
            reach("store_batch_written")

    def switch(self, expected: Fences, fence: Fence) -> None:
        with self._translated():
            beside = self._open("beside")
            found = Fences(self._fence("live"), None if beside is None else self._fence_of(beside))
            if beside is None or found != expected:
                raise FenceMoved(found.beside if found.beside != expected.beside else None)
            live = expected.live
            if live is None:
                # If it is killed now, this one has no batch, so the flow fills it again.
                live = Fence(fence.home, fence.flow, fence.version, fence.epoch, fence.key, fence.columns)
                self._create("live", live)
            self._replace(live, beside, fence)
            self._remove(self._path("beside"))

    def _replace(self, before: Fence, beside: DeltaTable, fence: Fence) -> None:
        """Overwrite the live table with the rows of the other one, in one commit."""
        for _ in range(ATTEMPTS_MAX):
            table = self._open("live")
            if table is None or self._fence_of(table) != before:
                raise FenceMoved(None)
            declared, version = facts_property(fence), table.version()
            properties = fence_properties(fence, version + 1)
            try:
                if not declared.items() <= table.metadata().configuration.items():
                    table.alter.set_table_properties(declared, raise_if_not_exists=False, commit_properties=_ONCE)
                    continue
                rows = scanner(dataset(beside, self._path("beside"), fence.schema)).to_reader()
                if self._has_others(table, before, fence):
                    _merge(table, rows, fence.key, fence.schema.names, properties, deletes=False, whole=True)
                    if table.version() == version:
                        table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
                else:
                    write_deltalake(
                        table, rows, mode="overwrite", schema_mode="overwrite", commit_properties=properties
                    )
            except CommitFailedError as error:
                if UNSUPPORTED in str(error):
                    raise
                continue
            sync_commit(self.path, version + 1)
            return
        raise self._busy()

    def _busy(self) -> Unavailable:
        return Unavailable(
            f"others commit to {self.location} faster than a batch can be written",
            detail=f"{ATTEMPTS_MAX} times somebody else has committed while the batch was written.",
            hint="See who does (its Delta history). Nothing is lost: the batch is written again.",
        )

    def _has_others(self, table: DeltaTable, before: Fence, fence: Fence) -> bool:
        """Whether others added columns: then rows are merged, which keeps their values."""
        others = [name for name in _schema(table).names if name not in before.schema.names]
        known = {field.name: field.type for field in fence.schema}
        alike = all(known.get(field.name) == field.type for field in before.schema) and before.key == fence.key
        if others and not (alike and fence.key and set(known) == set(before.schema.names)):
            raise Conflict(
                f"{self.location} has columns that no flow has made: {', '.join(others)}",
                detail="It has no key, or its key or columns change, so it has to be made again, and they would be lost.",
                hint="Drop them, or give the flow another path.",
            )
        return bool(others)

    def drop(self, copy: Copy) -> None:
        with self._translated():
            self._remove(self._path(copy))

    def _remove(self, path: str) -> None:
        """Remove a folder; if killed, no half of it is left in its place."""
        self._move(path, gone := f"{self._folder}/.{self._name}.removed")
        shutil.rmtree(gone, ignore_errors=True)

    def _move(self, path: str, to: str) -> None:
        shutil.rmtree(to, ignore_errors=True)
        with suppress(FileNotFoundError):
            os.rename(path, to)

    def _remove_leftover(self, live: Fence) -> None:
        if os.path.isdir(self._path("beside")):
            beside = self._fence("beside")
            if beside is None or owner(beside) == owner(live):
                self._remove(self._path("beside"))

    def _tidy(self, change: StoreChange) -> None:
        """Merge small files. If it fails, the batch is committed all the same, and the next time will do."""
        with suppress(DeltaError, OSError):
            table = DeltaTable(self._path(change.copy))
            if self._fence_of(table) == change.fence and len(table.file_uris()) >= FILES_MIN:
                version = table.version() + 1
                table.optimize.compact(commit_properties=fence_properties(change.fence, version))
                if table.version() == version:
                    sync_commit(self._path(change.copy), version)
            if table.version() // VACUUM_EVERY > (table.version() - COMPACT_EVERY) // VACUUM_EVERY:
                table.vacuum(dry_run=False)

    # Reading

    def get(self, fence: Fence, key: Mapping[str, pa.Scalar]) -> dict[str, Any] | None:
        with self._reading():
            return find_row(dataset(DeltaTable(self.path), self.path, fence.schema), key)

    def read(self, fence: Fence, copy: Copy = "live") -> Iterator[pa.RecordBatch]:
        path = self._path(copy)
        with self._reading():
            yield from scanner(dataset(DeltaTable(path), path, fence.schema)).to_batches()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._translated():
            try:
                yield
            except (TableNotFoundError, FileNotFoundError, pa.ArrowException) as error:
                raise NotFound(
                    f"{self.location} is not there, or not as the flow has made it",
                    detail=f"Delta says: {_first_line(error)}.",
                    hint="Run its flow: it fills it from the log.",
                ) from error

    def close(self) -> None:
        """Nothing is open between calls."""

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raises the errors of Delta as our own."""
        _check_process(self.location)
        try:
            yield
        except (DeltaError, OSError) as error:
            if isinstance(error, MainstemError):
                raise
            said = _first_line(error)
            if isinstance(error, DeltaProtocolError) or UNSUPPORTED in said:
                raise Invalid(
                    f"{self.location} uses features of Delta that cannot be read or written here",
                    detail=f"Delta says: {said}.",
                    hint="Somebody turned them on (deletion vectors, column mapping, ...). Turn them off, or move the folder away: "
                    "the flow creates it, and fills it from the log.",
                ) from error
            if any(text in said for text in PASSING[:2]):
                raise DiskFull(
                    f"no space left for {self.location}",
                    detail=f'Delta says "{said}". Nothing of the batch was written.',
                    hint="Free space on its disk; the batch is written again when the flow continues.",
                    path=self.path,
                ) from error
            raise Unavailable(
                f"{self.location} cannot be read or written now",
                detail=f"Delta says: {said}.",
                hint="Check who else writes it. Nothing is lost: a batch that was not committed is written again.",
            ) from error


# The process that has used deltalake first.
_first_process: list[int] = []


def _check_process(title: str) -> None:
    """Raise in a forked child of a process that has used deltalake: the threads of its runtime do not exist there, so that it
    panics or waits for ever."""
    if not _first_process:
        _first_process.append(os.getpid())
    if _first_process[0] != os.getpid():
        raise Invalid(
            f"{title} cannot be used in a forked process",
            detail=f"Process {_first_process[0]} has used a Delta table before it forked process {os.getpid()}; the threads of "
            "deltalake are not in the fork.",
            hint='Start the process anew: multiprocessing.get_context("spawn"). Or fork before the first use of a Delta table.',
        )


def _first_line(error: Exception) -> str:
    """What an error of Delta says, without the backtrace that follows."""
    return str(error).partition("\n")[0]


# A commit that fails if any other has come in between.
_ONCE = CommitProperties(max_commit_retries=0)


def _check_fields(fields: list[pa.Field], path: str) -> None:
    seen: dict[str, str] = {}
    for field in fields:
        name = f"{path}{field.name}"
        other = seen.setdefault(field.name.lower(), field.name)
        reason = None
        if not field.name or set(field.name) & set(REFUSED_CHARACTERS):
            reason = "A name is not empty, and has no white space and none of , ; { } ( ) = in it."
        elif other != field.name:
            reason = f'There is a column "{other}" too, and Delta does not tell upper from lower case.'
        if reason is not None:
            raise Invalid(
                f'a Delta table cannot have a column named "{name}"',
                detail=reason,
                hint=f'Rename it: rows.withColumnRenamed("{name}", "...").',
                column=name,
            )
        if kinds.is_time(field.type):
            raise Invalid(
                f'a Delta table cannot have column "{name}", which is {type_to_ddl(field.type)}',
                detail="Delta has dates and timestamps, and no times.",
                hint=f'Convert it to text or to a number: rows.withColumn("{name}", ...).',
                column=name,
            )
        _check_fields(inner_fields(field.type), f"{name}.")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _schema(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


_DELETED = "mainstem.deleted"


def _with_deletes(upserts: pa.Table, deletes: pa.Table | None) -> pa.Table:
    """Both in one table, since a commit is one MERGE."""
    assert deletes is not None
    marked = [
        table.append_column(_DELETED, pa.array([deleted] * table.num_rows, pa.bool_()))
        for table, deleted in ((upserts, False), (deletes, True))
    ]
    return pa.concat_tables(marked, promote_options="default")


def _merge(
    table: DeltaTable,
    source: pa.Table | pa.RecordBatchReader,
    key: Sequence[str],
    names: Sequence[str],
    properties: CommitProperties,
    *,
    deletes: bool,
    whole: bool = False,
) -> None:
    """Insert, replace and delete rows in one commit; `whole`: rows that are not in the source are deleted too."""
    columns = {f"o.{_quoted(name)}": f"n.{_quoted(name)}" for name in names}
    same = " AND ".join(f"o.{_quoted(name)} = n.{_quoted(name)}" for name in key)
    merge = table.merge(source, same, source_alias="n", target_alias="o", commit_properties=properties)
    deleted = f"n.{_quoted(_DELETED)}"
    if deletes:
        merge = merge.when_matched_delete(deleted)
    # The key too: then a table that has nothing else is not a special case.
    merge = merge.when_matched_update(columns)
    merge = merge.when_not_matched_insert(columns, f"NOT {deleted}" if deletes else None)
    if whole:
        merge = merge.when_not_matched_by_source_delete()
    merge.execute()
