"""What stem.run says on a terminal, and that it says nothing anywhere else."""

import io
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from mainstem import Flow
from mainstem.flows import run_notes
from mainstem.flows.flow_handle import FlowProgress
from mainstem.flows.flow_waits import EMPTY_VIEW_PAGE, HolderFacts
from mainstem.flows.run_notes import RunNotes, batch_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    # Not here: pytest puts its own standard error in place between a fixture and its test.
    def enter() -> Terminal:
        shown = Terminal()
        monkeypatch.setattr(sys, "stderr", shown)
        return shown

    return enter


def handle(**progress: int) -> Any:
    run, planned = SimpleNamespace(flow="revenue", version=1), SimpleNamespace(stages=["windowed-0"])
    return SimpleNamespace(
        name="revenue", run=run, planned=planned, progress=FlowProgress(**progress), written={}, notes=[]
    )


def test_a_batch_is_a_line():
    batch = FlowProgress(batch=7, rows_in=1200, rows_out=3, rejected=1, late=2, too_late=4, batch_ms=1310)

    assert batch_text("revenue", batch, behind=5000) == (
        "batch 7, 1,200 rows in, 3 out, 1 rejected into revenue.rejected, 2 late, 4 too late, 1,310 ms, 5,000 behind"
    )


def test_a_batch_without_output_says_what_it_waits_for_and_once_where_to_look(terminal, monkeypatch):
    monkeypatch.setattr(run_notes, "waits_for", lambda stem, checkpoint: HolderFacts("users", 0, None))
    shown = terminal()
    notes = RunNotes(SimpleNamespace(home="nowhere"))
    for number in range(2):
        notes.batch(handle(batch=number, rows_in=3, batch_ms=20))
    notes.batch(handle(batch=2))

    assert shown.getvalue().splitlines() == [
        "mainstem: revenue: batch 0, 3 rows in, 0 out: waits for users, partition 0, where no record has a time yet, 20 ms, 0 behind",
        f"mainstem: mainstem flow describe revenue shows more; {EMPTY_VIEW_PAGE} says what to do",
        "mainstem: revenue: batch 1, 3 rows in, 0 out: waits for users, partition 0, where no record has a time yet, 20 ms, 0 behind",
    ]


def test_what_became_of_a_store_is_said_once(terminal):
    shown = terminal()
    notes, flow = RunNotes(SimpleNamespace(home="nowhere")), handle(batch=0)
    flow.notes.append('store "cache" has lost everything: version 2 is filled from the log')
    notes.batch(flow)
    flow.notes.append('version 2 of store "cache" is live')
    notes.batch(flow)
    notes.end([flow])

    assert shown.getvalue().splitlines() == [
        'mainstem: revenue: store "cache" has lost everything: version 2 is filled from the log',
        'mainstem: revenue: version 2 of store "cache" is live',
        "mainstem: all records are read",
    ]


def test_without_a_terminal_nothing_is_said(capsys):
    notes = RunNotes(SimpleNamespace(home="nowhere"))
    notes.say("starting Spark")
    notes.begin([handle()], "idle")
    notes.batch(handle(batch=0, rows_in=3))
    notes.end([handle()])

    assert capsys.readouterr() == ("", "")


def test_a_run_on_a_terminal_says_what_it_does(stem, terminal, capsys):
    orders = stem.create_topic("orders", schema="id STRING, n INT", key="id")
    orders.append([{"id": "a", "n": 1}, {"id": "b", "n": 2}])

    def flows(stem):
        yield Flow(stem.topic("orders").stream().drop("record"), into=stem.view("latest", key="id"))

    shown = terminal()
    stem.run(flows, until="idle")

    first, batch, last = (re.sub(r"[\d,]+ ms", "9 ms", line) for line in shown.getvalue().splitlines())
    assert first == "mainstem: running latest; until all is read"
    assert batch == "mainstem: latest: batch 0, 2 rows in, 2 out, 9 ms, 0 behind"
    assert last == "mainstem: all records are read"
    assert capsys.readouterr().out == ""
