"""How tables fit a terminal, and that nothing is cut in a pipe."""

import sys

import pytest

from mainstem.workbench.cli.terminal_table import (
    Column,
    GrowingTable,
    about_duration,
    about_size,
    show_facts,
    show_progress,
    show_table,
)
from tests.workbench.fake_terminal import Terminal


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    # Not here: pytest puts its own standard output in place between a fixture and its test.
    def enter() -> Terminal:
        out = Terminal()
        monkeypatch.setattr(sys, "stdout", out)
        return out

    return enter


def test_in_a_pipe_nothing_is_cut(capsys):
    show_table([Column("name"), Column("size", "right")], [["x" * 300, "1"], ["y", "22"]])

    assert capsys.readouterr().out.splitlines() == [
        f"name{' ' * 298}size",
        "─" * 306,
        f"{'x' * 300}     1",
        f"y{' ' * 303}22",
    ]


def test_on_a_terminal_no_line_is_wider_than_it_is(terminal):
    out = terminal()
    show_table([Column("name"), Column("note")], [["x" * 30, "y" * 30]])
    show_facts([("schema", "word " * 30)])
    table = GrowingTable([Column("name"), Column("note")])
    table.add([["x" * 30, "y" * 30]])

    assert max(map(len, out.lines)) <= 40


def test_a_table_that_grows_keeps_its_columns(terminal):
    out = terminal()
    table = GrowingTable([Column("name"), Column("n", "right")])
    table.add([["abcdef", "1"]])
    table.add([])
    table.add([["a longer name", "22"], ["b", "3"]])

    assert out.lines == ["name    n", "─────────", "abcdef  1", "a lon…  22", "b       3"]


def test_an_empty_table_says_so(capsys):
    show_table([Column("name")], [], empty="no names yet")

    assert capsys.readouterr().out == "no names yet\n"


def test_progress_is_for_terminals_alone(capsys, monkeypatch):
    with show_progress("append", total=10) as progress:
        progress.advance_to(5, "5 rows")
    assert capsys.readouterr() == ("", "")

    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    with show_progress("append", total=10) as progress:
        progress.advance_to(5, "5 rows")
    assert "append" in err.getvalue()


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1 << 30, "1 GiB"),
        (1023 << 20, "0.999 GiB"),
        (5 << 60, "5.12e+03 PiB"),
    ],
)
def test_sizes(size, shown):
    assert about_size(size) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 seconds"), (1, "1 second"), (60, "1 minute"), (3601, "1 hour"), (90 * 86_400 + 7200, "90 days 2 hours")],
)
def test_durations(seconds, shown):
    assert about_duration(seconds) == shown


def test_a_firm_column_is_cut_last(terminal):
    out = terminal()
    table = GrowingTable([Column("at", firm=True), Column("note")])
    table.add([["2026-01-01T09:00:00Z", "a long story, told at leisure"]])

    assert out.lines[-1] == "2026-01-01T09:00:00Z  a long story, tol…"


def test_a_firm_column_grows_rather_than_lie(terminal):
    out = terminal()
    table = GrowingTable([Column("n", "right", firm=True), Column("word")])
    table.add([["9", "a"]])
    table.add([["1000000", "b"]])

    assert out.lines == ["n  word", "───────", "9  a", "1000000  b"]


def test_a_table_that_grows_is_not_cut_in_a_pipe(capsys):
    table = GrowingTable([Column("n", "right"), Column("word", style="dim")])
    table.add([["9", "a"]])
    table.add([["1000000", "b" * 200]])

    assert capsys.readouterr().out.splitlines() == ["n  word", "───────", "9  a", f"1000000  {'b' * 200}"]


def test_wide_characters_take_the_room_they_need(terminal):
    out = terminal()
    table = GrowingTable([Column("place"), Column("n")])
    table.add([["東京", "1"], ["Köln", "2"]])

    assert out.lines == ["place  n", "────────", "東京   1", "Köln   2"]


def test_columns_that_do_not_fit_are_counted(terminal, capsys):
    out = terminal()
    columns = [
        Column("flow", style="bold"),
        Column("behind", "right", spared=-1),
        Column("note"),
        Column("pid", "right"),
    ]
    show_table(columns, [["revenue", "1,234,567", "a long story", "4711"]])
    assert out.lines[0] == "flow        behind  note           pid"

    out = terminal()
    columns += [Column(f"figure {number}", "right") for number in range(3)]
    show_table(columns, [["revenue", "1,234,567", "a long story", "4711", "1", "2", "3"]])
    assert out.lines == [
        "flow        behind  note           pid",
        "──────────────────────────────────────",
        "revenue  1,234,567  a long story  4711",
    ]
    assert capsys.readouterr().err == "+3 columns: figure 0, figure 1, figure 2; --json shows all\n"


def test_what_is_spared_goes_first_and_what_is_left_gets_its_room(terminal, capsys):
    out = terminal()
    columns = [Column("flow"), Column("size", spared=2), Column("note"), Column("oldest", spared=1)]
    show_table(columns, [["revenue of stores", "64 MiB and more", "a long story", "an hour"]])

    assert out.lines[2] == "revenue of stores  a long story  an hour"
    assert capsys.readouterr().err == "+1 column: size; --json shows all\n"


def test_a_number_is_never_cut(terminal):
    out = terminal()
    show_table([Column("note"), Column("n", "right")], [["x" * 50, "123456789012345678901"]])

    assert out.lines[2] == f"{'x' * 16}…  123456789012345678901"


def test_without_colours_nothing_is_styled(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = terminal()
    show_table([Column("name", style="bold")], [["a"]])

    assert out.getvalue() == "name\n────\na\n"


def test_long_facts_are_wrapped_under_their_value(terminal):
    out = terminal()
    show_facts([("hint", "a sentence that is longer than the line"), ("key", "a\nb")])

    assert out.lines == ["hint  a sentence that is longer than the", "      line", "key   a", "      b"]


def test_many_columns_are_not_all_named(terminal, capsys):
    terminal()
    show_table([Column(f"c{number:02}", "right") for number in range(40)], [["12345"] * 40])

    err = capsys.readouterr().err
    assert err == "+34 columns: c06, c07, c08, c09, c10, c11, c12, c13, c14, c15, c16, c17, …; --json shows all\n"


def test_where_a_command_has_all_columns_a_list_shows_them(terminal, capsys):
    columns, rows = [Column(f"column{n}", firm=True) for n in range(6)], [[str(n) * 10 for n in range(6)]]
    out = terminal()
    show_table(columns, rows, all_columns=True)
    assert out.lines[0].split() == [column.title for column in columns]
    show_table(columns, rows, all_columns=False)
    assert capsys.readouterr().err == ("+3 columns: column3, column4, column5; --all-columns or --json shows all\n")
