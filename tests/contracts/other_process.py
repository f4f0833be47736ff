"""Another process on the same log: it opens the log itself, does its work, and talks with the test over a pipe."""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from mainstem.stem import Mainstem

# Nothing waits this long unless it hangs.
SECONDS_MAX = 300

Opener = Callable[[], Mainstem]
Work = Callable[..., None]


class Line:
    """One end of the talk between the test and the other process."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def say(self, value: Any = None) -> None:
        """Tell the other end; what is told is plain data."""
        self.connection.send(("said", value))

    def hear(self, seconds: float = SECONDS_MAX) -> Any:
        """What the other end says next."""
        if not self.connection.poll(seconds):
            raise TimeoutError(f"nothing was said for {seconds} seconds")
        kind, value = self.connection.recv()
        if kind == "failed":
            raise AssertionError(f"the other process failed:\n{value}")
        return value

    def quiet(self, seconds: float = 0) -> bool:
        """Whether the other end has said nothing, and says nothing for so long."""
        return not self.connection.poll(seconds)


class OtherProcess(Line):
    """A forked process that does `work(stem, line, *arguments)` with a log of its own."""

    def __init__(self, opener: Opener, work: Work, *arguments: Any) -> None:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        self._process = context.Process(target=_run, args=(opener, work, there, arguments), daemon=True)
        self._process.start()
        there.close()
        super().__init__(here)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def kill(self) -> None:
        """End it as a crash does, with nothing tidied up."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.join()

    def last_words(self) -> list[Any]:
        """What a process that is dead had still said."""
        words = []
        with suppress(EOFError, ConnectionResetError):
            while True:
                words.append(self.hear())
        return words

    def end(self) -> None:
        """Wait until it is done."""
        self._process.join(SECONDS_MAX)
        assert self._process.exitcode == 0, f"the other process ended with {self._process.exitcode}"

    def close(self) -> None:
        if self._process.is_alive():
            self.kill()
        self.connection.close()


def _run(opener: Opener, work: Work, connection: Connection, arguments: tuple[Any, ...]) -> None:
    try:
        with opener() as stem:
            work(stem, Line(connection), *arguments)
    except BaseException:  # noqa: BLE001 - it is told to the test
        connection.send(("failed", traceback.format_exc()))
        raise SystemExit(1) from None
