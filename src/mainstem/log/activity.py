"""What happened in a home: the topic `mainstem.activity`, a row for each event, in plain words.

    at          when it was noticed (event time)
    subject     flow, topic, queue, view, store, capture or console; `name` is its name, a queue's is <topic>.<queue>
    what        begun, ended, killed, failed, waiting, restarted, fenced, version used, altered, rewound or acted
    version, epoch      of the run, or the version that is used; null where there is none
    text        one sentence; of an error its first part, `detail` and `hint` are the others
    who         the user of the process that wrote the row

Kept for 90 days. A row is written after the event: a process that is killed in between leaves none.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any, Literal

from mainstem.clock import as_datetime
from mainstem.errors import MainstemError, TopicNotFound
from mainstem.log.log import Log
from mainstem.log.own_topic import own_topic
from mainstem.log.rows.rows import check_rows

__all__ = ["ACTIVITY_TOPIC", "NotedWaits", "What", "Subject", "note_activity", "read_activity"]

ACTIVITY_TOPIC = "mainstem.activity"

SCHEMA = (
    "at TIMESTAMP, subject STRING, name STRING, what STRING, version INT, epoch BIGINT, text STRING, detail STRING, "
    "hint STRING, who STRING"
)
KEEP = "90 days"
# An error may quote a row of any size.
TEXT_MAX = 10_000

Subject = Literal["flow", "topic", "queue", "view", "store", "capture", "console"]
What = Literal[
    "begun",
    "ended",
    "killed",
    "failed",
    "waiting",
    "restarted",
    "fenced",
    "version used",
    "altered",
    "rewound",
    "acted",
]


def note_activity(
    log: Log,
    subject: Subject,
    name: str,
    what: What,
    text: str,
    *,
    version: int | None = None,
    epoch: int | None = None,
    detail: str = "",
    hint: str = "",
    who: str = "",
) -> None:
    """Append an event. What happened has happened: if the log cannot be written, nothing is raised."""
    row = {
        "at": as_datetime(log.clock.now()), "subject": subject, "name": name, "what": what, "version": version,
        "epoch": epoch, "text": text[:TEXT_MAX], "detail": detail[:TEXT_MAX] or None, "hint": hint[:TEXT_MAX] or None,
        "who": who or this_user(),
    }  # fmt: skip
    with suppress(MainstemError, OSError):
        topic = own_topic(log, ACTIVITY_TOPIC, schema=SCHEMA, keep=KEEP)
        topic.append(check_rows([row], topic.settings))


def read_activity(log: Log, since: int, names: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """The events since a time, in microseconds, oldest first; with `names` only those of these subjects."""
    try:
        topic = log.open_topic(ACTIVITY_TOPIC)
    except TopicNotFound:
        return
    moment, reached = topic.moment(), as_datetime(since)
    for batch in moment.read(0, moment.at_time(0, since), moment.latest(0), None):
        for row in batch.drop_columns(["record"]).to_pylist():
            if row["at"] >= reached and (not names or row["name"] in names):
                yield row


# The least time between the beginnings of two waits that have a row.
WAIT_US_MIN = 20_000_000


class NotedWaits:
    """Which waits of a flow or a capture have rows: one that begins within 20 seconds of the one before has none; the next row
    has their number. So there are at most a few rows a minute, whatever happens. For one thread.

    >>> waits = NotedWaits()
    >>> waits.begin(0), waits.end(), waits.begin(5_000_000), waits.end(), waits.begin(21_000_000)
    ('', True, None, False, ', and waited 1 times since the last such row')
    """

    def __init__(self) -> None:
        self.now = False
        # When the last wait with a row began, in monotonic time; how many came since without one.
        self._noted_at: int | None = None
        self._unnoted = 0

    def begin(self, now: int) -> str | None:
        """What to add to the row of a wait that begins; None if it has no row. Called for each attempt."""
        again, self.now = self.now, True
        if again:
            return None
        if self._noted_at is not None and now - self._noted_at < WAIT_US_MIN:
            self._unnoted += 1
            return None
        self._noted_at = now
        more = f", and waited {self._unnoted} times since the last such row" if self._unnoted else ""
        self._unnoted = 0
        return more

    def end(self) -> bool:
        """The wait is over; whether that has a row."""
        self.now = False
        return not self._unnoted


def this_user() -> str:
    """The name of the user that this process runs as."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # A container may run as a user without a name.
        return str(os.getuid())
