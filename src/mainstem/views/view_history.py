"""A view's changes as one sequence of positions, through all of its versions.

Each version keeps the changes of the time when it was live. When another one becomes live, the difference between the
two is written into it as changes, at the positions that follow. So a reader that continues from a position gets all
changes from there to now, switches included; and the same again when it reads the same range again.

    history      v1 after 0            v2 after 900           v1 after 1200
    positions    1 ... 900             901 ... 1200           1201 ...
                 written as batches    first the difference   first the difference
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import pyarrow as pa

from mainstem.clock import Clock, as_datetime, as_us
from mainstem.errors import FellOff, Invalid, NotYet, ViewNotFound
from mainstem.log.append_result import parse_token
from mainstem.views.view_facts import Facts
from mainstem.views.view_offsets import missing_of, not_yet
from mainstem.views.view_store import CommitWatch, KeptSince, VersionSnapshot, ViewStore

__all__ = [
    "AsOf",
    "Changes",
    "Update",
    "ViewHistory",
    "format_cursor",
    "parse_cursor",
    "position_as_of",
    "subscription",
    "wait_for_commit",
]


# Past states of a view: the position in its changes of a time, or of the token of an append.
#
#     as_of a time     right after the last batch that was committed at or before it, by the clock of the writing process
#     as_of a token    right after the batch that applied the last record of the token
#
# A view with history keeps all changes of that time, and undoes later ones. A read that cannot be exact is refused: a time
# before the history or in the future, an append that was applied before the history began or is not applied yet.


# A time with a zone, or the token of an append.
AsOf = datetime | str


def position_as_of(snapshot: VersionSnapshot, as_of: AsOf, *, view: str, now: int) -> int:
    """The position after which changes are undone; `now` is a time before the snapshot was taken."""
    since = snapshot.kept_since()
    if since is None:
        raise Invalid(
            f'view "{view}" keeps no history',
            detail="It has only its current rows, and no earlier ones.",
            hint=f'Set how long it keeps history: stem.view("{view}", key=..., history="30 days"). Its history starts with the '
            "next run of its flow.",
        )
    if isinstance(as_of, datetime):
        return _at(snapshot, since, as_us(as_of), view, now)
    if isinstance(as_of, str):
        return _find_position(snapshot, since, as_of, view)
    raise Invalid(
        f"{as_of!r:.60} is neither a time nor a token",
        detail="as_of is a datetime with a time zone, or the token of an append.",
        hint="Give one of these: datetime(2026, 1, 1, tzinfo=UTC), or placed.token of an append.",
    )


def _at(snapshot: VersionSnapshot, since: KeptSince, at: int, view: str, now: int) -> int:
    if at > now:
        raise NotYet(
            f'view "{view}" cannot be read as of {_format_time(at)}, which is in the future',
            detail=f"It is {_format_time(now)}.",
            hint="Give a time in the past; for the current rows, leave as_of out.",
            view=view,
        )
    if at < since.at:
        raise _gone_error(view, since, f"its rows as of {_format_time(at)}")
    found = snapshot.position_at(at)
    return since.position if found is None else max(found, since.position)


def _find_position(snapshot: VersionSnapshot, since: KeptSince, token: str, view: str) -> int:
    wanted = parse_token(token)
    applied = snapshot.offsets()
    # Before the first batch nothing was applied, and the view was empty.
    position = -1
    missing = missing_of(wanted, applied)
    for topic, ends in wanted.items():
        for partition, end in ends.items():
            if not end:
                continue
            found = snapshot.position_reached(topic, partition, end)
            if found is None:
                raise not_yet(view, missing, applied)
            position = max(position, found)
    if position < since.position:
        raise _gone_error(view, since, f"its rows as of {token}")
    return position


def _gone_error(view: str, since: KeptSince, what: str) -> FellOff:
    return FellOff(
        f'view "{view}" no longer has {what}',
        detail=f"Its history goes back to {_format_time(since.at)}.",
        hint="Give a later time, or the token of a later append. The retention of history is a setting of the view: "
        f'stem.view("{view}", history="90 days").',
        view=view,
    )


def _format_time(at: int) -> str:
    return as_datetime(at).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True)
class Changes:
    """The changes after position `start` up to and including `end`, an update as delete and insert."""

    rows: pa.Table
    start: int
    end: int


class ViewHistory:
    """Reads changes. Thread-safe."""

    def __init__(self, store: ViewStore) -> None:
        self._store = store

    def last(self) -> int:
        """The position of the last change."""
        with self._store.live() as snapshot:
            return snapshot.positions()[1]

    def between(self, start: int, end: int, changes_max: int) -> Changes:
        """The changes after `start` up to `end`, at most `limit`; raises `FellOff` if some of them are no longer kept.

        The same range always gives the same rows. The result may end before `end`: its own `end` says where.
        """
        facts = self._store.facts()
        if start < facts.history[0].after:
            raise self._fell_off(start, facts.history[0].after)
        index = max(index for index, segment in enumerate(facts.history) if segment.after <= start)
        version = facts.history[index].version
        if index + 1 == len(facts.history):
            return self._live(facts, start, end, changes_max)
        until = min(end, facts.history[index + 1].after, start + changes_max)
        try:
            with self._store.at(version) as snapshot:
                if snapshot.positions()[0] > start + 1:
                    raise self._fell_off(start, snapshot.positions()[0] - 1)
                return Changes(snapshot.changes(start, until), start, until)
        except ViewNotFound as error:
            raise self._fell_off(start, facts.history[index + 1].after) from error

    def _live(self, facts: Facts, start: int, end: int, changes_max: int) -> Changes:
        with self._store.live() as snapshot:
            flipped = snapshot.facts.history != facts.history
            first, last = snapshot.positions()
            if not flipped:
                if first > start + 1:
                    raise self._fell_off(start, first - 1)
                until = min(max(start, end), last, start + changes_max)
                if until < start:
                    raise self._ahead(start, last)
                return Changes(snapshot.changes(start, until), start, until)
        return self.between(start, end, changes_max)

    def _ahead(self, start: int, last: int) -> FellOff:
        return FellOff(
            f'view "{self._store.view}" has no position {start} yet',
            detail=f"Its last change is {last}: it was most likely restored from an older copy.",
            hint="Start again with a snapshot: view.subscribe() without a cursor.",
            view=self._store.view,
            first_lost=last + 1,
            last_lost=start,
        )

    def _fell_off(self, start: int, last_lost: int) -> FellOff:
        return FellOff(
            f'view "{self._store.view}" no longer keeps its changes from {start + 1} to {last_lost}',
            detail="They were trimmed, or their version was dropped, before they were read.",
            hint="Start again with a snapshot: view.subscribe() without a cursor. The retention of changes is a "
            "setting of the view.",
            view=self._store.view,
            first_lost=start + 1,
            last_lost=last_lost,
        )


def format_cursor(facts: Facts, position: int) -> str:
    """A position of this view, as users store it.

    The id distinguishes it from a view of the same name that was created later.
    """
    return f"{facts.id[:8]}@{position}"


def parse_cursor(cursor: str, facts: Facts, view: str) -> int:
    """The position in a cursor; raises `FellOff` if it belongs to an earlier view of that name."""
    made, _, position = cursor.partition("@") if isinstance(cursor, str) else ("", "", "")
    if len(made) != 8 or not position.isascii() or not position.isdigit():
        raise Invalid(
            f"{cursor!r:.60} is not a cursor",
            detail=f'Each item of view.subscribe() has a cursor, such as "{facts.id[:8]}@17".',
            hint="Give the cursor of the last item that you processed, or none to start with a snapshot.",
        )
    if made != facts.id[:8]:
        raise FellOff(
            f'cursor "{cursor}" belongs to a view "{view}" that was dropped',
            detail="The view was created again since, and its changes are numbered from the start.",
            hint="Start again with a snapshot: view.subscribe() without a cursor.",
            view=view,
        )
    return int(position)


# A subscription to a view: all of its rows, then every change, without a gap between the two.


CHANGES_MAX = 65_536
# A writer that dies right after its commit wakes no reader: so waiting readers also poll, this often.
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Update:
    """An item of a subscription. `view.subscribe(cursor=update.cursor)` continues after it.

    A "snapshot" has all rows of the view. "changes" have the rows that were deleted and inserted, in order, as
    `record.change` says; an update is a delete of the old row followed by an insert of the new one.
    """

    kind: Literal["snapshot", "changes"]
    rows: pa.Table
    cursor: str


def subscription(store: ViewStore, clock: Clock, cursor: str | None, wait_us: int | None) -> Iterator[Update]:
    """The items; ends when there was no change for `wait_us`, or never."""
    history = ViewHistory(store)
    facts = store.facts()
    if cursor is None:
        with store.live() as snapshot:
            rows, position = snapshot.to_arrow(), snapshot.positions()[1]
        yield Update("snapshot", rows, format_cursor(facts, position))
    else:
        position = parse_cursor(cursor, facts, store.view)
    watch = store.watch()
    try:
        idle_since = clock.monotonic()
        while True:
            if store.facts().id != facts.id:
                raise _replaced_error(store.view)
            changes = history.between(position, history.last(), CHANGES_MAX)
            if changes.end > position:
                position = changes.end
                yield Update("changes", changes.rows, format_cursor(facts, position))
                idle_since = clock.monotonic()
            elif not wait_for_commit(watch, clock, idle_since, wait_us):
                return
    finally:
        watch.close()


def wait_for_commit(watch: CommitWatch, clock: Clock, since: int, wait_us: int | None) -> bool:
    """Wait for a commit, for a limited time; False if more than `wait_us` passed since `since`."""
    left = LOOK_SECONDS
    if wait_us is not None:
        left = min(left, (since + wait_us - clock.monotonic()) / 1_000_000)
        if left <= 0:
            return False
    watch.wait(left)
    return True


def _replaced_error(view: str) -> ViewNotFound:
    return ViewNotFound(
        f'view "{view}" was dropped during a subscription',
        detail="A view of that name was created since.",
        hint="Subscribe again, without a cursor.",
        view=view,
    )
