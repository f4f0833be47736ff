"""What a person sees of a run: lines, objects, the table on a terminal, and the end of it."""

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

from rich.console import Console

from mainstem.clock import ManualClock
from mainstem.flows.flow_handle import FlowProgress
from mainstem.flows.flow_waits import HolderFacts
from mainstem.log.flow_cut import Holder
from mainstem.log.lag import Lag
from mainstem.workbench.cli import run_display as run_standing
from mainstem.workbench.cli.run_display import (
    BatchLines,
    FlowCounts,
    FlowStatus,
    JsonLines,
    LiveTable,
    batch_line,
    live_table,
    run_display,
    show_status,
    waiting_lines,
)

WATERMARK = "2026-01-01T08:50:00.000Z"


def status(state: str = "running", batch: int | None = 3, **progress: object) -> FlowStatus:
    known = {"rows_in": 2000, "rows_out": 1999, "batch_ms": 310, "watermark": WATERMARK, **progress}
    return FlowStatus(
        "revenue",
        state,
        FlowProgress() if batch is None else FlowProgress(batch=batch, **known),
        FlowCounts(rows_in=8000, rows_out=7990, rejected=4, late=6, too_late=2, batches=4, batch_ms=1200),
        812.4,
        Lag(records=120, bytes=4000, seconds=65.0),
        1,
        batch,
    )


def test_each_batch_is_a_line_once(capsys):
    display = BatchLines(ManualClock())
    for it in (
        status("starting", None),
        status("running", None),
        status(),
        status(),
        status(batch=4, rows_in=0, rows_out=0, rejected=2, late=1, too_late=3, state_rows=7, watermark=None),
        status("failed", 4),
    ):
        display.show([it])
    display.close()

    assert capsys.readouterr().out.splitlines() == [
        "2026-01-01 00:00:00Z  revenue: running",
        (
            "2026-01-01 00:00:00Z  revenue: batch 3, 2,000 rows in, 1,999 out, 310 ms, 120 behind, "
            "watermark 2026-01-01 08:50:00Z"
        ),
        (
            "2026-01-01 00:00:00Z  revenue: batch 4, 0 rows in, 0 out, 2 rejected into revenue.rejected, 1 late, 3 too late, "
            "310 ms, 120 behind, keeps 7"
        ),
        "2026-01-01 00:00:00Z  revenue: failed",
    ]


def test_each_batch_is_an_object_once(capsys):
    display = JsonLines(ManualClock())
    display.show([status()])
    display.show([status()])
    display.print_apart(lambda: print("aside"))
    display.show([status("stopped")])
    display.close()

    first, aside, last = capsys.readouterr().out.splitlines()
    assert aside == "aside"
    assert json.loads(first) == {
        "flow": "revenue", "state": "running", "batch": 3, "rows_in": 2000, "rows_out": 1999, "rejected": 0, "late": 0,
        "too_late": 0, "lag_records": 120, "lag_seconds": 65.0, "watermark": WATERMARK, "state_rows": 0, "state_bytes": 0,
        "batch_ms": 310, "restarts": 1, "waits_for": None, "retried_after": None,
    }  # fmt: skip
    assert json.loads(last)["state"] == "stopped"


def test_the_table_on_a_terminal_shows_all_of_it():
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(live_table([status(state_rows=7, state_bytes=2048), status("starting", None)], console))

    heading, first, second = console.export_text().splitlines()
    assert heading.split() == [
        "flow", "state", "rows/s", "rows", "in", "rows", "out", "behind", "oldest", "watermark", "keeps", "batch", "took"
    ]  # fmt: skip
    assert [cell.strip() for cell in first.split("  ") if cell.strip()] == [
        "revenue", "running", "812", "8,000", "7,990, 4 rejected, 6 late, 2 too late", "120", "1 minute", "2026-01-01 08:50:00Z",
        "7 (2 KiB)", "3", "310 ms",
    ]  # fmt: skip
    assert second.split()[:3] == ["revenue", "starting", "812"]


def test_a_narrow_terminal_is_shown_fewer_columns_but_whole_ones():
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(live_table([status(state_rows=7)], console))

    heading, line = console.export_text().splitlines()
    assert heading.split() == ["flow", "state", "rows/s", "behind", "batch", "took"]
    assert line.split() == ["revenue", "running", "812", "120", "3", "310", "ms"]


def test_where_nobody_watches_it_is_lines(monkeypatch):
    clock = ManualClock()
    assert type(run_display(clock, as_json=False)) is BatchLines
    assert isinstance(run_display(clock, as_json=True), JsonLines)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    display = run_display(clock, as_json=False)
    display.close()
    assert isinstance(display, LiveTable)


def test_at_the_end_it_says_where_each_flow_stands(capsys):
    show_status([status("stopped"), status("failed", None)])

    heading, _, first, second = capsys.readouterr().out.splitlines()
    assert heading.split() == [
        "flow", "state", "last", "batch", "rows", "in", "rows", "out", "rejected", "late", "too", "late", "behind"
    ]  # fmt: skip
    assert first.split() == ["revenue", "stopped", "3", "8,000", "7,990", "4", "6", "2", "120"]
    assert second.split() == ["revenue", "failed", "none", "8,000", "7,990", "4", "6", "2", "120"]


