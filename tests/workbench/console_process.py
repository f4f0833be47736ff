"""A console in a process of its own, and a client that reads its streams."""

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from tests.waiting import SECONDS_MAX

__all__ = ["Answer", "ConsoleProcess", "Event", "EventReader", "running_console"]


class Answer(NamedTuple):
    """An answer of the console."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Event(NamedTuple):
    """An event of a stream."""

    kind: str
    id: str
    data: Any


class ConsoleProcess:
    """`mainstem console` on a free port."""

    def __init__(self, home: str, *options: str) -> None:
        command = [sys.executable, "-m", "mainstem.workbench.cli.main", "console", "--home", home, "--port", "0"]
        self.process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.process.communicate()[1])
        self.url = line.split()[-1]
        self.host, self.port = urlsplit(self.url).hostname or "", urlsplit(self.url).port or 0

    def ask(self, path: str, *, method: str = "GET", body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """One request."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=SECONDS_MAX)
        try:
            content = None if body is None else json.dumps(body).encode()
            sent = {"Content-Type": "application/json"} if content is not None else {}
            connection.request(method, path, content, {**sent, **(headers or {})})
            found = connection.getresponse()
            return Answer(found.status, {name.lower(): text for name, text in found.getheaders()}, found.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Any:
        """The JSON of an answer that must be there."""
        found = self.ask(path, headers=headers)
        assert found.status == 200, found.body
        return found.json

    def stream(self, *subjects: str, last: str = "") -> "EventReader":
        return EventReader(self, subjects, last)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def end(self) -> str:
        """Ends it as Ctrl-C does; returns what it wrote to standard error."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=SECONDS_MAX)[1]


@contextmanager
def running_console(home: str | os.PathLike[str], *options: str) -> Iterator[ConsoleProcess]:
    """A console until the end of the `with`."""
    console = ConsoleProcess(os.fspath(home), *options)
    try:
        yield console
    finally:
        if console.process.poll() is None:
            console.kill()


class EventReader:
    """One stream. `next` waits for an event; `cut` closes the connection in the middle of whatever comes."""

    def __init__(self, console: ConsoleProcess, subjects: tuple[str, ...], last: str = "", token: str = "") -> None:
        self._connection = http.client.HTTPConnection(console.host, console.port, timeout=SECONDS_MAX)
        address = "/api/stream?" + "&".join(f"of={quote(subject)}" for subject in subjects)
        headers = {"Last-Event-ID": last} if last else {}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        self._connection.request("GET", address, headers=headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()
        self.last = last

    def next(self, *kinds: str) -> Event:
        """The next event; of these kinds, if any are given: others are passed over."""
        while True:
            event = self._read()
            self.last = event.id
            if not kinds or event.kind in kinds:
                return event

    def _read(self) -> Event:
        fields: dict[str, str] = {}
        while True:
            line = self._answer.readline()
            if not line:
                raise ConnectionError("the stream ended")
            text = line.decode().rstrip("\n")
            if not text and "event" in fields:
                return Event(fields["event"], fields["id"], json.loads(fields["data"]))
            name, _, value = text.partition(": ")
            fields[name] = value

    def cut(self) -> None:
        self._connection.close()
        self._answer.close()
