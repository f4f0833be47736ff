"""StoreBackend: what a store does for us, and the fence that it commits with each batch.

A store (a table of another database, keys of a cache, an index, a lake table) has one or two copies of the rows of a flow:

    live      what readers see
    beside    while it is filled again: the next version; then it becomes the live one in one step

Each copy has a fence: which flow of which home writes it, in which run, and up to which batch. Rows and fence are changed
in one commit of the store itself, and only if the fence still is the expected one. So a batch is written completely or not
at all, once; an older run is fenced; and a store that was set back is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa

from mainstem.arguments import checked_call
from mainstem.batch import Offsets
from mainstem.errors import Unavailable
from mainstem.log.rows.schema_ddl import schema_from_ddl
from mainstem.sinks.store_texts import key_texts, row_texts, rows_from_texts

__all__ = ["Copy", "Fence", "FenceMoved", "Fences", "StoreBackend", "StoreChange", "unavailable_when"]

Copy = Literal["live", "beside"]


@dataclass(frozen=True)
class Fence:
    """Which flow writes a copy, and how far it is. A store keeps it beside its rows, for example as JSON.

    >>> fence = Fence("home", "products", 1, 7, ("id",), "id BIGINT, title STRING", batch=17)
    >>> fence.schema.names, fence.filling
    (['id', 'title'], True)
    """

    # The identity of the home's log.
    home: str
    flow: str
    # Of the flow's checkpoint: a higher one was filled again from the beginning.
    version: int
    epoch: int
    key: tuple[str, ...]
    # The columns that the flow writes, as Spark DDL.
    columns: str
    # The last batch that is in it; -1: none.
    batch: int = -1
    # The end offsets applied.
    offsets: Offsets = field(default_factory=dict)
    # Whether it does not have everything yet that the log had when it was begun.
    filling: bool = True
    # When the last batch was applied, in microseconds since 1970.
    applied_at: int | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns that the flow writes, as an Arrow schema."""
        return schema_from_ddl(self.columns)

    def to_json(self) -> str:
        """As text.

        >>> fence = Fence("h", "f", 1, 7, ("id",), "id BIGINT", 3, {"orders": {0: 12}})
        >>> Fence.from_json(fence.to_json()) == fence
        True
        """
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Fence:
        """From the text of `to_json`."""
        facts = json.loads(text)
        offsets = {
            topic: {int(number): end for number, end in ends.items()} for topic, ends in facts["offsets"].items()
        }
        return cls(**{**facts, "key": tuple(facts["key"]), "offsets": offsets})

    def key_text(self, key: Mapping[str, pa.Scalar]) -> str:
        """The text of a key, as in `StoreChange.upsert_texts`.

        >>> Fence("h", "f", 1, 7, ("id",), "id BIGINT").key_text({"id": pa.scalar(7)})
        '[7]'
        """
        columns = {name: pa.array([key[name].as_py()], self.schema.field(name).type) for name in self.key}
        return key_texts(pa.table(columns), self.key)[0]

    def rows_from(self, texts: Sequence[str]) -> pa.RecordBatch:
        """The rows of texts of `StoreChange.upsert_texts`; a column that was added later is null.

        >>> Fence("h", "f", 1, 7, ("id",), "id BIGINT, title STRING").rows_from(['{"id":7}']).to_pylist()
        [{'id': 7, 'title': None}]
        """
        return rows_from_texts(texts, self.schema)


class Fences(NamedTuple):
    """The fences of both copies; None where there is no copy.

    >>> Fences(live=None, beside=None).of("live") is None
    True
    """

    live: Fence | None
    beside: Fence | None

    def of(self, copy: Copy) -> Fence | None:
        """The fence of a copy."""
        return self.live if copy == "live" else self.beside

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> Fences:
        """From the texts of `Fence.to_json`, by copy.

        >>> Fences.from_texts({})
        Fences(live=None, beside=None)
        """
        return cls(*(Fence.from_json(texts[copy]) if copy in texts else None for copy in ("live", "beside")))


class FenceMoved(Exception):
    """The fence is not the expected one: nothing was changed. Raised by a backend, caught by the flow.

    >>> raise FenceMoved(None)
    Traceback (most recent call last):
    mainstem.sinks.store_backend.FenceMoved: None
    """

    def __init__(self, found: Fence | None) -> None:
        super().__init__(found)
        self.found = found


