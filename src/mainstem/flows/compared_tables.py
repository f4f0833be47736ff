"""Comparison of two tables, wherever they are: topics, views, stores, files, captured tables.

A topic is compared by the latest row of each key. Where both sides say up to which offsets they have applied the same
topics, they are compared at one position: they are read until they have applied the same. Otherwise a key counts as
different if it is found twice, with the same two rows, some time apart: one side may only be behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from mainstem.arguments import show_value
from mainstem.batch import Offsets
from mainstem.errors import Invalid, did_you_mean
from mainstem.log.rows.column_types import is_nested
from mainstem.log.rows.merged_rows import merge_columns
from mainstem.log.rows.nested_json import to_json
from mainstem.log.topic import Topic
from mainstem.sinks.file_sink import FileSink
from mainstem.sinks.store import Store
from mainstem.views.view import View

if TYPE_CHECKING:
    from mainstem.capture.capture import Capture
    from mainstem.log.log import Log

__all__ = ["CapturedTableRows", "ComparedTable", "Comparison", "Difference", "compare_tables", "table_to_compare"]

# Differences that are returned; all are counted.
SHOWN_MAX = 100
# Between two looks at what may only be behind.
LOOK_SECONDS = 0.5
# For so long, if nothing says how far each side is.
STEADY_SECONDS = 3.0
CHUNK_ROWS = 20_000


class State(NamedTuple):
    """A table at one moment: one row for each key, and up to where it has applied topics, if it says so."""

    rows: pa.Table
    offsets: Offsets | None


class ComparedTable(Protocol):
    """One side of a comparison."""

    title: str
    # Empty if it does not say.
    key: tuple[str, ...]

    def read(self, key: Sequence[str]) -> State: ...


@dataclass(frozen=True)
class Difference:
    """A key that differs, with the row of each side; None where there is none.

    >>> Difference({"id": 7}, {"id": 7, "title": "Pen"}, None).second is None
    True
    """

    key: Mapping[str, Any]
    first: Mapping[str, Any] | None
    second: Mapping[str, Any] | None


@dataclass(frozen=True)
class Comparison:
    """How two tables differ: `same` keys have equal rows; `changed`, `only_first` and `only_second` are counts of keys.

    `differences`: the first hundred. `at_one_position`: both had applied the same offsets. `undecided`: keys that changed all
    the time, so that it is not known. `left_out`: columns that only one side has.

    >>> import tempfile
    >>> import mainstem
    >>> stem = mainstem.open(tempfile.mkdtemp())
    >>> topics = [stem.create_topic(name, schema="id INT, title STRING", key="id") for name in ("one", "other")]
    >>> _ = topics[0].append([{"id": 1, "title": "Pen"}]), topics[1].append([{"id": 1, "title": "Ink"}])
    >>> found = stem.compare(*topics, wait="0 seconds")
    >>> found.equal, found.changed, found.differences[0].second
    (False, 1, {'id': 1, 'title': 'Ink'})
    """

    first: str
    second: str
    same: int
    changed: int
    only_first: int
    only_second: int
    differences: tuple[Difference, ...] = ()
    at_one_position: bool = False
    undecided: int = 0
    left_out: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether no key differs."""
        return not (self.changed or self.only_first or self.only_second)


# The sides


@dataclass
class _TopicRows:
    topic: Topic

    def __post_init__(self) -> None:
        self.title = f"topic {self.topic.name}"
        self.key = self.topic.settings.key

    def read(self, key: Sequence[str]) -> State:
        backend = self.topic.backend
        ends = {number: backend.latest(number) for number in range(backend.settings.partitions)}
        rows = self.topic.to_arrow(stop=ends)
        return State(_latest(rows, key, self.title), {self.topic.name: ends})


@dataclass
class _ViewRows:
    view: View

    def __post_init__(self) -> None:
        self.title, self.key = f"view {self.view.name}", self.view.key

    def read(self, key: Sequence[str]) -> State:
        with self.view.snapshot() as snapshot:
            return State(snapshot.to_arrow(), snapshot.offsets())


@dataclass
class _StoreRows:
    store: Store

    def __post_init__(self) -> None:
        self.title, self.key = f"store {self.store.name}", self.store.key

    def read(self, key: Sequence[str]) -> State:
        before = self.store.status
        rows = self.store.to_arrow()
        after = self.store.status
        # If a batch was committed in between, it is not known which rows were read.
        steady = (before.version, before.batch) == (after.version, after.batch)
        rows = rows if self.store.key else _latest(rows, key, self.title)
        return State(rows, after.offsets if steady else None)


