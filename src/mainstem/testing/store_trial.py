"""StoreTrial: a store that tests write without Spark: rows of a flow, batches that are known, and processes of their own."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import pyarrow as pa

from mainstem.batch import Batch, FlowRun
from mainstem.clock import SystemClock
from mainstem.errors import Unavailable
from mainstem.log.record import RECORD
from mainstem.sinks.store import Store
from mainstem.sinks.store_backend import FenceMoved, StoreBackend, StoreChange
from mainstem.sinks.store_writer import StoreWriter

__all__ = [
    "ODD",
    "ROWS",
    "SCHEMA",
    "VALUES",
    "StoreTrial",
    "batch_of",
    "changes",
    "look_at_each_step",
    "main",
    "rows_after",
]

SCHEMA = pa.schema([("id", pa.int64()), ("title", pa.string()), ("record", RECORD)])
ROWS = 10


def changes(rows: list[tuple[Any, ...]], schema: pa.Schema = SCHEMA, first: int = 0) -> pa.Table:
    """Rows as a flow gives them; the last value of each is the change."""
    names = [name for name in schema.names if name != "record"]
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    records = [
        {"partition": 0, "offset": first + number, "appended_at": 0, "change": row[-1], "headers": None}
        for number, row in enumerate(rows)
    ]
    return pa.table({**columns, "record": pa.array(records, RECORD)}, schema)


class StoreTrial:
    """A store with a home, and a flow that writes it without Spark."""

    def __init__(self, folder: Path, way: str, arguments: dict[str, Any], key: tuple[str, ...] = ("id",)) -> None:
        self.home = str(folder / "home")
        self.backend = _open(way, arguments)
        self.store = Store(self.home, "tried", self.backend, key=key, identity="home of the trial", clock=SystemClock())

    def begin(self, epoch: int, *, version: int = 1, flow: str = "tried", schema: pa.Schema = SCHEMA) -> StoreWriter:
        store = self.store.at_version(version)
        store.accept(schema)
        return store.table_writer(FlowRun(flow, epoch, version), schema)

    def write(self, writer: StoreWriter, number: int, rows: pa.Table) -> int:
        """Commit a batch; the number of rows that were rejected."""
        prepared = writer.prepare(rows)
        writer.commit(prepared, Batch(number, writer._run, {"orders": {0: number + 1}}))
        return len(prepared.rejections)

    def go_on(self, epoch: int, last: int) -> None:
        """What a run does: each batch up to the last one that the store does not have yet."""
        writer = self.begin(epoch)
        for number in range(writer.committed_batch + 1, last + 1):
            self.write(writer, number, batch_of(number))
        writer.close()

    def rows(self) -> dict[Any, Any]:
        return {row["id"]: row["title"] for row in self.store.to_arrow().to_pylist()}

    def look(self) -> tuple[int, int, dict[Any, Any]] | None:
        """What a reader sees: version, batch and rows; None if the store asks it to come again later."""
        try:
            status = self.store.status
            return status.version, status.batch, {} if status.state == "empty" else self.rows()
        except Unavailable:
            return None

    def race(self, name: str, attempts: int) -> dict[str, list[str]]:
        """Commit one row again and again, each time after the fence that is there. Others do the same at the same time.

        The titles of the rows that were committed, and of those whose commit has an unknown outcome.
        """
        outcomes: dict[str, list[str]] = {"committed": [], "unknown": []}
        for attempt in range(attempts):
            expected, title = self.backend.fences().live, f"{name} {attempt}"
            assert expected is not None
            # Two runs never have the same epoch: by its fence a commit without an answer is known.
            later = 1 + (name == "other")
            fence = replace(expected, batch=expected.batch + 1, epoch=expected.epoch + later)
            rows = pa.table({"id": [fence.batch], "title": [title]}, fence.schema)
            try:
                self.backend.commit(StoreChange("live", expected, fence, rows, rows.select(["id"]).slice(1)))
                outcomes["committed"].append(title)
            except FenceMoved:
                continue
            except Unavailable:
                outcomes["unknown"].append(title)
        return outcomes

    def close(self) -> None:
        self.backend.close()


def _open(way: str, arguments: dict[str, Any]) -> StoreBackend:
    module, _, name = way.partition(":")
    backend: StoreBackend = getattr(importlib.import_module(module), name)(**arguments)
    return backend


def batch_of(number: int) -> pa.Table:
    """A batch that changes rows of those before it, and deletes one."""
    rows: list[tuple[Any, ...]] = [(key, f"batch {number}", "insert") for key in range(number, number + ROWS)]
    return changes([*rows, (number, None, "delete")], first=number * 100)


def rows_after(number: int) -> dict[Any, Any]:
    """What a store has after that batch."""
    found: dict[Any, Any] = {}
    for batch in range(number + 1):
        found |= dict.fromkeys(range(batch, batch + ROWS), f"batch {batch}")
        del found[batch]
    return found


ODD = [
    "", " ", "'", '"', "`", "\\", ";", "%s", "$1", "--", "/* */", "'; DROP TABLE tried; --", "*", "a:b", "a b", "\n", "\r\n", "\t",
    "NaN", "null", "None", "ä", "ß", "\u202e", "\ufeff", "🜚", "𒀀", "e\u0301", "AND", "OR NOT", "title:x", "+x -y", "(", "[a TO b]",
    "x^2", "~", "\\u0000", "{}", "$$", "{{x}}", "%00", "*3\r\n$3\r\nDEL\r\n", "../../x", "x" * 1000,
]  # fmt: skip


VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [-128, 0, 127]),
    (pa.int16(), [-(1 << 15), (1 << 15) - 1]),
    (pa.int32(), [-(1 << 31), (1 << 31) - 1]),
    (pa.int64(), [-(1 << 63), (1 << 53) + 1, (1 << 63) - 1]),
    (pa.float32(), [0.1, -0.0, math.inf, -math.inf, math.nan, 3.4e38, 1e-45]),
    (pa.float64(), [0.1, -0.0, math.inf, -math.inf, math.nan, 1.7976931348623157e308, 5e-324]),
    (pa.decimal128(38, 10), [Decimal(0), Decimal("-1.5"), Decimal("9999999999999999999999999999.9999999999")]),
    (pa.string(), ["", "\0", "a\0b", *ODD]),
    (pa.binary(), [b"", b"\0", bytes(range(256))]),
    (pa.date32(), [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)]),
    (pa.timestamp("us"), [datetime(1, 1, 1), datetime(2026, 1, 1, 12, 0, 0, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)]),  # noqa: DTZ001
    (pa.timestamp("us", "UTC"), [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)]),
    (pa.list_(pa.int32()), [[], [1, None, 2]]),
    (pa.map_(pa.string(), pa.int64()), [[], [("a", 1), ("b", None)]]),
    (pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))]), [{"a": 1, "b": {"c": "\0"}}, {"a": None, "b": None}]),
]  # fmt: skip


# Steps

Seen = TypeVar("Seen")
# A reader that waits longer is waiting for a lock of the writer.
LOOK_SECONDS_MAX = 5.0
# After so many of these, nobody looks any more.
LOCKED_MAX = 2
# Modules that only compute: no store is another one after their lines.
COMPUTING = {
    "abc", "codecs", "collections", "contextlib", "copy", "dataclasses", "enum", "functools", "genericpath", "importlib", "json",
    "posixpath", "pyarrow", "re", "typing", "urllib",
}  # fmt: skip
COMPUTING_HERE = ("mainstem.batch", "mainstem.log.", "mainstem.names", "mainstem.sinks.store")


def look_at_each_step(act: Callable[[], object], look: Callable[[], Seen | None]) -> list[Seen]:
    """Act, and stop at each line of Python that is run, in the store or in its libraries; another thread looks meanwhile.

    So what a reader sees, and what a killed process would leave, is known at each step, on a slow machine too. A line is
    a step once, and once more in a loop. A look that waits for a lock of the writer counts for nothing: the writer goes on.
    """
    seen: list[Seen] = []
    looks: Counter[tuple[CodeType, int]] = Counter()
    waiting: list[Future[Seen | None]] = []

    def step() -> None:
        if len(waiting) == LOCKED_MAX or not all(future.done() for future in waiting):
            return
        future = reader.submit(look)
        try:
            found = future.result(LOOK_SECONDS_MAX)
        except TimeoutError:
            waiting.append(future)
        else:
            seen.extend([] if found is None else [found])

    def trace_calls(frame: FrameType, _event: str, _argument: object) -> Any:
        module, code = str(frame.f_globals.get("__name__")), frame.f_code
        if module.partition(".")[0] in COMPUTING or module.startswith(COMPUTING_HERE):
            return None
        times: Counter[int] = Counter()

        def trace_lines(frame: FrameType, event: str, _argument: object) -> Any:
            if event == "line":
                times[line := frame.f_lineno] += 1
                if looks[code, line] < min(times[line], 2):
                    looks[code, line] += 1
                    step()
            return trace_lines

        return trace_lines

    with ThreadPoolExecutor(1) as reader:
        before = sys.gettrace()
        sys.settrace(trace_calls)
        try:
            act()
        finally:
            sys.settrace(before)
    return seen


# Processes


def main(spec: str) -> None:
    """In a process of its own: race with others; or write the batches up to one, and be killed meanwhile.

    A later version is also switched to.
    """
    facts = json.loads(spec)
    trial = StoreTrial(Path(facts["folder"]), facts["way"], facts["arguments"], tuple(facts["key"]))
    if "attempts" in facts:
        with open(1, "w", encoding="ascii", closefd=False) as answers:
            answers.write("ready\n")
            answers.flush()
            sys.stdin.readline()
            answers.write(json.dumps(trial.race(facts["name"], facts["attempts"])))
        return
    if "version" not in facts:
        trial.go_on(facts["epoch"], facts["last"])
        return
    writer = trial.begin(facts["epoch"], version=facts["version"])
    trial.write(writer, 0, batch_of(0))
    writer.finish()
