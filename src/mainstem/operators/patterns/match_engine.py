"""MatchEngine: finds the matches of a pattern in the rows of every key, batch by batch.

A row waits in the state until the watermark has passed its time; then the rows of a key are taken in the order of their times,
those of one time in the order of the log. So the matches do not depend on how rows are split into batches. A row whose own
watermark is past its time is late: it is reported and counted, not matched.

State rows are of two kinds:

    WAITING  a row that waits:  position, time, bits (the conditions that it satisfies), row (the columns that are read later)
    KEY      a key's candidates:
        rows        position, time, row      the rows that its candidates have, in order
        nodes       row, step, parent        sequences as a tree: a row, its step, and the sequence before it
        candidates  state, node              the open edges as text (see `Automaton.write_state`), and the sequence
        held        node, at                 matches that are held back, and the deadline that completed them
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.operators.patterns.after_match import AfterMatch
from mainstem.operators.patterns.automaton import ALWAYS, Automaton
from mainstem.operators.patterns.expression import Expression, Row
from mainstem.operators.patterns.matcher import NODE as SEQUENCE
from mainstem.operators.patterns.matcher import STATE, Found, KeyMatches, Matcher, Node, Waiting, path_of
from mainstem.operators.patterns.pattern import Pattern
from mainstem.operators.stage.arrow_columns import in_log_order, numbers, whole
from mainstem.operators.stage.engine import NEVER, NO_TIME, STATE_COLUMNS, BatchClock, Int64Array, StateTable, Step
from mainstem.operators.stage.hashes import mix, tell_apart
from mainstem.operators.stage.integer_order import order_rows, sort_distinct
from mainstem.operators.stage.python_values import to_values

__all__ = ["STEPS", "MatchEngine", "condition_column"]

TIME = pa.timestamp("us", "UTC")
WAITING, KEY = 0, 1
POSITION = (("partition", pa.int32()), ("offset", pa.int64()))
# The rows of a match with their steps, as users see them.
STEPS = pa.list_(pa.struct([("step", pa.string()), *POSITION, ("time", TIME)]))
NODE = pa.struct([("row", pa.int32()), ("step", pa.int32()), ("parent", pa.int32())])
CANDIDATE = pa.struct([("state", pa.string()), ("node", pa.int32())])
HELD = pa.struct([("node", pa.int32()), ("at", pa.int64())])


def condition_column(number: int) -> str:
    """The name of the column that says whether a row satisfies a condition."""
    return f"mainstem_condition_{number}"


@dataclass(frozen=True)
class MatchEngine:
    """Finds matches. A value: it is sent to Spark's workers."""

    by_fields: tuple[pa.Field, ...]
    # Its conditions are "0", "1", ...: the numbers of Boolean columns (see `condition_column`).
    pattern: Pattern
    # The columns that conditions and measures read of earlier rows.
    kept: tuple[pa.Field, ...]
    # The conditions that depend on earlier rows, by number; their column says what depends on the row alone.
    asked: tuple[tuple[int, Expression], ...]
    # Those without a column: nothing is asked of the row alone.
    columnless: tuple[int, ...]
    measures: tuple[tuple[str, Expression], ...]
    within: int | None
    gap: int | None
    after_match: AfterMatch
    timeouts: bool
    candidates_max: int

    @property
    def row_type(self) -> pa.DataType:
        """The kept columns. A struct without any cannot be stored."""
        return pa.struct(list(self.kept) or [("nothing", pa.bool_())])

    @property
    def kept_row(self) -> pa.DataType:
        """A row that a candidate has."""
        return pa.struct([*POSITION, ("time", pa.int64()), ("row", self.row_type)])

    @property
    def state_schema(self) -> pa.Schema:
        waiting = [*POSITION, ("tie", pa.int64()), ("time", pa.int64()), ("bits", pa.int64()), ("row", self.row_type)]
        lists = [("rows", self.kept_row), ("nodes", NODE), ("candidates", CANDIDATE), ("held", HELD)]
        key = [(name, pa.list_(of)) for name, of in lists]
        return pa.schema([*STATE_COLUMNS, ("check", pa.int64()), *self.by_fields, ("kind", pa.int8()), *waiting, *key])

    @property
    def output_schema(self) -> pa.Schema:
        measures = [pa.field(f"m_{place}", measure.type) for place, (_, measure) in enumerate(self.measures)]
        times = [("match", pa.string()), ("started_at", TIME), ("ended_at", TIME)]
        outcome = [("outcome", pa.string()), ("reached", pa.string())]
        return pa.schema([*self.by_fields, *times, *measures, ("steps", STEPS), *outcome, ("change", pa.string())])

    @property
    def late_schema(self) -> pa.Schema:
        times = [("time", TIME), ("watermark", TIME), ("reason", pa.string())]
        return pa.schema([*self.by_fields, *times, *POSITION])

    def describe(self) -> dict[str, Any]:
        return {
            "match": [str(column.type) for column in self.by_fields],
            "pattern": repr(self.pattern),
            "kept": [f"{column.name} {column.type}" for column in self.kept],
            "within": self.within,
            "gap": self.gap,
        }

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        return _Batch(self, clock).step(state, rows)


