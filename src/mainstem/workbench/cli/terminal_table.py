"""Tables and facts, as wide as the terminal; in a pipe nothing is truncated."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, Protocol

from mainstem.workbench.cli.error_text import visible

if TYPE_CHECKING:
    from mainstem.log.lag import Lag

__all__ = [
    "ALL_COLUMNS",
    "Column",
    "GrowingTable",
    "LAG_COLUMNS",
    "PIPE_WIDTH",
    "Progress",
    "cell_width",
    "cut_text",
    "is_terminal",
    "styled",
    "terminal_width",
    "about_duration",
    "about_size",
    "show_count",
    "lag_cells",
    "moment",
    "show_facts",
    "show_note",
    "show_progress",
    "show_table",
]


# The progress of long work: a moving line on standard error, if that is a terminal.


class Progress(Protocol):
    """Work in progress."""

    def advance_to(self, position: int, note: str = "") -> None:
        """Set how much of the total is done; `note` is shown beside it."""


class _Silent:
    def advance_to(self, position: int, note: str = "") -> None:
        """Not shown."""


@contextmanager
def show_progress(title: str, *, total: int | None = None) -> Iterator[Progress]:
    """Show a progress bar while the block runs; without a total a spinner."""
    if not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = [
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    ]
    # Removed when the work is done: the result is printed on standard output.
    with Bars(*columns, console=Console(stderr=True, markup=False), transient=True) as bars:
        task = bars.add_task(title, total=total, note="")

        class _Shown:
            def advance_to(self, position: int, note: str = "") -> None:
                bars.update(task, completed=position, note=note)

        yield _Shown()


# Counts, sizes and times rounded for display, unlike those of `mainstem.durations`.


_PREFIXES = "KMGTP"
_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def show_count(count: int, noun: str = "", *, plural: str = "") -> str:
    """A count with its noun.

    >>> show_count(1234, "record"), show_count(1, "record"), show_count(2, "entry", plural="entries"), show_count(70000)
    ('1,234 records', '1 record', '2 entries', '70,000')
    """
    if not noun:
        return f"{count:,}"
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def about_size(size: int) -> str:
    """A size in bytes, to three digits.

    >>> about_size(999), about_size(1536), about_size(64 << 20)
    ('999 B', '1.5 KiB', '64 MiB')
    """
    if size < 1024:
        return f"{size} B"
    value, power = size / 1024, 0
    while value >= 1000 and power < len(_PREFIXES) - 1:
        value, power = value / 1024, power + 1
    return f"{value:.3g} {_PREFIXES[power]}iB"


def about_duration(length: timedelta | float | None, *, none: str = "never") -> str:
    """A duration, or seconds: days with hours, hours with minutes, else minutes or seconds alone.

    >>> about_duration(90061.0), about_duration(timedelta(seconds=119.9)), about_duration(0.25), about_duration(None)
    ('1 day 1 hour', '1 minute', 'under a second', 'never')
    """
    if length is None:
        return none
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if seconds <= 0:
        return "0 seconds"
    if seconds < 1:
        return "under a second"
    whole = int(seconds)
    index = next(index for index, (_, size) in enumerate(_UNITS) if whole >= size)
    unit, size = _UNITS[index]
    count, rest = divmod(whole, size)
    text = show_count(count, unit)
    if unit in ("day", "hour"):
        smaller, size = _UNITS[index + 1]
        text += f" {show_count(rest // size, smaller)}" if rest >= size else ""
    return text


def moment(at: datetime | None, *, none: str = "never") -> str:
    """A time to the second, in UTC.

    >>> from datetime import UTC
    >>> moment(datetime(2026, 1, 1, 9, 30, 5, 250_000, tzinfo=UTC))
    '2026-01-01 09:30:05Z'
    """
    return none if at is None else at.strftime("%Y-%m-%d %H:%M:%SZ")


# In a pipe lines are not wrapped.
PIPE_WIDTH = 100_000
# In a growing table, this many rows determine the widths of the columns.
SAMPLE_ROWS = 100
GAP = "  "
MARK = "…"
STYLES = {"bold": 1, "dim": 2}
# The widest that a cell is where there is not room for all, and the narrowest before a column is left out: of a name, and
# of anything else.
CELL_WIDTH_MAX = 60
NAME_WIDTH_FAIR = 30
CELL_WIDTH_FAIR = 10
# As many columns that do not fit are named.
NAMED_MAX = 12
# How to see columns that do not fit, where a command has the option.
ALL_COLUMNS = "--all-columns or --json shows all"


@dataclass(frozen=True)
class Column:
    """A column of a table. A `firm` one is not truncated, nor is one of numbers, on the right: a part of a number or a time
    would be wrong. One in bold has names, and is truncated less.

    `type` stands under the title, on a terminal. If not all columns fit, those with the highest `spared` are left out
    first, of equal ones the last.
    """

    title: str
    align: Literal["left", "right"] = "left"
    style: str = ""
    firm: bool = False
    type: str = ""
    spared: int = 0

    @property
    def whole(self) -> bool:
        """Whether it is never truncated."""
        return self.firm or self.align == "right"


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def terminal_width() -> int:
    """The width of standard output: of the terminal, or so much that no line is wrapped."""
    return shutil.get_terminal_size().columns if is_terminal() else PIPE_WIDTH


def styled(text: str, style: str) -> str:
    """The text in a style, if standard output is a terminal that can show it."""
    if not style or not text or not is_terminal() or os.environ.get("TERM") == "dumb" or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def cell_width(text: str) -> int:
    """How many columns of a terminal a text takes: a Chinese character takes two.

    >>> cell_width("Berlin"), cell_width("東京")
    (6, 4)
    """
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut_text(text: str, width: int) -> str:
    """The text, or its beginning with a mark that some of it is missing.

    >>> cut_text("Berlin", 6), cut_text("Berlin", 4)
    ('Berlin', 'Ber…')
    """
    if cell_width(text) <= width:
        return text
    if text.isascii():
        return text[: width - 1] + MARK
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1) + MARK


def show_table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    empty: str = "",
    all_columns: bool | None = None,
) -> None:
    """Print a table; without rows print `empty`. On a terminal, columns that do not fit are named below it, unless
    `all_columns`; None if the command has no such option."""
    found = list(rows)
    if not found:
        sys.stdout.write(styled(f"{title}: {empty}" if title else empty, "dim") + "\n")
        return
    if title:
        sys.stdout.write(styled(title, "bold") + "\n")
    # An unreadable entry has fewer cells than there are columns.
    cells = [[*row, *[""] * (len(columns) - len(row))] for row in found]
    table = GrowingTable(columns, sample_rows=len(cells), complete=bool(all_columns))
    table.add(cells)
    table.close("--json shows all" if all_columns is None else ALL_COLUMNS)


def show_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair per line, with aligned values."""
    found = [(name, visible(value)) for name, value in facts]
    left = max((cell_width(name) for name, _ in found), default=0)
    room = max(CELL_WIDTH_FAIR, terminal_width() - left - len(GAP))
    for name, value in found:
        lines = [part for line in value.split("\n") for part in (_wrap(line, room) or [""])]
        for number, line in enumerate(lines):
            label = "" if number else name
            blanks = " " * (left - cell_width(label))
            sys.stdout.write(f"{styled(label, 'bold')}{blanks}{GAP}{line}".rstrip() + "\n")
    sys.stdout.flush()


