"""ProcessEngine: a user's own operator as an engine.

State rows, besides the columns that every state has:

    check    int64        with `group` the identity of a key
    by_0 ...              the key; null in a timer's row
    version  int32        the version of the class that wrote it
    state    string       as process_state writes it; null in a timer's row
    timer    string       a timer's name; null in a key's row
"""

from __future__ import annotations

import heapq
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from mainstem.clock import as_datetime
from mainstem.errors import FlowFailed, Invalid, MainstemError, Unavailable, summary_of
from mainstem.log.rows.python_rows import array_of
from mainstem.log.rows.schema_ddl import schema_to_ddl
from mainstem.operators.processes.process_class import Process
from mainstem.operators.processes.process_state import StateText, Timer, Timers
from mainstem.operators.stage.arrow_columns import in_log_order, numbers
from mainstem.operators.stage.engine import NEVER, NO_TIME, STATE_COLUMNS, BatchClock, Int64Array, StateTable, Step
from mainstem.operators.stage.hashes import mix, text_hash
from mainstem.operators.stage.integer_order import order_rows, sort_distinct
from mainstem.operators.stage.python_values import each_value, to_values
from mainstem.operators.stage.stage_task import END_OF_TIME

__all__ = ["ProcessBatch", "ProcessEngine", "process_failed"]


# The error for an exception of user code: its key, its row, and its line of the program.


# Longer rows are cut off in the message.
SHOWN_MAX = 300


def process_failed(
    using: type, method: str, key: tuple[Any, ...], error: Exception, row: Mapping[str, Any] | None
) -> FlowFailed:
    """The error for an exception of user code."""
    shown = ", ".join(map(repr, key)) or "of all rows"
    return FlowFailed(
        f'process "{using.__name__}" failed in {method} for the key {shown}',
        detail=f"{type(error).__name__}: {summary_of(error)}{_line(error)}.{_origin(row)}",
        hint="Rows and state are safe: correct the program and start it again; it resumes with this batch.",
    )


