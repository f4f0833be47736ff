"""Cases A01, A05 and A15 through Spark: scripts as streams in lockstep, all rows in a few batches, and all rows at once.

A script of A01 has a topic and a flow of its own, since each has its own watermark and time of day; its examples are
stages side by side. Where the time of day decides, each step is waited for; those scripts with the heuristic watermark alone
are run so, since every batch costs. What has nothing but rows goes through one flow. What ends when everything has come (the
window over everything, the last of values that hold) is not shown by a stream that could go on: it is seen at once alone.

Every case runs on the engines without Spark, in tests/acceptance. Here a run of all tests has one case for each engine; the long
run has all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import zip_longest
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem import Flow, Mainstem
from mainstem.clock import as_datetime
from mainstem.errors import FlowFailed
from mainstem.log.watermark import NO_TIME
from mainstem.operators import each_row, hopping, tumbling, windowed
from mainstem.operators.stage.state_runs import StageManifests
from mainstem.operators.windows.window_kinds import WindowKind
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.sources.batch_clock import set_now
from tests.acceptance import test_team_scores as scores
from tests.acceptance import test_tutorial_windows as tutorials
from tests.acceptance import test_window_kinds as kinds
from tests.acceptance.window_script import END_OF_TIME, Shown, WindowScript, status
from tests.flows.memory_sink import MemorySink

LONG = "36500 days"
# Beyond every lateness that a case allows.
END = datetime(2036, 1, 1, tzinfo=UTC)
COLUMNS = (
    "team STRING, score INT, item STRING, price DOUBLE, title STRING, rating DOUBLE, key STRING, reading INT, ip STRING, "
    "case STRING, at TIMESTAMP"
)
# The rows it is over, the windows, and what is asked of them.
Program = tuple[str, WindowKind, dict[str, Any]]
OFFSET = kinds.CASE["offset"]
HELD = re.findall(r"(\d\d:\d\d:\d\d)\.\.(\d\d:\d\d:\d\d)", kinds.CASE["ddia_windows"])

ROWS: dict[str, WindowScript] = {
    "bids": kinds.script_of(kinds.BIDS),
    "session bids": kinds.script_of(kinds.SESSION_BIDS),
    "ratings": tutorials.rating_script(),
    "readings": tutorials.reading_script(),
    "clicks": tutorials.click_script(),
    "scores": scores.rendered(scores.SCORES, watermarks=False),
    "session scores": scores.session_script(),
    "offset": kinds.script_of([[OFFSET["record"].partition(" ")[2], 1.0, "A"]]),
    # The first and the last moment of each window in the book.
    "held": kinds.script_of([[at, 1.0, str(place)] for place, ends in enumerate(HELD) for at in ends]),
    "batch": scores.script_of("batch"),
}
PRICES = {"aggregates": "sum(price) AS total"}
BIDS = {"by": "item", "aggregates": "count(*) AS bids"}
EACH = {**scores.TOTAL, "early": each_row()}
PROGRAMS: dict[str, Program] = {
    "tumble_10m": ("bids", kinds.TUMBLE, PRICES),
    "hop_size10m_slide5m": ("bids", kinds.HOP, PRICES),
    "cumulate_step2m_max10m": ("bids", kinds.CUMULATE, PRICES),
    "hop_size10m_slide5m of items": ("bids", kinds.HOP, BIDS),
    "cumulate_step2m_max10m of items": ("bids", kinds.CUMULATE, BIDS),
    "per_item": ("session bids", kinds.SESSION, {"by": "item", **PRICES}),
    "no_key": ("session bids", kinds.SESSION, PRICES),
    "counts": ("ratings", tutorials.SIX_HOURS, tutorials.COUNTED),
    "alerts": ("readings", tutorials.TEN_BY_FIVE, tutorials.READINGS),
    "clicks": ("clicks", tutorials.sessions(tutorials.GAP), tutorials.CLICKED),
    "per record": ("scores", tumbling("2 minutes"), EACH),
    "sessions": ("session scores", scores.TOUCHING, {**EACH, "results": "retract"}),
}


def rows_of(case: str, script: WindowScript) -> list[dict[str, Any]]:
    return [{**step.row, "case": case} for step in script.steps if step.row]


def together(rows: DataFrame, programs: dict[str, Program]) -> DataFrame:
    """All programs side by side, each over the rows of its own case."""
    found = []
    for place, (title, (case, window, asked)) in enumerate(programs.items()):
        mine = windowed(rows.where(F.col("case") == case), window, **asked, name=f"program_{place}")
        found.append(mine.withColumn("program", F.lit(title)))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), found)


def shown(rows: Iterable[dict[str, Any]], program: str) -> list[Shown]:
    """What a program put out, in its order."""
    return [
        Shown(None, row["record"]["change"], {name: _plain(value) for name, value in row.items() if name != "record"})
        for row in rows
        if row["program"] == program
    ]


def committed(sink: MemorySink) -> list[dict[str, Any]]:
    """Everything that a sink was given, in the order of batches."""
    return [row for _, attempts in sorted(sink.attempts.items()) for row in attempts[-1]]


def _plain(value: Any) -> Any:
    """Sums of whole numbers became decimal ones, beside sums of prices in one column."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def until_idle(stem: Mainstem, flows: Any, running: Any) -> Any:
    """Wait; where a flow fails, start all of them again."""
    while True:
        try:
            running.wait_until_idle()
        except FlowFailed:
            running.stop()
            running = stem.start(flows)
        else:
            return running


