"""Windows of every kind through Spark against the naive engines: generated cases, and a fault at every step of a batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from mainstem import Mainstem
from mainstem.clock import as_datetime
from mainstem.errors import TopicNotFound
from mainstem.flows import program
from mainstem.flows.staged_batches import StagedBatches
from mainstem.operators.windows import window_rows
from tests.flows.batch_faults import FAULTS, FaultyRun, RereadingSink
from tests.operators.checked_kinds import KINDS
from tests.operators.naive_windows import Asked
from tests.operators.test_window_engine_properties import TRIGGERS
from tests.operators.window_programs import (
    TOPIC,
    WindowFlow,
    WindowProgram,
    append,
    asked_at_random,
    topic_of_rows,
)
from tests.operators.window_scripts import ORIGIN, written

SEED = 23
CASES = 30
ROWS = 260
DAYS = 5 * 86_400_000_000
# Flows with tumbling windows are killed at all of these points, Spark and all, in test_exactly_once.py.
ELSEWHERE = ("tumbling",)
# One of each engine: fixed windows, those that begin with a row, that grow together, that hold until the next row.
EVERY_RUN = ("hopping", "sliding", "sessions", "validity")


def ran(
    stem: Mainstem,
    folder: Path,
    programs: list[WindowProgram],
    faults: list[str],
    rows: int = ROWS,
    kind: type[WindowFlow] = WindowFlow,
) -> tuple[WindowFlow, list[str]]:
    """Run a flow of these programs, with a fault in each step; and which of them struck."""
    random = Random(SEED)
    log = written(random, keys=CASES, rows=rows)
    topic_of_rows(stem)
    flow = kind(stem, programs, RereadingSink("windows"))
    now = ORIGIN
    flow.set_now(now)
    run = FaultyRun(stem, flow.flows, flow.sink, folder)
    try:
        for place, fault in enumerate(faults):
            now += random.randint(0, 9)
            flow.set_now(now)
            part = log[place * rows // len(faults) : (place + 1) * rows // len(faults)]
            run.step(lambda part=part: append(stem, part, random), fault)  # type: ignore[misc]
        # What waits for the clock is due, and nothing earlier will come.
        flow.set_now(now + 1_000)
        run.step(lambda: stem.producer("end").declare_watermark(TOPIC, as_datetime(ORIGIN + DAYS)))
    finally:
        run.stop()
    return flow, run.struck


def late_rows(stem: Mainstem) -> pa.Table | None:
    try:
        return stem.topic("windows.late").to_arrow()
    except TopicNotFound:
        return None


@pytest.mark.thorough
@pytest.mark.usefixtures("one_bucket")
@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(EVERY_RUN, id="some"),
        pytest.param([kind for kind in KINDS if kind not in ELSEWHERE], marks=pytest.mark.long, id="all"),
    ],
)
def test_every_kind_gives_the_panes_of_the_naive_engine_whatever_fails(
    stem: Mainstem, tmp_path: Path, fault_report: Callable[..., None], kinds: list[str]
) -> None:
    random = Random(SEED)
    programs = [WindowProgram(kind, asked_at_random(random, TRIGGERS)) for kind in kinds]
    flow, struck = ran(stem, tmp_path, programs, list(FAULTS))

    assert struck == list(FAULTS)
    compared, differences = flow.differences(late_rows(stem))
    fault_report(
        "S10 windows", points=CASES * len(programs), compared=compared, violations=differences, seed=SEED,
        faults=len(struck),
    )  # fmt: skip
    # What was done again was the same as at first, and the late rows of a batch are there once.
    again = [attempts for attempts in flow.sink.attempts.values() if len(attempts) > 1]
    assert len(again) >= 2
    # Of windows that are over nothing is kept.
    left = {name for name, rows in flow.state_rows().items() if rows}
    assert left == {"everything", "validity"} & set(kinds)


def state_of_the_batch_itself(patch: pytest.MonkeyPatch) -> None:
    """A batch that is done again begins with the state that it left."""
    right = StagedBatches._before

    def wrong(self: StagedBatches, number: int) -> dict:
        last = self._manifests.last()
        return right(self, number) if last is None else last["stages"]

    patch.setattr(StagedBatches, "_before", wrong)


def late_rows_together(patch: pytest.MonkeyPatch) -> None:
    """Late rows are put together with the others before they are counted."""
    patch.setattr(window_rows, "_LATE", "time IS NULL")
    # This process prepares the rows, not the readers of the topic.
    patch.setattr(program, "packed_query", lambda *_: None)


@pytest.mark.parametrize("mutate", [state_of_the_batch_itself, late_rows_together])
def test_a_mutant_is_found(
    stem: Mainstem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutate: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mutate(monkeypatch)
    asked = Asked(lateness=15, results="retract")
    flow, _ = ran(stem, tmp_path, [WindowProgram("tumbling", asked)], ["", "stage_manifest_written"])
    _, differences = flow.differences(late_rows(stem))
    assert differences