def test_a_flow_that_gives_nothing_says_what_it_waits_for(capsys):
    holder = HolderFacts("users", 0, datetime(2025, 12, 31, 23, 59, tzinfo=UTC))
    waiting = replace(status(rows_out=0), waits_for=holder)
    assert "0 out: waits for users, partition 0, at 2025-12-31 23:59:00Z, 310 ms" in batch_line(waiting)
    show_status([waiting, status()])
    assert capsys.readouterr().out.splitlines()[-1] == "revenue waits for users, partition 0, at 2025-12-31 23:59:00Z"
    waiting = replace(waiting, waits_for=Holder(12, "users", 0, 4711))
    assert "0 out: waits for transaction 12 of process 4711, open in users, partition 0, 310 ms" in batch_line(waiting)
    assert str(Holder(-1, "users", 0, None)) == "a transaction of another program, open in users, partition 0"
    assert str(HolderFacts("users", 0, None)) == "users, partition 0, where no record has a time yet"


def test_at_the_end_every_flow_with_stages_says_what_it_waits_for(stem, monkeypatch):
    """Also one whose last batch gave rows, and one that had no batch in this run."""
    holder = HolderFacts("users", 0, None)
    monkeypatch.setattr(run_standing, "waits_for", lambda stem, checkpoint: holder)
    statuses = run_standing.RunStatus(stem, [], None)
    planned = SimpleNamespace(stages=("enrich-0",))
    for progress, running in ((FlowProgress(batch=3, rows_out=5, state_rows=2), None), (FlowProgress(), None),
                              (FlowProgress(batch=3, rows_out=0, state_rows=2), holder)):  # fmt: skip
        for state, expected in (("running", running), ("stopped", holder)):
            handle = SimpleNamespace(name="priced", planned=planned, progress=progress, state=state)
            assert statuses._waits_for(handle, "flows/priced/v1") == expected


# What it waits for


WAITING = HolderFacts("users", 0, datetime(2026, 1, 1, 8, tzinfo=UTC))
WHERE_TO_LOOK = 'mainstem flow describe revenue shows more; the guide "My view is empty, or old" (docs/guides/empty_view.md) says what to do'
REJECTED = (
    "revenue: the rejected rows are in topic revenue.rejected, with the reasons: mainstem topic read revenue.rejected"
)


def test_below_the_table_stands_what_flows_wait_for():
    caught_up = replace(status(), lag=Lag())

    assert waiting_lines([status()]) == []
    assert waiting_lines([replace(status("running", None), batch=None)]) == ["reading the first records ..."]
    assert waiting_lines([caught_up]) == ["everything is read; waiting for new records, Ctrl-C stops"]
    assert waiting_lines([replace(status(), waits_for=WAITING)]) == [
        "revenue waits for users, partition 0, at 2026-01-01 08:00:00Z",
        f"  {WHERE_TO_LOOK}",
    ]
    assert waiting_lines([caught_up, status("failed")]) == []


def test_what_became_of_a_store_is_told_once(capsys):
    shown, notes = BatchLines(ManualClock()), ('store "x" has lost batch 7', 'version 2 of store "x" is live')
    for count in (1, 1, 2):
        shown.show([replace(status("running"), notes=notes[:count])])
    lines = [line.partition("  ")[2] for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if "store" in line] == [f"revenue: {note}" for note in notes]


def test_a_flow_that_retries_says_why():
    retried = replace(status("waiting to restart"), retried_after='the flow reads "/data/x.csv", which does not exist')
    assert waiting_lines([retried]) == ['revenue retries: the flow reads "/data/x.csv", which does not exist']
    assert batch_line(retried) == 'revenue: waiting to restart: the flow reads "/data/x.csv", which does not exist'


def test_the_end_of_a_run_says_where_to_look_if_there_is_no_output(capsys):
    counts = FlowCounts(rows_in=3)
    show_status([replace(status("stopped"), waits_for=WAITING, counts=counts)])
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "revenue waits for users, partition 0, at 2026-01-01 08:00:00Z"
    assert said.err == f"{WHERE_TO_LOOK}\n"

    # Said once for all flows.
    show_status([replace(status("stopped"), counts=counts)] * 2)
    assert capsys.readouterr().err == 2 * "revenue wrote no rows in this run\n" + f"{WHERE_TO_LOOK}\n"

    show_status([status("stopped"), replace(status("stopped"), counts=FlowCounts())])
    assert capsys.readouterr().err == f"{REJECTED}\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_live_table_says_it_on_the_terminal(monkeypatch):
    out = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("sys.stdout", out)
    display = run_display(ManualClock(), as_json=False)
    display.show([replace(status(), waits_for=WAITING)])
    display.close()

    assert "revenue waits for users, partition 0, at 2026-01-01 08:00:00Z" in out.getvalue()
    assert WHERE_TO_LOOK in out.getvalue()
