"""One reader for each subject, however many pages watch it; each page takes from its messages at its own pace.

    subject ──> SubjectFeed (one thread) ──> the last messages, at most 256 and 256 KiB ──> EventStream of each page

A page has no queue of its own: only its cursor. One that is too slow, or comes back, finds its cursor no longer among the
last messages; it reads what it missed by itself, up to where the feed is, and then goes along with the others.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from mainstem.errors import FellOff, Invalid, MainstemError, NotFound
from mainstem.workbench.cli.error_text import of_system
from mainstem.workbench.console.stream_subject import StreamMessage, Subject, open_subject
from mainstem.workbench.console.watched_home import WatchedHome

__all__ = ["StreamHub", "SubjectFeed"]

MESSAGES_MAX = 256
BYTES_MAX = 256 * 1024
# Without a notification the feed looks again after this long.
LOOK_SECONDS = 1.0
# Between two looks: what comes in one breath is one message.
GATHER_SECONDS = 0.05


class SubjectFeed:
    """Reads a subject in a thread of its own, and wakes those who watch."""

    def __init__(self, subject: Subject, loop: asyncio.AbstractEventLoop) -> None:
        self.subject = subject
        self._loop = loop
        self._guard = threading.Lock()
        # Each message with the cursor before it.
        self._recent: deque[tuple[str, StreamMessage]] = deque()
        self._bytes = 0
        self._head: str | None = None
        self._trouble: MainstemError | None = None
        self._watchers: set[asyncio.Event] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"mainstem-console {subject.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Ask the thread to end; it does within a second."""
        self._ended.set()

    @property
    def head(self) -> str | None:
        """How far the feed is; None before it has begun."""
        with self._guard:
            return self._head

    @property
    def trouble(self) -> MainstemError | None:
        """Why it cannot be read now; None if it can."""
        with self._guard:
            return self._trouble

    def after(self, cursor: str) -> list[StreamMessage] | None:
        """The messages after a cursor, empty if there are none yet; None if the cursor is not among the last ones."""
        with self._guard:
            if cursor == self._head:
                return []
            recent = list(self._recent)
        for index, (before, _) in enumerate(recent):
            if before == cursor:
                return [message for _, message in recent[index:]]
        return None

    def watch(self, bell: asyncio.Event) -> None:
        self._watchers.add(bell)

    def leave(self, bell: asyncio.Event) -> bool:
        """Stop watching; returns whether nobody watches any more."""
        self._watchers.discard(bell)
        return not self._watchers

    # In the thread

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                try:
                    self._follow()
                except MainstemError as error:
                    self._stumble(error)
                except OSError as error:
                    self._stumble(of_system(error))
        finally:
            self.subject.close()

    def _follow(self) -> None:
        """Read on, until the feed ends or an error comes."""
        # From here on nothing is missed.
        self.subject.wait(0)
        if self.head is None:
            self._move(self.subject.head(), None)
        while not self._ended.is_set():
            head = self.head
            assert head is not None
            message = self.subject.next(head)
            if message is None:
                self._clear_trouble()
                self.subject.wait(LOOK_SECONDS)
                self._ended.wait(GATHER_SECONDS)
            else:
                self._move(message.cursor, message)

    def _stumble(self, error: MainstemError) -> None:
        with self._guard:
            known = self._trouble
            self._trouble = None if isinstance(error, FellOff | Invalid) else error
            if isinstance(error, FellOff | Invalid | NotFound):
                # Each page finds out by itself, from its own cursor.
                self._recent.clear()
                self._head, self._bytes = None, 0
        self.subject.close()
        if known is None or known.summary != error.summary:
            self._ring()
        self._ended.wait(LOOK_SECONDS)

    def _clear_trouble(self) -> None:
        with self._guard:
            if self._trouble is None:
                return
            self._trouble = None
        self._ring()

    def _move(self, cursor: str, message: StreamMessage | None) -> None:
        with self._guard:
            if message is not None and self._head is not None:
                self._recent.append((self._head, message))
                self._bytes += len(message.data)
                while len(self._recent) > MESSAGES_MAX or (self._bytes > BYTES_MAX and len(self._recent) > 1):
                    self._bytes -= len(self._recent.popleft()[1].data)
            self._head, self._trouble = cursor, None
        self._ring()

    def _ring(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            # The loop is closed: the server has ended.
            self._ended.set()

    def _wake(self) -> None:
        for bell in self._watchers:
            bell.set()


class StreamHub:
    """The feeds of a console, each as long as somebody watches. For the thread of the event loop."""

    def __init__(self, home: WatchedHome) -> None:
        self.home = home
        self._feeds: dict[str, SubjectFeed] = {}
        self._bells: set[asyncio.Event] = set()
        self.closed = False

    @property
    def streams(self) -> int:
        """How many are open."""
        return len(self._bells)

    def join(self, names: list[str], bell: asyncio.Event) -> list[SubjectFeed]:
        """Watch these subjects; raises `Invalid` for a name that is none."""
        subjects = {name: open_subject(self.home, name) for name in dict.fromkeys(names)}
        self._bells.add(bell)
        joined = []
        for name, subject in subjects.items():
            feed = self._feeds.get(name)
            if feed is None:
                feed = self._feeds[name] = SubjectFeed(subject, asyncio.get_running_loop())
                feed.start()
            feed.watch(bell)
            joined.append(feed)
        return joined

    def leave(self, feeds: list[SubjectFeed], bell: asyncio.Event) -> None:
        self._bells.discard(bell)
        for feed in feeds:
            if feed.leave(bell):
                feed.end()
                if self._feeds.get(feed.subject.name) is feed:
                    del self._feeds[feed.subject.name]

    def close(self) -> None:
        """End all streams."""
        self.closed = True
        for bell in self._bells:
            bell.set()
