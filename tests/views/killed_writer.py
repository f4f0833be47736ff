"""A writer of a view in a process of its own, to be killed or stopped at a named point, and what it may leave."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest

from mainstem import crash_points
from mainstem.batch import Batch, FlowRun
from mainstem.errors import NotYet
from mainstem.log.append_result import token_of
from mainstem.views.sql import sql_writer
from mainstem.views.sqlite import sqlite_writer
from mainstem.views.view import View
from tests.contracts.other_process import Line, OtherProcess
from tests.contracts.view_rows import RUN, SCHEMA, recorded, replayed, rows, shown

BATCHES = [
    rows(Berlin=1, Lisbon=2),
    rows(Berlin=3, Osaka=4),
    recorded(("Lisbon", None, 0, 9, "delete"), ("Quito", 5, 0, 10, "insert"), ("Berlin", 6, 0, 11, "update")),
    rows(Berlin=7, Lisbon=8),
]
# What a view holds once a batch is in; -1: none.
STATES = {
    -1: {},
    0: {"Berlin": 1, "Lisbon": 2},
    1: {"Berlin": 3, "Lisbon": 2, "Osaka": 4},
    2: {"Berlin": 6, "Osaka": 4, "Quito": 5},
    3: {"Berlin": 7, "Lisbon": 8, "Osaka": 4, "Quito": 5},
}


def open_revenue(home: Path) -> View:
    return View(home, "revenue", key="store", history="1 day")


def batch_of(number: int, run: FlowRun) -> Batch:
    return Batch(number, run, {"orders": {0: 10 * (number + 1)}})


def write_from(view: View, epoch: int) -> None:
    """Every batch that is not in yet, as a flow that was started again does: the last one it held once more."""
    run = FlowRun("revenue", epoch)
    writer = view.writer(run, SCHEMA)
    for number in range(max(0, writer.committed_batch), len(BATCHES)):
        writer.apply(BATCHES[number], batch_of(number, run))
    writer.close()


def check_whole(view: View) -> int:
    """Rows, changes, history, batch number and offsets are of one moment; which batch it is."""
    if not view.exists:
        return -1
    live = view.describe().live
    assert shown(view) == STATES[live.batch]
    assert live.offsets == ({} if live.batch < 0 else {"orders": {0: 10 * (live.batch + 1)}})
    assert replayed({}, view.changes().rows) == STATES[live.batch]
    for number in range(live.batch + 1):
        past = view.to_arrow(as_of=token_of(batch_of(number, RUN).offsets)).to_pydict()
        assert dict(zip(*past.values(), strict=True)) == STATES[number]
    with pytest.raises(NotYet):
        view.to_arrow(as_of=token_of(batch_of(live.batch + 1, RUN).offsets))
    return live.batch


def run_until_killed(home: Path, point: str, epoch: int) -> None:
    """In another process: write all batches, and die at the point; it must be reached."""
    crash_points._reached.clear()
    other = OtherProcess(lambda: nullcontext(open_revenue(home)), _write_to_death, point, epoch)
    other._process.join(300)
    assert other._process.exitcode == -signal.SIGKILL, f"{point} was not reached"
    other.close()


def _write_to_death(view: View, line: Line, point: str, epoch: int) -> None:
    os.environ[crash_points.VARIABLE] = point
    write_from(view, epoch)


def stopped_at(home: Path, point: str) -> OtherProcess:
    """A process that is stopped at a point of its batch 1; told to go on, it says what came of it."""
    other = OtherProcess(lambda: nullcontext(open_revenue(home)), _write_stopping, point)
    assert other.hear() == "begun"
    _, status = os.waitpid(other.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    return other


def _write_stopping(view: View, line: Line, point: str) -> None:
    run = FlowRun("revenue", epoch=1)
    writer = view.writer(run, SCHEMA)
    writer.apply(BATCHES[0], batch_of(0, run))
    line.say("begun")

    def stop_there(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGSTOP)

    # The points of every store, and the one that only SQLite has.
    sql_writer.reach = sqlite_writer.reach = stop_there  # type: ignore[attr-defined]
    try:
        written = writer.apply(BATCHES[1], batch_of(1, run))
    except Exception as error:  # noqa: BLE001 - the test looks at what it was
        line.say(type(error).__name__)
    else:
        line.say(written.rows)