def _wrap(text: str, width: int) -> list[str]:
    if cell_width(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_on_hyphens=False)


def show_note(text: str) -> None:
    """Print a line on standard error: it is not part of the result."""
    sys.stderr.write(visible(text) + "\n")
    sys.stderr.flush()


class GrowingTable:
    """A table whose rows arrive one after another: the first ones determine the widths of the columns.

    On a terminal longer cells are truncated, except in firm columns, and columns that do not fit are left out and
    named at the end; with `complete`, and in a pipe, nothing is.
    """

    def __init__(self, columns: Sequence[Column], *, sample_rows: int = SAMPLE_ROWS, complete: bool = False) -> None:
        self._columns = columns
        self._sample_rows = sample_rows
        self._terminal = is_terminal()
        self._cut = self._terminal and not complete
        self._begun = False
        # The columns that are shown, and their widths.
        self._shown: list[int] = []
        self._widths: list[int] = []

    def add(self, rows: Sequence[Sequence[str]]) -> None:
        """Print these rows below the earlier ones."""
        if not rows:
            return
        lines = []
        cells = [[visible(cell).replace("\n", "\\n") for cell in row] for row in rows]
        if not self._begun:
            self._begun = True
            self._fit(cells[: self._sample_rows])
            lines.append(self._line([column.title for column in self._columns], style="bold"))
            if self._types:
                lines.append(self._line([column.type for column in self._columns], style="dim"))
            lines.append("─" * (sum(self._widths) + len(GAP) * (len(self._widths) - 1)))
        lines += [self._line(row) for row in cells]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()

    @property
    def left_out(self) -> list[str]:
        """The titles of the columns that do not fit."""
        return [
            column.title for number, column in enumerate(self._columns) if self._begun and number not in self._shown
        ]

    def close(self, ways: str, also: Sequence[str] = ()) -> None:
        """Name the columns that do not fit, and `also` others that are not shown; `ways` says how to see them."""
        titles = [*also, *self.left_out]
        if titles:
            names = ", ".join(titles[:NAMED_MAX]) + (f", {MARK}" if len(titles) > NAMED_MAX else "")
            show_note(f"+{show_count(len(titles), 'column')}: {names}; {ways}")

    @property
    def _types(self) -> bool:
        return self._terminal and any(column.type for column in self._columns)

    def _line(self, cells: Sequence[str], *, style: str = "") -> str:
        parts = zip(self._shown, self._widths, strict=True)
        return GAP.join(self._cell(self._columns[at], width, cells[at], style) for at, width in parts).rstrip()

    def _cell(self, column: Column, width: int, text: str, style: str) -> str:
        if self._cut and (not column.whole or len(self._shown) == 1):
            text = cut_text(text, width)
        blanks = " " * (width - cell_width(text))
        text = styled(text, style or column.style)
        return blanks + text if column.align == "right" else text + blanks

    def _fit(self, sample: list[list[str]]) -> None:
        self._shown = list(range(len(self._columns)))
        wanted = [
            max(
                cell_width(column.title),
                len(column.type) if self._types else 0,
                *(cell_width(row[at]) for row in sample),
            )
            for at, column in enumerate(self._columns)
        ]
        widths = list(wanted)
        room = terminal_width()
        least = [NAME_WIDTH_FAIR if column.style == "bold" else CELL_WIDTH_FAIR for column in self._columns]
        while self._cut and self._width(wanted) > room:
            widths = [min(width, CELL_WIDTH_MAX) for width in wanted]
            loose = [at for at in self._shown if not self._columns[at].whole]
            # The widest is truncated first.
            while self._width(widths) > room and (wide := [at for at in loose if widths[at] > least[at]]):
                widths[max(wide, key=lambda at: widths[at])] -= 1
            if self._width(widths) <= room or len(self._shown) == 1:
                break
            self._shown.remove(max(self._shown, key=lambda at: (self._columns[at].spared, at)))
            widths = list(wanted)
        if self._cut and len(self._shown) == 1:
            widths[self._shown[0]] = min(widths[self._shown[0]], room)
        self._widths = [widths[at] for at in self._shown]

    def _width(self, widths: Sequence[int]) -> int:
        return sum(widths[at] for at in self._shown) + len(GAP) * (len(self._shown) - 1)


# A lag as columns of a table.


# Of a lag the number of records is left out last.
LAG_COLUMNS = (
    Column("behind", "right", spared=-1),
    Column("size", "right", spared=2),
    Column("oldest", spared=1),
    Column("drops in", spared=3),
)


def lag_cells(lag: Lag) -> list[str]:
    """A lag in these columns: records, bytes, the age of the next record, and the time until it is dropped."""
    return [
        show_count(lag.records),
        about_size(lag.bytes),
        about_duration(lag.seconds) if lag.records else "",
        about_duration(lag.until_dropped) if lag.records else "",
    ]