@dataclass
class _FileRows:
    files: FileSink
    key: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.title = f"files {self.files.path}"

    def read(self, key: Sequence[str]) -> State:
        return State(_latest(self.files.to_arrow(), key, self.title), None)


class CapturedTableRows:
    """The rows of a captured table as the database has them."""

    def __init__(self, capture: Capture, table: str, log: Log, home: str) -> None:
        self.title = f"table {table} of capture {capture.name}"
        self._capture, self._table, self._home = capture, table, home
        self.key = log.open_topic(capture.topics[table]).settings.key

    def read(self, key: Sequence[str]) -> State:
        connection = self._capture.source.open(self._capture.name, self._home)
        try:
            connection.tables()
            chunk = connection.read_chunk(self._table, None, CHUNK_ROWS)
            chunks = [pa.table(chunk.columns)]
            while chunk.last is not None:
                chunk = connection.read_chunk(self._table, chunk.last, CHUNK_ROWS)
                chunks.append(pa.table(chunk.columns))
        finally:
            connection.close()
        return State(pa.concat_tables(chunks), None)


def table_to_compare(given: object) -> ComparedTable:
    """One side of a comparison, from a topic, view, store or files."""
    if isinstance(given, Topic):
        return _TopicRows(given)
    if isinstance(given, View):
        return _ViewRows(given)
    if isinstance(given, Store):
        return _StoreRows(given)
    if isinstance(given, FileSink):
        return _FileRows(given)
    if isinstance(given, CapturedTableRows):
        return given
    raise Invalid(
        f"{type(given).__name__} cannot be compared",
        detail=f"It is {show_value(given)}.",
        hint='Give a topic, a view, a store or files: stem.topic("..."), stem.view("..."), stem.postgres(...), stem.files("...").',
    )


def _latest(rows: pa.Table, key: Sequence[str], title: str) -> pa.Table:
    """The latest row of each key, without deleted ones."""
    _check_has(rows.schema, key, title)
    # Columns of a segment lie in its file as they were written; Arrow warns of grouping by one that is not aligned.
    every = pa.array(range(rows.num_rows), pa.int64())
    for name in key:
        rows = rows.set_column(
            rows.schema.get_field_index(name), rows.schema.field(name), rows.column(name).take(every)
        )
    columns = pa.schema([field for field in rows.schema if field.name not in ("record", "origin")])
    merged = merge_columns(rows, columns, list(key), name=title)
    return pa.table(merged.upserts, columns)


def _check_has(schema: pa.Schema, key: Sequence[str], title: str) -> None:
    for name in key:
        if name not in schema.names:
            raise Invalid(
                f'{title} has no column "{name}", by which it is to be compared',
                detail=f"Its columns are: {', '.join(schema.names)}.",
                hint=did_you_mean(name, schema.names) or "Name columns that both have: --key id, or key=[...].",
            )


# Comparing


def compare_tables(
    first: ComparedTable, second: ComparedTable, *, key: Sequence[str] = (), wait_seconds: float = 10.0,
    sleep: Callable[[float], None] = time.sleep, now: Callable[[], float] = time.monotonic,
) -> Comparison:  # fmt: skip
    """How two tables differ. Waits at most so long until both have applied the same, or until what differs stays so."""
    columns = _key_of(first, second, key)
    deadline = now() + wait_seconds
    before, found, since = None, _look(first, second, columns), now()
    while not found.settled:
        undecided: list[_Key] = [] if before is None else found.changed_since(before)
        if undecided:
            since = now()
        # Where nothing says how far each is, what stays different is.
        if now() >= deadline or (not found.may_meet and now() - since >= STEADY_SECONDS):
            return found.compare(undecided)
        sleep(LOOK_SECONDS)
        before, found = found, _look(first, second, columns)
    return found.compare()


def _key_of(first: ComparedTable, second: ComparedTable, given: Sequence[str]) -> tuple[str, ...]:
    found = tuple(given) or first.key or second.key
    if not found:
        raise Invalid(
            f"{first.title} and {second.title} have no key",
            detail="Rows are compared by their key.",
            hint="Say which columns identify a row: --key id, or key=[...].",
        )
    if not given and first.key and second.key and set(first.key) != set(second.key):
        raise Invalid(
            f"{first.title} and {second.title} have different keys",
            detail=f"They are: {', '.join(first.key)}; {', '.join(second.key)}.",
            hint="Say by which columns they are to be compared: --key id, or key=[...].",
        )
    return found


_Key = tuple[Any, ...]


