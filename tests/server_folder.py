"""The folder of a server that lives as long as a test process; what processes that were killed left is removed.

The name says whose it is: mainstem-postgres-<process>-<chance>. A killed process cannot tidy up, so whoever makes the next
folder does.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["dying_with_parent", "server_folder"]

NAME = re.compile(r"mainstem-[a-z]+-(\d+)-\w+")
PR_SET_PDEATHSIG = 1
# Looked up now: in a child that was forked beside other threads nothing may be loaded any more.
PROCESS_CONTROL = ctypes.CDLL(None).prctl


def server_folder(kind: str) -> Path:
    """A new folder for this process."""
    place = Path(tempfile.gettempdir())
    for entry in os.listdir(place):
        owner = NAME.fullmatch(entry)
        if owner and not Path(f"/proc/{owner[1]}").exists():
            shutil.rmtree(place / entry, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"mainstem-{kind}-{os.getpid()}-"))


def dying_with_parent(how: signal.Signals) -> Callable[[], None]:
    """For `preexec_fn`: the child is sent a signal when its parent ends, however that ends."""

    def begin() -> None:
        PROCESS_CONTROL(PR_SET_PDEATHSIG, int(how))

    return begin
