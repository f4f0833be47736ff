"""process: a user's own operator, its state, its timers, and what it says when it goes wrong."""

import random
import re
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from mainstem.errors import FlowFailed, Invalid, Unavailable
from mainstem.operators.process import process
from mainstem.operators.processes.process_class import Process
from mainstem.operators.processes.process_engine import ProcessEngine
from mainstem.operators.processes.process_state import StateText, Timers
from mainstem.operators.stage.engine import NEVER, BatchClock
from mainstem.operators.stage.state_runs import MemoryState
from mainstem.testing import TestStream
from tests.operators.counted_process import Counted, Raised, Renamed, SameUpgraded, Upgraded, in_place
from tests.operators.visits import PAGES, Visits, at, page

SCRIPT = TestStream(PAGES, event_time="at")


def visits(rows):
    return process(rows, by="user", using=Visits)


def test_rows_are_kept_in_state_until_a_timer_goes_off():
    script = (
        SCRIPT.rows([page("ada", "/", 0), page("bob", "/", 1)])
        .rows([page("ada", "/cart", 3)])
        .watermark(at(6))
        .watermark(at(8))
    )

    results = script.run(visits)

    bob = {"user": "bob", "pages": ["/"], "closed_at": at(6)}
    ada = {"user": "ada", "pages": ["/", "/cart"], "closed_at": at(8)}
    assert [[row for _, row in batch] for batch in results.batches] == [[], [], [bob], [ada]]
    # Nothing is left of a key whose state is as at first and that waits for nothing.
    assert results.state_rows == {"process-1": 0}


def test_a_timer_goes_off_before_the_row_whose_watermark_reached_it_and_after_those_before():
    # The rows of one append know the watermark from before it; "/b" comes when five past is known to be over.
    script = SCRIPT.rows([page("ada", "/", 0)]).watermark(at(5)).rows([page("ada", "/b", 6)]).watermark(at(20))

    for batches in ("scripted", "single rows", "one"):
        closed = [(row["pages"], row["closed_at"]) for row in script.run(visits, batches=batches).rows]
        assert closed == [(["/"], at(5)), (["/b"], at(11))], batches


def test_a_timer_set_by_a_row_ends_the_run_of_rows_before_the_next_one():
    class Echo(Process):
        output = "said STRING"

        @dataclass
        class State:
            seen: int = 0

        def on_rows(self, key, rows, state, timers):
            for row in rows:
                state.seen += 1
                timers.set_event("echo", row["at"])
                yield {"said": row["page"]}

        def on_timer(self, key, name, at, state, timers):
            yield {"said": f"{name} after {state.seen}"}

    script = SCRIPT.watermark(at(5)).rows([page("ada", "a", 1), page("ada", "b", 1), page("ada", "c", 9)])

    for batches in ("scripted", "single rows"):
        said = [
            row["said"] for row in script.run(lambda rows: process(rows, by="user", using=Echo), batches=batches).rows
        ]
        assert said == ["a", "echo after 1", "b", "echo after 2", "c"]


class Ping(Process):
    output = "user STRING, said STRING"

    @dataclass
    class State:
        pings: int = 0

    def on_rows(self, key, rows, state, timers):
        for row in rows:
            timers.set_processing(row["page"], timers.now + timedelta(minutes=row["at"].minute))

    def on_timer(self, key, name, at, state, timers):
        state.pings += 1
        yield {"user": key, "said": f"{name} at {at:%H:%M}, ended {timers.ended}"}


def test_timers_of_the_clock_go_off_by_time_then_name_over_all_keys_and_without_rows():
    script = (
        SCRIPT.now(at(0))
        .rows([page("ada", "late", 9), page("ada", "y", 3), page("bob", "x", 3), page("ada", "first", 1)])
        .now(at(4))
        .kill()
        .now(at(10))
    )

    results = script.run(lambda rows: process(rows, by="user", using=Ping))

    assert [[row["said"] for _, row in batch] for batch in results.batches[2:]] == [
        ["first at 12:01, ended False", "x at 12:03, ended False", "y at 12:03, ended False"],
        ["late at 12:09, ended False"],
    ]


def engine_of(using, **changes):
    output = pa.schema({"user": pa.string(), "said": pa.string()})
    return ProcessEngine(using, (pa.field("by_0", pa.string()),), output, StateText(using.State), **changes)


