"""Store: a table, a cache, an index or a lake that a flow keeps equal to its rows; created by `stem.postgres(...)` and others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Self

import pyarrow as pa

from mainstem.arguments import checked_calls, column_names
from mainstem.batch import FlowRun, Offsets
from mainstem.clock import Clock, as_datetime
from mainstem.errors import Conflict, Invalid, NotFound, SchemaMismatch, Unavailable, did_you_mean
from mainstem.log.rows.key_values import key_columns
from mainstem.log.rows.normal_schema import normal_schema, nullable_schema
from mainstem.log.rows.schema_ddl import type_to_ddl
from mainstem.names import check_name
from mainstem.sinks.store_backend import Fence, Fences, StoreBackend
from mainstem.sinks.store_record import StoreRecord
from mainstem.sinks.store_writer import StoreWriter
from mainstem.spark.arrow_writer import ArrowWriter

__all__ = ["Store", "StoreStatus", "offsets_reached", "store_name"]


@dataclass(frozen=True)
class StoreStatus:
    """A store now. `state`: "empty", "filling" (readers do not see everything yet) or "current"; `batch`: the last one that is
    in it, -1 if none; `offsets`: what it has applied; `next_version`: the one that is being filled beside it, if any.

    >>> status = StoreStatus("cache", "...", "current", version=1, batch=17, flow="cache", offsets={"orders": {0: 420}}, applied_at=None)
    >>> status.state, status.offsets["orders"]
    ('current', {0: 420})
    """

    name: str
    location: str
    state: Literal["empty", "filling", "current"]
    version: int
    batch: int
    flow: str | None
    offsets: Offsets
    applied_at: datetime | None
    next_version: int | None = None


@checked_calls
class Store:
    """A store that a flow writes. Rows with `record.change` "delete" delete their key.

    If the store loses data (it was restored from a backup, failed over, or keeps nothing on disk), its flow fills it again
    from the log. Columns that others added to it are left alone.

    >>> import tempfile
    >>> import mainstem
    >>> stem = mainstem.open(tempfile.mkdtemp())
    >>> stem.postgres("postgresql://writer@db/shop", "products", key="id")
    <store "postgres.products" in postgresql://writer@db:5432/shop, table "products">
    """

    kind = "store"
    takes_columns = True

    def __init__(
        self,
        home: str,
        name: str,
        backend: StoreBackend,
        *,
        key: str | Sequence[str] = (),
        identity: str,
        clock: Clock,
        version: int | None = None,
    ) -> None:
        self.name = check_name(name, "store")
        self.home = home
        self.key = column_names(key, "key")
        self.backend = backend
        self.record = StoreRecord(home, name)
        self._identity = identity
        self._clock = clock
        self._version = version
        if not self.key and not backend.keyless:
            raise Invalid(
                f'store "{name}" has no key',
                detail="A later row with the same key replaces an earlier one.",
                hint='Name the columns that identify a row: key="id".',
            )

    def __repr__(self) -> str:
        return f'<store "{self.name}" in {self.location}>'

    @property
    def location(self) -> str:
        """Where it is, in words; never with a password."""
        return self.backend.location

    @property
    def version(self) -> int:
        """The version that its flow writes; a higher one was filled again from the beginning."""
        return self.record.read().version if self._version is None else self._version

    @property
    def follows_record(self) -> bool:
        """Whether the home says which version is written; else it is given, for a rebuild."""
        return self._version is None

    def at_version(self, version: int) -> Self:
        """The same store, of which a flow writes this version."""
        return type(self)(
            self.home,
            self.name,
            self.backend,
            key=self.key,
            identity=self._identity,
            clock=self._clock,
            version=version,
        )

    # Reading

    @property
    def status(self) -> StoreStatus:
        """How far it is, and whether it is being filled."""
        live, beside = self.backend.fences()
        if live is None:
            return StoreStatus(self.name, self.location, "empty", self.version, -1, None, {}, None)
        return StoreStatus(
            self.name,
            self.location,
            "filling" if live.filling or beside is not None else "current",
            live.version,
            live.batch,
            live.flow,
            live.offsets,
            None if live.applied_at is None else as_datetime(live.applied_at),
            None if beside is None else beside.version,
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns that the flow writes."""
        return self._live().schema

    def get(self, key: Any) -> dict[str, Any] | None:
        """The row with this key (a value, a tuple or a dict), or None."""
        fence = self._live()
        columns = key_columns(key, fence.key, fence.schema, of=f'store "{self.name}"')
        if any(column.null_count for column in columns):
            return None
        return self.backend.get(fence, {name: column[0] for name, column in zip(fence.key, columns, strict=True)})

    def to_arrow(self) -> pa.Table:
        """All rows, sorted by key."""
        fence = self._live()
        rows = pa.Table.from_batches(self.backend.read(fence), fence.schema)
        sortable = [
            name for name in fence.key if not pa.types.is_nested(fence.schema.field(name).type)
        ]  # Arrow cannot sort by others.
        return rows.sort_by([(name, "ascending") for name in sortable]) if sortable else rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows in batches, in any order; memory does not grow with the store."""
        return self.backend.read(self._live())

    def _live(self) -> Fence:
        live = self.backend.fences().live
        if live is None:
            raise NotFound(
                f'no flow has written store "{self.name}"',
                detail=f"Nothing of Mainstem is in {self.location}.",
                hint="Run a flow into it: Flow(rows, into=...).",
            )
        return live

    # As a sink

    def accept(self, schema: pa.Schema) -> None:
        """Raise if the store cannot hold such rows. Nothing is written; a store that cannot be reached is checked later."""
        columns = self._columns(schema)
        for name in self.key:
            if name not in columns.names:
                raise Invalid(
                    f'store "{self.name}" has the key "{name}", which the rows lack',
                    detail=f"Their columns are: {', '.join(columns.names)}.",
                    hint=did_you_mean(name, columns.names) or "Name columns that the rows have.",
                    column=name,
                )
        self.backend.check(columns, self.key)
        try:
            fences = self.backend.fences()
        except Unavailable:
            return
        self._check_fits(fences, columns)

    def _check_fits(self, fences: Fences, columns: pa.Schema) -> None:
        fence = next((fence for fence in fences if fence is not None and fence.version == self.version), None)
        if fence is None:
            return
        if fence.key != self.key:
            raise Conflict(
                f'store "{self.name}" has the key {", ".join(fence.key) or "()"}',
                detail=f"The key given is {', '.join(self.key) or '()'}. It is in {self.location}.",
                hint=f"Give the old key, or fill the store again: mainstem store rebuild {self.name} --program FILE",
            )
        for field in fence.schema:
            now = columns.field(field.name).type if field.name in columns.names else None
            if now != field.type:
                raise SchemaMismatch(
                    f'column "{field.name}" of the rows for store "{self.name}" '
                    + ("is missing now" if now is None else f"is {type_to_ddl(now)} now"),
                    detail=f"The store has it as {type_to_ddl(field.type)}. It is in {self.location}.",
                    hint=f"Columns may be added. For other changes fill the store again: mainstem store rebuild {self.name} "
                    "--program FILE",
                    column=field.name,
                )

    def writer(self, run: FlowRun, schema: pa.Schema) -> ArrowWriter:
        """Begin a run of a flow into this store."""
        return ArrowWriter(self.table_writer(run, schema))

    def table_writer(self, run: FlowRun, schema: pa.Schema) -> StoreWriter:
        """As `writer`, for batches that are Arrow tables."""
        columns = self._columns(schema)
        self.backend.check(columns, self.key)
        self._check_fits(self.backend.fences(), columns)
        return StoreWriter(
            self.name, self.backend, run, columns, self.key, self._identity, self._clock,
            takes_over=not self.follows_record,
        )  # fmt: skip

    def reached(self, version: int) -> int:
        """The last batch of a version that is in the store; -1 if none is."""
        fences = [fence for fence in self.backend.fences() if fence is not None]
        return max((fence.batch for fence in fences if fence.version == version), default=-1)

    def _columns(self, schema: pa.Schema) -> pa.Schema:
        columns = [field for field in schema if field.name != "record"]
        return pa.schema([field.remove_metadata() for field in nullable_schema(normal_schema(pa.schema(columns)))])


def offsets_reached(wanted: Offsets, applied: Mapping[str, Mapping[int, int]]) -> bool:
    """Whether all end offsets that are wanted are applied."""
    return all(
        applied.get(topic, {}).get(number, 0) >= end for topic, ends in wanted.items() for number, end in ends.items()
    )


def store_name(kind: str, of: str) -> str:
    """A name for a store, and so for its flow.

    >>> store_name("redis", "shop:product:")
    'redis.shop_product'
    """
    return f"{kind}.{re.sub(r'[^A-Za-z0-9.-]+', '_', of).strip('_.-') or 'store'}"