@dataclass(frozen=True)
class _Found:
    """Both tables at one look, and the keys that differ: of each the places of its rows, and their hashes."""

    titles: tuple[str, str]
    rows: tuple[pa.Table, pa.Table]
    key: tuple[str, ...]
    disputed: Mapping[_Key, tuple[int | None, int | None, int, int]]
    at_one_position: bool
    # Whether both say what they have applied of the same topics.
    may_meet: bool

    @property
    def settled(self) -> bool:
        return self.at_one_position or not self.disputed

    def changed_since(self, before: _Found) -> list[_Key]:
        """The keys that did not differ in the same way before."""

        def rows(found: _Found, key: _Key) -> tuple[object, ...] | None:
            if key not in found.disputed:
                return None
            one, other, *hashes = found.disputed[key]
            return (one is None, other is None, *hashes)

        return [key for key in self.disputed if rows(self, key) != rows(before, key)]

    def compare(self, undecided: Collection[_Key] = ()) -> Comparison:
        left = set(undecided)
        entries = [entry for key, entry in self.disputed.items() if key not in left]
        only_first = sum(other is None for _, other, *_ in entries)
        only_second = sum(one is None for one, *_ in entries)
        first, second = self.rows
        return Comparison(
            *self.titles,
            same=first.num_rows - sum(one is not None for one, *_ in self.disputed.values()),
            changed=len(entries) - only_first - only_second,
            only_first=only_first,
            only_second=only_second,
            differences=tuple(self._difference(one, other) for one, other, *_ in entries[:SHOWN_MAX]),
            at_one_position=self.at_one_position,
            undecided=len(left),
            left_out=tuple(sorted(set(first.schema.names) ^ set(second.schema.names))),
        )

    def _difference(self, one: int | None, other: int | None) -> Difference:
        first, second = (
            None if place is None else rows.slice(place, 1).to_pylist()[0]
            for rows, place in zip(self.rows, (one, other), strict=True)
        )
        shown = first or second or {}
        return Difference({name: shown[name] for name in self.key}, first, second)


def _look(first: ComparedTable, second: ComparedTable, key: tuple[str, ...]) -> _Found:
    one, other = first.read(key), second.read(key)
    for side, rows in ((first, one.rows), (second, other.rows)):
        _check_has(rows.schema, key, side.title)
    applied, others = one.offsets or {}, other.offsets or {}
    topics = applied.keys() & others.keys()
    together = bool(topics) and all(applied[name] == others[name] for name in topics)
    disputed = _disputed(one.rows, other.rows, key)
    return _Found((first.title, second.title), (one.rows, other.rows), key, disputed, together, bool(topics))


def _disputed(
    one: pa.Table, other: pa.Table, key: tuple[str, ...]
) -> dict[_Key, tuple[int | None, int | None, int, int]]:
    import duckdb

    values = [name for name in one.schema.names if name in other.schema.names and name not in key]
    sides = [_comparable(rows, beside, key, values) for rows, beside in ((one, other), (other, one))]
    same = " AND ".join(f"a.k{number} = b.k{number}" for number in range(len(key)))
    differ = " OR ".join(f"a.v{number} IS DISTINCT FROM b.v{number}" for number in range(len(values))) or "false"
    hashes = ", ".join(
        f"hash({', '.join(f'{side}.v{number}' for number in range(len(values)))})" if values else "0" for side in "ab"
    )
    keys = ", ".join(f"coalesce(a.k{number}, b.k{number})" for number in range(len(key)))
    with duckdb.connect(config={"threads": 1}) as connection:
        for name, side in zip("ab", sides, strict=True):
            connection.register(name, side)
        found = connection.execute(
            f"SELECT a.place, b.place, {hashes}, {keys} FROM a FULL JOIN b ON {same} "
            f"WHERE a.place IS NULL OR b.place IS NULL OR {differ} ORDER BY {keys}"
        ).fetchall()
    return {tuple(key): (one, other, *hashed) for one, other, *hashed, key in ((*row[:4], row[4:]) for row in found)}


def _comparable(rows: pa.Table, beside: pa.Table, key: Sequence[str], values: Sequence[str]) -> pa.Table:
    """The columns in a form that DuckDB compares as we do: nested ones, and those of different types, as JSON."""

    def column(name: str) -> pa.ChunkedArray | pa.Array:
        data_type = rows.schema.field(name).type
        if data_type == beside.schema.field(name).type and not is_nested(data_type):
            return rows.column(name)
        return to_json(rows.column(name).combine_chunks())

    columns = {
        f"{kind}{number}": column(name)
        for kind, names in (("k", key), ("v", values))
        for number, name in enumerate(names)
    }
    return pa.table({**columns, "place": pa.array(range(rows.num_rows), pa.int64())})
