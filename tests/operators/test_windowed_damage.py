"""State of windows that is damaged: refused for every kind, and made again from the log when somebody asks for it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from mainstem import Mainstem
from mainstem.clock import as_datetime, as_us
from mainstem.operators.windows.triggers import each_row
from tests.flows.batch_faults import damaged_runs, refused_as_damaged
from tests.operators.checked_kinds import KINDS, Answer
from tests.operators.naive_windows import END, FUNCTIONS, Asked
from tests.operators.window_programs import TOPIC, WindowFlow, WindowProgram, append, logged, topic_of_rows
from tests.operators.window_scripts import ORIGIN, written

# Longer than all of the rows: none is too late.
LATENESS = 10_000
ROWS = 60


def held(rows: list[dict[str, Any]]) -> dict[str, Answer]:
    """What a view shows of each program."""
    found: dict[str, Answer] = {}
    for row in rows:
        ends = [absent if at is None else as_us(at) for at, absent in _ends(row["window"])]
        values = tuple(row[name] for name in FUNCTIONS)
        found.setdefault(row["program"], {})[row["key"], (ends[0], ends[1])] = values
    return found


def _ends(window: dict[str, Any]) -> list[tuple[Any, int]]:
    return [(window["start"], -END), (window["end"], END)]


# In every run one kind of each engine.
@pytest.mark.thorough
@pytest.mark.usefixtures("one_bucket")
@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(["tumbling", "sessions", "sliding", "validity"], id="some"),
        pytest.param(list(KINDS), marks=pytest.mark.long, id="all"),
    ],
)
def test_damaged_state_is_refused_and_rebuilt_from_the_log(stem: Mainstem, kinds: list[str]) -> None:
    random = Random(7)
    asked = Asked(early=each_row(), lateness=LATENESS, results="retract")
    view = stem.view("windows", key=["program", "key", "window"])
    flow = WindowFlow(stem, [WindowProgram(kind, asked) for kind in kinds], view)
    topic_of_rows(stem)
    log = written(random, keys=8, rows=ROWS)
    append(stem, log[: ROWS // 2], random)
    stem.run(flow.flows, until="idle")
    before = held(view.to_arrow().to_pylist())
    runs = damaged_runs(flow.manifests)
    append(stem, log[ROWS // 2 :], random)
    stem.producer("end").declare_watermark(TOPIC, as_datetime(ORIGIN + LATENESS // 2))

    refused_as_damaged(stem, flow.flows, runs)
    assert held(view.to_arrow().to_pylist()) == before
    assert {folder.rpartition("/")[2] for folder, _ in runs} == {program.stage for program in flow.programs}

    with stem.rebuild("windows", flow.flows) as rebuild:
        rebuild.wait()
        rebuild.apply()
    found, rows = held(view.to_arrow().to_pylist()), logged(stem)
    for program in flow.programs:
        assert found[program.stage] == KINDS[program.kind].answer(rows), program.kind
