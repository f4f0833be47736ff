"""S11 without Spark: each operator, each parameter, an old value and a new one: its state goes on, or is refused.

What a stage says of itself is compared as a starting flow compares it. A parameter that is added to an operator must be in
this table, and in what the operator writes down.
"""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mainstem import operators
from mainstem.flows.checkpoint_fit import plan_changes
from mainstem.operators import (
    Process,
    after_rows,
    aggregate,
    calendar,
    compare_with,
    cumulating,
    dedupe,
    distinct,
    each_row,
    enrich,
    every,
    everything,
    hopping,
    join,
    latest,
    match,
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
from mainstem.operators.stage.engine import BatchClock
from mainstem.operators.stage.stage import Stage, StageSpec, add_stage
from mainstem.operators.stage.state_runs import MemoryState
from mainstem.operators.windows import window_kinds
from mainstem.operators.windows.window_engine import WindowEngine
from mainstem.testing import TestStream, TestStreams
from mainstem.testing.scripted_rows import ScriptedRows
from tests.operators.naive_windows import Row
from tests.operators.window_scripts import AGGREGATES, BY, panes, windowed_rows

LEFT = "id INT, store STRING, amount INT, at TIMESTAMP, sent_at TIMESTAMP"
RIGHT = "key INT, shop STRING, size INT, since TIMESTAMP, until TIMESTAMP"
WINDOWS = "store STRING, area STRING, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, sales BIGINT"

Rows = Callable[..., Any]
MINUTES = tumbling("1 minute")


class Visits(Process):
    output = "store STRING, visits BIGINT"

    @dataclass
    class State:
        visits: int = 0

    def on_rows(self, key: Any, rows: Any, state: Any, timers: Any) -> Any:
        yield {"store": key, "visits": state.visits}


class Other(Visits):
    pass


class Upgraded(Visits):
    version = 2

    @dataclass
    class State:
        visits: int = 0
        last: int = 0

    def upgrade(self, old: dict[str, Any]) -> Any:
        return self.State(**old)


Upgraded.__name__ = "Visits"


def spec_of(rows: Rows) -> StageSpec:
    """The last stage of a program over one or two scripted streams."""
    found: list[StageSpec] = []

    def through(self: ScriptedRows, spec: StageSpec, *others: ScriptedRows, name: str | None = None) -> ScriptedRows:
        found.append(spec)
        return self.through(spec, *others, name=name)

    add_stage.register(ScriptedRows, through)
    try:
        if len(inspect.signature(rows).parameters) == 1:
            stream = TestStream(WINDOWS) if rows.__name__ == "compared" else TestStream(LEFT, event_time="at")
            stream.run(rows)
        else:
            TestStreams(left=TestStream(LEFT, event_time="at"), right=TestStream(RIGHT, event_time="since")).run(rows)
    finally:
        add_stage.register(ScriptedRows, ScriptedRows.through)
    return found[-1]


def flow_of(spec: StageSpec, name: str, watermark: int | None = None) -> Any:
    entry = {
        "operator": name,
        "of": dict(spec.definition),
        "parameters": dict(spec.parameters),
        **spec.engine.describe(),
    }
    plan = {"sources": ["orders"], "watermarks": [watermark], "operators": [entry], "places": []}
    return SimpleNamespace(plan=json.loads(json.dumps(plan)), stages=[Stage(0, spec, name, ())])


def of_windows(window: Any = MINUTES, **given: Any) -> Rows:
    given = {"by": "store", "aggregates": "sum(amount) AS total"} | given
    return lambda left: windowed(left, window, **given)


def of_dedupe(**given: Any) -> Rows:
    given = {"by": "store", "within": "1 hour"} | given
    return lambda left: dedupe(left, **given)


SMALL, LARGE = step("small", "amount < 2"), step("large", "amount > 500")


def of_match(pattern: Any = SMALL.then(LARGE), **given: Any) -> Rows:  # noqa: B008 (a pattern is a value)
    given = {"by": "store", "within": "1 hour"} | given
    return lambda left: match(left, pattern, **given)


def of_table(**given: Any) -> Rows:
    given = {"key": "id"} | given
    return lambda left: table(left, **given)


def of_versions(**given: Any) -> Rows:
    given = {"key": "id", "order_by": "at"} | given
    return lambda left: versions(left, **given)


def of_top(count: int = 2, **given: Any) -> Rows:
    given = {"by": "store", "order": "amount DESC"} | given
    return lambda left: top(left, count, **given)


def of_aggregate(**given: Any) -> Rows:
    given = {"by": "store", "aggregates": "sum(amount) AS total"} | given
    return lambda left: aggregate(left, **given)


def of_process(**given: Any) -> Rows:
    given = {"by": "store", "using": Visits} | given
    return lambda left: process(left, **given)


def of_comparison(**given: Any) -> Rows:
    given = {"earlier": "7 days"} | given

    def compared(left: Any) -> Any:
        return compare_with(left, **given)

    return compared


def of_join(**given: Any) -> Rows:
    given = {"on": {"id": "key"}, "within": "1 hour"} | given
    return lambda left, right: join(left, right, **given)


def of_tables(**given: Any) -> Rows:
    given = {"on": {"id": "key"}} | given
    return lambda left, right: join(table(left, key="id"), table(right, key="key"), **given)


def of_enrich(order_by: str | None = None, **given: Any) -> Rows:
    given = {"on": {"id": "key"}} | given
    return lambda left, right: enrich(left, table(right, key="key", order_by=order_by), **given)


def all_distinct(left: Any) -> Any:
    return distinct(left)


def narrowed(left: Any) -> Any:
    names = ["id", "store", "record"]
    return left.mapped(lambda rows: rows.select(names), pa.schema([left.schema.field(name) for name in names]))


@dataclass(frozen=True)
class Change:
    """A parameter of an operator under two values, and what is said of it; empty if its state goes on without a word."""

    operator: str
    parameter: str
    old: Rows
    new: Rows
    said: str
    goes_on: bool = False


CHANGES = [
    Change("windowed", "window", of_windows(), of_windows(hopping("1 minute", slide="1 minute")), "window tumbling -> hopping"),
    Change("windowed", "by", of_windows(), of_windows(by=["store", "id"]), "by store -> store, id"),
    Change("windowed", "aggregates", of_windows(), of_windows(aggregates="max(amount) AS total"), "aggregates sum(amount) -> max(amount)"),
    Change("windowed", "on", of_windows(), of_windows(on="sent_at"), "on at -> sent_at"),
    Change("windowed", "early", of_windows(), of_windows(early=every("1 minute")), "early none -> every 1 minute"),
    Change("windowed", "early", of_windows(early=each_row()), of_windows(early=after_rows(3)), "early each row -> after 3 rows"),
    Change("windowed", "early", of_windows(early=every("1 minute")), of_windows(early=every("1 minute", since="first row")),
           "early every 1 minute -> every 1 minute since the first row"),
    Change("windowed", "late", of_windows(lateness="1 hour"), of_windows(lateness="1 hour", late=every("1 minute")), "late each row -> every 1 minute"),
    Change("windowed", "late", of_windows(lateness="1 hour"), of_windows(lateness="1 hour", late=each_row()), "", True),
    Change("windowed", "lateness", of_windows(lateness="1 hour"), of_windows(lateness="2 hours"), "lateness 1 hour -> 2 hours"),
    Change("windowed", "lateness", of_windows(lateness="1 hour"), of_windows(lateness="60 minutes"), "", True),
    Change("windowed", "results", of_windows(lateness="1 hour"), of_windows(lateness="1 hour", results="retract"), "results accumulate -> retract"),
    Change("windowed", "on_time", of_windows(), of_windows(on_time="if changed"), "on_time always -> if changed"),
    Change("tumbling", "size", of_windows(), of_windows(tumbling("5 minutes")), "size 1 minute -> 5 minutes"),
    Change("tumbling", "offset", of_windows(), of_windows(tumbling("1 minute", offset="10 seconds")), "offset 0 seconds -> 10 seconds"),
    Change("hopping", "size", of_windows(hopping("2 minutes", slide="1 minute")), of_windows(hopping("3 minutes", slide="1 minute")), "size 2 minutes -> 3 minutes"),
    Change("hopping", "slide", of_windows(hopping("2 minutes", slide="1 minute")), of_windows(hopping("2 minutes", slide="30 seconds")), "slide 1 minute -> 30 seconds"),
    Change("hopping", "offset", of_windows(hopping("2 minutes", slide="1 minute")), of_windows(hopping("2 minutes", slide="1 minute", offset="1 second")),
           "offset 0 seconds -> 1 second"),
    Change("cumulating", "size", of_windows(cumulating("1 day", step="1 hour")), of_windows(cumulating("2 days", step="1 hour")), "size 1 day -> 2 days"),
    Change("cumulating", "step", of_windows(cumulating("1 day", step="1 hour")), of_windows(cumulating("1 day", step="2 hours")), "step 1 hour -> 2 hours"),
    Change("cumulating", "offset", of_windows(cumulating("1 day", step="1 hour")), of_windows(cumulating("1 day", step="1 hour", offset="1 hour")),
           "offset 0 seconds -> 1 hour"),
    Change("calendar", "unit", of_windows(calendar("day")), of_windows(calendar("week")), "unit day -> week"),
    Change("calendar", "time_zone", of_windows(calendar("day")), of_windows(calendar("day", time_zone="Europe/Berlin")), "time_zone UTC -> Europe/Berlin"),
    Change("sliding", "span", of_windows(sliding("1 minute")), of_windows(sliding("2 minutes")), "span 1 minute -> 2 minutes"),
    Change("sessions", "gap", of_windows(sessions("1 minute")), of_windows(sessions("2 minutes")), "gap 1 minute -> 2 minutes"),
    Change("sessions", "touching", of_windows(sessions("1 minute")), of_windows(sessions("1 minute", touching="join")), "touching split -> join"),
    Change("everything", "", of_windows(everything()), of_windows(validity()), "window everything -> validity"),
    Change("validity", "", of_windows(validity()), of_windows(validity()), "", True),
    Change("dedupe", "by", of_dedupe(), of_dedupe(by="id"), "by store -> id"),
    Change("dedupe", "within", of_dedupe(), of_dedupe(within="2 hours"), "within 1 hour -> 2 hours"),
    Change("dedupe", "on", of_dedupe(), of_dedupe(on="sent_at"), "on at -> sent_at"),
    Change("dedupe", "on", of_dedupe(), of_dedupe(on="at"), "", True),
    Change("match", "pattern", of_match(), of_match(SMALL.next(LARGE)), "then large"),
    Change("match", "by", of_match(), of_match(by="id"), "by store -> id"),
    Change("match", "within", of_match(), of_match(within="2 hours"), "within 1 hour -> 2 hours"),
    Change("match", "gap", of_match(), of_match(gap="1 minute"), "gap none -> 1 minute"),
    Change("match", "measures", of_match(), of_match(measures=["large.amount AS a"]), "measures"),
    Change("match", "after_match", of_match(), of_match(after_match="next"), "after_match no skip -> next"),
    Change("match", "timeouts", of_match(), of_match(timeouts="show"), "timeouts hide -> show", True),
    Change("match", "state", of_match(), of_match(state="unbounded"), "state bounded -> unbounded", True),
    Change("match", "candidates_max", of_match(), of_match(candidates_max=7), "candidates_max 10000 -> 7", True),
    Change("match", "on", of_match(), of_match(on="sent_at"), "on at -> sent_at"),
    Change("table", "key", of_table(), of_table(key="store"), "key id -> store"),
    Change("table", "order_by", of_table(), of_table(order_by="sent_at"), "order_by none -> sent_at"),
    Change("table", "order_by", of_table(order_by="at"), of_table(order_by="sent_at"), "order_by at -> sent_at"),
    Change("table", "order_by", of_table(order_by="at"), of_table(order_by=["at", "id"]), "order_by at -> at, id"),
    Change("table", "order_by", of_table(order_by="at"), of_table(order_by="coalesce(at, sent_at)"), "order_by at -> coalesce(at, sent_at)"),
    Change("table", "delete_when", of_table(), of_table(delete_when="amount < 0"), "delete_when none -> amount < 0"),
    Change("table", "delete_when", of_table(delete_when="amount < 1"), of_table(delete_when="amount < 0"), "delete_when amount < 1 -> amount < 0"),
    Change("versions", "key", of_versions(), of_versions(key="store"), "key id -> store"),
    Change("versions", "order_by", of_versions(), of_versions(order_by="sent_at"), "order_by at -> sent_at"),
    Change("versions", "delete_when", of_versions(), of_versions(delete_when="amount < 0"), "delete_when none -> amount < 0"),
    Change("versions", "track", of_versions(), of_versions(track="store"), "track none -> store"),
    Change("versions", "track", of_versions(track=["store"]), of_versions(track="store"), "", True),
    Change("top", "count", of_top(), of_top(3), "count 2 -> 3"),
    Change("top", "by", of_top(), of_top(by=()), "by store -> none"),
    Change("top", "order", of_top(), of_top(order="amount"), "order "),
    Change("aggregate", "by", of_aggregate(), of_aggregate(by=("store", "id")), "by store -> store, id"),
    Change("aggregate", "aggregates", of_aggregate(), of_aggregate(aggregates="count(*) AS total"), "aggregates sum(amount) -> count("),
    Change("distinct", "", all_distinct, lambda left: distinct(narrowed(left)), "by id, store, amount, at, sent_at -> id, store"),
    Change("process", "by", of_process(), of_process(by="id"), "by store -> id"),
    Change("process", "using", of_process(), of_process(using=Other), "using Visits -> Other"),
    Change("process", "using", of_process(), of_process(using=Upgraded), "version 1 -> 2", True),
    Change("compare_with", "earlier", of_comparison(), of_comparison(earlier="1 day"), "earlier 7 days -> 1 day"),
    Change("compare_with", "by", of_comparison(), of_comparison(by="store"), "by store, area -> store"),
    Change("compare_with", "lateness", of_comparison(), of_comparison(lateness="1 hour"), "lateness 0 seconds -> 1 hour"),
    Change("join", "on", of_join(), of_join(on={"store": "shop"}), "on id = key -> store = shop"),
    Change("join", "within", of_join(), of_join(within="2 hours"), "within 1 hour before, 1 hour after -> 2 hours before, 2 hours after"),
    Change("join", "within", of_join(), of_join(within=("1 hour", "2 hours")), "within 1 hour before, 1 hour after -> 1 hour before, 2 hours after"),
    Change("join", "how", of_join(), of_join(how="left"), "how inner -> left"),
    Change("join", "lateness", of_join(), of_join(lateness="1 hour"), "lateness 0 seconds -> 1 hour"),
    Change("join", "state", of_join(), of_join(within=None, state="unbounded"), "state bounded -> unbounded"),
    Change("join", "limit", of_join(), of_join(limit=7), "limit 10000 -> 7", True),
    Change("join", "at", of_join(), of_join(at=("sent_at", "since")), "at at, since -> sent_at, since"),
    Change("join", "at", of_join(), of_join(at=("at", "since")), "", True),
    Change("join", "on", of_tables(), of_tables(on={"store": "shop"}), "on id = key -> store = shop"),
    Change("join", "how", of_tables(), of_tables(how="left"), "how inner -> left"),
    Change("join", "limit", of_tables(), of_tables(limit=7), "limit none -> 7", True),
    Change("enrich", "table", of_enrich(), of_enrich("until"), "table valid from since -> valid from until"),
    Change("enrich", "on", of_enrich(), of_enrich(on={"amount": "key"}), "on id = key -> amount = key"),
    Change("enrich", "at", of_enrich(), of_enrich(at="sent_at"), "at at -> sent_at"),
    Change("enrich", "at", of_enrich(), of_enrich(at=latest()), "at at -> latest"),
    Change("enrich", "wait", of_enrich(), of_enrich(wait="1 minute"), "wait none -> 1 minute"),
    Change("enrich", "wait", of_enrich(wait="1 minute"), of_enrich(), "wait 1 minute -> none"),
    Change("enrich", "wait", of_enrich(wait="1 minute"), of_enrich(wait="2 minutes"), "wait 1 minute -> 2 minutes"),
    Change("enrich", "corrections", of_enrich(), of_enrich(corrections="re-emit"), "corrections ignore -> re-emit"),
    Change("enrich", "lateness", of_enrich(), of_enrich(lateness="1 hour"), "lateness 1 day -> 1 hour"),
    Change("enrich", "how", of_enrich(), of_enrich(how="inner"), "how left -> inner"),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change.operator}.{change.parameter}: {change.said}")
def test_a_parameter_that_changed_goes_on_or_is_refused(change: Change) -> None:
    old, new = flow_of(spec_of(change.old), "stage-0"), flow_of(spec_of(change.new), "stage-0")
    assert plan_changes(old.plan, old) == []
    changes = plan_changes(old.plan, new)
    assert any(change.said in found.text for found in changes) if change.said else changes == []
    assert all(found.taken for found in changes) == change.goes_on
    halves = [tuple(found.text.split(" -> ")) for found in changes]
    assert all(len(half) == 2 and not half[0].endswith(half[1]) for half in halves), changes


def test_a_checkpoint_from_before_a_parameter_goes_on_without_it() -> None:
    for given in ({}, {"order_by": "at"}):
        old, now = (flow_of(spec_of(of_table(**given)), "stage-0") for _ in range(2))
        del old.plan["operators"][0]["parameters"]["delete_when"]
        assert plan_changes(old.plan, now) == []
        deleting = flow_of(spec_of(of_table(delete_when="amount < 0", **given)), "stage-0")
        assert [change.taken for change in plan_changes(old.plan, deleting)] == [False]


# What goes in and how a stage is called: renamed, it is another one.
NOT_PARAMETERS = {"rows", "left", "right", "changes", "name"}
# These keep nothing.
STATELESS = {"clock_corrected", "late_rows", "on_time_rows"}
# What these are is said by what they are given to.
VALUES = {"after_rows", "both", "each_row", "either", "every", "first_of", "group", "latest", "step"}


def functions() -> dict[str, set[str]]:
    """Every public operator and kind of window with its parameters."""
    found = {name: getattr(operators, name) for name in operators.__all__}
    return {
        name: set(inspect.signature(function).parameters) - NOT_PARAMETERS
        for name, function in found.items()
        if inspect.isfunction(function) and name not in STATELESS | VALUES
    }


def test_every_parameter_of_every_operator_is_in_the_table() -> None:
    known: dict[str, set[str]] = {}
    for change in CHANGES:
        known.setdefault(change.operator, set()).update({change.parameter} - {""})
    assert known == functions()


def test_every_parameter_is_written_down() -> None:
    kinds = {
        at.name for kind in vars(window_kinds).values() if hasattr(kind, "__dataclass_fields__") for at in fields(kind)
    }
    of_operators = {name: given for name, given in functions().items() if name not in dir(window_kinds)}
    for name, given in of_operators.items():
        specs = [spec_of(change.old) for change in CHANGES if change.operator == name]
        assert set(specs[0].parameters) - (kinds - given) == given, name
        assert specs[0].changeable <= given
    for change in CHANGES:
        if change.operator in dir(window_kinds):
            assert {change.parameter} - {""} <= set(spec_of(change.old).parameters)


def test_a_longer_watermark_is_refused_where_state_was_evicted_by_it() -> None:
    timed, timeless = spec_of(of_windows()), spec_of(of_table())
    minute = 60_000_000
    for spec, old, new, taken in (
        (timed, minute, 2 * minute, False),
        (timed, None, minute, False),
        (timed, minute, None, False),
        (timed, 2 * minute, minute, True),
        (timeless, minute, 2 * minute, True),
    ):
        [change] = plan_changes(flow_of(spec, "stage-0", old).plan, flow_of(spec, "stage-0", new))
        assert change.taken == taken
    [change] = plan_changes(flow_of(timed, "s", minute).plan, flow_of(timed, "s", 2 * minute))
    assert change.text == "orders: watermark 1 minute -> 2 minutes"


def test_what_an_older_mainstem_did_not_write_down_fits() -> None:
    new = flow_of(spec_of(of_enrich(wait="1 minute")), "enrich-0")
    old = json.loads(json.dumps(new.plan))
    del old["operators"][0]["parameters"], old["watermarks"]
    assert plan_changes(old, new) == []
    other = flow_of(spec_of(of_enrich(on={"amount": "key"})), "enrich-0")
    [change] = plan_changes(old, other)
    assert change == replace(change, text="enrich-0: on id = key -> amount = key", taken=False)


def test_a_stage_that_came_or_went_is_named() -> None:
    windows, distinct_rows = (
        flow_of(spec_of(of_windows()), "windowed-0"),
        flow_of(spec_of(all_distinct), "distinct-0"),
    )
    [change] = plan_changes(windows.plan, distinct_rows)
    assert (change.text, change.taken) == ("stateful operators: windowed-0 -> distinct-0", False)
    [change] = plan_changes({**windows.plan, "sources": ["payments"]}, windows)
    assert (change.text, change.taken) == ("sources: payments -> orders", False)


def test_with_a_longer_watermark_a_window_that_was_evicted_would_begin_again() -> None:
    """Why it is refused: the window holds 7 and is shown, time is set back by 10, and a row that was too late comes in."""
    engine = WindowEngine(BY, AGGREGATES)
    state = MemoryState(engine.state_schema)
    shown = []
    for rows, clock in [
        ([Row(1, 3, 0, 7, 0, 0)], BatchClock(12)),
        ([], BatchClock(2, watermark_before=12)),
        ([Row(1, 4, 1, 1, 0, 1)], BatchClock(3, watermark_before=2)),
        ([], BatchClock(10, watermark_before=3)),
    ]:
        step = engine.step(state, windowed_rows(engine, lambda time: [(0, 10)], rows), clock)
        state.apply(step)
        shown += [(pane.values[0], pane.timing, pane.index) for pane in panes(step.output)]
    assert shown == [(7, "on_time", 0), (1, "on_time", 0)]
