"""Named points at which tests kill a process and then check what it left.

`MAINSTEM_CRASH_AT="sink_committed:2"` kills the process with SIGKILL when it reaches that point for the second time.
With `@PATH` after it only one process is killed: the one that creates that file. Does nothing if it is not set.
"""

from __future__ import annotations

import os
import signal

__all__ = ["VARIABLE", "reach"]

VARIABLE = "MAINSTEM_CRASH_AT"

_reached: dict[str, int] = {}


def reach(name: str, batch: int | None = None) -> None:
    """Reach a point, of a batch if there is one. Tests patch this function to stop the process there."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    wanted, _, once = wanted.partition("@")
    point, _, times = wanted.partition(":")
    if point != name:
        return
    _reached[name] = _reached.get(name, 0) + 1
    if _reached[name] == int(times or 1) and (not once or _creates(once)):
        os.kill(os.getpid(), signal.SIGKILL)


def _creates(path: str) -> bool:
    """Whether this process creates the file."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
