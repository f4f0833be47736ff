"""What a process and everything it started have used: CPU, memory of their own and of files, bytes read.

A program on Spark is a Python driver, a JVM, a daemon that forks Python workers, and the workers. What ended and was
waited for is counted by the kernel to whoever waited; `adopt_orphans` sees to it that this is somebody in the tree.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36
# The number of the system call kcmp, and what it is asked.
KCMP = {"x86_64": 312, "aarch64": 272}
KCMP_VM = 1
# Fields of /proc/<pid>/stat, the name in brackets first: parent, then user and system time of itself and of its ended.
NAME, PARENT, TIMES, ENDED_TIMES = 0, 2, slice(12, 14), slice(14, 16)

# By the beginning of a thread's name in Java, of which Java gives the kernel the first seven characters.
JAVA_PARTS = {
    "planning and checkpoint files": ("stream ",),
    "calls of the driver: analysis, optimizer, code generation": ("Thread-", "python-"),
    "tasks": ("Executo", "unused"),
    "scheduling": ("dag-sch", "task-re", "dispatc", "spark-l", "map-out"),
    "compilers of Java": ("C1 ", "C2 ", "Sweeper"),
    "collection of garbage": ("G1 ", "GC ", "VM "),
}


def adopt_orphans() -> None:
    """From here on a process whose parent ended becomes a child of this one instead of the system's first process."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def cpu_seconds(root: int | None = None) -> float:
    """CPU time of a process (this one) and all below it since they began, ended ones included."""
    return sum(cpu_seconds_by_kind(root).values())


def cpu_seconds_by_kind(root: int | None = None) -> dict[str, float]:
    """The same by kind of process: this one (the driver), Java, and all others, which are Python's workers. So are those that ended."""
    seconds = {"driver": 0.0, "java": 0.0, "workers": 0.0}
    for process, fields in tree(root).items():
        kind = "driver" if process == os.getpid() else "java" if fields[NAME] == "java" else "workers"
        seconds[kind] += sum(map(int, fields[TIMES])) / TICKS_PER_SECOND
        seconds["workers"] += sum(map(int, fields[ENDED_TIMES])) / TICKS_PER_SECOND
    return seconds


def cpu_by_part(root: int | None = None) -> Counter[str]:
    """Clock ticks of every process and thread so far, by what it does."""
    found: Counter[str] = Counter()
    for process, fields in tree(root).items():
        try:
            if fields[NAME] == "java":
                # A flow's own thread ends with the flow.
                found["Java: threads that ended"] += sum(map(int, fields[TIMES]))
                for task in os.listdir(f"/proc/{process}/task"):
                    thread = _stat(f"/proc/{process}/task/{task}/stat")
                    found[f"Java: {_java_part(thread[NAME])}"] += sum(map(int, thread[TIMES]))
                    found["Java: threads that ended"] -= sum(map(int, thread[TIMES]))
            else:
                what = "driver" if process == (root or os.getpid()) else _command(process)
                found[f"Python: {what}"] += sum(map(int, fields[TIMES]))
        except (FileNotFoundError, ProcessLookupError):
            continue
        found["ended processes"] += sum(map(int, fields[ENDED_TIMES]))
    return found


def _java_part(thread: str) -> str:
    for part, beginnings in JAVA_PARTS.items():
        if thread.startswith(beginnings):
            return part
    return "others"


def _command(process: int) -> str:
    # A fork of the warm process has its command line; what it runs is in its environment.
    with open(f"/proc/{process}/environ", encoding="utf-8", errors="replace") as file:
        return "source or worker" if "SPARK" in file.read() else "others"


def own_bytes(root: int | None = None) -> int:
    """Memory of a process (this one) and all below it that is no file's: what the machine must have for them."""
    return resident_bytes(root)[0]


def mapped_bytes() -> int:
    """Memory of files that they have mapped, which the system can reclaim. A page is counted for each process."""
    return resident_bytes()[1]


def resident_bytes(root: int | None = None) -> tuple[int, int]:
    """Both, looked at once.

    A process that Java starts has Java's memory until it becomes another program a moment later: it is not counted twice.
    """
    own = mapped = 0
    for process, fields in tree(root).items():
        if not _same_memory(process, int(fields[PARENT])):
            found = _numbers(process, "status", "RssAnon:", "RssFile:")
            own, mapped = own + found[0] * 1024, mapped + found[1] * 1024
    return own, mapped


def shared_bytes(root: int | None = None) -> int:
    """As `own_bytes`, with memory that forks share counted once. Slow for a large Java: not while something is timed."""
    return sum(_numbers(process, "smaps_rollup", "Pss_Anon:")[0] * 1024 for process in tree(root))


def _same_memory(process: int, other: int) -> bool:
    number = KCMP.get(os.uname().machine)
    return number is not None and ctypes.CDLL(None).syscall(number, process, other, KCMP_VM, 0, 0) == 0


def read_bytes() -> int:
    """Bytes that this process and all below it asked files and sockets for, from memory or disk, ended ones included."""
    return sum(_numbers(process, "io", "rchar:")[0] for process in tree())


class PeakMemory:
    """The most memory that the tree had at any moment at which it was looked at, every tenth of a second; mapped files apart."""

    def __init__(self) -> None:
        self.bytes = 0
        self.mapped_bytes = 0
        # What the looking itself took: on a busy machine it is a good part of what a short run takes.
        self.cpu_seconds = 0.0
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
            own, mapped = resident_bytes()
            self.bytes, self.mapped_bytes = max(self.bytes, own), max(self.mapped_bytes, mapped)
        self.cpu_seconds = time.thread_time()


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
            yield int(entry), _stat(f"/proc/{entry}/stat")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended since


def _stat(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="replace") as stat:
        before, _, after = stat.read().rpartition(")")
    return [before.partition("(")[2], *after.split()]


def _numbers(process: int, file: str, *names: str) -> list[int]:
    try:
        with open(f"/proc/{process}/{file}", encoding="utf-8", errors="replace") as lines:
            found = {words[0]: int(words[1]) for words in map(str.split, lines) if words and words[0] in names}
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        found = {}
    return [found.get(name, 0) for name in names]