def _line(error: Exception) -> str:
    """File and line in the user's program: the innermost frame that is not ours."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if f"{os.sep}mainstem{os.sep}operators{os.sep}" not in frame.filename
    ]  # fmt: skip
    return f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""


def _origin(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    record = row.get("record")
    place = ""
    if isinstance(record, Mapping) and "offset" in record:
        place = f", partition {record['partition']}, offset {record['offset']}"
    plain = str({name: value for name, value in row.items() if name != "record"})
    return f" It was at {plain[:SHOWN_MAX]}{'...' if len(plain) > SHOWN_MAX else ''}{place}."


# ProcessBatch: one step of a user's own operator, key by key, timer by timer.
#
# Rows and timers of a key are in log order: an event-time timer fires before the first row whose own watermark has reached it,
# and after all rows whose watermark has not. A batch's watermark is never above that of a later row, so this order does not
# depend on how rows are split into batches.


# A row as users get it.
Row = dict[str, Any]
# The columns of a state row as they are read and written here; then the key's.
_STORED = ("group", "check", "timer", "event_due", "processing_due", "version", "state")

# With batch rows every timer fires, also those set by timers: a timer that always sets itself again would never end.
GOING_OFF_MAX = 100_000


@dataclass(slots=True)
class _Key:
    """One key during its batch."""

    group: int
    check: int
    value: tuple[Any, ...]
    state: Any
    timers: Timers
    # As stored: the state's text, and the timers.
    text: str | None = None
    kept: dict[str, Timer] = field(default_factory=dict)
    going_off: int = 0

    @property
    def shown_value(self) -> Any:
        return self.value[0] if len(self.value) == 1 else self.value


class _Rows:
    """The rows of one key for one call of `on_rows`: those from `first` up to the next timer, or before `end`."""

    def __init__(self, rows: Iterator[Row], watermarks: list[int], timers: Timers, first: int, end: int) -> None:
        self._rows = rows
        self._watermarks = watermarks
        self._timers = timers
        self._first = first
        self._end = end
        # The place of the next row.
        self.place = first
        # The last row taken.
        self.last: Row | None = None

    def __iter__(self) -> Iterator[Row]:
        watermarks, timers = self._watermarks, self._timers
        while self.place < self._end and timers.next_event > watermarks[self.place]:
            self.place += 1
            self.last = row = next(self._rows)
            yield row

    def close(self) -> None:
        """The call is over: what an iterator that user code has kept would take belongs to the next call."""
        self._end = self.place

    @property
    def stopped(self) -> bool:
        return self.place < self._end and self._timers.next_event <= self._watermarks[self.place]

    def last_watermark(self) -> int:
        """The watermark of the last row taken, or of the first row."""
        return self._watermarks[self.place - 1 if self.place > self._first else self._first]


class ProcessBatch:
    """One step of a ProcessEngine. For one thread."""

    def __init__(self, engine: ProcessEngine, clock: BatchClock) -> None:
        self.engine = engine
        self.clock = clock
        self.operator = engine.using()
        self.keys: dict[tuple[int, int], _Key] = {}
        self.given: list[dict[str, Any]] = []
        # The watermark of each row in `given`.
        self.own: list[int] = []

    def step(self, state: StateTable, rows: pa.Table) -> Step:
        rows = in_log_order(rows)
        due = state.due(self.clock)
        touched = sort_distinct(np.concatenate([numbers(rows, "group"), numbers(due, "group")]))
        self._load(state.find(touched))
        self._take_all(rows)
        self._go_off()
        return Step(output=self._output(), own=np.array(self.own, np.int64), **self._changes())

    def _load(self, kept: pa.Table) -> None:
        columns = zip(*(to_values(kept.column(name)) for name in _STORED), self._key_values(kept), strict=True)
        timers: dict[tuple[int, int], dict[str, Timer]] = {}
        values = []
        for group, check, timer, event_due, processing_due, version, text, by in columns:
            identity = group, check
            if timer is None:
                values.append((identity, by, version, text))
            elif event_due != NEVER:
                timers.setdefault(identity, {})[timer] = Timer("event", event_due, timer)
            else:
                timers.setdefault(identity, {})[timer] = Timer("processing", processing_due, timer)
        for identity, by, version, text in values:
            set_before = timers.get(identity, {})
            # State of an older version is written again, even if the text is the same.
            before = text if version == self.engine.using.version else ""
            timers_now = Timers(set_before, self.clock)
            self.keys[identity] = _Key(*identity, by, self._read(by, version, text), timers_now, before, set_before)

    def _key_values(self, rows: pa.Table) -> list[tuple[Any, ...]]:
        columns = [to_values(rows.column(column.name)) for column in self.engine.by_fields]
        return list(zip(*columns, strict=True)) if columns else [()] * rows.num_rows

    def _read(self, by: tuple[Any, ...], version: int, text: str) -> Any:
        using = self.engine.using
        if version == using.version:
            return self.engine.text.read(text)
        old = StateText.fields(text)
        upgrade = getattr(self.operator, "upgrade", None)
        try:
            return self.engine.text.state(**old) if upgrade is None else upgrade(old)
        except Exception as error:
            raise process_failed(using, "upgrade", by, error, old) from error

    def _take_all(self, rows: pa.Table) -> None:
        """Call `on_rows` for each key, in the order of their first rows."""
        rows, starts = _by_key(rows)
        watermarks, values = numbers(rows, "watermark").tolist(), each_value(rows.column("row"))
        firsts = rows.take(pa.array(starts))
        identities = zip(numbers(firsts, "group").tolist(), numbers(firsts, "check").tolist(), strict=True)
        spans = pairwise([*starts.tolist(), rows.num_rows])
        for identity, by, (start, end) in zip(identities, self._key_values(firsts), spans, strict=True):
            key = self.keys.get(identity)
            if key is None:
                key = self.keys[identity] = _Key(*identity, by, self.engine.text.new(), Timers({}, self.clock))
            self._take(key, values, watermarks, start, end)

    def _take(self, key: _Key, rows: Iterator[Row], watermarks: list[int], start: int, end: int) -> None:
        while start < end:
            if key.timers.next_event <= watermarks[start]:
                self._go_off_before(key, watermarks[start])
            run = _Rows(rows, watermarks, key.timers, start, end)
            self._collect("on_rows", key, run.last_watermark, run, key.shown_value, run, key.state, key.timers)
            if run.last is None and not run.stopped:
                raise Invalid(
                    f'on_rows of "{self.engine.using.__name__}" read none of its rows',
                    detail=f"They are rows of the key {key.shown_value!r}; rows that are not read would be lost.",
                    hint="Iterate over them: for row in rows.",
                )
            run.close()
            start = run.place

    def _go_off_before(self, key: _Key, watermark: int) -> None:
        while key.timers.next_event <= watermark:
            due = min(timer for timer in key.timers.by_name.values() if timer.kind == "event")
            self._wake(key, due)

    def _go_off(self) -> None:
        """Fire the timers that are due after all rows: by kind, time and name, over all keys."""
        waiting: list[tuple[Timer, int, int]] = []
        for key in self.keys.values():
            waiting.extend((timer, key.group, key.check) for timer in key.timers.by_name.values() if self._due(timer))
        heapq.heapify(waiting)
        while waiting:
            timer, group, check = heapq.heappop(waiting)
            key = self.keys[group, check]
            if key.timers.by_name.get(timer.name) != timer:
                continue
            before = dict(key.timers.by_name)
            self._wake(key, timer)
            for new in key.timers.by_name.values():
                if self._due(new) and (before.get(new.name) != new or new.name == timer.name):
                    heapq.heappush(waiting, (new, group, check))

    def _due(self, timer: Timer) -> bool:
        if self.clock.watermark >= END_OF_TIME:
            return True
        return timer.at <= (self.clock.watermark if timer.kind == "event" else self.clock.now)

    def _wake(self, key: _Key, timer: Timer) -> None:
        key.going_off += 1
        if key.going_off > GOING_OFF_MAX:
            raise Invalid(
                f'timer "{timer.name}" of process "{self.engine.using.__name__}" sets itself again endlessly',
                detail=f"It fired {GOING_OFF_MAX} times in one batch for the key {key.shown_value!r}, last for {timer.at}.",
                hint="Set it to a later time than the one it fired for, and do not set it when timers.ended is true.",
            )
        key.timers.cancel(timer.name)
        # The last watermark before an event-time timer fires; unknown for processing time.
        own = timer.at - 1 if timer.kind == "event" else NO_TIME
        at = as_datetime(timer.at)
        self._collect("on_timer", key, lambda: own, None, key.shown_value, timer.name, at, key.state, key.timers)

    def _collect(
        self, method: str, key: _Key, watermark: Callable[[], int], run: _Rows | None, *arguments: Any
    ) -> None:
        """`watermark`: returns that of a row yielded now."""
        try:
            for row in getattr(self.operator, method)(*arguments) or ():
                self.given.append(row)
                self.own.append(watermark())
            self._check_timers(key)
        except Unavailable:
            # The flow retries it.
            raise
        except Exception as error:
            row = run.last if run is not None else {"timer": arguments[1], "at": arguments[2]}
            raise process_failed(self.engine.using, method, key.value, error, row) from error

    def _check_timers(self, key: _Key) -> None:
        if not self.engine.watermarked and key.timers.next_event != NEVER and self.clock.watermark == NO_TIME:
            raise Invalid(
                "an event-time timer would never fire",
                detail="The stream has no watermark.",
                hint='Read the topic with stream(watermark="10 minutes"), or use set_processing.',
            )

    def _output(self) -> pa.Table:
        self._check_names()
        using = self.engine.using.__name__
        try:
            columns = [
                array_of([row.get(column.name) for row in self.given], column.type, path=column.name, topic=using)
                for column in self.engine.output
            ]
        except MainstemError as error:
            raise FlowFailed(
                f'process "{using}" yielded a value that does not fit its output: {error.summary}',
                detail=error.detail.replace(" Nothing was written.", ""),
                hint="Change what is yielded, or `output`.",
            ) from error
        changes = pa.repeat("insert", len(self.given))
        return pa.Table.from_arrays([*columns, changes], schema=self.engine.output_schema)

    def _check_names(self) -> None:
        names, given = self.engine.output.names, self.given
        if set(map(type, given)) <= {dict} and set().union(*set(map(tuple, given))) <= set(names):
            return
        for row in given:
            if not isinstance(row, Mapping) or set(row) - set(names):
                raise Invalid(
                    f'process "{self.engine.using.__name__}" yielded a row that does not match its output: {row!r}',
                    detail=f"The output columns are: {', '.join(names)}.",
                    hint="Yield dicts with these names, or declare what is missing in `output`.",
                )

    def _changes(self) -> dict[str, pa.Table]:
        put: list[tuple[Any, ...]] = []
        gone: list[tuple[int, int, str | None]] = []
        nothing = (None,) * len(self.engine.by_fields)
        version = self.engine.using.version
        empty = self.engine.text.write(self.engine.text.new())
        for key in self.keys.values():
            text, timers = self._write(key), key.timers.by_name
            if text == empty and not timers:
                if key.text is not None:
                    gone.append((key.group, key.check, None))
            elif text != key.text:
                put.append((key.group, key.check, None, NEVER, NEVER, version, text, *key.value))
            for name, timer in timers.items():
                if key.kept.get(name) != timer:
                    due = (timer.at, NEVER) if timer.kind == "event" else (NEVER, timer.at)
                    put.append((key.group, key.check, name, *due, None, None, *nothing))
            if key.kept:
                gone.extend((key.group, key.check, name) for name in key.kept if name not in timers)
        return {"put": self._put(put), "gone": _identify(gone)}

    def _write(self, key: _Key) -> str:
        try:
            return self.engine.text.write(key.state)
        except MainstemError as error:
            raise process_failed(self.engine.using, "on_rows", key.value, error, None) from error

    def _put(self, rows: list[tuple[Any, ...]]) -> pa.Table:
        schema = self.engine.state_schema
        names = [*_STORED, *(column.name for column in self.engine.by_fields)]
        values = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())
        items = _items(values["check"], values["timer"])
        columns = [pa.array(items) if of.name == "item" else pa.array(values[of.name], of.type) for of in schema]
        return pa.Table.from_arrays(columns, schema=schema)


def _by_key(rows: pa.Table) -> tuple[pa.Table, Int64Array]:
    """The rows sorted by key, keys in the order of their first rows; and where each key begins."""
    groups, checks = numbers(rows, "group"), numbers(rows, "check")
    order = order_rows(groups, checks)
    groups, checks = groups[order], checks[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (groups[1:] != groups[:-1]) | (checks[1:] != checks[:-1])
    starts = np.flatnonzero(begins)
    counts = np.diff(np.append(starts, len(order)))
    first_rows = np.repeat(order[starts], counts)
    order = order[order_rows(first_rows)]
    counts = counts[np.argsort(first_rows[starts])]
    return rows.take(pa.array(order)), np.cumsum(counts) - counts


def _items(checks: Sequence[int], timers: Sequence[str | None]) -> Int64Array:
    hashes: dict[str | None, int] = {name: text_hash(name) for name in set(timers) if name is not None}
    return mix(np.array(checks, np.int64), np.array([hashes.get(name, 0) for name in timers], np.int64))


def _identify(rows: list[tuple[int, int, str | None]]) -> pa.Table:
    groups, checks, timers = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table({"group": pa.array(groups, pa.int64()), "item": pa.array(_items(checks, timers))})


@dataclass(frozen=True)
class ProcessEngine:
    """Runs one class of `Process`. It loops over keys and rows in Python, since it calls user code."""

    using: type[Process]
    by_fields: tuple[pa.Field, ...]
    output: pa.Schema
    text: StateText
    # Whether rows have watermarks; without them an event-time timer would never fire in a stream.
    watermarked: bool = True

    late_schema: ClassVar[pa.Schema | None] = None

    @property
    def state_schema(self) -> pa.Schema:
        own = [("version", pa.int32()), ("state", pa.string()), ("timer", pa.string())]
        return pa.schema([*STATE_COLUMNS, ("check", pa.int64()), *self.by_fields, *own])

    @property
    def output_schema(self) -> pa.Schema:
        plain = [pa.field(f"o_{place}", column.type) for place, column in enumerate(self.output)]
        return pa.schema([*plain, ("change", pa.string())])

    def describe(self) -> dict[str, Any]:
        return {
            "process": self.using.__name__,
            "by": [schema_to_ddl(pa.schema([column])) for column in self.by_fields],
            "version": self.using.version,
            "state": self.text.described,
        }

    def takes(self, kept: Mapping[str, Any]) -> bool:
        """Whether it can use the described state; raises if that needs another version or an upgrade."""
        now = self.describe()
        if any(kept.get(name) != now[name] for name in ("process", "by")):
            return False
        before, version = kept["version"], now["version"]
        if before > version or (before == version and kept["state"] != now["state"]):
            raise Invalid(
                f'State of process "{now["process"]}" does not match its stored state',
                detail=f"Stored is version {before}: {_fields(kept['state'])}. The program has version {version}: "
                f"{_fields(now['state'])}.",
                hint=f"Set version = {before + 1} and write upgrade(self, old), which returns a State for a dict of the old "
                "fields; or rebuild.",
            )
        if before < version and kept["state"] != now["state"] and not hasattr(self.using, "upgrade"):
            raise Invalid(
                f'process "{now["process"]}" has version {version} but no upgrade',
                detail=f"Stored is version {before}: {_fields(kept['state'])}.",
                hint="Write upgrade(self, old), which returns a State for a dict of the old fields; or rebuild.",
            )
        return True

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        return ProcessBatch(self, clock).step(state, rows)


def _fields(described: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in described.items()) or "nothing"