def input_rows(*rows):
    """Rows of one partition: (key, row)."""
    count = len(rows)
    record = pa.array([row for _, row in rows])
    return pa.table(
        {
            "group": pa.array([len(key) for key, _ in rows], pa.int64()),
            "check": pa.array([ord(key[0]) for key, _ in rows], pa.int64()),
            "by_0": [key for key, _ in rows],
            "partition": np.zeros(count, np.int32),
            "offset": np.arange(count),
            "tie": np.zeros(count, np.int64),
            "time": np.zeros(count, np.int64),
            "watermark": np.full(count, -(2**63)),
            "row": record,
        }
    )


def test_keys_whose_hashes_meet_are_told_apart_by_the_second_hash():
    # "ada" and "bob" are one group here.
    engine = engine_of(Ping)
    state = MemoryState(engine.state_schema)
    now = 12 * 3_600_000_000
    rows = input_rows(("ada", {"page": "p", "at": at(1)}), ("bob", {"page": "p", "at": at(1)}))
    state.apply(engine.step(state, rows, BatchClock(now=now)))
    # A key's row and its timer, for both.
    assert len(set(state.rows["item"].to_pylist())) == 4

    step = engine.step(state, rows.slice(0, 0), BatchClock(now=now + 3_600_000_000))

    assert step.output.column("o_0").to_pylist() == ["ada", "bob"]


def test_over_a_table_all_timers_go_off_in_order_of_time_at_the_end():
    from mainstem.operators.stage.stage_task import END_OF_TIME

    engine = engine_of(Ping, watermarked=False)
    rows = input_rows(("ada", {"page": "b", "at": at(9)}), ("bob", {"page": "a", "at": at(2)}))

    step = engine.step(MemoryState(engine.state_schema), rows, BatchClock(watermark=END_OF_TIME, now=0))

    assert step.output.column("o_1").to_pylist() == ["a at 00:02, ended True", "b at 00:09, ended True"]


@dataclass
class Place:
    name: str = ""
    tags: set[str] = field(default_factory=set)


@dataclass
class Everything:
    flag: bool = False
    count: int = 2**62
    share: float = 0.1
    text: str = 'a "quoted" ü'
    raw: bytes = b"\x00\xff"
    moment: datetime = datetime(2026, 1, 1, 12, 0, 0, 7, tzinfo=UTC)
    day: date = date(2026, 1, 31)
    span: timedelta = timedelta(days=-1, microseconds=3)
    price: Decimal = Decimal("1.50")
    nothing: int | None = None
    several: list[Place] = field(default_factory=lambda: [Place("x", {"b", "a"})])
    pair: tuple[int, str] = (1, "one")
    many: tuple[int, ...] = (1, 2, 3)
    by_name: dict[str, list[float]] = field(default_factory=lambda: {"a": [1.0, float("inf")]})
    by_pair: dict[tuple[int, int], Place] = field(default_factory=lambda: {(1, 2): Place("y")})


WRITTEN = (
    r"""{"flag":false,"count":4611686018427387904,"share":0.1,"text":"a \"quoted\" ü","raw":{"bytes":"AP8="},"""
    r""""moment":{"time":1767268800000007},"day":{"date":"2026-01-31"},"span":{"span":-86399999997},"""
    r""""price":{"decimal":"1.50"},"nothing":null,"""
    r""""several":{"list":[{"fields":{"name":"x","tags":{"list":["a","b"]}}}]},"pair":{"list":[1,"one"]},"""
    r""""many":{"list":[1,2,3]},"by_name":{"dict":[["a",{"list":[1.0,Infinity]}]]},"""
    r""""by_pair":{"dict":[[{"list":[1,2]},{"fields":{"name":"y","tags":{"list":[]}}}]]}}"""
)


def test_every_type_that_a_state_may_have_comes_back_as_it_was():
    text = StateText(Everything)

    # Both before and after it is sent to a worker.
    for here in (text, cloudpickle.loads(cloudpickle.dumps(text))):
        assert here.write(Everything()) == WRITTEN
        assert here.read(WRITTEN) == Everything()


def test_types_are_found_where_the_module_of_a_state_is_not():
    # As in Spark's workers, for a program that is a file.
    program = ModuleType("program")
    source = """
from __future__ import annotations
from dataclasses import dataclass, field
from datetime import date

@dataclass
class Day:
    at: date = date(2026, 1, 1)

@dataclass
class State:
    days: list[Day] = field(default_factory=lambda: [Day()])
"""
    exec(source, sys.modules.setdefault("program", program).__dict__)
    text = StateText(program.State)
    del sys.modules["program"]

    assert text.read(text.write(program.State())) == program.State()
    assert text.described == {"days": "list[Day(at: date)]"}


@dataclass
class WrongType:
    thing: object = None


