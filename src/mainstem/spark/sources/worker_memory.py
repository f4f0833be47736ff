"""What a Python worker of Spark does between two tasks, made short.

Spark's daemon runs a full garbage collection after every task, and the next one waits for it. It looks at every object of
every module that was imported (pandas, Arrow, Spark's own): 40 to 60 ms, where a small task takes 8. What is there after the
first tasks stays for as long as the worker lives, so Python is told not to look at it again.
"""

from __future__ import annotations

import gc

__all__ = ["spare_collections"]

# After these modules are imported as they are needed; later ones are few.
TASKS = 3

_tasks = 0


def spare_collections() -> None:
    """Called by each task of ours: what is there in the first ones is left out of collections from then on."""
    global _tasks
    if _tasks < TASKS:
        _tasks += 1
        gc.freeze()
