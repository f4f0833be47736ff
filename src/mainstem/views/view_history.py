"""A view's changes as one run of positions, through all of its versions.

Each version keeps the changes of the time when it was live. When another one becomes live, the difference between the
two is written into it as changes, at the positions that follow. So whoever reads on from a position gets what led from
there to now, flips included; and the same again when the same range is asked for again.

    history      v1 after 0            v2 after 900           v1 after 1200
    positions    1 ... 900             901 ... 1200           1201 ...
                 written as batches    first the difference   first the difference
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from mainstem.errors import FellOff, Invalid, ViewNotFound
from mainstem.views.view_facts import Facts
from mainstem.views.view_store import ViewStore

__all__ = ["Changes", "ViewHistory", "format_cursor", "parse_cursor"]


@dataclass(frozen=True)
class Changes:
    """The changes behind position `start` up to and with position `end`, an update as delete and insert."""

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
        """The changes behind `start` up to `end`, at most so many; `FellOff` if some of them are no longer kept.

        The same range always gives the same rows. What is given may end before `end`: its own `end` says where.
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
            detail=f"Its last change is {last}: it was most likely put back from an older copy.",
            hint="Begin again with a snapshot: view.subscribe() without a cursor.",
            view=self._store.view,
            first_lost=last + 1,
            last_lost=start,
        )

    def _fell_off(self, start: int, last_lost: int) -> FellOff:
        return FellOff(
            f'view "{self._store.view}" no longer keeps its changes from {start + 1} to {last_lost}',
            detail="They were trimmed, or their version was dropped, before they were read.",
            hint="Begin again with a snapshot: view.subscribe() without a cursor. How long changes are kept is a "
            "setting of the view.",
            view=self._store.view,
            first_lost=start + 1,
            last_lost=last_lost,
        )


def format_cursor(facts: Facts, position: int) -> str:
    """A position of this very view, as users hold it.

    The id tells it from a view of the same name that was made later.
    """
    return f"{facts.id[:8]}@{position}"


def parse_cursor(cursor: str, facts: Facts, view: str) -> int:
    """The position in a cursor; `FellOff` if it is one of an earlier view of that name."""
    made, _, position = cursor.partition("@") if isinstance(cursor, str) else ("", "", "")
    if len(made) != 8 or not position.isascii() or not position.isdigit():
        raise Invalid(
            f"{cursor!r:.60} is not a cursor",
            detail=f'A cursor is what the items of view.subscribe() carry, such as "{facts.id[:8]}@17".',
            hint="Give the cursor of the last item that was handled, or none to begin with a snapshot.",
        )
    if made != facts.id[:8]:
        raise FellOff(
            f'cursor "{cursor}" is of a view "{view}" that was dropped',
            detail="The view was made anew since, and its changes are counted anew.",
            hint="Begin again with a snapshot: view.subscribe() without a cursor.",
            view=view,
        )
    return int(position)