@dataclass
class NoDefault:
    thing: int


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (WrongType, 'field "thing" of WrongType has a type that cannot be stored: object'),
        (NoDefault, 'field "thing" of State has no default'),
        (int, 'State "int" is not a dataclass'),
    ],
)
def test_a_state_that_could_not_be_kept_is_refused_while_building(state, says):
    with pytest.raises(Invalid, match=says):
        StateText(state)


@pytest.mark.parametrize(
    ("wrong", "says", "declared"),
    [
        ({"count": 1.5}, 'field "count" of the state is 1.5', "int"),
        ({"count": True}, 'field "count" of the state is True', "int"),
        ({"share": "x"}, "field \"share\" of the state is 'x'", "float"),
        ({"day": datetime(2026, 1, 1, tzinfo=UTC)}, 'field "day" of the state is datetime', "date"),
        ({"nothing": "x"}, "field \"nothing\" of the state is 'x'", "int | None"),
        ({"several": [Place(name=None)]}, 'field "several.name" of the state is None', "str"),
        ({"several": [1]}, 'field "several" of the state is 1', "Place"),
        ({"several": ()}, 'field "several" of the state is ()', "Place]"),
        ({"many": (1, 2.0)}, 'field "many" of the state is 2.0', "int"),
        ({"pair": (1,)}, 'field "pair" of the state is (1,)', "tuple[int, str]"),
        ({"by_name": []}, 'field "by_name" of the state is []', "dict[str, list[float]]"),
    ],
)
def test_a_value_that_is_not_of_the_declared_type_is_refused_before_it_is_kept(wrong, says, declared):
    with pytest.raises(Invalid, match=re.escape(says)) as caught:
        StateText(Everything).write(Everything(**wrong))

    assert re.search(rf"declared as .*{re.escape(declared)}\.", caught.value.detail)


def test_timers_know_the_next_one_however_they_are_moved():
    chance = random.Random(7)
    timers = Timers({}, BatchClock(now=0))
    for _ in range(2_000):
        name, minute = chance.choice("abcd"), chance.randrange(6)
        match chance.choice(["event", "processing", "cancel"]):
            case "event":
                timers.set_event(name, at(minute))
            case "processing":
                timers.set_processing(name, at(minute))
            case "cancel":
                timers.cancel(name)
        waiting = [timer.at for timer in timers.by_name.values() if timer.kind == "event"]
        assert timers.next_event == min(waiting, default=NEVER)


class Hoarder(Process):
    """Keeps the iterator of the first call, and takes one row in each call."""

    output = "user STRING, said STRING"

    @dataclass
    class State:
        calls: int = 0

    kept = None

    def on_rows(self, key, rows, state, timers):
        state.calls += 1
        taken = iter(rows)
        stale = list(self.kept or ())
        self.kept = taken
        yield {"user": key, "said": f"{next(taken)['page']} and {len(stale)}"}


def test_rows_that_a_call_leaves_come_in_the_next_one_and_not_in_its_iterator():
    script = SCRIPT.rows([page("ada", "a", 0), page("bob", "b", 0), page("ada", "c", 0)])

    results = script.run(lambda rows: process(rows, by="user", using=Hoarder))

    assert [row["said"] for row in results.rows] == ["a and 0", "c and 0", "b and 0"]


class Failing(Process):
    output = "user STRING"

    @dataclass
    class State:
        count: int = 0

    def on_rows(self, key, rows, state, timers):
        for row in rows:
            if row["page"] == "down":
                raise Unavailable("the shop is closed")
            yield {"extra": {"user": key, "x": 1}, "number": {"user": 7}}.get(row["page"], {"user": key})
            if row["page"] == "bad":
                raise ValueError("no such page")


def failing(script):
    return script.run(lambda rows: process(rows, by="user", using=Failing))


def test_what_user_code_raises_names_the_key_the_row_and_the_line():
    with pytest.raises(FlowFailed, match="process \"Failing\" failed in on_rows for the key 'ada'") as caught:
        failing(SCRIPT.rows([page("bob", "/", 0), page("ada", "/", 0), page("ada", "bad", 0), page("ada", "/", 0)]))

    assert "ValueError: no such page (test_process.py, line " in caught.value.detail
    assert "'page': 'bad'" in caught.value.detail
    assert "partition 0, offset 2" in caught.value.detail
    assert isinstance(caught.value.__cause__, ValueError)


def test_what_may_succeed_later_is_passed_on_as_it_is():
    with pytest.raises(Unavailable, match="the shop is closed"):
        failing(SCRIPT.rows([page("ada", "down", 0)]))


