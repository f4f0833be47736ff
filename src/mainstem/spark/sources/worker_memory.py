"""Shortens the garbage collection of Python workers between two tasks.

Spark's daemon runs a full garbage collection after every task, and the next one waits for it. It visits every object of
every imported module (pandas, Arrow, Spark's own): 40 to 60 ms, where a small task takes 8. Objects that exist after the
first tasks live as long as the worker, so they are excluded from collections.
"""

from __future__ import annotations

import gc

__all__ = ["spare_collections"]

# By then nearly all modules are imported.
TASKS = 3

_tasks = 0


def spare_collections() -> None:
    """Exclude the objects that exist after the first tasks from collections. Called by each of our tasks."""
    global _tasks
    if _tasks < TASKS:
        _tasks += 1
        gc.freeze()
