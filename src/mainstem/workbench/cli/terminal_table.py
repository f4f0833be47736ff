"""Tables and facts, as wide as the terminal; in a pipe nothing is truncated."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, Protocol

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mainstem.workbench.cli.error_text import visible

if TYPE_CHECKING:
    from mainstem.log.lag import Lag

__all__ = [
    "Column",
    "GrowingTable",
    "LAG_COLUMNS",
    "PIPE_WIDTH",
    "Progress",
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
STYLES = {"bold": 1, "dim": 2}
CELL_WIDTH_MAX = 60
# If a cell would be narrower than this, firm columns are truncated too.
CELL_WIDTH_FAIR = 10
CELL_WIDTH_MIN = 4


@dataclass(frozen=True)
class Column:
    """A column of a table. A `firm` one is truncated only after all others."""

    title: str
    align: Literal["left", "right"] = "left"
    style: str = ""
    firm: bool = False


def _console() -> Console:
    """Created each time: standard output may have been replaced."""
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def _print(console: Console, shown: Table | Text) -> None:
    """Print without the trailing blanks of the last column."""
    with console.capture() as captured:
        console.print(shown)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
    sys.stdout.flush()


def _table(*, heading: bool, title: str = "") -> Table:
    return Table(
        box=box.SIMPLE_HEAD,
        show_header=heading,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        header_style="bold",
    )


def show_table(columns: Sequence[Column], rows: Iterable[Sequence[str]], *, title: str = "", empty: str = "") -> None:
    """Print a table; without rows print `empty`."""
    console, found = _console(), list(rows)
    if not found:
        _print(console, Text(f"{title}: {empty}" if title else empty, style="dim"))
        return
    table = _table(heading=True, title=title)
    for column in columns:
        table.add_column(column.title, justify=column.align, style=column.style or None, overflow="fold")
    for row in found:
        table.add_row(*(Text(visible(cell)) for cell in row))
    _print(console, table)


def show_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair per line, with aligned values."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(Text(name), Text(visible(value)))
    _print(_console(), grid)


def show_note(text: str) -> None:
    """Print a line on standard error: it is not part of the result."""
    Console(file=sys.stderr, highlight=False, markup=False, emoji=False, soft_wrap=True).print(Text(visible(text)))


class GrowingTable:
    """A table whose rows arrive one after another: the first ones determine the widths of the columns.

    On a terminal longer cells are truncated, except in firm columns that had enough room; in a pipe nothing is.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._console = _console()
        self._cut = self._console.is_terminal
        self._styled = self._cut and not self._console.is_dumb_terminal
        self._widths: list[int] = []
        self._whole: list[bool] = []

    def add(self, rows: Sequence[Sequence[str]]) -> None:
        """Print these rows below the earlier ones. Without rich's table, which takes ten times as long."""
        if not rows:
            return
        lines = []
        cells = [[visible(cell).replace("\n", "\\n") for cell in row] for row in rows]
        if not self._widths:
            self._fit(cells[:SAMPLE_ROWS])
            lines += [self._line([column.title for column in self._columns], style="bold"), "─" * self._width]
        lines += [self._line(row) for row in cells]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()

    @property
    def _width(self) -> int:
        return sum(self._widths) + len(GAP) * (len(self._widths) - 1)

    def _line(self, cells: Sequence[str], *, style: str = "") -> str:
        parts = zip(self._columns, self._widths, self._whole, cells, strict=True)
        return GAP.join(self._cell(*part, style) for part in parts).rstrip()

    def _cell(self, column: Column, width: int, whole: bool, text: str, style: str) -> str:  # noqa: FBT001 - private
        length = cell_len(text)
        if length > width and self._cut and not whole:
            text, length = set_cell_size(text, width - 1) + "…", width
        blanks = " " * (width - length)
        style = style or column.style
        if style and self._styled:
            text = f"\x1b[{STYLES[style]}m{text}\x1b[0m"
        return blanks + text if column.align == "right" else text + blanks

    def _fit(self, sample: list[list[str]]) -> None:
        titles = [cell_len(column.title) for column in self._columns]
        widths = [max(titles[index], *(cell_len(row[index]) for row in sample)) for index in range(len(titles))]
        wanted = list(widths)
        if self._cut:
            widths = [min(width, CELL_WIDTH_MAX) for width in widths]
            # The widest is truncated first, firm columns last.
            room = self._console.width - len(GAP) * (len(widths) - 1)
            loose = [index for index, column in enumerate(self._columns) if not column.firm]
            for indexes, least in ((loose, CELL_WIDTH_FAIR), (range(len(widths)), CELL_WIDTH_MIN)):
                while sum(widths) > room and any(widths[index] > least for index in indexes):
                    widths[max(indexes, key=lambda index: widths[index])] -= 1
        self._widths = widths
        self._whole = [
            column.firm and width == want for column, width, want in zip(self._columns, widths, wanted, strict=True)
        ]


# A lag as columns of a table.


LAG_COLUMNS = (Column("behind", "right"), Column("size", "right"), Column("oldest"), Column("drops in"))


def lag_cells(lag: Lag) -> list[str]:
    """A lag in these columns: records, bytes, the age of the next record, and the time until it is dropped."""
    return [
        show_count(lag.records),
        about_size(lag.bytes),
        about_duration(lag.seconds) if lag.records else "",
        about_duration(lag.until_dropped) if lag.records else "",
    ]