def test_a_row_that_does_not_fit_the_output_is_refused():
    with pytest.raises(Invalid, match="yielded a row that does not match its output"):
        failing(SCRIPT.rows([page("ada", "extra", 0)]))
    with pytest.raises(FlowFailed, match="does not fit its output"):
        failing(SCRIPT.rows([page("ada", "number", 0)]))


def test_rows_that_are_not_taken_are_not_lost():
    class One(Process):
        output = "page STRING"

        @dataclass
        class State:
            pass

        def on_rows(self, key, rows, state, timers):
            for row in rows:
                yield {"page": row["page"]}
                break

    class Lazy(One):
        def on_rows(self, key, rows, state, timers):
            return [{"page": "none"}]

    script = SCRIPT.rows([page("ada", "a", 0), page("ada", "b", 0)])
    assert [row["page"] for row in script.run(lambda rows: process(rows, by="user", using=One)).rows] == ["a", "b"]
    with pytest.raises(Invalid, match="read none of its rows"):
        script.run(lambda rows: process(rows, by="user", using=Lazy))


def test_a_timer_that_is_set_without_end_is_stopped():
    class Loop(Ping):
        def on_timer(self, key, name, at, state, timers):
            timers.set_processing(name, at)

    script = SCRIPT.rows([page("ada", "p", 0)]).now(at(1))
    with pytest.raises(Invalid, match="sets itself again endlessly"):
        script.run(lambda rows: process(rows, by="user", using=Loop))


def test_a_timer_in_event_time_needs_a_watermark():
    script = TestStream(PAGES).rows([page("ada", "p", 0)])

    with pytest.raises(FlowFailed) as caught:
        script.run(visits)

    assert "an event-time timer would never fire" in caught.value.detail


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"by": "name"}, 'process uses the column "name", which the rows lack'),
        ({"using": object}, "is not a subclass of Process"),
        ({"using": type("Mute", (Process,), {"State": Ping.State})}, 'process "Mute" has no output'),
        (
            {"using": type("Idle", (Process,), {"output": "n INT", "State": Ping.State})},
            'process "Idle" has no on_rows',
        ),
        ({"using": type("Taken", (Ping,), {"output": "record INT"})}, 'column "record" has a reserved name'),
        ({"using": type("Timed", (Ping,), {"event_time": "at"})}, 'has the event time "at", which its output lacks'),
    ],
)
def test_mistakes_are_refused_while_building(changed, says):
    with pytest.raises(Invalid, match=says):
        SCRIPT.run(lambda rows: process(rows, **{"by": "user", "using": Ping, **changed}))


# A changed State


def test_a_changed_state_without_a_raised_version_or_an_upgrade_is_refused():
    kept = engine_of(Counted).describe()

    assert engine_of(in_place(Counted)).takes(kept)
    assert engine_of(in_place(Upgraded)).takes(kept)
    with pytest.raises(Invalid, match="does not match its stored state"):
        engine_of(in_place(Renamed)).takes(kept)
    with pytest.raises(Invalid, match="has version 2 but no upgrade"):
        engine_of(in_place(Raised)).takes(kept)
    with pytest.raises(Invalid, match="does not match its stored state"):
        engine_of(Counted).takes(engine_of(in_place(Upgraded)).describe())
    assert not engine_of(Renamed).takes(kept)


def test_what_an_older_version_kept_is_upgraded_when_its_key_is_next_touched():
    before = engine_of(Counted)
    state = MemoryState(before.state_schema)
    state.apply(before.step(state, input_rows(("ada", {}), ("ada", {}), ("grace", {})), BatchClock(now=0)))
    after = engine_of(in_place(Upgraded))

    step = after.step(state, input_rows(("ada", {})), BatchClock(now=0))
    state.apply(step)

    assert step.output.column("o_1").to_pylist() == ["1003"]
    assert sorted(zip(state.rows["version"].to_pylist(), state.rows["state"].to_pylist(), strict=True)) == [
        (1, '{"count":1}'),
        (2, '{"total":1003}'),
    ]


def test_an_upgrade_that_changes_nothing_is_kept_as_upgraded():
    before, after = engine_of(Counted), engine_of(in_place(SameUpgraded))
    state = MemoryState(before.state_schema)
    state.apply(before.step(state, input_rows(("ada", {})), BatchClock(now=0)))

    state.apply(after.step(state, input_rows(("ada", {})), BatchClock(now=0)))

    assert state.rows.select(["version", "state"]).to_pylist() == [{"version": 2, "state": '{"count":1}'}]
