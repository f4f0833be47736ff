"""What a process and everything it started have used: CPU, memory of their own, bytes read.

A program on Spark is a Python driver, a JVM, a daemon that forks Python workers, and the workers. What ended and was
waited for is counted by the kernel to whoever waited; `adopt_orphans` sees to it that this is somebody in the tree.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36
# The number of the system call kcmp, and what it is asked.
KCMP = {"x86_64": 312, "aarch64": 272}
KCMP_VM = 1
# Fields of /proc/<pid>/stat after the name in brackets: parent, then user and system time of itself and of its ended.
PARENT, TIMES = 1, slice(11, 15)


def adopt_orphans() -> None:
    """From here on a process whose parent ended becomes a child of this one instead of the system's first process."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def cpu_seconds(root: int | None = None) -> float:
    """CPU time of a process (this one) and all below it since they began, ended ones included."""
    ticks = sum(sum(int(part) for part in fields[TIMES]) for fields in tree(root).values())
    return ticks / TICKS_PER_SECOND


def own_bytes() -> int:
    """Memory of this process and all below it that is no file's: what the machine must have for them.

    A process that Java starts has Java's memory until it becomes another program a moment later: it is not counted twice.
    """
    return sum(
        _number(process, "status", "RssAnon:") * 1024
        for process, fields in tree().items()
        if not _same_memory(process, int(fields[PARENT]))
    )


def shared_bytes(root: int | None = None) -> int:
    """As `own_bytes`, with memory that forks share counted once. Slow for a large Java: not while something is timed."""
    return sum(_number(process, "smaps_rollup", "Pss_Anon:") * 1024 for process in tree(root))


def _same_memory(process: int, other: int) -> bool:
    number = KCMP.get(os.uname().machine)
    return number is not None and ctypes.CDLL(None).syscall(number, process, other, KCMP_VM, 0, 0) == 0


def read_bytes() -> int:
    """Bytes that this process and all below it asked files and sockets for, from memory or disk, ended ones included."""
    return sum(_number(process, "io", "rchar:") for process in tree())


class PeakMemory:
    """The most memory that the tree had at any moment at which it was looked at, every tenth of a second."""

    def __init__(self) -> None:
        self.bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            self.bytes = max(self.bytes, own_bytes())


def tree(root: int | None = None) -> dict[int, list[str]]:
    """The stat fields of a process (this one) and of all below it."""
    every = dict(_processes())
    first = os.getpid() if root is None else root
    tree = {first: every[first]}
    found = True
    while found:
        below = {pid: it for pid, it in every.items() if pid not in tree and int(it[PARENT]) in tree}
        tree |= below
        found = bool(below)
    return tree


def _processes() -> Iterator[tuple[int, list[str]]]:
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as stat:
                yield int(entry), stat.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended since


def _number(process: int, file: str, name: str) -> int:
    try:
        with open(f"/proc/{process}/{file}", encoding="utf-8", errors="replace") as lines:
            return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