class _Key:
    """A key of the batch: its matches so far, and the rows that they have."""

    def __init__(self, group: int, check: int, by: tuple[Any, ...]) -> None:
        self.group, self.check, self.by = group, check, by
        self.matches = KeyMatches(shown=by[0] if len(by) == 1 else by)
        # Rows of earlier batches; row n of the key is rows[n], and after those the rows of this batch.
        self.rows: list[dict[str, Any]] = []
        self.begin = 0
        self.stored = False


class _Batch:
    """One batch in one bucket."""

    def __init__(self, engine: MatchEngine, clock: BatchClock) -> None:
        self.engine, self.clock = engine, clock
        self.automaton = Automaton(engine.pattern)
        # The bit of each condition, by its number.
        self.bits = {int(str(text)): 2 << place for place, text in enumerate(self.automaton.conditions)}
        asked = {self.bits[number]: expression.compile() for number, expression in engine.asked if number in self.bits}
        self.asked = asked
        self.matcher = Matcher(
            self.automaton,
            engine.within,
            engine.gap,
            engine.after_match,
            engine.timeouts,
            engine.candidates_max,
            sum(asked),
            self._ask,
        )
        self.measures = [measure.compile() for _, measure in engine.measures]
        self.out: list[tuple[_Key, Found]] = []
        self.told: list[tuple[Any, ...]] = []
        self.written: list[_Key] = []

    def step(self, state: StateTable, rows: pa.Table) -> Step:
        rows = in_log_order(rows)
        times = numbers(rows, "time")
        watermarks = np.maximum(numbers(rows, "watermark"), self.clock.watermark_before)
        timeless = times == NO_TIME
        late = ~timeless & (times < watermarks)
        fine = ~(timeless | late)
        given = self._given(rows, fine)
        due = state.due(self.clock)
        released = due.filter(pc.equal(due.column("kind"), WAITING))
        ready = numbers(given, "time") < self.clock.watermark
        waits = given.filter(pa.array(~ready))
        taken = pa.concat_tables([given.filter(pa.array(ready)), released.select(given.column_names)]).combine_chunks()
        touched = sort_distinct(np.concatenate([numbers(taken, "group"), numbers(due, "group")]))
        known = self._load(state.find(touched))
        self._take(taken, known)
        put = pa.concat_tables([self._waiting(waits), self._keys()])
        counts = {"too_late": int((late | timeless).sum())}
        return Step(
            output=self._output(),
            own=np.array([found.known_after for _, found in self.out], np.int64),
            put=put if put.num_rows else None,
            gone=self._gone(released),
            late=self._late(rows, timeless, late),
            counts={what: count for what, count in counts.items() if count},
        )

    # Rows.

    def _given(self, rows: pa.Table, fine: npt.NDArray[np.bool_]) -> pa.Table:
        """The rows that may be taken, with the conditions that they satisfy. A row that cannot matter is left out."""
        row = whole(rows.column("row"))
        bits = np.full(rows.num_rows, ALWAYS, np.int64)
        for number, bit in self.bits.items():
            if number in self.engine.columnless:
                bits |= bit
            else:
                holds = pc.fill_null(pc.struct_field(row, [condition_column(number)]), False)
                bits |= np.where(np.asarray(holds), np.int64(bit), np.int64(0))
        if not self.automaton.every_row:
            fine = fine & (bits != ALWAYS)
        kept = [pc.struct_field(row, [column.name]).cast(column.type) for column in self.engine.kept]
        row_type = self.engine.row_type
        narrow = pa.StructArray.from_arrays(kept, fields=list(row_type)) if kept else pa.nulls(len(row), row_type)
        names = [
            "group",
            "check",
            *(column.name for column in self.engine.by_fields),
            "partition",
            "offset",
            "tie",
            "time",
        ]
        schema = pa.schema([*(self.engine.state_schema.field(name) for name in [*names, "bits", "row"])])
        columns = [*(rows.column(name) for name in names), pa.array(bits), narrow]
        made = pa.Table.from_arrays([whole(column) for column in columns], names=schema.names).cast(schema)
        return made.filter(pa.array(fine))

    def _take(self, rows: pa.Table, known: dict[tuple[int, int], _Key]) -> None:
        groups, checks, times = (numbers(rows, name) for name in ("group", "check", "time"))
        order = order_rows(groups, checks, times, *(numbers(rows, name) for name in ("partition", "offset", "tie")))
        rows = rows.take(pa.array(order))
        groups, checks = groups[order], checks[order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (groups[1:] != groups[:-1]) | (checks[1:] != checks[:-1])
        starts = np.flatnonzero(new)
        self.partitions, self.offsets = (numbers(rows, name).tolist() for name in ("partition", "offset"))
        self.times, bits = times[order].tolist(), numbers(rows, "bits").tolist()
        self.values = to_values(rows.column("row")) if self.engine.kept else None
        firsts = rows.take(pa.array(starts))
        columns = [to_values(firsts.column(column.name)) for column in self.engine.by_fields]
        by = list(zip(*columns, strict=True)) if columns else [()] * len(starts)
        spans = pairwise([*starts.tolist(), len(order)])
        identities = zip(groups[starts].tolist(), checks[starts].tolist(), strict=True)
        for identity, value, (begin, end) in zip(identities, by, spans, strict=True):
            key = known.pop(identity, None)
            if key is None:
                key = _Key(*identity, value)
            key.begin = begin
            base = len(key.rows)
            numbered = zip(range(base, base + end - begin), bits[begin:end], self.times[begin:end], strict=True)
            self._run(key, numbered)
        for key in known.values():
            if key.matches.deadline <= self.clock.watermark:
                self._run(key, iter(()))

    def _run(self, key: _Key, rows: Iterator[tuple[int, int, int]]) -> None:
        self.key = key
        found = self.matcher.run(key.matches, rows, until=self.clock.watermark)
        if found:
            for match in found:
                self.out.append((key, match))
                self.told.append(self._tell(key, match))
        if key.stored or not key.matches.empty:
            self.written.append(key)

    # A row of a key, by its number.

    def _time(self, key: _Key, row: int) -> int:
        stored = len(key.rows)
        return int(key.rows[row]["time"]) if row < stored else int(self.times[key.begin + row - stored])

    def _value(self, key: _Key, row: int) -> Row:
        if self.values is None:
            return {"nothing": None}
        stored = len(key.rows)
        found: Row = key.rows[row]["row"] if row < stored else self.values[key.begin + row - stored]
        return found

    def _kept(self, key: _Key, row: int) -> dict[str, Any]:
        """A row as it is stored."""
        stored = len(key.rows)
        if row < stored:
            return key.rows[row]
        place = key.begin + row - stored
        partition, offset = self.partitions[place], self.offsets[place]
        return {"partition": partition, "offset": offset, "time": self.times[place], "row": self._value(key, row)}

    def _ask(self, bit: int, node: Node | None, row: int) -> bool:
        key = self.key
        return self.asked[bit](self._value(key, row), self._step_rows(key, node)) is True

    def _step_rows(self, key: _Key, node: Node | None) -> Any:
        names = self.automaton.step_names

        def rows(step: str) -> Sequence[Row]:
            return [self._value(key, row) for row, number in path_of(node) if names[number] == step]

        return rows

    # Matches.

    def _tell(self, key: _Key, found: Found) -> tuple[Any, ...]:
        names = self.automaton.step_names
        path = path_of(found.node)
        kept = [self._kept(key, row) for row, _ in path]
        steps = [
            {"step": names[step], "partition": row["partition"], "offset": row["offset"], "time": row["time"]}
            for (_, step), row in zip(path, kept, strict=True)
        ]
        last = kept[-1]["row"]
        measures = [measure(last, self._step_rows(key, found.node)) for measure in self.measures]
        ended = kept[-1]["time"] if found.at is None else found.at
        outcome = "timed out" if found.timed_out else "matched"
        identity = repr((key.check, [(made["step"], made["partition"], made["offset"]) for made in steps], outcome))
        name = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
        return (*key.by, name, kept[0]["time"], ended, *measures, steps, outcome, names[path[-1][1]], "insert")

    def _output(self) -> pa.Table:
        schema = self.engine.output_schema
        if not self.told:
            return schema.empty_table()
        columns = zip(*self.told, strict=True)
        return pa.Table.from_arrays(
            [_array(list(values), of.type) for values, of in zip(columns, schema, strict=True)], schema=schema
        )

    # State.

    def _load(self, kept: pa.Table) -> dict[tuple[int, int], _Key]:
        kept = kept.filter(pc.equal(kept.column("kind"), KEY))
        names = ["group", "check", "rows", "nodes", "candidates", "held"]
        columns = [to_values(kept.column(name)) for name in names]
        by = [to_values(kept.column(column.name)) for column in self.engine.by_fields]
        values = list(zip(*by, strict=True)) if by else [()] * kept.num_rows
        states: dict[str, int] = {}
        found = {}
        for group, check, rows, nodes, candidates, held, value in zip(*columns, values, strict=True):
            key = found[group, check] = _Key(group, check, value)
            key.rows, key.stored = rows, True
            tree: list[Node] = []
            for node in nodes:
                tree.append((node["row"], node["step"], None if node["parent"] is None else tree[node["parent"]]))
            for candidate in candidates:
                text, last = candidate["state"], tree[candidate["node"]]
                if text not in states:
                    states[text] = self.automaton.read_state(text)
                first = path_of(last)[0][0]
                started = rows[first]["time"]
                deadline = self.matcher.deadline(started, rows[last[0]]["time"])
                key.matches.candidates.append((states[text], last, first, started, deadline))
            for waiting in held:
                last = tree[waiting["node"]]
                key.matches.held.append(Waiting(path_of(last)[0][0], last, waiting["at"]))
        return found

    def _keys(self) -> pa.Table:
        """The state rows of keys that have candidates."""
        schema = self.engine.state_schema
        live = [key for key in self.written if not key.matches.empty]
        if not live:
            return schema.empty_table()
        parts = [self._write(key) for key in live]
        groups, checks = (np.array(found, np.int64) for found in zip(*((k.group, k.check) for k in live), strict=True))
        columns: dict[str, Any] = {
            "group": groups,
            "item": _key_items(checks),
            "event_due": np.array([key.matches.deadline for key in live], np.int64),
            "processing_due": np.full(len(live), NEVER),
            "check": checks,
            "kind": np.full(len(live), KEY, np.int8),
        }
        columns |= {column.name: [key.by[place] for key in live] for place, column in enumerate(self.engine.by_fields)}
        columns |= {
            name: [part[place] for part in parts] for place, name in enumerate(("rows", "nodes", "candidates", "held"))
        }
        made = [
            pa.array(columns[of.name], of.type) if of.name in columns else pa.nulls(len(live), of.type) for of in schema
        ]
        return pa.Table.from_arrays(made, schema=schema)

    def _write(self, key: _Key) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """The rows, nodes, candidates and held matches of a key."""
        places: dict[int, int] = {}
        nodes: list[Node] = []
        for last in [
            *(candidate[SEQUENCE] for candidate in key.matches.candidates),
            *(h.node for h in key.matches.held),
        ]:
            chain = []
            node: Node | None = last
            while node is not None and id(node) not in places:
                chain.append(node)
                node = node[2]
            for made in reversed(chain):
                places[id(made)] = len(nodes)
                nodes.append(made)
        used = sorted({node[0] for node in nodes})
        number = {row: place for place, row in enumerate(used)}
        tree = [
            {"row": number[row], "step": step, "parent": None if parent is None else places[id(parent)]}
            for row, step, parent in nodes
        ]
        states = self.automaton.write_state
        candidates = [
            {"state": states(candidate[STATE]), "node": places[id(candidate[SEQUENCE])]}
            for candidate in key.matches.candidates
        ]
        held = [{"node": places[id(waiting.node)], "at": waiting.at} for waiting in key.matches.held]
        return [self._kept(key, row) for row in used], tree, candidates, held

    def _waiting(self, rows: pa.Table) -> pa.Table:
        schema = self.engine.state_schema
        count = rows.num_rows
        checks, partitions, offsets, ties, times = (
            numbers(rows, name) for name in ("check", "partition", "offset", "tie", "time")
        )
        columns: dict[str, Any] = {
            "item": tell_apart(mix(checks, np.full(count, WAITING, np.int64), partitions, offsets, ties)),
            "event_due": times + 1,
            "processing_due": np.full(count, NEVER),
            "kind": np.full(count, WAITING, np.int8),
        }
        made = [
            pa.array(columns[of.name], of.type)
            if of.name in columns
            else whole(rows.column(of.name))
            if of.name in rows.column_names
            else pa.nulls(count, of.type)
            for of in schema
        ]
        return pa.Table.from_arrays(made, schema=schema)

    def _gone(self, released: pa.Table) -> pa.Table | None:
        ended = [key for key in self.written if key.stored and key.matches.empty]
        groups = np.array([key.group for key in ended], np.int64)
        checks = np.array([key.check for key in ended], np.int64)
        keys = pa.table({"group": groups, "item": _key_items(checks)})
        gone = pa.concat_tables([released.select(["group", "item"]).cast(keys.schema), keys])
        return gone if gone.num_rows else None

    def _late(self, rows: pa.Table, timeless: npt.NDArray[np.bool_], late: npt.NDArray[np.bool_]) -> pa.Table:
        chosen = np.flatnonzero(timeless | late)
        taken = rows.take(pa.array(chosen))
        times = [_times(numbers(taken, name)) for name in ("time", "watermark")]
        reasons = np.where(timeless[chosen], "no event time", "too late to be matched in order")
        by = [taken.column(column.name) for column in self.engine.by_fields]
        places = [taken.column("partition"), taken.column("offset")]
        return pa.Table.from_arrays(
            [*by, *times, pa.array(reasons, pa.string()), *places], schema=self.engine.late_schema
        )


def _key_items(checks: Int64Array) -> Int64Array:
    return mix(checks, np.full(len(checks), KEY, np.int64))


def _times(microseconds: Int64Array) -> pa.Array:
    return pa.array(microseconds, mask=microseconds == NO_TIME).view(TIME)


def _array(values: list[Any], of: pa.DataType) -> pa.Array:
    if pa.types.is_floating(of):
        values = [None if value is None else float(value) for value in values]
    return pa.array(values, of)
