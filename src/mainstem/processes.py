"""Processes: whether one is alive, to release what a dead one held, and whether it is stopped.

A process is identified by its id, its start time and the machine's boot: ids are reused.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import TypedDict

# Fields of /proc/<pid>/stat after the name in parentheses: state is the 1st of them, start time the 20th.
STATE_FIELD, START_FIELD = 0, 19

# A killed process ends at once, unless it waits for a disk in the kernel.
END_MILLISECONDS_MAX = 10_000


class Identity(TypedDict):
    """The stored identity of a process."""

    pid: int
    started: int
    boot: str


def this_process() -> Identity:
    """The identity of this process."""
    return _identity(os.getpid())


@lru_cache(maxsize=8)
def _identity(pid: int) -> Identity:
    fields = _stat(pid)
    return {"pid": pid, "started": int(fields[START_FIELD]) if fields else 0, "boot": boot_id()}


@lru_cache(maxsize=1)
def boot_id() -> str:
    """A value that changes when the machine is rebooted."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _stat(pid: int) -> list[str] | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name may have spaces and parentheses; the fields come after the last one.
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def identity_of(pid: int) -> Identity | None:
    """The identity of the process with this id now; None if there is none."""
    fields = _stat(pid)
    return {"pid": pid, "started": int(fields[START_FIELD]), "boot": boot_id()} if fields else None


def end_process(identity: Identity) -> bool:
    """Kill this process (not another with the same id), and wait until it has ended; False if that is not possible."""
    try:
        handle = os.pidfd_open(identity["pid"])
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):
        return False
    try:
        # The handle refers to the process that has the id now; the start time shows whether it is the one meant.
        if not alive(identity):
            return True
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        return bool(ended.poll(END_MILLISECONDS_MAX))
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    finally:
        os.close(handle)


def alive(identity: Identity) -> bool:
    """Whether this process (not another with the same id) still exists; a stopped one does."""
    if identity["boot"] != boot_id():
        return False
    fields = _stat(identity["pid"])
    if fields is not None:
        return int(fields[START_FIELD]) == identity["started"] and fields[STATE_FIELD] not in ("Z", "X")
    if os.path.isdir("/proc/self"):
        return False
    # A system without /proc: only the id can be checked.
    try:
        os.kill(identity["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    fields = _stat(pid)
    return fields is not None and fields[STATE_FIELD] in ("T", "t")


def process_name(pid: int) -> str:
    """The command of a process, for a message; without its arguments, which may be secrets."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


class DeathWatch:
    """Wakes a waiting thread when one of some processes ends: a pidfd each, for `select.poll`."""

    def __init__(self, identities: Iterable[Identity]) -> None:
        self.gone = False
        self.handles: list[int] = []
        for identity in identities:
            with suppress(AttributeError, OSError):
                self.handles.append(os.pidfd_open(identity["pid"]))
            if not alive(identity):  # checked after the handle exists, so that no end is missed
                self.gone = True

    def register(self, poll: select.poll) -> None:
        for handle in self.handles:
            poll.register(handle, select.POLLIN)

    def close(self) -> None:
        for handle in self.handles:
            os.close(handle)
        self.handles = []