@dataclass(frozen=True)
class StoreChange:
    """What is changed in one commit: the fence, and rows if any. One row for each key; keys to delete have only the key.

    Without an expected fence the copy is created. A new fence may have more columns than the expected one: they are added.

    >>> first = Fence("home", "products", 1, 7, ("id",), "id BIGINT")
    >>> change = StoreChange("live", expected=None, fence=first)
    >>> change.upserts is None
    True
    """

    copy: Copy
    expected: Fence | None
    fence: Fence
    upserts: pa.Table | None = None
    deletes: pa.Table | None = None

    def upsert_texts(self) -> list[tuple[str, str]]:
        """The key and the row of each upsert, as JSON: one text for one key, and rows that `Fence.rows_from` reads exactly.

        >>> fence = Fence("home", "products", 1, 7, ("id",), "id BIGINT, price DOUBLE")
        >>> StoreChange("live", fence, fence, pa.table({"id": [7], "price": [float("nan")]})).upsert_texts()
        [('[7]', '{"id":7,"price":"NaN"}')]
        """
        if not self.upserts:
            return []
        return list(zip(key_texts(self.upserts, self.fence.key), row_texts(self.upserts), strict=True))

    def delete_texts(self) -> list[str]:
        """The keys of the deletes, as in `upsert_texts`.

        >>> fence = Fence("home", "products", 1, 7, ("id",), "id BIGINT")
        >>> StoreChange("live", fence, fence, deletes=pa.table({"id": [7, 8]})).delete_texts()
        ['[7]', '[8]']
        """
        return key_texts(self.deletes, self.fence.key) if self.deletes else []


@contextmanager
@checked_call
def unavailable_when(error: type[Exception], location: str) -> Iterator[None]:
    """Raise `Unavailable` instead of an error which means that the store cannot be used now: the flow tries again later.

    >>> with unavailable_when(ConnectionError, "cache:6379"):
    ...     raise ConnectionResetError("reset by peer")
    Traceback (most recent call last):
    mainstem.Unavailable: cache:6379 cannot be used
    Detail: ConnectionResetError: reset by peer.
    Hint: Check whether it is running and can be reached.
    """
    try:
        yield
    except error as cause:
        raise Unavailable(
            f"{location} cannot be used",
            detail=f"{type(cause).__name__}: {str(cause).rstrip('.')}.",
            hint="Check whether it is running and can be reached.",
        ) from cause


class StoreBackend(Protocol):
    """One store. A subclass has to have `location`, `fences`, `commit`, `switch`, `drop`, `get` and `read`. `fences` may be called by any thread at any time; everything else by one thread at a time.

    Raises `Unavailable` while the store cannot be reached: the flow tries again later. After that the outcome of a commit
    may be unknown; the fence tells.

    >>> from mainstem.sinks.postgres_store import PostgresStore
    >>> backend: StoreBackend = PostgresStore("postgresql://writer@db/shop", "products")
    >>> backend.location
    'postgresql://writer@db:5432/shop, table "products"'
    """

    # Where it is, for messages; without a password.
    location: str
    # Whether it also takes rows without a key: then `upserts` are appended as they are, and there are no deletes.
    keyless: bool = False

    def check(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        """Raise `Invalid` if the store cannot have such columns. Connects to nothing. By default all can be had."""
        return

    def unfit(self, column: pa.Array, field: pa.Field, key: tuple[str, ...]) -> Mapping[int, str]:
        """The rows with a value that the store cannot hold, each with the reason; by default there are none."""
        return {}

    def refused(self, change: StoreChange) -> Mapping[int, str]:
        """The upserts of a change that the store would refuse as a whole, each with the reason; by default there are none.
        Changes nothing."""
        return {}

    def fences(self) -> Fences:
        """The fences; raises `Conflict` if something that no flow has written is where the rows would be."""

    def commit(self, change: StoreChange) -> None:
        """Change rows and fence in one durable commit, or raise `FenceMoved`."""

    def switch(self, expected: Fences, fence: Fence) -> None:
        """Replace the live copy by the other one, and its fence by `fence`; raise `FenceMoved` if they are not as expected."""

    def drop(self, copy: Copy) -> None:
        """Remove a copy with its fence, if it is there."""

    def get(self, fence: Fence, key: Mapping[str, pa.Scalar]) -> dict[str, Any] | None:
        """The live row with this key."""

    def read(self, fence: Fence, copy: Copy = "live") -> Iterator[pa.RecordBatch]:
        """All rows of a copy, with the columns of the fence, as of one moment where the store can."""

    def close(self) -> None:
        """Close what is open; by default nothing is."""
