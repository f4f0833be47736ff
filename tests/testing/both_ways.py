"""Generated scripts, and operators that they are run through in both ways: without Spark, and together in one flow on Spark."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import reduce
from random import Random
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from mainstem.operators import (
    Pattern,
    Process,
    Timers,
    after_rows,
    aggregate,
    both,
    calendar,
    clock_corrected,
    compare_with,
    cumulating,
    dedupe,
    distinct,
    each_row,
    either,
    enrich,
    every,
    everything,
    first_of,
    group,
    hopping,
    join,
    late_rows,
    latest,
    match,
    on_time_rows,
    process,
    sessions,
    sliding,
    step,
    table,
    top,
    tumbling,
    validity,
    versions,
    windowed,
)
from mainstem.operators.stage.frame_columns import Shown, columns_of, select_columns
from mainstem.testing import TestResults, TestStream, TestStreams
from tests.operators.operator_chains import Chain, any_chain
from tests.operators.visits import at

# Spark's workers cannot import what belongs to the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

LEVELS = [0.0, -0.0, float("nan"), 1.5, None]
NAMES = ["a", "b", None]
Operator = Callable[..., Any]
PATTERN: Pattern = (
    both(step("few", "n < 5"), step("high", "level > 1"))
    .then(either(step("unknown", "level IS NULL"), step("many", "n >= 5")))
    .then(group(step("again", "n < last(few.n) + 3")).optional())
)
# Of rows with the same in all of these that they have, the order is told.
KEYS = ("level", "name", "n", "v", "key", "window")


# Operators of one stream: n INT, level DOUBLE, name STRING, at TIMESTAMP, sent TIMESTAMP.


class Tally(Process):
    """Counts the rows of a key, also those that are deletes; tells the count when a timer goes off."""

    output = "level DOUBLE, told STRING, rows BIGINT, told_at TIMESTAMP"
    event_time = "told_at"

    @dataclass
    class State:
        rows: int = 0

    def on_rows(self, key: Any, rows: Any, state: Any, timers: Timers) -> Any:
        for row in rows:
            state.rows += 1
            timers.set_processing("clock", timers.now + timedelta(seconds=90))
            if row["at"] is not None:
                timers.set_event("time", row["at"] + timedelta(minutes=2))
            yield {"level": key, "told": row["record"]["change"], "rows": state.rows, "told_at": row["at"]}

    def on_timer(self, key: Any, name: str, at: datetime, state: Any, timers: Any) -> Any:
        yield {"level": key, "told": name, "rows": state.rows, "told_at": at}
        if name == "clock":
            self.forget(state)


class Echo(Process):
    """Every row as text: what needs no state goes through it, since in one flow with others it must pass an operator that has."""

    output = "level DOUBLE, row STRING"

    @dataclass
    class State:
        pass

    def on_rows(self, key: Any, rows: Any, state: Any, timers: Any) -> Any:
        for row in rows:
            yield {"level": key, "row": str(_plain({name: value for name, value in row.items() if name != "record"}))}


def echoed(rows: Any) -> Any:
    return process(rows, by="level", using=Echo)


COUNTED = ["count(*) AS rows", "sum(n) AS total"]
MANY = [
    *COUNTED, "avg(n) AS mean", "min(level) AS lowest", "max(level) AS highest", "first(n) AS one", "last(name) AS end",
    "count(DISTINCT name) AS names", "collect_list(n) AS list", "max_by(name, n) AS best", "sum(n) / count(*) AS part", "max(n) - min(n) AS width",
    "count(n) FILTER (WHERE n > 2) AS large",
]  # fmt: skip
LASTING = [
    *COUNTED, "avg(n) AS mean", "min(level) AS lowest", "max(level) AS highest", "count(DISTINCT name) AS names",
    "collect_list(n) AS list", "max(n) - min(n) AS width", "sum(level) AS levels",
]  # fmt: skip
KINDS = {
    "tumbling": tumbling("2 minutes"),
    "hopping": hopping("3 minutes", slide="2 minutes"),
    "cumulating": cumulating("4 minutes", step="1 minute"),
    "calendar": calendar("hour", time_zone="Australia/Lord_Howe"),
    "sliding": sliding("90 seconds"),
    "sessions": sessions("1 minute"),
    "sessions that touch": sessions("1 minute", touching="join"),
    "validity": validity(),
    "everything": everything(),
}
SETTINGS: list[dict[str, Any]] = [
    {"early": each_row(), "lateness": "3 minutes", "results": "retract"},
    {"early": after_rows(2), "lateness": "3 minutes", "late": after_rows(2), "on_time": "if changed"},
    {"early": first_of(every("1 minute"), after_rows(3)), "lateness": "2 minutes", "results": "discard"},
    {"lateness": "4 minutes", "late": every("1 minute", since="first row")},
]


def over(window: Any, aggregates: Any = COUNTED, **settings: Any) -> Operator:
    return lambda rows: windowed(rows, window, by="level", aggregates=aggregates, **settings)


def narrowed(rows: Any, *names: str) -> Any:
    schema = columns_of(rows)
    return select_columns(rows, [Shown(name, schema.field(name)) for name in (*names, "record")])


ONE: dict[str, Operator] = {
    # Without a trigger `everything` shows nothing as long as rows may come.
    **{
        name: over(kind, MANY if name == "tumbling" else COUNTED)
        for name, kind in KINDS.items()
        if name != "everything"
    },
    **{
        f"{name} again": over(kind, **SETTINGS[number % len(SETTINGS)])
        for number, (name, kind) in enumerate(KINDS.items())
    },
    "by append": over(tumbling("1 minute"), on="record.appended_at"),
    # Without `steps`: Spark names the elements of a list in another way.
    "match": lambda rows: narrowed(
        match(rows, PATTERN, by="name", within="6 minutes", after_match="past last", measures=["count(few) AS found"]),
        "name",
        "match",
        "started_at",
        "ended_at",
        "found",
    ),
    "dedupe": lambda rows: dedupe(rows, by="level", within="1 minute"),
    "process": lambda rows: process(rows, by="level", using=Tally),
    "table": lambda rows: table(rows, key="level"),
    "ordered table": lambda rows: table(rows, key=["name", "level"], order_by="n"),
    "table of a feed": lambda rows: table(
        rows, key="name", order_by=["n", "coalesce(sent, at)"], delete_when="level > 2.0"
    ),
    "versions": lambda rows: versions(rows, key="name", order_by="n", delete_when="level > 2.0", track="level"),
    "versions by time": lambda rows: versions(rows, key=["name", "level"], order_by=["coalesce(at, sent)", "n"]),
    "aggregate": lambda rows: aggregate(table(rows, key="level"), by="name", aggregates=LASTING),
    "aggregate of all": lambda rows: aggregate(table(rows, key=["level", "n"]), aggregates=COUNTED),
    "distinct": lambda rows: distinct(narrowed(table(rows, key=["level", "n"]), "level", "name")),
    "top": lambda rows: top(table(rows, key=["level", "n"]), 2, by="name", order=["level DESC", "n"]),
    "top of distinct": lambda rows: top(
        distinct(narrowed(table(rows, key=["level", "n"], order_by="sent"), "level", "name", "n")),
        2,
        by="name",
        order="n",
    ),
    "compare_with": lambda rows: compare_with(over(tumbling("1 minute"))(rows), earlier="2 minutes"),
    "compared again": lambda rows: compare_with(
        over(tumbling("1 minute"), **SETTINGS[0])(rows), earlier="1 minute", lateness="3 minutes"
    ),
    "clock_corrected": lambda rows: echoed(
        clock_corrected(rows, occurred="at", sent="sent", received="record.appended_at", outlier="2 minutes")
    ),
    "windows of corrected times": lambda rows: over(tumbling("1 minute"))(
        clock_corrected(rows, occurred="at", sent="sent", outlier="2 minutes")
    ),
    "late_rows": lambda rows: echoed(late_rows(rows)),
    "on_time_rows": lambda rows: over(sliding("1 minute"))(on_time_rows(rows)),
}
# Those that every run of the tests compares: each operator at least once; tumbling and sliding windows are in two of them. Every
# engine of windows has its panes compared in each run in test_windowed_naive.py.
ONE_SHORT = [
    "sessions again", "match", "dedupe", "process", "table of a feed", "versions", "aggregate", "top of distinct", "compare_with", "clock_corrected", "late_rows",
    "on_time_rows",
]  # fmt: skip


def one_stream(random: Random, minutes: int, *, kills: bool = False) -> TestStream:
    """Rows of two partitions, some of them late, without time or key, updates and deletes."""
    script = TestStream(
        "level DOUBLE, n INT, name STRING, at TIMESTAMP, sent TIMESTAMP", event_time="at",
        delay=random.choice([timedelta(0), timedelta(minutes=1)]),
    )  # fmt: skip
    for minute in range(minutes):
        script = script.rows([_changed(random, 2 * minute) for _ in range(random.randint(8, 16))], partition=minute % 2)
        if minute % 3 == 1:
            script = script.delete([_any(random, 2 * minute) for _ in range(3)]).now(at(2 * minute))
            script = script.kill() if kills else script
        elif minute and minute < minutes - 1:
            script = script.watermark(at(2 * minute - 1))
    return script.watermark(at(2 * minutes + 60))


def _any(random: Random, minute: float) -> dict[str, Any]:
    when = None if random.random() < 0.05 else at(minute - random.choice([0, 0, 0.5, 1, 2, 6, 20]))
    sent = None if random.random() < 0.1 else at(minute + random.choice([-5, 0, 1]))
    return {"level": random.choice(LEVELS), "n": random.choice([None, 1, 2, 3, 4]), "name": random.choice(NAMES),
            "at": when, "sent": sent}  # fmt: skip


def _changed(random: Random, minute: float) -> dict[str, Any]:
    change = random.choice(["insert"] * 5 + ["update", "delete"])
    return {**_any(random, minute), "record": {"change": change}}


# Operators of two streams: level DOUBLE, n INT, at TIMESTAMP; level DOUBLE, v INT, since TIMESTAMP.


def chained(chain: Chain) -> Operator:
    """A chain of operators over the two, under the names that it has for them."""

    def named(rows: Any, **names: str) -> Any:
        schema = columns_of(rows)
        shown = [
            Shown(name, schema.field(name).with_name(called)) for name, called in (names | {"record": "record"}).items()
        ]
        return select_columns(rows, shown)

    return lambda rows, versions: chain(
        facts=named(rows, level="key", n="number", at="at"),
        others=named(versions, level="key", v="other", since="other_at"),
        versions=named(versions, level="key", v="row", since="since"),
    )


TWO: dict[str, Operator] = {
    "pairs": lambda rows, versions: join(rows, versions, on="level", within="3 minutes"),
    "full": lambda rows, versions: join(rows, versions, on="level", within="2 minutes", how="full", lateness="1 minute"),
    "anti": lambda rows, versions: join(rows, versions, on="level", within="2 minutes", how="anti"),
    "tables": lambda rows, versions: join(table(rows, key="n"), table(versions, key="v"), on="level", how="left"),
    "enriched": lambda rows, versions: enrich(rows, table(versions, key="level"), on="level", lateness="5 minutes"),
    "corrected": lambda rows, versions: enrich(rows, table(versions, key="level"), on="level", lateness="5 minutes",
                                               corrections="re-emit", how="inner"),
    "latest": lambda rows, versions: enrich(rows, table(versions, key="level"), on="level", at=latest()),
}  # fmt: skip
TWO_SHORT = ["full", "corrected", "latest"]


def chains(random: Random, count: int) -> dict[str, Operator]:
    """Chains of two and three operators, at random, by what they do."""
    return {chain.text: chained(chain) for chain in (any_chain(random, "minutes") for _ in range(count))}


def _row(random: Random, minute: int, number: str, time: str) -> dict[str, Any]:
    behind = random.choice([0, 0, 0.5, 1, 2, 6, 20])
    when = None if random.random() < 0.05 else at(minute - behind)
    return {"level": random.choice(LEVELS), number: random.randint(0, 6), time: when}


def two_streams(random: Random, minutes: int, *, kills: bool = False) -> TestStreams:
    script = TestStreams(
        rows=TestStream("level DOUBLE, n INT, at TIMESTAMP", event_time="at", delay="1 minute"),
        versions=TestStream("level DOUBLE, v INT, since TIMESTAMP", event_time="since", delay="0 seconds",
                            idle_after="2 minutes"),
    )  # fmt: skip
    for minute in range(minutes):
        if minute % 4 < 2:
            script = script.rows("versions", [_row(random, minute, "v", "since") for _ in range(random.randint(3, 6))])
        elif minute % 4 == 2:
            script = script.delete("versions", [_row(random, minute, "v", "since")]).now(at(minute))
        script = script.rows("rows", [_row(random, minute, "n", "at") for _ in range(random.randint(4, 8))])
        script = script.kill() if kills and minute % 3 == 2 else script
    script = script.now(at(minutes + 60)) if kills else script
    return script.watermark("versions", at(minutes + 60)).watermark("rows", at(minutes + 60))


# Both ways


@dataclass
class Told:
    """What an operator gave: its columns, and of each step its changes as text, in any order but that of each key and
    window."""

    schema: str = ""
    steps: list[Counter[str]] = field(default_factory=list)


def alone(script: Any, operator: Operator) -> tuple[Told, TestResults]:
    """Without Spark."""
    found = Told()

    def kept(*rows: Any, **streams: Any) -> Any:
        given = operator(*rows, **streams)
        found.schema = found.schema or _columns(columns_of(given))
        return given

    results = script.run(kept)
    found.steps = [_step(step) for step in results.batches]
    return found, results


def together(script: Any, operators: Mapping[str, Operator], spark: Any) -> tuple[dict[str, Told], TestResults]:
    """All of them in one flow on Spark: a row of any operator is text."""
    from pyspark.sql import functions as F

    found = {name: Told() for name in operators}
    exactly = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}

    def united(*rows: Any, **streams: Any) -> Any:
        parts = []
        for name, operator in operators.items():
            given = operator(*rows, **streams)
            found[name].schema = found[name].schema or _columns(columns_of(given))
            row = F.struct(*[F.col(column) for column in given.columns if column != "record"])
            # Not all of them have a watermark.
            record = F.struct(
                *[F.col("record")[at].alias(at) for at in ("partition", "offset", "appended_at", "change")]
            )
            parts.append(
                given.select(F.lit(name).alias("of"), F.to_json(row, exactly).alias("row"), record.alias("record"))
            )
        return reduce(lambda one, other: one.unionByName(other), parts)

    results = script.run_on_spark(united, spark)
    for name, told in found.items():
        told.steps = [
            _step([(change, json.loads(row["row"])) for change, row in step if row["of"] == name])
            for step in results.batches
        ]
    return found, results


def told_late(*results: TestResults) -> Counter[str]:
    """The rows that were set aside; behind a stage the place of a row is that in a bucket."""
    places = ("topic", "partition", "offset", "missed_partition", "missed_offset")
    rows = [row for one in results for row in one.late]
    return Counter(
        str({name: _plain(value) for name, value in sorted(row.items()) if name not in places}) for row in rows
    )


def _columns(schema: pa.Schema) -> str:
    shown = [(at.name, at.type, sorted((at.metadata or {}).items())) for at in schema if at.name != "record"]
    return "\n".join(map(str, shown))


def _step(changes: list[tuple[str, dict[str, Any]]]) -> Counter[str]:
    by_key: dict[str, list[str]] = {}
    for change, row in changes:
        plain = _plain(row)
        identity = str([plain.get(name) for name in KEYS if name in plain])
        by_key.setdefault(identity, []).append(f"{change} {plain}")
    return Counter(str(told) for told in by_key.values())


def _plain(value: Any) -> Any:
    """As JSON has it. 0.0 and -0.0 are one key: which of the two a result shows is that of any of its rows."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items() if name not in ("partition", "offset")}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value
