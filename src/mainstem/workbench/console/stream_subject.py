"""What a stream can follow: the home, a topic or a view, each as messages with a cursor.

A cursor says where a reader is, in any process and at any time:

    home           a digest of the map that it has
    topic:orders   5f2a91c0@0:257,1:243     the topic's id, and the next offset of each partition
    view:revenue   cd44f63f@17              the view's id, and the position of its last change

So a reader that comes back with its cursor gets what follows it, neither less nor more.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from mainstem.errors import FellOff, Invalid
from mainstem.log.log import AppendWatch
from mainstem.log.topic import Topic
from mainstem.names import check_own_name
from mainstem.stem import Mainstem
from mainstem.views.view import View
from mainstem.views.view_history import format_cursor, parse_cursor
from mainstem.views.view_store import CommitWatch
from mainstem.workbench.console.json_body import encode_json
from mainstem.workbench.console.row_cells import column_facts, json_rows
from mainstem.workbench.console.topic_records import cursor_text, newest_offsets, parse_offsets
from mainstem.workbench.console.view_rows import view_page
from mainstem.workbench.console.watched_home import WatchedHome

__all__ = ["StreamMessage", "Subject", "open_subject"]

# The rows or changes of one message, and its bytes unless one row alone has more.
ROWS_MAX = 200
BYTES_MAX = 128 * 1024
# Who is further behind than this gets a part: the newest rows of a topic, the last change of each key of a view.
BEHIND_MAX = 5_000
# The newest rows with which a reader without a cursor begins.
FIRST_ROWS = 50


@dataclass(frozen=True)
class StreamMessage:
    """A message: its kind, the cursor after it, and its JSON."""

    event: str
    cursor: str
    data: bytes


class Subject(Protocol):
    """Something to follow. Its methods may be called by several threads, `wait` by one."""

    name: str
    # Whether a message replaces the ones before it.
    newest_only: bool

    def head(self) -> str:
        """The cursor of a reader that has everything."""

    def snapshot(self) -> StreamMessage:
        """What a reader without a cursor begins with."""

    def next(self, cursor: str, until: str | None = None) -> StreamMessage | None:
        """The next message after a cursor, at most up to another cursor; None if there is none yet. Raises `FellOff` if what
        follows is no longer kept, and `Invalid` for a cursor of something else."""

    def wait(self, seconds: float) -> None:
        """Wait until there may be more."""

    def close(self) -> None:
        """Forget what `wait` watches; it may be called again."""


def open_subject(home: WatchedHome, name: str) -> Subject:
    """A subject by its name: home, topic:NAME, view:NAME."""
    kind, _, of = name.partition(":")
    if name == "home":
        return HomeSubject(home)
    if kind == "topic":
        return TopicSubject(home, check_own_name(of, "topic"))
    if kind == "view":
        return ViewSubject(home.stem, check_own_name(of, "view"))
    raise Invalid(
        f'"{name[:60]}" cannot be followed',
        detail="A stream follows home, topic:NAME and view:NAME.",
        hint="For example: /api/stream?of=home&of=view:revenue",
    )


class HomeSubject:
    """The map of a home. Only the newest counts: one that is replaced before it is sent is left out."""

    name = "home"
    newest_only = True
    # The map costs something: it is made again after a pause, longer if it takes long.
    PAUSE_SECONDS = 0.5
    PAUSE_SHARE = 4

    def __init__(self, home: WatchedHome) -> None:
        self._home = home
        self._never = threading.Event()

    def _message(self) -> StreamMessage:
        found = self._home.map()
        # The time alone is no change.
        known = {**found, "home": {**found["home"], "at": None}}
        digest = hashlib.sha256(encode_json(known)).hexdigest()[:16]
        return StreamMessage("home", digest, encode_json({"subject": self.name, "cursor": digest, "home": found}))

    def head(self) -> str:
        return self._message().cursor

    def snapshot(self) -> StreamMessage:
        return self._message()

    def next(self, cursor: str, until: str | None = None) -> StreamMessage | None:
        found = self._message()
        return None if found.cursor == cursor else found

    def wait(self, seconds: float) -> None:
        self._never.wait(min(seconds, self.PAUSE_SECONDS + self.PAUSE_SHARE * self._home.took_seconds))

    def close(self) -> None:
        """It watches nothing."""


class TopicSubject:
    """The records of a topic, as they are appended."""

    newest_only = False

    def __init__(self, home: WatchedHome, topic: str) -> None:
        self.name = f"topic:{topic}"
        self._home = home
        self._topic = topic
        self._watch: AppendWatch | None = None

    def _open(self) -> Topic:
        return self._home.stem.topic(self._topic)

    def head(self) -> str:
        with self._home.reach.asking():
            topic = self._open()
            return _topic_cursor(topic, _ends(topic))

    def snapshot(self) -> StreamMessage:
        with self._home.reach.asking():
            return self._newest(self._open())

    def _newest(self, topic: Topic) -> StreamMessage:
        starts = newest_offsets(topic, FIRST_ROWS)
        rows, offsets = _read(topic, starts, _ends(topic), FIRST_ROWS + len(starts))
        return self._message("snapshot", topic, rows, offsets, columns=column_facts(topic.settings.schema))

    def next(self, cursor: str, until: str | None = None) -> StreamMessage | None:
        with self._home.reach.asking():
            return self._after(self._open(), cursor, until)

    def _after(self, topic: Topic, cursor: str, until: str | None) -> StreamMessage | None:
        offsets = self._offsets(topic, cursor)
        ends = _ends(topic)
        if until is not None and until.startswith(f"{topic.backend.id[:8]}@"):
            ends = {number: min(end, ends[number]) for number, end in self._offsets(topic, until).items()}
        behind = sum(max(0, end - offsets[number]) for number, end in ends.items())
        skipped = 0
        if behind > BEHIND_MAX:
            share = max(1, ROWS_MAX // len(ends))
            newest = {number: max(offsets[number], end - share) for number, end in ends.items()}
            skipped = sum(topic.backend.count_records(number, offsets[number], newest[number]) for number in newest)
            offsets = newest
        if behind <= 0:
            return None
        count = ROWS_MAX
        while True:
            rows, after = _read(topic, offsets, ends, count)
            if after == offsets and not skipped:
                # The last records belong to an aborted transaction: there is nothing to show.
                return None
            message = self._message("rows", topic, rows, after, sampled=skipped)
            if len(message.data) <= BYTES_MAX or count == 1:
                return message
            count = max(1, min(count, sum(map(len, rows))) // 2)

    def _offsets(self, topic: Topic, cursor: str) -> dict[int, int]:
        made, mark, text = cursor.partition("@")
        if not mark:
            raise _no_cursor(cursor)
        offsets, ends = parse_offsets(text), _ends(topic)
        lost = any(offset > ends.get(number, -1) for number, offset in offsets.items())
        if made != topic.backend.id[:8] or lost:
            raise FellOff(
                f'topic "{topic.name}" is not the one that was followed',
                detail="It was deleted and created again, or the log was restored from an older copy.",
                hint="Begin again with its newest records.",
                topic=topic.name,
            )
        # A partition that was added since begins at its first record.
        return {number: offsets.get(number, topic.backend.earliest(number)) for number in ends}

    def _message(
        self, event: str, topic: Topic, rows: list[pa.RecordBatch], offsets: Mapping[int, int], **more: Any
    ) -> StreamMessage:
        cursor = _topic_cursor(topic, offsets)
        found = [row for batch in rows for row in json_rows(batch)]
        found.sort(key=lambda row: str(row["record"]["appended_at"]))
        content = {"subject": self.name, "cursor": cursor, "rows": found, **more}
        return StreamMessage(event, cursor, encode_json(content))

    def wait(self, seconds: float) -> None:
        with self._home.reach.asking():
            if self._watch is None:
                self._watch = self._open().backend.watch_appends()
            if not self._watch.wait(seconds) and seconds:
                self._open().backend.settle()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def _ends(topic: Topic) -> dict[int, int]:
    return {number: topic.backend.latest(number) for number in range(topic.settings.partitions)}


def _topic_cursor(topic: Topic, offsets: Mapping[int, int]) -> str:
    return f"{topic.backend.id[:8]}@{cursor_text(offsets)}"


def _read(
    topic: Topic, starts: Mapping[int, int], ends: Mapping[int, int], count: int
) -> tuple[list[pa.RecordBatch], dict[int, int]]:
    """Up to `count` records, and the next offset of each partition."""
    found: list[pa.RecordBatch] = []
    offsets = dict(starts)
    left = count
    for number, end in ends.items():
        while left > 0 and offsets[number] < end:
            batch = topic.backend.read(number, offsets[number], min(left, end - offsets[number]))
            if batch is None:
                break
            kept = batch.slice(0, left)
            last = kept.column("record").field("offset")[-1].as_py()
            if last >= end:
                # Compaction leaves offsets out, so that fewer offsets may hold as many records.
                inside = sum(offset < end for offset in kept.column("record").field("offset").to_pylist())
                kept, last = kept.slice(0, inside), end - 1
            found.append(kept)
            offsets[number] = last + 1
            left -= kept.num_rows
    return found, offsets


def _no_cursor(cursor: str) -> Invalid:
    return Invalid(
        f'"{cursor[:60]}" is not a cursor',
        detail="Each message of a stream has a cursor.",
        hint="Leave it out to begin with a snapshot.",
    )


class ViewSubject:
    """The changes of a view, as they are committed."""

    newest_only = False

    def __init__(self, stem: Mainstem, view: str) -> None:
        self.name = f"view:{view}"
        self._stem = stem
        self._view = view
        self._watch: CommitWatch | None = None

    def _open(self) -> View:
        return self._stem.view(self._view)

    def head(self) -> str:
        with closing(self._open()) as view, view.snapshot() as snapshot:
            return format_cursor(snapshot.facts, snapshot.positions()[1])

    def snapshot(self) -> StreamMessage:
        with closing(self._open()) as view:
            page = view_page(view, None, FIRST_ROWS)
        content = {"subject": self.name, **page}
        return StreamMessage("snapshot", page["cursor"], encode_json(content))

    def next(self, cursor: str, until: str | None = None) -> StreamMessage | None:
        with closing(self._open()) as view:
            with view.snapshot() as snapshot:
                facts, last = snapshot.facts, snapshot.positions()[1]
            start = parse_cursor(cursor, facts, view.name)
            end = last
            if until is not None and until.startswith(f"{facts.id[:8]}@"):
                end = min(last, parse_cursor(until, facts, view.name))
            if start > last:
                # Raises, and says why.
                view.changes_between(start, last, 1)
            if start >= end:
                return None
            return self._changes(view, facts.key, f"{facts.id[:8]}@", start, end)

    def _changes(self, view: View, key: tuple[str, ...], made: str, start: int, end: int) -> StreamMessage:
        coalescing = end - start > BEHIND_MAX
        count = BEHIND_MAX if coalescing else ROWS_MAX
        while True:
            found = view.changes_between(start, end, count)
            changes = _single_changes(found.rows, key)
            shown = _last_of_each_key(changes) if coalescing else changes
            cursor = f"{made}{found.end}"
            content = {
                "subject": self.name, "cursor": cursor, "after": str(start), "position": str(found.end),
                "changes": shown, "coalesced": len(changes) - len(shown),
            }  # fmt: skip
            data = encode_json(content)
            if len(data) <= BYTES_MAX or count == 1:
                return StreamMessage("changes", cursor, data)
            count = max(1, min(count, found.end - start) // 2)

    def wait(self, seconds: float) -> None:
        if self._watch is None:
            with closing(self._open()) as view:
                self._watch = view.watch()
        self._watch.wait(seconds)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def _single_changes(rows: pa.Table, key: tuple[str, ...]) -> list[dict[str, Any]]:
    """One change for each position: an update has both rows."""
    found: dict[int, dict[str, Any]] = {}
    for row in json_rows(rows):
        record = row.pop("record")
        # The old row of a position comes before the new one.
        position = int(record["offset"]) // 2
        change = found.setdefault(
            position,
            {"position": str(position), "change": record["change"], "key": [row[column] for column in key],
             "row": None, "before": None, "at": record["appended_at"]},
        )  # fmt: skip
        if record["change"] == "delete":
            change["before"] = row
        else:
            change["row"] = row
            change["change"] = "insert" if change["before"] is None else "update"
    return list(found.values())


def _last_of_each_key(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each key what became of it, with the row before the first change; nothing if it is as it was."""
    found: dict[bytes, dict[str, Any]] = {}
    for change in changes:
        of = encode_json(change["key"])
        before = found.pop(of, change)["before"]
        found[of] = {**change, "before": before}
    kept = [change for change in found.values() if change["before"] != change["row"]]
    for change in kept:
        words = {(True, False): "insert", (False, True): "delete"}
        change["change"] = words.get((change["before"] is None, change["row"] is None), "update")
    return kept
