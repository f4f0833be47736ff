"""Named points at which a process can be made to die, for the tests that kill it everywhere and look what is left.

`MAINSTEM_CRASH_AT="sink_committed:2"` ends the process with SIGKILL when it reaches that point for the second time.
With `@PATH` behind it only one process ever does: the one that makes that file. Nothing happens unless it is set.
"""

from __future__ import annotations

import os
import signal

__all__ = ["VARIABLE", "reach"]

VARIABLE = "MAINSTEM_CRASH_AT"

_reached: dict[str, int] = {}


def reach(name: str, batch: int | None = None) -> None:
    """Say that the process is at this point, of a batch if it has one: a test may stop it there by putting another function
    in this one's place."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    wanted, _, once = wanted.partition("@")
    point, _, times = wanted.partition(":")
    if point != name:
        return
    _reached[name] = _reached.get(name, 0) + 1
    if _reached[name] == int(times or 1) and (not once or _made(once)):
        os.kill(os.getpid(), signal.SIGKILL)


def _made(path: str) -> bool:
    """Whether this process is the one that makes a file."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
