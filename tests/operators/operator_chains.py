"""Chains of two and three operators, made at random from a seed, and scripts cut into batches in any way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa

from mainstem.operators import (
    aggregate,
    cumulating,
    enrich,
    hopping,
    join,
    sessions,
    sliding,
    table,
    tumbling,
    validity,
    windowed,
)
from mainstem.operators.stage.engine import NO_TIME, BatchClock
from mainstem.operators.stage.frame_columns import Shown, columns_of, select_columns
from mainstem.operators.windows.window_kinds import WindowKind
from mainstem.testing import TestStreams
from mainstem.testing.scripted_home import batches_of
from mainstem.testing.scripted_rows import ScriptedBatch, ScriptedRows, ScriptedRun
from tests.operators.two_streams import Columns, two_streams

__all__ = ["Chain", "Outcome", "any_chain", "cut", "outcome", "written"]

STREAMS = {
    "facts": Columns("number", "at"),
    "others": Columns("other", "other_at"),
    "versions": Columns("row", "since"),
}
# Of a late row where it stands among what an earlier operator gave: that order is no fact of the log.
PLACES = ("topic", "partition", "offset", "missed_partition", "missed_offset")
SPANS = [0, 1, 4]
LATENESS = [0, 0, 3, 20]


def written(random: Random, streams: Collection[str], *, keys: int, steps: int = 12) -> TestStreams:
    """Some of the streams; some of their rows are late, without key or without time, and some batches are killed. A key is a
    case by itself."""
    chosen = {name: columns for name, columns in STREAMS.items() if name in streams}
    script = two_streams(random, chosen, keys=keys, steps=steps * len(chosen), rows=2 * keys)
    for stream in chosen:
        script = script.watermark(stream, "2027-01-01")
    return script


# The operators: from rows with `key`, a number `n` and a time, to rows with the same.

Link = Callable[[Any, dict[str, Any]], Any]


@dataclass(frozen=True)
class Chain:
    """What is done to `facts`, as text, and how."""

    text: str
    links: Sequence[Link]
    streams: Collection[str]

    def __call__(self, **streams: Any) -> Any:
        rows = narrowed(streams["facts"], "number", "at")
        for link in self.links:
            rows = link(rows, streams)
        return rows


def narrowed(rows: Any, value: str, *times: str) -> Any:
    """With the value called `n` and the time `time`, so that the next operator finds no name twice."""
    fields = {field.name: field for field in columns_of(rows)}
    names = {"key": "key", value: "n", **{name: "time" if name != "window" else name for name in times}}
    shown = [Shown(name, pa.field(called, fields[name].type, metadata=fields[name].metadata))
             for name, called in names.items()]  # fmt: skip
    return select_columns(rows, [*shown, Shown("record", fields["record"])])


def time_of(rows: Any) -> str:
    return "window" if "window" in rows.columns else "time"


def over_windows(kind: WindowKind, **settings: Any) -> Link:
    def link(rows: Any, streams: dict[str, Any]) -> Any:
        found = windowed(rows, kind, by="key", aggregates="sum(n) AS total", **settings)
        return narrowed(found, "total", "window")

    return link


def joined(**asked: Any) -> Link:
    def link(rows: Any, streams: dict[str, Any]) -> Any:
        found = join(rows, streams["others"], on="key", **asked)
        alone = asked["how"] in ("semi", "anti")
        time = time_of(rows) if alone else "event_time"
        return narrowed(found, "n", time)

    return link


def looked_up(**asked: Any) -> Link:
    def link(rows: Any, streams: dict[str, Any]) -> Any:
        found = enrich(rows, table(streams["versions"], key="key"), on="key", **asked)
        return narrowed(found, "n", time_of(rows))

    return link


def added_up(rows: Any, streams: dict[str, Any]) -> Any:
    """The highest of each key and time, and the sum over all of them."""
    time = time_of(rows)
    newest = table(rows, key=["key", time], order_by="n")
    return aggregate(newest, aggregates=["sum(n) AS total", "count(*) AS rows"])


@dataclass(frozen=True)
class Choice:
    """Chooses operators; spans of time are of some `unit`."""

    random: Random
    unit: str

    def ticks(self, count: int) -> str:
        return f"{count} {self.unit}"

    def windows(self, *, results: str) -> tuple[str, Link]:
        """In between what came since a window was shown, or what is taken back and shown anew."""
        ticks, random = self.ticks, self.random
        fixed = [
            tumbling(ticks(5)),
            tumbling(ticks(12)),
            hopping(ticks(6), slide=ticks(4)),
            cumulating(ticks(9), step=ticks(3)),
        ]
        moving = [sessions(ticks(3)), sessions(ticks(3), touching="join"), sliding(ticks(3)), validity()]
        kind: WindowKind = random.choice([*fixed, *moving])
        # Of windows that rows change nothing says what is left of one whose rows were shown and discarded.
        lateness = random.choice(LATENESS) if results == "retract" or kind in fixed else 0
        text = f"windowed({kind}, {results}, lateness={lateness})"
        return text, over_windows(kind, lateness=ticks(lateness), results=results)

    def join(self) -> tuple[str, Link]:
        random = self.random
        how = random.choice(["inner", "inner", "left", "semi", "anti"])
        # With a lateness what was shown alone may be taken back, and windows refuse that.
        lateness = random.choice(LATENESS) if how == "inner" else 0
        within = random.choice(SPANS), random.choice(SPANS)
        asked = {"how": how, "within": tuple(map(self.ticks, within)), "lateness": self.ticks(lateness)}
        return f"join({how}, {within}, lateness={lateness})", joined(**asked)

    def lookup(self) -> tuple[str, Link]:
        how, lateness = self.random.choice(["left", "inner"]), self.random.choice(LATENESS)
        return f"enrich({how}, lateness={lateness})", looked_up(how=how, lateness=self.ticks(lateness))

    def any(self, operators: str, *, before: str) -> tuple[str, Link]:
        """One of some operators; those that add rows up take nothing that is taken back, but for windows and tables."""
        taken_back = "retract" in before
        chosen = self.random.choice([operator for operator in operators.split() if operator in "WA" or not taken_back])
        if chosen == "W":
            return self.windows(results="discard")
        if chosen == "A":
            return "aggregate", added_up
        return self.join() if chosen == "J" else self.lookup()


def any_chain(random: Random, unit: str = "microseconds") -> Chain:
    """Two or three operators; the last may be an aggregate of a table."""
    choice = Choice(random, unit)
    links: list[tuple[str, Link]] = []
    for _ in range(random.choice([1, 2])):
        before = links[-1][0] if links else ""
        retracting = random.random() < 0.3
        links.append(choice.windows(results="retract") if retracting else choice.any("W J E", before=before))
    last = random.random() < 0.4
    links.append(choice.windows(results="retract") if last else choice.any("W J E A", before=links[-1][0]))
    text = " -> ".join(text for text, _ in links)
    more = {"others": "join", "versions": "enrich"}
    streams = ["facts", *(stream for stream, operator in more.items() if operator in text)]
    return Chain(text, [link for _, link in links], streams)


# Cuts


def cut(
    script: TestStreams, pieces: str, random: Random | None = None, batches: int = 0
) -> dict[str, list[ScriptedBatch]]:
    """A script in its smallest pieces, steps ("scripted") or "single rows"; or put together into so many batches at random."""
    topics = {name: stream.topic for name, stream in script.streams.items()}
    single = batches_of(topics, script.steps, pieces)
    if random is None:
        return single
    count = len(next(iter(single.values())))
    ends = sorted({*random.sample(range(1, count), min(batches - 1, count - 1)), count})
    return {name: regrouped(of, ends) for name, of in single.items()}


def regrouped(single: Sequence[ScriptedBatch], ends: Sequence[int]) -> list[ScriptedBatch]:
    found: list[ScriptedBatch] = []
    before = BatchClock(NO_TIME, NO_TIME)
    for first, end in zip([0, *ends[:-1]], ends, strict=True):
        rows = pa.concat_tables([batch.rows for batch in single[first:end]])
        last = single[end - 1].clock
        clock = BatchClock(last.watermark, last.now, before.watermark, before.now)
        found.append(ScriptedBatch(rows, clock, any(batch.killed for batch in single[first:end])))
        before = clock
    return found


@dataclass(frozen=True)
class Outcome:
    """What is there in the end, and what came too late on the way."""

    rows: Counter[str]
    late: Counter[str]


def outcome(chain: Chain, script: TestStreams, batches: dict[str, list[ScriptedBatch]]) -> Outcome:
    run = ScriptedRun()
    streams = {name: ScriptedRows(script.streams[name].topic.shown_schema, of, run) for name, of in batches.items()}
    given = chain(**streams)
    found: Counter[str] = Counter()
    for batch in given.batches:
        for row in batch.rows.to_pylist():
            change = row.pop("record")["change"]
            found[str(row)] += -1 if change == "delete" else 1
    late = [{name: value for name, value in row.items() if name not in PLACES} for row in run.late]
    return Outcome(Counter({row: count for row, count in found.items() if count}), Counter(map(str, late)))
