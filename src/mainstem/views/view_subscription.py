"""A subscription to a view: all of its rows, then every change, without a gap between the two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from mainstem.clock import Clock
from mainstem.errors import ViewNotFound
from mainstem.views.view_history import ViewHistory, format_cursor, parse_cursor
from mainstem.views.view_store import CommitWatch, ViewStore

__all__ = ["Update", "subscription", "wait_for_commit"]

CHANGES_MAX = 65_536
# A writer that dies between its commit and the waking wakes nobody: so those who wait look by themselves this often.
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Update:
    """An item of a subscription. `view.subscribe(cursor=update.cursor)` goes on behind it.

    A "snapshot" has all rows of the view. "changes" have the rows that were deleted and inserted, in order, as
    `record.change` says; an update is a delete of the old row followed by an insert of the new one.
    """

    kind: Literal["snapshot", "changes"]
    rows: pa.Table
    cursor: str


def subscription(store: ViewStore, clock: Clock, cursor: str | None, wait_us: int | None) -> Iterator[Update]:
    """The items; ends when nothing came for `wait_us`, or never."""
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
                raise _replaced(store.view)
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
    """Wait until something was committed, or for a while; False if more than `wait_us` passed since `since`."""
    left = LOOK_SECONDS
    if wait_us is not None:
        left = min(left, (since + wait_us - clock.monotonic()) / 1_000_000)
        if left <= 0:
            return False
    watch.wait(left)
    return True


def _replaced(view: str) -> ViewNotFound:
    return ViewNotFound(
        f'view "{view}" was dropped while it was followed',
        detail="There is a view of that name, made since.",
        hint="Subscribe again, without a cursor.",
        view=view,
    )
