"""View: a keyed table that a flow keeps current, which any process can query meanwhile."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import pyarrow as pa

from mainstem.arguments import checked_calls, column_names, path_text, show_value, text, values, whole_number
from mainstem.batch import FlowRun
from mainstem.clock import Clock, SystemClock, as_datetime
from mainstem.durations import Duration, duration_us
from mainstem.errors import Conflict, Invalid, Unavailable, did_you_mean
from mainstem.log.append_result import parse_token
from mainstem.log.query_limits import ROWS_MAX, QueryLimits
from mainstem.log.rows.normal_schema import normal_schema, nullable_schema
from mainstem.log.rows.schema_ddl import schema_to_ddl
from mainstem.names import check_name
from mainstem.views.merge_batch import check_columns, check_panes
from mainstem.views.row_explanation import Explain, RowExplanation
from mainstem.views.sqlite.sqlite_backend import SqliteBackend
from mainstem.views.version_pair import SHOWN_MAX, Difference
from mainstem.views.view_facts import Facts, Segment, VersionFacts
from mainstem.views.view_history import (
    AsOf,
    Changes,
    Update,
    ViewHistory,
    position_as_of,
    subscription,
    wait_for_commit,
)
from mainstem.views.view_offsets import missing_of, not_yet
from mainstem.views.view_store import (
    CommitWatch,
    KeyChange,
    Page,
    VersionSnapshot,
    VersionWriter,
    ViewBackend,
    ViewStore,
)

__all__ = ["View", "ViewDescription", "ViewVersion", "describe", "list_versions", "query_table"]


# The description of a view: its key and columns, its versions and their progress.


@dataclass(frozen=True)
class ViewVersion:
    """One version: its flow and its progress. `batch` is the last committed batch, -1 if none.

    `location` is where its rows are stored: a file, or a schema of the database.
    """

    number: int
    live: bool
    rows: int
    bytes: int
    ddl: str
    created_at: datetime
    flow: str | None
    epoch: int
    batch: int
    applied_at: datetime | None
    offsets: Mapping[str, Mapping[int, int]]
    location: str


@dataclass(frozen=True)
class ViewDescription:
    """A view as `describe()` returns it; `live` is the version that readers see.

    Changes after `first_position`, up to `last_position`, can be read from the live version. `history` is the retention of its
    history, None if it keeps none, and `history_since` the earliest time that `as_of` can have. `path` is its directory, or
    the address of the database.
    """

    name: str
    key: tuple[str, ...]
    live: ViewVersion
    versions: tuple[int, ...]
    first_position: int
    last_position: int
    path: str
    history: timedelta | None = None
    history_since: datetime | None = None


def describe(store: ViewStore) -> ViewDescription:
    """The view as it is now."""
    with store.live() as snapshot:
        facts = snapshot.facts
        first, last = snapshot.positions()
        live, since = _version(snapshot), snapshot.kept_since()
    return ViewDescription(
        store.view,
        facts.key,
        live,
        tuple(facts.numbers()),
        first_position=max(first - 1, facts.history[-1].after),
        last_position=last,
        path=store.title,
        history=timedelta(microseconds=facts.history_age_us) if facts.history_age_us else None,
        history_since=None if since is None else as_datetime(since.at),
    )


def list_versions(store: ViewStore) -> list[ViewVersion]:
    """All versions, by number."""
    found = []
    for number in sorted(store.facts().numbers()):
        with store.at(number) as snapshot:
            found.append(_version(snapshot))
    return found


def _version(snapshot: VersionSnapshot) -> ViewVersion:
    flow, epoch, batch, applied_at = snapshot.progress()
    named = next(version for version in snapshot.facts.versions if version.number == snapshot.version)
    return ViewVersion(
        number=snapshot.version,
        live=snapshot.version == snapshot.facts.live,
        rows=snapshot.count(),
        bytes=snapshot.bytes(),
        ddl=named.schema,
        created_at=as_datetime(named.created_at),
        flow=flow,
        epoch=epoch,
        batch=batch,
        applied_at=None if applied_at is None else as_datetime(applied_at),
        offsets=snapshot.offsets(),
        location=snapshot.location,
    )


# SQL over one table: DuckDB gets the rows as Arrow, since it cannot open the file of a view.


def query_table(name: str, rows: pa.Table, sql: str, parameters: Sequence[object], limits: QueryLimits) -> pa.Table:
    """The result of a query, with the rows as a table of that name.

    >>> query_table("n", pa.table({"a": [1, 2]}), "SELECT max(a) AS m FROM n WHERE a < ?", [2], QueryLimits()).to_pylist()
    [{'m': 1}]
    """
    import duckdb

    from mainstem.log.sql_sandbox import SqlSandbox, query_hint

    with SqlSandbox.open(limits) as sandbox:
        sandbox.connection.register(name, rows)
        sandbox.lock()
        try:
            return sandbox.answer(sql, parameters)
        except duckdb.Error as error:
            lines = str(error).splitlines() or [type(error).__name__]
            raise Invalid(
                f"the query cannot be run: {lines[0][:200]}",
                detail="\n".join(line for line in lines[1:] if line.strip()) or f"DuckDB says: {lines[0]}",
                hint=query_hint(error, sql, rows.schema.names)
                or f'The one table is "{name}", with the columns {", ".join(rows.schema.names)}. Each ? needs a value.',
            ) from error


T = TypeVar("T")

CHANGES_MAX = 1_000_000
CHANGES_AGE: Duration = "7 days"
# SQLite allows 2,000 columns, and a change has each of them twice.
COLUMNS_MAX = 900


@checked_calls
class View:
    """A view of a home; created by `stem.view(name, key=...)`. Thread-safe.

    It may be named before it exists: the flow that writes into it creates it. `changes_max` and `changes_age` are the
    retention of its changes (a million, and 7 days), from the next run of that flow on. With `history` ("30 days") it
    keeps all changes of that time, and can be read as of any moment in it (`as_of`).

    >>> import tempfile
    >>> from mainstem.batch import Batch, FlowRun
    >>> revenue = View(tempfile.mkdtemp(), "revenue", key=["store"])
    >>> run = FlowRun("revenue", epoch=1)
    >>> rows = pa.table({"store": ["Berlin", "Lisbon"], "amount": [12, 7]})
    >>> with_rows = revenue.writer(run, rows.schema).apply(rows, Batch(0, run))
    >>> revenue.get("Berlin")
    {'store': 'Berlin', 'amount': 12}
    >>> revenue.query("SELECT max(amount) AS most FROM revenue").to_pylist()
    [{'most': 12}]
    """

    kind = "view"

    def __init__(
        self,
        home: str | os.PathLike[str],
        name: str,
        *,
        key: str | Sequence[str] | None = None,
        changes_max: int | None = None,
        changes_age: Duration | None = None,
        history: Duration | None = None,
        clock: Clock | None = None,
        backend: ViewBackend | None = None,
        used: Callable[[int], None] = lambda version: None,
        explain: Explain | None = None,
    ) -> None:
        """`used` is called after another version was made the live one, with its number; `explain` answers `why`."""
        self.name = check_name(name, "view")
        self.home = os.fspath(home)
        self._backend = backend or SqliteBackend(self.home)
        self._store = self._backend.store(name)
        self._clock = clock or SystemClock()
        self._used = used
        self._explain = explain
        self._changes_max = None if changes_max is None else whole_number(changes_max, "changes_max", least=1)
        self._changes_age_us = None if changes_age is None else duration_us(changes_age, setting="changes_age")
        self._history_age_us = None if history is None else duration_us(history, setting="history")
        if self._history_age_us and changes_max is not None:
            raise Invalid(
                f'view "{name}" cannot have both a history and changes_max={changes_max:,}',
                detail="A past state is computed by undoing all later changes: none of them may be missing.",
                hint="Leave changes_max out: history alone defines how far back it goes.",
            )
        self._given_key = None if key is None else column_names(key, "key")
        if self._given_key is not None and self._store.exists():
            self._check_key(self._store.facts().key)

    def __repr__(self) -> str:
        return f'<View {self.name!r} of "{self.home}">'

    @property
    def exists(self) -> bool:
        """Whether it exists: a flow has created it."""
        return self._store.exists()

    @property
    def id(self) -> str:
        """Distinguishes it from a view of the same name that was created after it was dropped; positions belong to one id."""
        return self._store.facts().id

    @property
    def location(self) -> str:
        """Where it is stored, in words: a directory of the home, or a database without its password."""
        return self._store.location

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the key."""
        return self._given_key or self._store.facts().key

    @property
    def schema(self) -> pa.Schema:
        """The columns of the live version."""
        with self._store.live() as snapshot:
            return snapshot.schema

    @property
    def ddl(self) -> str:
        """The columns of the live version as Spark DDL."""
        return schema_to_ddl(self.schema)

    def close(self) -> None:
        """Close all files and connections."""
        self._store.close()

    # Reading

    def get(
        self, key: Any, *, after: str | None = None, wait: Duration = "5 seconds", as_of: AsOf | None = None
    ) -> dict[str, Any] | None:
        """The row with this key (a value, a tuple or a dict), or None.

        `after`: the token of an append; blocks until the view has applied that append, at most `wait`. If it has not by
        then, raises `NotYet` with what is missing.

        `as_of`: a time, or the token of an append; returns the row as of that time, or right after the batch with the
        append. Needs a view with `history`; raises `FellOff` for what is no longer kept, `NotYet` for the future.
        """
        return self._after(after, wait, lambda snapshot, now: snapshot.get(key, self._position(snapshot, as_of, now)))

    def wait_for(self, after: str, wait: Duration = "5 seconds") -> None:
        """Block until the view has applied the append with this token, at most `wait`: then raises `NotYet`."""
        self._after(after, wait, lambda snapshot, now: None)

    def _after(self, after: str | None, wait: Duration, read: Callable[[VersionSnapshot, int], T]) -> T:
        """What `read` finds in the first snapshot that has applied the append."""
        wanted = None if after is None else parse_token(after)
        wait_us = duration_us(wait, setting="wait")
        watch: CommitWatch | None = None
        since = self._clock.monotonic()
        try:
            while True:
                now = self._clock.now()
                with self._store.live() as snapshot:
                    applied = snapshot.offsets() if wanted else {}
                    missing = missing_of(wanted, applied) if wanted else {}
                    if not missing:
                        return read(snapshot, now)
                if watch is None:
                    # Created before the next read, so that a later commit ends the wait.
                    watch = self._store.watch()
                elif not wait_for_commit(watch, self._clock, since, wait_us):
                    raise not_yet(self.name, missing, applied)
        finally:
            if watch is not None:
                watch.close()

    def _position(self, snapshot: VersionSnapshot, as_of: AsOf | None, now: int) -> int | None:
        """The position after which changes are undone; `now` is a time before the snapshot was taken."""
        return None if as_of is None else position_as_of(snapshot, as_of, view=self.name, now=now)

    def to_arrow(self, *, as_of: AsOf | None = None) -> pa.Table:
        """A snapshot of all rows, sorted by key: now, or, if the view keeps its history, as of a time or a token."""
        now = self._clock.now()
        with self._store.live() as snapshot:
            return snapshot.to_arrow(self._position(snapshot, as_of, now))

    def batches(self, *, as_of: AsOf | None = None) -> Generator[pa.RecordBatch, None, None]:
        """The same in batches; memory does not grow with the view. The snapshot is held until the last batch."""
        now = self._clock.now()
        with self._store.live() as snapshot:
            yield from snapshot.batches(self._position(snapshot, as_of, now))

    def page(self, *, after: Any = None, limit: int = 50, as_of: AsOf | None = None) -> Page:
        """Up to `limit` rows, sorted by key: those after the key `after` (a value, a tuple or a dict), or the first ones.

        `page.rows` is a table, and `page.after` the key of its last row, to read the next page with; None if no row
        follows. The work is that of `limit` rows, however many the view has. Each page is a snapshot of its own. With
        `as_of` (as for `get`), keys that were inserted or deleted since are passed over, which takes as long as reading them.

        >>> import tempfile
        >>> from mainstem.batch import Batch, FlowRun
        >>> revenue = View(tempfile.mkdtemp(), "revenue", key=["store"])
        >>> run = FlowRun("revenue", epoch=1)
        >>> rows = pa.table({"store": ["Berlin", "Lisbon", "Osaka"], "amount": [12, 7, 3]})
        >>> written = revenue.writer(run, rows.schema).apply(rows, Batch(0, run))
        >>> first = revenue.page(limit=2)
        >>> first.rows["store"].to_pylist(), first.after
        (['Berlin', 'Lisbon'], ('Lisbon',))
        >>> revenue.page(after=first.after, limit=2).rows.to_pylist()
        [{'store': 'Osaka', 'amount': 3}]
        """
        count, now = whole_number(limit, "limit", least=1), self._clock.now()
        with self._store.live() as snapshot:
            return snapshot.page(after, count, self._position(snapshot, as_of, now))

    def snapshot(self, version: int | None = None) -> AbstractContextManager[VersionSnapshot]:
        """A snapshot of a version, by default the live one: rows in batches, and the offsets applied."""
        return self._store.live() if version is None else self._store.at(version)

    def query(
        self,
        sql: str,
        parameters: Sequence[object] = (),
        *,
        as_of: AsOf | None = None,
        rows_max: int = ROWS_MAX,
        timeout: Duration | None = None,
    ) -> pa.Table:
        """Query a snapshot in SQL (DuckDB): one SELECT; the view is a table of its name, `?` is a parameter."""
        limits = QueryLimits.parse(rows_max, timeout)
        asked, given = text(sql, "sql"), values(parameters, "parameters")
        return query_table(self.name, self.to_arrow(as_of=as_of), asked, given, limits)

    def export(self, folder: str | os.PathLike[str], *, as_of: AsOf | None = None) -> str:
        """Write a snapshot of all rows to a Parquet file in `folder`; returns its path. Memory does not grow with the view."""
        from pyarrow import parquet

        folder = path_text(folder, "folder")
        now = self._clock.now()
        with self._store.live() as snapshot:
            past = self._position(snapshot, as_of, now)
            version, position = snapshot.version, snapshot.positions()[1] if past is None else max(past, 0)
            path = f"{folder}/{self.name}-v{version}-{position}-{uuid.uuid4().hex[:8]}.parquet"
            _make_folder(folder)
            with parquet.ParquetWriter(f"{path}.new", snapshot.schema) as writer:
                for batch in snapshot.batches(past):
                    writer.write_batch(batch)
        os.rename(f"{path}.new", path)
        return path

    def why(
        self, key: Any, *, as_of: AsOf | None = None, limit: int = 1_000, after: str | None = None
    ) -> RowExplanation:
        """Why the row with this key is as it is: the records it was made of, and each value that was shown, when and by which
        batch. Reads the log; needs no Spark.

        `exact` of the result says whether the flow over just these records gives that row. It is not for `process` and for
        expressions that only Spark computes: then `because` says why, and `ranges` are the offsets of the batch. `as_of`: as
        for `get`. `limit`: the records of a page; the next one is `why(key, after=found.after)`.
        """
        if self._explain is None:
            raise Invalid(
                f'view "{self.name}" was opened without its log',
                detail="The records of a row are in the topics that its flow reads.",
                hint=f'Open the home: mainstem.open("...").view("{self.name}").why(...).',
            )
        return self._explain(self, key, as_of=as_of, limit=whole_number(limit, "limit", least=1), after=after)

    # Changes

    def subscribe(self, cursor: str | None = None, *, wait: Duration | None = None) -> Iterator[Update]:
        """All rows, then every change as it is committed; with a cursor, the changes since then.

        Blocks while there are none. With `wait` it ends when there was no change for that long. Raises `FellOff` if the
        changes after the cursor are no longer kept. After a switch to another version, the difference follows as changes.
        """
        wait_us = None if wait is None else duration_us(wait, setting="wait")
        return subscription(self._store, self._clock, cursor, wait_us)

    def changes(self, after: int = 0, limit: int = 65_536) -> Changes:
        """The next changes after a position, at most `limit`, and the position at which they end."""
        history = ViewHistory(self._store)
        last = history.last()
        return history.between(whole_number(after, "after"), last, whole_number(limit, "limit", least=1))

    def history(self, key: Any, *, before: int | None = None, limit: int = 100) -> list[KeyChange]:
        """Every change that is kept of the row with this key (a value, a tuple or a dict), newest first, with the row before
        and after it, and when it was committed.

        At most `limit`; `before=changes[-1].position` returns older ones. A view with `history` keeps all changes of that time
        and finds those of a key by an index; another keeps its last changes, and looks through them.

        >>> import tempfile
        >>> from mainstem.batch import Batch, FlowRun
        >>> revenue = View(tempfile.mkdtemp(), "revenue", key=["store"], history="1 day")
        >>> run = FlowRun("revenue", epoch=1)
        >>> for number, amount in enumerate([12, 19]):
        ...     rows = pa.table({"store": ["Berlin"], "amount": [amount]})
        ...     written = revenue.writer(run, rows.schema).apply(rows, Batch(number, run))
        >>> [(it.change, it.before and it.before["amount"], it.after["amount"]) for it in revenue.history("Berlin")]
        [('update', 12, 19), ('insert', None, 12)]
        """
        until = None if before is None else whole_number(before, "before") - 1
        with self._store.live() as snapshot:
            return snapshot.key_changes(key, -1, until, whole_number(limit, "limit", least=1))

    def watch(self) -> CommitWatch:
        """Waits for commits, of any process: `watch().wait(seconds)`."""
        return self._store.watch()

    def last_position(self) -> int:
        """The position of the last change; 0 if there is none, or if the view does not exist yet."""
        return ViewHistory(self._store).last() if self.exists else 0

    def status(self) -> tuple[int, dict[str, dict[int, int]]]:
        """The position of the last change, and the offsets applied by then, read at one moment."""
        with self._store.live() as snapshot:
            return snapshot.positions()[1], snapshot.offsets()

    def changes_between(self, start: int, end: int, rows_max: int) -> Changes:
        """The changes after `start` up to `end`, at most `limit`: the same at every call."""
        return ViewHistory(self._store).between(start, end, rows_max)

    # Status

    def describe(self) -> ViewDescription:
        """Key, columns, versions, and progress."""
        return describe(self._store)

    def offsets(self, version: int | None = None) -> dict[str, dict[int, int]]:
        """The offsets of each source that a version, by default the live one, has applied."""
        number = self._store.facts().live if version is None else whole_number(version, "version")
        with self._store.at(number) as snapshot:
            return snapshot.offsets()

    # Versions

    def versions(self) -> list[ViewVersion]:
        """All versions, by number."""
        return list_versions(self._store)

    def new_version(self, schema: pa.Schema | None = None) -> int:
        """Create an empty version beside the live one, with other columns if given; returns its number."""
        columns = self.schema if schema is None else self._check_schema(schema)
        return self._store.versions(self._clock).new(columns)

    def use(self, version: int) -> None:
        """Make a version the live one, atomically for readers."""
        self._store.versions(self._clock).use(whole_number(version, "version"))
        self._used(version)

    def drop_version(self, version: int) -> None:
        """Remove a version that is not live."""
        self._store.versions(self._clock).drop(whole_number(version, "version"))

    def difference(self, before: int, after: int, *, limit: int = SHOWN_MAX, skip: int = 0) -> Difference:
        """How version `after` differs from version `before`: counts, and up to `limit` rows of each kind, after the first
        `skip`."""
        return self._store.versions(self._clock).difference(
            whole_number(before, "before"),
            whole_number(after, "after"),
            whole_number(limit, "limit", least=1),
            whole_number(skip, "skip"),
        )

    def drop(self) -> None:
        """Remove the view with all of its versions; a flow that writes it stops."""
        self._store.remove()

    # Writing

    def accept(self, schema: pa.Schema, *, version: int | None = None) -> None:
        """Raise if the view cannot store such rows. Nothing is written.

        A version that does not exist yet accepts any columns that include the key.
        """
        columns = self._check_schema(schema)
        self._check_key_in(columns)
        check_panes(schema, self.key, view=self.name)
        if not self.exists:
            return
        facts = self._store.facts()
        self._check_key(facts.key)
        number = facts.live if version is None else version
        if number in facts.numbers():
            with self._store.at(number) as snapshot:
                check_columns(schema, snapshot.schema, view=self.name)

    def writer(self, run: FlowRun, schema: pa.Schema) -> VersionWriter:
        """Begin a run: the view and its version `run.version` are created if they do not exist; older runs are fenced."""
        self.accept(schema, version=run.version)
        columns = self._check_schema(schema)
        if not self.exists:
            self._store.create(self._first_facts(columns, run.version), columns)
        facts = self._store.facts()
        self._check_key(facts.key)
        if run.version not in facts.numbers():
            self._store.versions(self._clock).new(columns, run.version)
        self._store.keep_changes(self._changes_max, self._changes_age_us, self._history_age_us)
        return self._store.writer(run, self._clock)

    def _first_facts(self, schema: pa.Schema, version: int) -> Facts:
        made = VersionFacts(version, schema_to_ddl(schema), self._clock.now())
        return Facts(
            id=uuid.uuid4().hex,
            key=self.key,
            live=version,
            versions=(made,),
            history=(Segment(version, 0),),
            changes_max=CHANGES_MAX,
            changes_age_us=duration_us(CHANGES_AGE),
            history_age_us=self._history_age_us or 0,
        )

    def _check_schema(self, schema: pa.Schema) -> pa.Schema:
        columns = nullable_schema(normal_schema(pa.schema([field for field in schema if field.name != "record"])))
        if len(columns) > COLUMNS_MAX:
            raise Invalid(
                f'view "{self.name}" cannot have {len(columns)} columns',
                detail=f"A view has at most {COLUMNS_MAX} columns.",
                hint="Select the columns that are queried, or combine some in a struct.",
            )
        # Comments and marks belong to the columns of topics, not of views.
        plain = pa.schema([field.remove_metadata() for field in columns])
        self._store.check(plain)
        return plain

    def _check_key_in(self, schema: pa.Schema) -> None:
        if not self._given_key and not self.exists:
            raise Invalid(
                f'view "{self.name}" has no key',
                detail=f"A new view needs a key. The columns are: {', '.join(schema.names)}.",
                hint=f'Name the columns that identify a row: stem.view("{self.name}", key=["{schema.names[0]}"]).',
            )
        for name in self.key:
            if name not in schema.names:
                raise Invalid(
                    f'view "{self.name}" has the key "{name}", which the rows lack',
                    detail=f"Their columns are: {', '.join(schema.names)}.",
                    hint=did_you_mean(name, schema.names) or "Name columns that the rows have.",
                    column=name,
                )
            if pa.types.is_map(schema.field(name).type):
                raise Invalid(
                    f'view "{self.name}" has the key "{name}", which is a map',
                    detail="Maps with the same entries in a different order would be different keys.",
                    hint="Use one of its values, or an array of its sorted entries.",
                    column=name,
                )

    def _check_key(self, found: Sequence[str]) -> None:
        if self._given_key is not None and self._given_key != tuple(found):
            raise Conflict(
                f'view "{self.name}" has the key {", ".join(found)}',
                detail=f"The key given is {', '.join(self._given_key)}.",
                hint=f'Leave the key out to use the existing view: stem.view("{self.name}"). To change it, drop the view '
                "and run its flow again, or give the new one another name.",
            )


def _make_folder(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"folder {show_value(folder)} cannot be created: {os.strerror(error.errno or 0)}",
            detail=f"This process has user id {os.getuid()}.",
            hint="Give a folder that this user may write into.",
        ) from error
