"""Stand-ins without files: a ledger, a topic, processes, beats and a waiter, driven by a ManualClock."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from mainstem.clock import ManualClock
from mainstem.errors import FellOff, Invalid
from mainstem.log.lag import Lag
from mainstem.log.missed_deletions import Compacted
from mainstem.log.record import record_array

RECORD = pa.struct(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("appended_at", pa.timestamp("us", "UTC")),
        ("change", pa.string()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


class MemoryLedger:
    """Every entry goes through JSON, as it would on disk. `before_append` lets a test race a decision."""

    def __init__(self, state_class: type, clock: ManualClock) -> None:
        self.state_class = state_class
        self.clock = clock
        self.entries: list[tuple[str, int]] = []
        self.state: Any = state_class()
        self.before_append: Callable[[], None] = lambda: None

    def current(self) -> Any:
        return self.state

    def decide(self, decision: Callable[[Any, int], tuple[list[dict[str, Any]], Any]]) -> Any:
        while True:
            seen = len(self.entries)
            entries, result = decision(self.state, self.clock.now())
            racing, self.before_append = self.before_append, lambda: None
            racing()
            if len(self.entries) == seen:
                break
        for entry in entries:
            self.append(entry)
        return result

    def append(self, entry: dict[str, Any]) -> None:
        text = json.dumps(entry)
        self.entries.append((text, self.clock.now()))
        self.state.apply(json.loads(text), self.clock.now())

    def state_at(self, at: int) -> Any:
        state = self.state_class()
        for text, appended_at in self.entries:
            if appended_at <= at:
                state.apply(json.loads(text), appended_at)
        return state

    def reopen(self) -> None:
        """As another process would open it: from a snapshot."""
        self.state = self.state_class.restore(json.loads(json.dumps(self.state.snapshot())))


class MemoryTopic:
    """Partitions as lists of (offset, appended_at, row); `drop` is retention, `compact` takes single records out."""

    def __init__(
        self, schema: pa.Schema, clock: ManualClock, *, partitions: int = 1, key: tuple[str, ...] = (), name: str = "t"
    ) -> None:
        self.name = name
        self.clock = clock
        self._schema = schema
        self._key = key
        self.records: list[list[tuple[int, int, dict[str, Any]]]] = [[] for _ in range(partitions)]
        self.ends = [0] * partitions
        self.starts = [0] * partitions
        self.reads = 0

    def append(self, partition: int, *rows: dict[str, Any]) -> None:
        for row in rows:
            self.records[partition].append((self.ends[partition], self.clock.now(), row))
            self.ends[partition] += 1

    def marker(self, partition: int) -> None:
        self.ends[partition] += 1

    def add_partition(self) -> None:
        self.records.append([])
        self.ends.append(0)
        self.starts.append(0)

    def drop(self, partition: int, below: int) -> None:
        self.starts[partition] = below
        self.records[partition] = [record for record in self.records[partition] if record[0] >= below]

    def compact(self, partition: int, *offsets: int) -> None:
        self.records[partition] = [record for record in self.records[partition] if record[0] not in offsets]

    def partitions(self) -> int:
        return len(self.records)

    def schema(self) -> pa.Schema:
        return self._schema

    def key(self) -> tuple[str, ...]:
        return self._key

    def earliest(self, partition: int) -> int:
        return self.starts[partition]

    def latest(self, partition: int) -> int:
        return self.ends[partition]

    def end(self, partition: int) -> int:
        return self.ends[partition]

    def compaction(self, partition: int) -> Compacted | None:
        return None

    def at_time(self, partition: int, at: int) -> int:
        later = (offset for offset, appended_at, _ in self.records[partition] if appended_at >= at)
        return next(later, self.ends[partition])

    def after_token(self, token: str) -> dict[int, int]:
        try:
            return {int(p): int(o) for p, o in (part.split(":") for part in token.removeprefix("token-").split(","))}
        except ValueError as error:
            raise Invalid(f'"{token}" is not a token') from error

    def read(self, partition: int, start: int, rows_max: int) -> pa.RecordBatch | None:
        self.reads += 1
        if start < self.starts[partition]:
            raise FellOff(
                f"offsets {start} to {self.starts[partition] - 1} are gone",
                topic=self.name,
                partition=partition,
                first_lost=start,
                last_lost=self.starts[partition] - 1,
            )
        found = [record for record in self.records[partition] if record[0] >= start][:rows_max]
        if not found:
            return None
        columns = [pa.array([row.get(field.name) for _, _, row in found], field.type) for field in self._schema]
        record = pa.array(
            [
                {"partition": partition, "offset": offset, "appended_at": at, "change": "insert", "headers": None}
                for offset, at, _ in found
            ],
            RECORD,
        )
        return pa.RecordBatch.from_arrays([*columns, record], schema=self._schema.append(pa.field("record", RECORD)))

    def behind(self, partition: int, offset: int) -> Lag:
        rest = [record for record in self.records[partition] if record[0] >= offset]
        if not rest:
            return Lag()
        seconds = (self.clock.now() - rest[0][1]) / 1_000_000
        return Lag(len(rest), 100 * len(rest), seconds, timedelta(hours=1) - timedelta(seconds=seconds))


def process(pid: int) -> dict[str, Any]:
    return {"pid": pid, "started": 1, "boot": "b"}


class MemoryProcesses:
    def __init__(self) -> None:
        self.pid = 1
        self.gone: set[int] = set()

    def this_process(self) -> Any:
        return process(self.pid)

    def alive(self, identity: Any) -> bool:
        return identity["pid"] not in self.gone


class MemoryBeats:
    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.last: dict[str, int] = {}

    def heartbeat(self, member: str) -> None:
        self.last[member] = self.clock.boot()

    def age(self, member: str) -> int | None:
        return None if member not in self.last else self.clock.boot() - self.last[member]

    def forget(self, member: str) -> None:
        self.last.pop(member, None)


class ManualWaiter:
    """Instead of sleeping, moves the clock, and lets the test do something while somebody waits."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.meanwhile: list[Callable[[], None]] = []
        self.waits: list[tuple[float, int | None, list[int]]] = []

    def wait(self, timeout_seconds: float, until: int | None, holders: Sequence[Any]) -> None:
        self.waits.append((timeout_seconds, until, sorted(holder["pid"] for holder in holders)))
        if self.meanwhile:
            self.meanwhile.pop(0)()
            return
        passed = round(timeout_seconds * 1_000_000)
        if until is not None:
            passed = min(passed, max(0, until - self.clock.now()))
        self.clock.advance(timedelta(microseconds=passed))


class Killed(BaseException):
    """The process ended here: nothing after this ran, no handler either."""


class MemoryRejections:
    """An idempotent producer: a sequence at or below its last one adds nothing. `kill` says where the process dies."""

    def __init__(self) -> None:
        self.last = 0
        self.rows: list[dict[str, Any]] = []
        self.tables: list[pa.Table] = []
        self.kill = ""

    def append(self, sequence: int, rows: pa.Table) -> None:
        if self.kill == "before append":
            raise Killed
        if sequence > self.last:
            self.last = sequence
            self.tables.append(rows)
            self.rows += rows.to_pylist()
        if self.kill == "after append":
            raise Killed

    def latest(self) -> Iterator[pa.Table]:
        for number, rows in reversed(list(enumerate(self.tables))):
            record = record_array(0, 1_000 * number, 0, count=len(rows))
            yield rows.append_column("record", record)
