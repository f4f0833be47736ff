"""A process that is stopped (SIGSTOP) at the Nth of its calls to the file system, in the middle of a transaction."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mainstem.durable_files import RealFiles
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.topic import Topic
from mainstem.log.transaction import Transaction

NEVER = 1 << 30


class StopsAt(RealFiles):
    """Real files of a process that stops at a call; it writes down at which ones it holds a lock, and of which file."""

    def __init__(self, call: int) -> None:
        self._left = call
        self._paths: dict[int, str] = {}
        self._held: dict[tuple[int, int], str] = {}
        self._calls = 0
        self.inside: dict[int, str] = {}

    def __hash__(self) -> int:
        return RealFiles.__hash__(self)

    def __getattribute__(self, name: str) -> object:
        attribute = super().__getattribute__(name)
        if name.startswith("_") or name == "inside":
            return attribute
        self._calls += 1
        if self._held:
            self.inside[self._calls] = next(iter(self._held.values()))
        if self._calls == self._left:
            os.kill(os.getpid(), signal.SIGSTOP)
        return attribute

    def open(self, path: str) -> int:
        handle = super().open(path)
        self._paths[handle] = path
        return handle

    def try_lock(self, handle: int, byte: int) -> bool:
        taken = super().try_lock(handle, byte)
        if taken:
            self._held[handle, byte] = self._paths[handle]
        return taken

    def unlock(self, handle: int, byte: int) -> None:
        super().unlock(handle, byte)
        self._held.pop((handle, byte), None)


def work(home: Path, files: RealFiles) -> None:
    """A transaction over a topic and the offsets of a group, and a plain append."""
    log = EmbeddedLog(home, files=files)
    orders = Topic(log, log.open_topic("orders"))
    orders.append([{"n": 2}])
    with orders.join_group("readers") as member, Transaction(log) as transaction:
        member.poll()
        transaction.append(orders, [{"n": 3}])
        transaction.commit_offsets(member)
    log.close()


def calls_inside(home: Path) -> dict[int, str]:
    """At which calls the work holds a lock, and of which file."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            files = StopsAt(NEVER)
            work(home, files)
            with os.fdopen(writing, "w") as pipe:
                json.dump(files.inside, pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        found = {int(call): path for call, path in json.load(pipe).items()}
    os.waitpid(pid, 0)
    return found


@contextmanager
def stopped_at(home: Path, call: int) -> Iterator[int]:
    """Inside, a process stands still in the middle of the work; its id."""
    pid = os.fork()
    if pid == 0:
        try:
            work(home, StopsAt(call))
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), call
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