# Rows alone


def spans(rows: list[dict[str, Any]]) -> list[Any]:
    return sorted([*kinds.span(row), row["total"]] for row in rows)


def assignments(rows: list[dict[str, Any]], told: Callable[[dict[str, Any]], Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row["item"], []).append(told(row))
    return {item: sorted(of) for item, of in found.items()}


# What stands of a program when everything has come, and what the case says of it.
STANDING: dict[str, tuple[Callable[[list[dict[str, Any]]], Any], Any]] = {
    **{name: (spans, kinds.CASE[name]["sum"]) for name in ("tumble_10m", "hop_size10m_slide5m", "cumulate_step2m_max10m")},
    "hop_size10m_slide5m of items": (
        lambda rows: assignments(rows, kinds.span), kinds.CASE["hop_size10m_slide5m"]["assignments"],
    ),
    "cumulate_step2m_max10m of items": (
        lambda rows: assignments(rows, lambda row: kinds.span(row)[1]), kinds.CASE["cumulate_step2m_max10m"]["assignments"],
    ),
    "per_item": (
        lambda rows: sorted([row["item"], *kinds.span(row), row["total"]] for row in rows),
        kinds.CASE["session_gap5m"]["per_item"],
    ),
    "no_key": (spans, kinds.CASE["session_gap5m"]["no_key"]),
    "sessions": (
        lambda rows: sorted([row["total"], _window_of(row)] for row in rows), sorted(scores.SESSIONS["final_table"]),
    ),
}  # fmt: skip


def check_what_stands(given: list[dict[str, Any]], programs: Collection[str]) -> None:
    for name in STANDING.keys() & set(programs):
        found, expected = STANDING[name]
        assert found(status(shown(given, name))) == expected, name


def _window_of(row: dict[str, Any]) -> Any:
    return scores.window_text((row["window"]["start"], row["window"]["end"]))


# What a program shows of each row when it comes, and what the case says of it. Rows of different keys have no order among them.
UPDATES: dict[str, tuple[Callable[[list[Shown]], Any], Any]] = {
    "counts": (lambda early: sorted(tutorials.counted(at.row) for at in early), sorted(tutorials.EXPECTED)),
    "alerts": (
        lambda early: sorted(tutorials.alerts([at.row for at in early]), key=lambda alert: (alert[3], alert[0])),
        tutorials.LOW,
    ),
    "clicks": (
        lambda early: sorted((tutorials.clicked(at.row, at.change) for at in early), key=str),
        sorted(tutorials.UPDATES, key=str),
    ),
    "per record": (
        lambda early: sorted([at.row["total"], scores.window_text(at.window)] for at in early),
        sorted(row[:2] for row in scores.RENDERING["per_record_trigger_accumulating"]),
    ),
    "sessions": (
        lambda early: sorted([at.row["total"], scores.window_text(at.window), at.change == "delete"] for at in early),
        sorted([*row[:2], row[-1] == "undo"] for row in scores.SESSIONS["accumulating_and_retracting"]),
    ),
}


def check_updates(given: list[dict[str, Any]], programs: Collection[str]) -> None:
    for name in UPDATES.keys() & set(programs):
        found, expected = UPDATES[name]
        assert found(shown(given, name)) == expected, name


def check_offsets(given: list[dict[str, Any]]) -> None:
    for offset in OFFSETS:
        [row], expected = status(shown(given, offset)), OFFSET["expected"][offset]
        # The bids are of another day than the record of the case.
        wanted = [at.partition(" ")[2] for at in expected]
        assert [row["window"][name].strftime("%H:%M:%S") for name in ("start", "end")] == wanted
    for name, places in HELD_IN.items():
        found = {(row["item"], row["window"]["start"]): row for row in status(shown(given, name)) if row["bids"] == 2}
        for place in places:
            first, last = map(kinds.moment, HELD[place])
            assert found[str(place), first]["window"]["end"] == last + timedelta(seconds=1)


def examples(*scripts: str) -> dict[str, Program]:
    """The examples of some scripts of A01."""
    return {
        name: (example["script"], scores.window_of(example["windowing"]), scores.asked(example))
        for name, example in scores.EXAMPLES.items()
        if example["script"] in scripts
    }


# Of seven, whose arithmetic is the same.
OFFSETS = ("-16m", "0", "6m")
HELD_IN = {"minute": range(1), "five minutes": range(1, len(HELD))}


def at_once_alone() -> dict[str, Program]:
    """What a batch says as well as a stream."""
    offsets = {offset: offset.replace("m", " minutes") if offset != "0" else "0 seconds" for offset in OFFSETS}
    return {
        **{name: ("offset", tumbling("10 minutes", offset=offset), BIDS) for name, offset in offsets.items()},
        "minute": ("held", tumbling("1 minute"), BIDS),
        "five minutes": ("held", hopping("5 minutes", slide="1 minute"), BIDS),
        **examples("batch"),
    }


def test_every_program_of_rows_alone_is_checked() -> None:
    assert STANDING.keys() | UPDATES.keys() == PROGRAMS.keys()


# Windows that overlap, windows of which every row is shown, and sessions of which every row is shown and taken back.
EVERY_RUN = ("hop_size10m_slide5m", "counts", "sessions")


@pytest.mark.thorough
@pytest.mark.usefixtures("one_bucket")
@pytest.mark.parametrize(
    ("programs", "more"),
    [
        pytest.param({name: PROGRAMS[name] for name in EVERY_RUN}, {}, id="some"),
        pytest.param(PROGRAMS, at_once_alone(), marks=pytest.mark.long, id="all"),
    ],
)
def test_cases_of_rows_alone_in_a_stream_and_at_once(
    stem: Mainstem, programs: dict[str, Program], more: dict[str, Program]
) -> None:
    topic = stem.create_topic("rows", schema=COLUMNS, event_time="at", partitions=1, idle_after=LONG, ahead_max=LONG)
    cases = [rows_of(case, script) for case, script in ROWS.items()]
    rows = [row for step in zip_longest(*cases) for row in step if row is not None]
    # The second batch fails when its state is written, and is done again.
    sink = MemorySink("shown", failing={1})

    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(together(stem.topic("rows").stream(watermark=LONG), programs), into=sink)

    running = stem.start(flows)
    for part in (rows[:20], rows[20:]):
        topic.append(part)
        running = until_idle(stem, flows, running)
    assert not sink.failing
    check_updates(committed(sink), programs)
    stem.producer("end").declare_watermark("rows", END)
    until_idle(stem, flows, running).stop()
    check_what_stands(committed(sink), programs)
    at_once = together(topic.read(), programs | more).toArrow().to_pylist()
    check_what_stands(at_once, programs)
    if more:
        check_offsets(at_once)
        check_totals(at_once, "batch")


# Scripts


def check_totals(at_once: list[dict[str, Any]], script: str) -> None:
    """What all rows at once come to."""
    for name, (_, _, asked) in examples(script).items():
        discards = asked["results"] == "discard"
        panes = shown(at_once, name)
        totals: dict[str, int] = {}
        for row in [at.row for at in panes] if discards else status(panes):
            text = str(_window_of(row))
            totals[text] = totals.get(text, 0) + row["total"]
        assert totals == scores.last_totals(scores.EXAMPLES[name]["expected"], discards=discards), name


class Lockstep:
    """Scripts beside each other: a topic and a flow for each, whose clock the script moves."""

    def __init__(self, stem: Mainstem, title: str, programs: dict[str, dict[str, Program]], steps: int) -> None:
        """`steps`: how many are done before the flows are waited for."""
        self.stem = stem
        self.steps = steps
        self.programs = programs
        self.scripts = {script: scores.script_of(script) for script in programs}
        self.producer = stem.producer(title)
        # The fourth batch of one fails when its state is written, and is done again.
        self.sinks = {script: MemorySink(f"{title}_{script}") for script in programs}
        next(iter(self.sinks.values())).failing.add(3)
        settings: dict[str, Any] = {"event_time": "at", "partitions": 1, "idle_after": LONG, "ahead_max": LONG}
        self.topics = {
            script: stem.create_topic(f"{title}_rows_{script}", schema=COLUMNS, **settings) for script in programs
        }

    def flows(self, stem: Mainstem) -> Iterator[Flow]:
        for script, sink in self.sinks.items():
            rows = stem.topic(self.topics[script].name).stream(watermark=LONG)
            yield Flow(together(rows, self.programs[script]), into=sink)

    def run(self) -> dict[str, list[dict[str, Any]]]:
        """What each script put out."""
        for script, content in self.scripts.items():
            self._set_now(script, content.steps[0].now)
        running = self.stem.start(self.flows)
        rounds = list(zip_longest(*(script.steps for script in self.scripts.values())))
        for place, steps in enumerate(rounds):
            # What was due before everything had come is shown before.
            if place % self.steps == 0 or END_OF_TIME in (step.watermark for step in steps if step is not None):
                running = until_idle(self.stem, self.flows, running)
            for script, step in zip(self.scripts, steps, strict=True):
                if step is not None:
                    self._do(script, step)
        until_idle(self.stem, self.flows, running).stop()
        assert not any(sink.failing for sink in self.sinks.values())
        return {script: committed(sink) for script, sink in self.sinks.items()}

    def _do(self, script: str, step: Any) -> None:
        if step.row is not None:
            self.topics[script].append([{**step.row, "case": script}])
        self._set_now(script, step.now)
        if step.watermark == END_OF_TIME:
            self.producer.declare_watermark(self.topics[script].name, END)
        elif step.watermark != NO_TIME:
            self.producer.declare_watermark(self.topics[script].name, as_datetime(step.watermark))

    def _set_now(self, script: str, now: int) -> None:
        set_now(StageManifests(FlowStore(self.stem.home, self.sinks[script].name).checkpoint(1)).folder, now)

    def at_once(self) -> list[dict[str, Any]]:
        """What all rows of each script come to, for all of its examples."""
        found = [together(self.topics[script].read(watermark=LONG), examples(script)) for script in self.programs]
        return reduce(DataFrame.unionByName, found).toArrow().to_pylist()  # type: ignore[no-any-return]


def check_panes(given: dict[str, list[dict[str, Any]]], programs: dict[str, dict[str, Program]]) -> None:
    for script, rows in given.items():
        for name in programs[script]:
            expected = [pane for pane in scores.EXAMPLES[name]["expected"] if pane["window"][1] != "+inf"]
            assert scores.panes(shown(rows, name)) == sorted(map(scores._ordered, expected), key=str), name


def by_the_clock(name: str) -> bool:
    """Whether the time of day has a part in what is shown."""
    return "first element in pane" in scores.EXAMPLES[name]["trigger"]


# Every row and every watermark is a batch of its own. Panes by the clock are in every run in test_windowed_naive.py.
@pytest.mark.long
@pytest.mark.usefixtures("one_bucket")
def test_panes_of_scripts_that_go_by_the_clock(stem: Mainstem) -> None:
    programs = {
        script: {name: of for name, of in examples(script).items() if by_the_clock(name)}
        for script in ("heuristic", "heuristic_extra_six")
    }
    lockstep = Lockstep(stem, "clocked", programs, steps=1)
    check_panes(lockstep.run(), programs)
    at_once = lockstep.at_once()
    for script in programs:
        check_totals(at_once, script)


@pytest.mark.thorough
@pytest.mark.usefixtures("one_bucket")
@pytest.mark.parametrize(
    "scripts",
    [
        # Fixed windows, and values that hold until the next one.
        pytest.param(("perfect",), id="some"),
        pytest.param(("batch_stream", "perfect", "heuristic"), marks=pytest.mark.long, id="all"),
    ],
)
def test_panes_of_scripts_that_any_batches_show(stem: Mainstem, scripts: tuple[str, ...]) -> None:
    programs = {
        script: {name: of for name, of in examples(script).items() if not by_the_clock(name)} for script in scripts
    }
    lockstep = Lockstep(stem, "any", programs, steps=10)
    check_panes(lockstep.run(), programs)
    at_once = lockstep.at_once()
    for script in {"batch_stream", "perfect"} & set(scripts):
        check_totals(at_once, script)
