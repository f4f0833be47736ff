"""Flows made at random, each of one to three operators over streams with late rows, and what a view of each would show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.clock import as_datetime, as_us
from mainstem.durations import duration_us
from mainstem.flows.why.limits import Equal, Limit
from mainstem.flows.why.row_why import find_records
from mainstem.flows.why.traced_flow import FlowTrace
from mainstem.operators import (
    aggregate,
    calendar,
    cumulating,
    dedupe,
    distinct,
    each_row,
    enrich,
    every,
    hopping,
    join,
    latest,
    sessions,
    sliding,
    table,
    top,
    tumbling,
    validity,
    windowed,
)
from mainstem.operators.stage.engine import BatchClock
from mainstem.operators.stage.frame_columns import select_columns
from mainstem.testing import TestStream, TestStreams
from mainstem.testing.scripted_home import batches_of
from mainstem.testing.scripted_rows import ScriptedBatch, ScriptedRows, ScriptedRun
from tests.flows.lineage_rows import LineageRows, Tree

ORIGIN = 1_767_268_800_000_000
STREAMS = {"facts": ("number", "at"), "others": ("other", "other_at"), "versions": ("row", "since")}
END = 1_798_761_600_000_000

Row = dict[str, Any]
Program = Callable[..., Any]


@dataclass(frozen=True)
class WhyFlow:
    """A program over streams, and the key of the view that it writes."""

    text: str
    streams: Sequence[str]
    key: Sequence[str]
    program: Program
    # Whether rows of different keys have nothing to do with each other.
    keyed: bool = True
    # Whether each of the records is needed.
    minimal: bool = True
    # Whether it may be that only a value which is not recomputed tells several rows apart.
    ambiguous: bool = False

    def __call__(self, **streams: Any) -> Any:
        return self.program(**streams)


# Scripts


def written(random: Random, streams: Sequence[str], *, steps: int = 5, keys: int = 2) -> TestStreams:
    """Rows that are out of order, late, without key or time; a key is always in the same partition."""
    script = TestStreams(
        **{
            name: TestStream(
                f"{STREAMS[name][0]} INT, key INT, n INT, {STREAMS[name][1]} TIMESTAMP", event_time=STREAMS[name][1],
                delay=f"{random.choice([0, 2, 6])} seconds",
            )
            for name in streams
        }
    )  # fmt: skip
    time, number = 0, 0
    for step in range(steps * len(streams)):
        name = random.choice(list(streams))
        time += random.choice([0, 1, 3, 8])
        script = script.now(as_datetime(ORIGIN + (time + step) * 1_000_000))
        if random.random() < 0.1 and step > len(streams):
            script = script.watermark(name, as_datetime(ORIGIN + (time - random.randint(0, 10)) * 1_000_000))
            continue
        key = random.randrange(keys)
        given = []
        for _ in range(random.randint(1, 3)):
            number += 1
            behind = random.choice([0, 0, 1, 2, 5, 12, 25])
            at = None if random.random() < 0.03 and step > 5 else as_datetime(ORIGIN + (time - behind) * 1_000_000)
            value = random.randint(1, 9)
            given.append({STREAMS[name][0]: number, "key": key, "n": value, STREAMS[name][1]: at})
        script = script.rows(name, given, partition=key % 2)
    for name in streams:
        script = script.watermark(name, as_datetime(END))
    return script


# Flows


def any_flow(random: Random) -> WhyFlow:
    """One of all kinds."""
    made = random.choice(
        [
            _windows,
            _windows,
            _moving_windows,
            _table,
            _aggregate,
            _top,
            _dedupe,
            _distinct,
            _join,
            _join,
            _enrich,
            _tables,
            _chain,
            _open_chain,
            _open_chain,
        ]
    )
    return made(random)


def _seconds(count: int) -> str:
    return f"{count} seconds"


TOTALS = ["sum(n) AS total", "count(*) AS rows", "max(n) AS most"]


def _filtered(random: Random) -> tuple[str, Callable[[Any], Any]]:
    least = random.choice([None, 3, 5])
    return (
        "" if least is None else f"where n >= {least}, "
    ), lambda rows: rows.where("n", least) if least is not None and isinstance(rows, LineageRows) else rows


def _shown_settings(random: Random) -> dict[str, Any]:
    lateness = random.choice([0, 0, 3, 20])
    early = random.choice([None, None, each_row(), every("5 seconds")])
    settings: dict[str, Any] = {"lateness": _seconds(lateness), "early": early}
    return {**settings, "results": random.choice(["accumulate", "accumulate", "retract"])}


def _windows(random: Random) -> WhyFlow:
    kind = random.choice(
        [
            tumbling("5 seconds"), tumbling("12 seconds", offset="2 seconds"), hopping("6 seconds", slide="4 seconds"),
            hopping("3 seconds", slide="5 seconds"), cumulating("9 seconds", step="3 seconds"), calendar("hour"),
        ]
    )  # fmt: skip
    settings = _shown_settings(random)
    text, where = _filtered(random)
    return WhyFlow(
        f"{text}windowed({kind}, {settings})", ["facts"], ["key", "window"],
        lambda facts: windowed(where(facts), kind, by="key", aggregates=TOTALS, **settings),
    )  # fmt: skip


def _moving_windows(random: Random) -> WhyFlow:
    kind = random.choice(
        [sessions("3 seconds"), sessions("4 seconds", touching="join"), sliding("3 seconds"), validity()]
    )
    settings = {"lateness": _seconds(random.choice([0, 0, 4])), "results": "accumulate"}
    return WhyFlow(
        f"windowed({kind}, {settings})", ["facts"], ["key", "window"],
        lambda facts: windowed(facts, kind, by="key", aggregates=TOTALS, **settings),
    )  # fmt: skip


def _table(random: Random) -> WhyFlow:
    settings: dict[str, Any] = random.choice(
        [{}, {"order_by": "n"}, {"order_by": "at"}, {"order_by": "n", "delete_when": "n = 9"}]
    )
    return WhyFlow(f"table({settings})", ["facts"], ["key"], lambda facts: table(facts, key="key", **settings))


def _aggregate(random: Random) -> WhyFlow:
    if random.random() < 0.4:
        text, where = _filtered(random)
        return WhyFlow(
            f"{text}aggregate", ["facts"], ["key"], lambda facts: aggregate(where(facts), by="key", aggregates=TOTALS)
        )
    return WhyFlow(
        "aggregate(table by n)", ["facts"], ["key"],
        lambda facts: aggregate(table(facts, key=["key", "n"], order_by="number"), by="key", aggregates=TOTALS),
    )  # fmt: skip


def _top(random: Random) -> WhyFlow:
    count = random.choice([1, 2, 3])
    return WhyFlow(
        f"top({count})", ["facts"], ["number"],
        lambda facts: top(table(facts, key=["key", "n"], order_by="number"), count, order="n DESC"), keyed=False,
    )  # fmt: skip


def _dedupe(random: Random) -> WhyFlow:
    within = _seconds(random.choice([2, 6, 20]))
    return WhyFlow(
        f"dedupe({within})", ["facts"], ["number"], lambda facts: dedupe(facts, by=["key", "n"], within=within)
    )


def _distinct(random: Random) -> WhyFlow:
    return WhyFlow(
        "distinct(aggregate)", ["facts"], ["key", "n"],
        lambda facts: distinct(table(facts, key=["key", "n"], order_by="number")),
    )  # fmt: skip


def _joined(random: Random, how: str | None = None) -> tuple[str, Callable[[Any, Any], Any], list[str]]:
    how = how or random.choice(["inner", "left", "right", "full", "semi", "anti"])
    within = _seconds(random.choice([0, 1, 4])), _seconds(random.choice([0, 1, 4]))
    lateness = _seconds(random.choice([0, 3, 20]) if how == "inner" else 0)
    key = ["number"] if how in ("semi", "anti") else ["number", "other"]

    def joined(facts: Any, others: Any) -> Any:
        return join(facts, _without_n(others), on="key", how=how, within=within, lateness=lateness)

    return f"join({how}, {within}, lateness={lateness})", joined, key


def _without_n(rows: Any) -> Any:
    return select_columns(rows, [name for name in rows.columns if name != "n"])


def _join(random: Random) -> WhyFlow:
    text, joined, key = _joined(random)
    return WhyFlow(text, ["facts", "others"], key, joined)


def _enrich(random: Random) -> WhyFlow:
    asked: dict[str, Any] = {
        "how": random.choice(["left", "inner"]), "lateness": _seconds(random.choice([0, 4, 15])),
        "corrections": random.choice(["ignore", "re-emit"]),
    }  # fmt: skip
    if random.random() < 0.2:
        asked = {"how": asked["how"], "at": latest()}
        # Since when a row of the table is known is a matter of the clock.
        shown = ["number", "key", "n", "at", "row", "since", "record"]
        return WhyFlow(
            f"enrich({asked})", ["facts", "versions"], ["number"],
            lambda facts, versions: select_columns(enrich(facts, table(_without_n(versions), key="key"), on="key", **asked), shown),
        )  # fmt: skip
    return WhyFlow(
        f"enrich({asked})", ["facts", "versions"], ["number"],
        lambda facts, versions: enrich(facts, table(_without_n(versions), key="key"), on="key", **asked),
    )  # fmt: skip


def _tables(random: Random) -> WhyFlow:
    how: Any = random.choice(["inner", "left", "full"])
    return WhyFlow(
        f"join of tables({how})", ["facts", "versions"], ["key"],
        lambda facts, versions: join(
            table(facts, key="key", order_by="number"), table(_without_n(versions), key="key", order_by="row"), on="key", how=how
        ),
    )  # fmt: skip


def _chain(random: Random) -> WhyFlow:
    size = tumbling(_seconds(random.choice([10, 30])))
    choice = random.randrange(4)
    if choice == 0:
        text, joined, _ = _joined(random, "inner")
        return WhyFlow(
            f"windowed({text})", ["facts", "others"], ["key", "window"],
            lambda facts, others: windowed(joined(facts, others), size, by="key", aggregates=TOTALS),
        )  # fmt: skip
    if choice == 1:
        return WhyFlow(
            "windowed(dedupe)", ["facts"], ["key", "window"],
            lambda facts: windowed(dedupe(facts, by=["key", "n"], within="6 seconds"), size, by="key", aggregates=TOTALS),
        )  # fmt: skip
    if choice == 2:
        return WhyFlow(
            "windowed(windowed)", ["facts"], ["window"],
            lambda facts: windowed(
                windowed(facts, tumbling("5 seconds"), by="key", aggregates="sum(n) AS n"), size, aggregates=TOTALS
            ),
            keyed=False,
        )  # fmt: skip
    return WhyFlow(
        "windowed(enrich)", ["facts", "versions"], ["key", "window"],
        lambda facts, versions: windowed(
            enrich(facts, table(_without_n(versions), key="key"), on="key", how="inner"), size, by="key", aggregates=TOTALS
        ),
        # The version that ends another one is only needed to say until when that was valid.
        minimal=False,
    )  # fmt: skip


def _open_chain(random: Random) -> WhyFlow:
    """An operator over the results of another that are not all emitted yet."""
    choice = random.randrange(5)
    if choice == 0:
        size = random.choice([tumbling("5 seconds"), sessions("3 seconds"), sessions("4 seconds", touching="join")])
        return WhyFlow(
            f"aggregate(windowed({size}))", ["facts"], ["key"],
            lambda facts: aggregate(windowed(facts, size, by="key", aggregates="sum(n) AS n"), by="key", aggregates=TOTALS),
        )  # fmt: skip
    if choice in (1, 2):
        text, joined, _ = _joined(random, random.choice(["left", "inner", "anti"]))
        return WhyFlow(
            f"aggregate({text})", ["facts", "others"], ["key"],
            lambda facts, others: aggregate(joined(facts, others), by="key", aggregates=TOTALS),
            # A row without its match is emitted alone.
            minimal=False,
        )  # fmt: skip
    if choice == 3:
        how: Any = random.choice(["left", "inner"])
        return WhyFlow(
            f"aggregate(enrich({how}))", ["facts", "versions"], ["key"],
            lambda facts, versions: aggregate(
                enrich(facts, table(_without_n(versions), key="key"), on="key", at="at", how=how), by="key", aggregates=TOTALS
            ),
            minimal=False,
        )  # fmt: skip
    return WhyFlow(
        "top(aggregate)", ["facts"], ["key"],
        lambda facts: select_columns(
            top(aggregate(facts, by=["key", "n"], aggregates="sum(n) AS total"), 1, by="key", order="total DESC"),
            ["key", "total", "record"],
        ),
        ambiguous=True,
    )  # fmt: skip


# What a view shows


@dataclass
class Ran:
    """A run of a flow over a script: what is shown after each batch, by key, with the batch that showed it."""

    flow: WhyFlow
    script: TestStreams
    records: dict[str, list[pa.Table]]
    watermarks: list[int]
    tree: Tree
    schema: pa.Schema
    shown: list[dict[str, tuple[Row, int]]] = field(default_factory=list)

    @classmethod
    def of(cls, flow: WhyFlow, script: TestStreams) -> Ran:
        topics = {name: stream.topic for name, stream in script.streams.items()}
        given = batches_of(topics, script.steps, "scripted")
        run = ScriptedRun()
        streams = {}
        for name, batches in given.items():
            delay = topics[name].delay
            read = {"is": "read", "source": name, "leaf": 0, "delay": 0 if delay is None else duration_us(delay)}
            streams[name] = LineageRows(topics[name].shown_schema, batches, run, read)
        out = flow(**streams)
        columns = pa.schema([column for column in out.schema if column.name != "record"])
        records = {name: [it.rows for it in of] for name, of in given.items()}
        watermarks = [batch.clock.watermark for batch in next(iter(given.values()))]
        found = cls(flow, script, records, watermarks, out.tree, columns)
        held: dict[str, tuple[Row, int]] = {}
        for number, batch in enumerate(out.batches):
            for row, change in changes_of(batch):
                key = key_of(row, flow.key)
                if change == "delete":
                    held.pop(key, None)
                elif key not in held or held[key][0] != row:
                    held[key] = row, number
            found.shown.append(dict(held))
        return found

    def made_of(self, row: Row, batch: int) -> list[tuple[str, pa.Table]]:
        """The records of a row that was shown by a batch; raises `Inexact` if that cannot be said."""

        def read(source: str, delay: int | None, limits: Sequence[Limit]) -> pa.Table:
            rows = pa.concat_tables(self.records[source][: batch + 1])
            return within(rows, limits)

        pane = row.get("pane")
        trace = FlowTrace(read, timing=None if pane is None else pane["timing"], watermark=self.watermarks[batch])
        return trace.records(find_records(trace, self.tree, self.schema, self.flow.key, row).made_of)

    def again(self, worlds: Sequence[Sequence[tuple[str, pa.Table]]]) -> list[dict[str, Row]]:
        """What the flow gives for just these records, of several worlds at once that have nothing in common: rows by key."""
        if not self.flow.keyed and len(worlds) > 1:
            return [found for world in worlds for found in self.again([world])]
        streams = {}
        run = ScriptedRun()
        for name, stream in self.script.streams.items():
            schema = stream.topic.shown_schema
            parts = [
                moved(table, number, schema) for number, world in enumerate(worlds) for of, table in world if of == name
            ]
            rows = pa.concat_tables([schema.empty_table(), *parts])
            # The rows of a table come first: what looks up the latest one finds it.
            first, second = (rows, rows.slice(0, 0)) if name == "versions" else (rows.slice(0, 0), rows)
            batches = [ScriptedBatch(first, BatchClock()), ScriptedBatch(second, BatchClock(END, END))]
            streams[name] = ScriptedRows(schema, batches, run)
        found: list[dict[str, Row]] = [{} for _ in worlds]
        for batch in self.flow(**streams).batches:
            for row, change in changes_of(batch):
                number = next((row[name] // WORLD for name in MOVED if row.get(name) is not None), 0)
                back = {
                    name: value % WORLD if name in MOVED and value is not None else value for name, value in row.items()
                }
                key = key_of(back, self.flow.key)
                found[number].pop(key, None)
                if change != "delete":
                    found[number][key] = back
        return found


# Worlds are told apart by their keys and the numbers of their rows.
WORLD = 1_000
MOVED = ("key", "number", "other", "row")


def moved(table: pa.Table, world: int, schema: pa.Schema) -> pa.Table:
    """The records in a world of their own."""
    columns = dict(zip(table.column_names, table.columns, strict=True))
    for name in MOVED:
        if name in columns:
            columns[name] = pc.add(columns[name], pa.scalar(world * WORLD, pa.int32()))
    record = columns["record"].combine_chunks()
    fields = [record.field(field.name) for field in record.type]
    place = record.type.get_field_index("offset")
    fields[place] = pc.add(fields[place], world * WORLD)
    columns["record"] = pa.StructArray.from_arrays(fields, fields=list(record.type))
    return pa.table(columns).cast(schema)


def key_of(row: Mapping[str, Any], key: Sequence[str]) -> str:
    return str([row[name] for name in key])


def changes_of(batch: ScriptedBatch) -> list[tuple[Row, str]]:
    """The changes of a batch in the order in which a view takes them: by partition and offset."""
    rows = sorted(batch.rows.to_pylist(), key=lambda row: (row["record"]["partition"], row["record"]["offset"]))
    return [(row, row.pop("record")["change"]) for row in rows]


def within(rows: pa.Table, limits: Sequence[Limit]) -> pa.Table:
    """The rows within limits, one by one."""
    found = []
    for place, row in enumerate(rows.to_pylist()):
        kept = True
        for limit in limits:
            value: Any = row
            for name in limit.of[1:]:
                value = None if value is None else value[name]
            if isinstance(limit, Equal):
                kept &= value in limit.values
            else:
                kept &= value is not None and limit.low <= as_us(value) <= limit.high
        if kept:
            found.append(place)
    return rows.take(pa.array(found, pa.int64()))


def values_of(row: Mapping[str, Any] | None) -> Any:
    """What a row says, without what depends on when it was shown or where its records stand."""
    if row is None:
        return None
    found = {name: value for name, value in row.items() if name != "pane"}
    if isinstance(version := found.get("version"), dict):
        # Where a row of a table stands is different in each run.
        found["version"] = {name: version[name] for name in ("valid_from", "valid_until")}
    return found
