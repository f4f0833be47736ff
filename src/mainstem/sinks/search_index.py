"""SearchIndex: a full-text index (tantivy) in the home that a flow keeps current.

    search/<name>/live      {"format": 1, "folder": "v1", "crc32c": ...}: the folder of the copy that readers see
    search/<name>/beside    the same for the next version, while the index is filled again
    search/<name>/.lock     who writes holds it, for one commit at a time
    search/<name>/v1/       a tantivy index

Rows and fence are documents of it, see `search_snapshot`. A commit deletes by key, adds rows and replaces the fence:
tantivy replaces `meta.json` atomically, so a reader or a crash sees all of it or nothing. The writer of tantivy is open
for one commit: a run that is idle blocks nobody, and the lock of one that died is free. What cannot be opened counts as
empty, and the flow fills it again from the log.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
import tantivy

from mainstem.arguments import checked_calls, column_names, text, whole_number
from mainstem.clock import Clock
from mainstem.crash_points import reach
from mainstem.durable_files import (
    REAL_FILES,
    decode_checked,
    encode_checked,
    remove_if_there,
    replace_file,
    unavailable,
)
from mainstem.errors import Conflict, Invalid, LockHeld, NewerFormat, NotFound, did_you_mean
from mainstem.log.rows.nested_json import to_json
from mainstem.log.rows.schema_ddl import type_to_ddl
from mainstem.names import check_name
from mainstem.processes import process_name, stopped
from mainstem.sinks.search_snapshot import (
    FENCE_KEY,
    HITS_MAX,
    Snapshot,
    damaged_files,
    fence_document,
    index_schema,
    row_documents,
    translate_errors,
)
from mainstem.sinks.store import Store, store_name
from mainstem.sinks.store_backend import Copy, Fence, FenceMoved, Fences, StoreBackend, StoreChange

__all__ = ["SearchFolder", "SearchIndex", "open_search_index", "search_index_names"]

FORMAT = 1
# The memory of tantivy's writer; a larger batch becomes several segments of one commit.
HEAP_BYTES = 50_000_000
# Tantivy silently drops longer terms.
TERM_BYTES_MAX = 65_530
READ_ROWS = 5_000
LOCK_SECONDS_MAX = 30.0
_FOLDER = re.compile(r"v(\d+)")
_OURS = re.compile(r"v\d+|(live|beside)(\.new)?|\.lock")
_COPIES: tuple[Copy, ...] = ("live", "beside")


@checked_calls
class SearchIndex(Store):
    """A full-text index that a flow keeps current; created by `stem.search_index(...)`. A store with a search.

    >>> import tempfile
    >>> import mainstem
    >>> stem = mainstem.open(tempfile.mkdtemp())
    >>> index = stem.search_index("products", key="id", text=["title", "description"])
    >>> index.name, index.status.state
    ('search.products', 'empty')
    """

    def search(self, words: str, *, limit: int = 10, offset: int = 0) -> list[dict[str, Any]]:
        """The rows with all these words, each in any of the text columns, with their `score` (BM25), best first.

        Upper and lower case are the same; punctuation only separates words, so there is no query syntax. Rows with an
        equal score are sorted by key. A search sees one commit completely. At most 10,000 rows can be paged through.
        """
        rows: list[dict[str, Any]] = self.search_table(words, limit=limit, offset=offset).to_pylist()
        return rows

    def search_table(self, words: str, *, limit: int = 10, offset: int = 0) -> pa.Table:
        """As `search`, as an Arrow table."""
        assert isinstance(self.backend, SearchFolder)
        return self.backend.search(words, limit=limit, offset=offset)


def search_index_names(home: str) -> list[str]:
    """The search indexes of a home, sorted."""
    try:
        names = os.listdir(f"{home}/search")
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(name for name in names if os.path.exists(f"{home}/search/{name}/live"))


def open_search_index(
    home: str, name: str, key: str | Sequence[str], text: str | Sequence[str], *, identity: str, clock: Clock
) -> SearchIndex:
    """The index of this name; one that exists needs neither key nor text columns."""
    check_name(name, "search index")
    path, columns = f"{home}/search/{name}", column_names(text, "text")
    if not columns and key:
        raise Invalid(
            f'search index "{name}" has no text columns',
            detail="A search looks for words in them.",
            hint='Name the columns with text: text=["title", "description"].',
        )
    if not columns:
        known = SearchFolder(path).describe()
        if known is None:
            names = search_index_names(home)
            raise NotFound(
                f'search index "{name}" does not exist',
                detail=f'The home "{home}" has the search indexes: {", ".join(names) or "none"}.',
                hint=did_you_mean(name, names)
                or 'Run a flow into it: Flow(rows, into=stem.search_index(name, key="id", text=["title"])).',
            )
        key, columns = known
    backend = SearchFolder(path, columns)
    return SearchIndex(home, store_name("search", name), backend, key=key, identity=identity, clock=clock)


class SearchFolder(StoreBackend):
    """The folder of one index. Any number of processes may read it; those that write take turns."""

    keyless = False

    def __init__(self, path: str, text: Sequence[str] = ()) -> None:
        self._path = path
        self._text = tuple(text)
        self._title = f'search index "{os.path.basename(path)}"'
        self.location = f'"{self._path}"'
        self._guard = threading.Lock()
        # The folders whose files this process has verified.
        self._verified: set[str] = set()
        self._opened: dict[Copy, tuple[tuple[Any, ...], Snapshot]] = {}

    # Checks

    def check(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        for name in self._text:
            found = schema.field(name).type if name in schema.names else None
            if found is None:
                raise Invalid(
                    f'{self._title} has the text column "{name}", which the rows lack',
                    detail=f"Their columns are: {', '.join(schema.names)}.",
                    hint=did_you_mean(name, schema.names) or "Name columns that the rows have.",
                    column=name,
                )
            if not (kinds.is_string(found) or (kinds.is_list(found) and kinds.is_string(found.value_type))):
                raise Invalid(
                    f'column "{name}" cannot be searched for words: it is {type_to_ddl(found)}',
                    detail="A text column is STRING or ARRAY<STRING>.",
                    hint=f'Convert it: rows.withColumn("{name}", F.col("{name}").cast("string")), or leave it out of text=.',
                    column=name,
                )
        if "score" in schema.names:
            raise Invalid(
                f'{self._title} cannot have a column "score"',
                detail="search() gives each row a score of that name.",
                hint='Rename it: rows.withColumnRenamed("score", "rating").',
                column="score",
            )

    def unfit(self, column: pa.Array, field: pa.Field, key: tuple[str, ...]) -> Mapping[int, str]:
        if field.name not in key:
            return {}
        # With the brackets and commas of the whole key.
        most = (TERM_BYTES_MAX - 1) // len(key) - 1
        sizes = pc.fill_null(pc.binary_length(to_json(column)), 0)
        too_long = np.flatnonzero(sizes.to_numpy(zero_copy_only=False) > most)
        return {
            row: f'column "{field.name}" is in the key, and has {sizes[row]} bytes as JSON; {self._title} takes {most}'
            for row in too_long.tolist()
        }

    # Fences

    def fences(self) -> Fences:
        with unavailable(self._path):
            live, beside = (self._open(copy) for copy in _COPIES)
            if live is None:
                self._check_ours()
            return Fences(*(None if snapshot is None else snapshot.fence for snapshot in (live, beside)))

    def describe(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """The key and the text columns of the live copy."""
        with unavailable(self._path):
            live = self._open("live")
        return None if live is None else (live.fence.key, live.text)

    def _check_ours(self) -> None:
        try:
            others = [name for name in os.listdir(self._path) if not _OURS.fullmatch(name)]
        except FileNotFoundError:
            return
        except NotADirectoryError:
            others = ["a file"]
        if others:
            raise Conflict(
                f'"{self._path}" has files that are not of a search index',
                detail=f"It has: {', '.join(sorted(others)[:10])}.",
                hint="Move them away, or give the search index another name.",
            )

    def _folder(self, copy: Copy) -> str | None:
        """The folder of a copy; None if there is none, or if the file that names it is damaged."""
        try:
            with open(f"{self._path}/{copy}", "rb") as file:
                content = decode_checked(file.read(), since=1, known=FORMAT)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        if (found := content.get("format", 1)) > FORMAT:
            raise NewerFormat.of(self._title, found, FORMAT, where=f'"{self._path}/{copy}"')
        folder = str(content.get("folder"))
        # After a switch that was interrupted both name the same one.
        if not _FOLDER.fullmatch(folder) or (copy == "beside" and folder == self._folder("live")):
            return None
        return folder

    def _open(self, copy: Copy) -> Snapshot | None:
        """The last commit of a copy; None if there is none that can be read."""
        while True:
            state = self._state(copy)
            if state is None:
                return None
            with self._guard:
                known = self._opened.get(copy)
                if known is None or known[0] != state:
                    snapshot = Snapshot.open(f"{self._path}/{state[0]}")
                    if snapshot is not None:
                        known = self._opened[copy] = (state, snapshot)
                    elif self._state(copy) == state:
                        return None
                    else:
                        # Replaced meanwhile.
                        continue
                return known[1]

    def _state(self, copy: Copy) -> tuple[str, int, int] | None:
        """What is another one after each commit."""
        folder = self._folder(copy)
        try:
            found = None if folder is None else os.stat(f"{self._path}/{folder}/meta.json")
        except (FileNotFoundError, NotADirectoryError):
            return None
        return None if folder is None or found is None else (folder, found.st_ino, found.st_mtime_ns)

    # Writing

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Nobody else writes. Everything that decides about a commit is read inside."""
        with unavailable(self._path):
            if not os.path.isdir(self._path):
                self._check_ours()
                REAL_FILES.make_directory(self._path)
                for parent in (os.path.dirname(self._path), os.path.dirname(os.path.dirname(self._path))):
                    REAL_FILES.sync_directory(parent)
            with self._lock(), translate_errors(self._path):
                yield

    @contextmanager
    def _lock(self) -> Iterator[None]:
        # flock, as tantivy's own: it also excludes threads, and ends with the process.
        path, began = f"{self._path}/.lock", time.monotonic()
        while True:
            with open(path, "a+", encoding="ascii") as lock:
                if not _try_lock(lock):
                    self._refuse_if_stuck(lock, time.monotonic() - began)
                    time.sleep(0.005)
                elif os.path.exists(path) and os.path.samestat(os.fstat(lock.fileno()), os.stat(path)):
                    # Only for the message of one who waits.
                    lock.truncate(0)
                    lock.write(str(os.getpid()))
                    lock.flush()
                    yield
                    return

    def _refuse_if_stuck(self, lock: IO[str], waited: float) -> None:
        lock.seek(0)
        holder = int(lock.read() or 0)
        state = "stopped" if holder and stopped(holder) else "running"
        if waited < LOCK_SECONDS_MAX and (state == "running" or waited < 0.5):
            return
        raise LockHeld(
            f"{self._title} is being written by a {state} process",
            detail=f"Process {holder} ({process_name(holder)}) has held its lock for at least {waited:.1f} seconds.",
            hint=f"Resume it (kill -CONT {holder}), or end it (kill -9 {holder}): then the lock is free.",
            pid=holder,
            path=f"{self._path}/.lock",
        )

    def commit(self, change: StoreChange) -> None:
        with self._locked():
            found = self._open(change.copy)
            if found is not None:
                found = self._verify(change.copy, found)
            fence = None if found is None else found.fence
            if fence != change.expected:
                raise FenceMoved(fence)
            if found is None:
                self._create(change)
                return
            if found.text != self._text:
                raise Conflict(
                    f"{self._title} has the text columns {', '.join(found.text)}",
                    detail=f"Those given are {', '.join(self._text)}. It is in {self.location}.",
                    hint="Give the old ones, or fill the index again: mainstem store rebuild "
                    f"{store_name('search', os.path.basename(self._path))} --program FILE",
                )
            self._write(found.path, change.fence, change)

    def _verify(self, copy: Copy, found: Snapshot) -> Snapshot | None:
        """Once for each run: a copy with damaged files is removed, so that it is filled again."""
        if found.path not in self._verified and damaged_files(found.path):
            self._drop(copy)
            return None
        self._verified.add(found.path)
        return found

    def _create(self, change: StoreChange) -> None:
        self._check_ours()
        numbers = [int(found[1]) for found in map(_FOLDER.fullmatch, os.listdir(self._path)) if found]
        # Not one that was there before: somebody may still read that.
        folder = f"v{max(numbers, default=0) + 1}"
        path = f"{self._path}/{folder}"
        REAL_FILES.make_directory(path)
        tantivy.Index(index_schema(len(self._text)), path)
        self._write(path, change.fence, change)
        self._verified.add(path)
        self._point(change.copy, folder)
        self._remove_others()

    def _point(self, copy: Copy, folder: str) -> None:
        replace_file(REAL_FILES, f"{self._path}/{copy}", encode_checked({"format": FORMAT, "folder": folder}))

    def _remove_others(self) -> None:
        """Remove the folders that are no copy any more."""
        used = [self._folder(copy) for copy in _COPIES]
        for name in os.listdir(self._path):
            if _FOLDER.fullmatch(name) and name not in used:
                REAL_FILES.remove_tree(f"{self._path}/{name}")

    def _write(self, path: str, fence: Fence, change: StoreChange | None = None) -> None:
        # Opened again: what is open may know files that a restored folder lacks.
        writer = tantivy.Index.open(path).writer(HEAP_BYTES, 1)
        try:
            # Files of a commit that was killed: this one may have the same numbers, and so the same names.
            writer.garbage_collect_files()
            if change is not None:
                self._write_rows(writer, change)
            writer.delete_documents_by_term("key", FENCE_KEY)
            writer.add_document(fence_document(fence, self._text))
            writer.commit()
            # Tantivy syncs the files, but not the new name of meta.json.
            REAL_FILES.sync_directory(path)
        finally:
            # Without a commit nothing is kept. An error of a thread has been raised by the commit.
            with suppress(ValueError):
                writer.wait_merging_threads()

    def _write_rows(self, writer: tantivy.IndexWriter, change: StoreChange) -> None:
        delete, add, key = writer.delete_documents_by_term, writer.add_document, change.fence.key
        for term in change.delete_texts():
            delete("key", term)
        if change.upserts is not None and change.upserts.num_rows:
            for term, document in row_documents(change.upserts, key, self._text):
                delete("key", term)
                add(document)
            reach("sink_rows_written")

    def switch(self, expected: Fences, fence: Fence) -> None:
        with self._locked():
            found = self.fences()
            if found != expected:
                raise FenceMoved(found.beside if found.beside != expected.beside else None)
            folder = self._folder("beside")
            assert folder is not None
            self._point("live", folder)
            # If it ends here, the live copy is the new one, its fence says that it is being filled, and the next run
            # finishes it.
            reach("store_switch_begun")
            self._drop("beside")
            self._remove_others()
            self._write(f"{self._path}/{folder}", fence)

    def drop(self, copy: Copy) -> None:
        with self._locked():
            self._drop(copy)
            self._remove_others()

    def _drop(self, copy: Copy) -> None:
        remove_if_there(REAL_FILES, f"{self._path}/{copy}")
        REAL_FILES.sync_directory(self._path)

    # Reading

    def get(self, fence: Fence, key: Mapping[str, pa.Scalar]) -> dict[str, Any] | None:
        with self._reading("live") as snapshot:
            row = snapshot.row(fence.key_text(key))
        return None if row is None else fence.rows_from([row]).to_pylist()[0]

    def read(self, fence: Fence, copy: Copy = "live") -> Iterator[pa.RecordBatch]:
        with self._reading(copy) as snapshot:
            rows = snapshot.rows()
            while some := list(islice(rows, READ_ROWS)):
                yield fence.rows_from(some)

    def search(self, words: str, *, limit: int = 10, offset: int = 0) -> pa.Table:
        """The rows with all words, and their scores, best first."""
        # Half of a surrogate pair is no word either.
        given = text(words.encode(errors="replace").decode() if isinstance(words, str) else words, "words")
        end = whole_number(offset, "offset") + whole_number(limit, "limit", least=1)
        if end > HITS_MAX:
            raise Invalid(
                f"a search shows at most {HITS_MAX:,} rows",
                detail=f"The limit and the offset are {end:,} together.",
                hint="Search for more words. All rows of the index: to_arrow() or batches().",
            )
        with self._reading("live") as snapshot:
            hits = snapshot.search(given, offset, end)
        rows = pa.Table.from_batches([snapshot.fence.rows_from([hit.row for hit in hits])])
        return rows.append_column("score", pa.array([hit.score for hit in hits], pa.float64()))

    @contextmanager
    def _reading(self, copy: Copy) -> Iterator[Snapshot]:
        with unavailable(self._path):
            snapshot = self._open(copy)
        if snapshot is None:
            raise NotFound(
                f"{self._title} is empty, or cannot be read",
                detail=f"There is no complete index in {self.location}.",
                hint="Run its flow: it fills it from the log.",
            )
        with translate_errors(self._path):
            yield snapshot

    def close(self) -> None:
        with self._guard:
            self._opened.clear()
        self._verified.clear()


def _try_lock(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
