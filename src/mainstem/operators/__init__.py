"""Operators that Spark lacks: functions from a DataFrame to a DataFrame. A streaming input gives a streaming result.

Each name is imported on first use: Spark's workers, which need only an engine, load nothing else.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from mainstem.arguments import checked_call

if TYPE_CHECKING:
    # For type checkers and editors only; a test checks that it matches `_DEFINED_IN`.
    from mainstem.operators.aggregate import aggregate
    from mainstem.operators.clock_correction import clock_corrected
    from mainstem.operators.comparison import compare_with
    from mainstem.operators.dedupe import dedupe
    from mainstem.operators.distinct import distinct
    from mainstem.operators.enrich import enrich, latest
    from mainstem.operators.join import join
    from mainstem.operators.late_rows import late_rows, on_time_rows
    from mainstem.operators.match import match
    from mainstem.operators.patterns.pattern import Pattern, both, either, group, step
    from mainstem.operators.process import process
    from mainstem.operators.processes.process_class import Process
    from mainstem.operators.processes.process_state import Timers
    from mainstem.operators.table import table
    from mainstem.operators.top import top
    from mainstem.operators.versions import versions
    from mainstem.operators.windowed import windowed
    from mainstem.operators.windows.triggers import after_rows, each_row, every, first_of
    from mainstem.operators.windows.window_kinds import (
        calendar,
        cumulating,
        everything,
        hopping,
        sessions,
        sliding,
        tumbling,
        validity,
    )

__all__ = [
    "Pattern",
    "Process",
    "Timers",
    "after_rows",
    "aggregate",
    "both",
    "calendar",
    "clock_corrected",
    "compare_with",
    "cumulating",
    "dedupe",
    "distinct",
    "each_row",
    "either",
    "enrich",
    "every",
    "everything",
    "first_of",
    "group",
    "hopping",
    "join",
    "late_rows",
    "latest",
    "match",
    "on_time_rows",
    "process",
    "sessions",
    "sliding",
    "step",
    "table",
    "top",
    "tumbling",
    "validity",
    "versions",
    "windowed",
]

_DEFINED_IN = {
    "Pattern": "patterns.pattern",
    "Process": "processes.process_class",
    "Timers": "processes.process_state",
    "after_rows": "windows.triggers",
    "aggregate": "aggregate",
    "both": "patterns.pattern",
    "calendar": "windows.window_kinds",
    "clock_corrected": "clock_correction",
    "compare_with": "comparison",
    "cumulating": "windows.window_kinds",
    "dedupe": "dedupe",
    "distinct": "distinct",
    "each_row": "windows.triggers",
    "either": "patterns.pattern",
    "enrich": "enrich",
    "every": "windows.triggers",
    "everything": "windows.window_kinds",
    "first_of": "windows.triggers",
    "group": "patterns.pattern",
    "hopping": "windows.window_kinds",
    "join": "join",
    "late_rows": "late_rows",
    "latest": "enrich",
    "match": "match",
    "on_time_rows": "late_rows",
    "process": "process",
    "sessions": "windows.window_kinds",
    "sliding": "windows.window_kinds",
    "step": "patterns.pattern",
    "table": "table",
    "top": "top",
    "tumbling": "windows.window_kinds",
    "validity": "windows.window_kinds",
    "versions": "versions",
    "windowed": "windowed",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_DEFINED_IN[name]}")
    found: object = getattr(module, name)
    if inspect.isfunction(found):
        found = checked_call(found)
        # There too: pickle looks for it where it was defined.
        setattr(module, name, found)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Operators(ModuleType):
    """A function and its module have the same name: importing the module must not hide the function."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _DEFINED_IN and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Operators
