"""How far long work has come: a line on standard error that moves, if that is a terminal; else nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Progress", "show_progress"]


class Progress(Protocol):
    """Work under way."""

    def reached(self, position: int, note: str = "") -> None:
        """So much of the total is done; `note` is shown beside it."""


class _Silent:
    def reached(self, position: int, note: str = "") -> None:
        """Nobody watches."""


@contextmanager
def show_progress(title: str, *, total: int | None = None) -> Iterator[Progress]:
    """Show a bar while the block runs; without a total something that moves."""
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
    # Gone when the work is done: what came of it is said on standard output.
    with Bars(*columns, console=Console(stderr=True, markup=False), transient=True) as bars:
        task = bars.add_task(title, total=total, note="")

        class _Shown:
            def reached(self, position: int, note: str = "") -> None:
                bars.update(task, completed=position, note=note)

        yield _Shown()
