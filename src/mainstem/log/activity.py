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

__all__ = ["ACTIVITY_TOPIC", "What", "Subject", "note_activity", "read_activity"]

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


def this_user() -> str:
    """The name of the user that this process runs as."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # A container may run as a user without a name.
        return str(os.getuid())
