"""Rows as a table on a terminal: windows, types, panes, and columns that do not fit."""

import sys
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from mainstem.clock import ManualClock
from mainstem.workbench.cli.row_output import TableRows, write_rows
from mainstem.workbench.cli.window_text import window_text
from tests.workbench.fake_terminal import Terminal

NOON = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)
MOMENT = pa.timestamp("us", "UTC")
WINDOW = pa.struct([("start", MOMENT), ("end", MOMENT)])
PANE = pa.struct([("index", pa.int32()), ("timing", pa.string()), ("final", pa.bool_())])


def window(start: datetime, **length: float) -> dict[str, datetime]:
    return {"start": start, "end": start + timedelta(**length)}


PANES = pa.RecordBatch.from_pylist(
    [
        {"window": window(NOON, minutes=1), "store": "Berlin", "total": 12, "pane": {"index": 0, "timing": "early", "final": False}},
        {"window": window(NOON - timedelta(days=1), minutes=1), "store": None, "total": 3, "pane": None},
    ],
    pa.schema([("window", WINDOW), ("store", pa.string()), ("total", pa.int64()), ("pane", PANE)]),
)  # fmt: skip


@pytest.fixture
def show(monkeypatch):
    def shown(columns: int, batch: pa.RecordBatch, *, all_columns: bool = False) -> list[str]:
        out = Terminal()
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stdout", out)
        clock = ManualClock()
        clock.set(NOON)
        table = TableRows(batch.schema, all_columns=all_columns, clock=clock)
        table.write(batch)
        table.close()
        return out.lines

    return shown


def test_a_window_is_its_times_types_stand_below_titles_and_panes_are_folded(show, capsys):
    assert show(80, PANES) == [
        "window                  store    total",
        "window                  string  bigint",
        "──────────────────────────────────────",
        "12:00-12:01             Berlin      12",
        "2026-11-16 12:00-12:01  null         3",
    ]
    assert capsys.readouterr().err == "+1 column: pane; --all-columns or --json shows all\n"


def test_all_columns_are_shown_if_they_are_asked_for_however_wide_they_are(show, capsys):
    lines = show(30, PANES, all_columns=True)

    assert lines[0].split() == ["window", "store", "total", "pane"]
    assert lines[3] == '12:00-12:01             Berlin      12  {"index": 0, "timing": "early", "final": false}'
    assert capsys.readouterr().err == ""


def test_a_pane_alone_is_shown(show):
    assert show(80, PANES.select(["pane"]))[2].startswith("─")


def test_columns_that_do_not_fit_are_counted_and_long_text_is_cut(show, capsys):
    batch = pa.RecordBatch.from_pylist([{"note": "x" * 100, "a": 1.5, "b": True, "c": 1 << 62}])

    assert show(32, batch) == [
        "note                  a  b",
        "string           double  boolean",
        "────────────────────────────────",
        f"{'x' * 14}…     1.5  true",
    ]
    assert capsys.readouterr().err == "+1 column: c; --all-columns or --json shows all\n"


def test_in_a_pipe_everything_is_there(capsys):
    write_rows("table", [PANES], PANES.schema)

    heading, line, first, _ = capsys.readouterr().out.splitlines()
    assert heading.split() == ["window", "store", "total", "pane"]
    assert set(line) == {"─"}
    assert '{"start": "2026-11-17T12:00:00Z", "end": "2026-11-17T12:01:00Z"}' in first
    assert '"timing": "early"' in first


def test_a_type_that_topics_have_not_is_named_as_arrow_does(show):
    batch = pa.RecordBatch.from_arrays([pa.array([timedelta(seconds=1)])], ["took"])

    assert show(80, batch)[1] == "duration[us]"


@pytest.mark.parametrize(
    ("start", "length", "text"),
    [
        (NOON, {"minutes": 1}, "12:00-12:01"),
        (NOON, {"seconds": 30}, "12:00:00-12:00:30"),
        (NOON, {"milliseconds": 250}, "12:00:00-12:00:00.25"),
        (NOON.replace(hour=23), {"hours": 1}, "23:00-00:00"),
        (NOON - timedelta(days=1), {"hours": 1}, "2026-11-16 12:00-13:00"),
        (NOON, {"days": 1}, "2026-11-17 12:00 - 2026-11-18 12:00"),
    ],
)
def test_windows(start, length, text):
    assert window_text(window(start, **length), today=NOON.date()) == text


def test_a_window_without_an_end():
    assert window_text({"start": NOON, "end": None}, today=NOON.date()) == "2026-11-17 12:00 - null"


def test_columns_are_named_also_if_ctrl_c_ends_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Terminal())

    def follow():
        yield PANES
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rows("table", follow(), PANES.schema)

    assert capsys.readouterr().err == "+1 column: pane; --all-columns or --json shows all\n"
