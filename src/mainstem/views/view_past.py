"""What a view was: where in its changes a time, or the token of an append, lies.

    as_of a time     right after the last batch that was committed at or before it, by the clock of the process that wrote
    as_of a token    right after the batch with which the last record that the token stands for was in

A view with history keeps all changes of so long a time, and undoes those that came later. Whatever cannot be told for
certain is refused: a time before the history or yet to come, an append that was in before it began, or is not in yet.
"""

from __future__ import annotations

from datetime import datetime

from mainstem.clock import as_datetime, as_us
from mainstem.errors import FellOff, Invalid, NotYet
from mainstem.log.placed import parse_token
from mainstem.views.view_offsets import missing_of, not_yet
from mainstem.views.view_store import KeptSince, VersionSnapshot

__all__ = ["AsOf", "position_as_of"]

# A time with a zone, or the token of an append.
AsOf = datetime | str


def position_as_of(snapshot: VersionSnapshot, as_of: AsOf, *, view: str, now: int) -> int:
    """The position behind which everything is to be undone; `now` is a time before the snapshot was taken."""
    since = snapshot.kept_since()
    if since is None:
        raise Invalid(
            f'view "{view}" keeps no history',
            detail="It can tell what it is, not what it was.",
            hint=f'Say for how long it shall: stem.view("{view}", key=..., history="30 days"). Its history begins with the '
            "next run of its flow.",
        )
    if isinstance(as_of, datetime):
        return _at(snapshot, since, as_us(as_of), view, now)
    if isinstance(as_of, str):
        return _reached(snapshot, since, as_of, view)
    raise Invalid(
        f"{as_of!r:.60} is neither a time nor a token",
        detail="A view can be asked as of a datetime with a zone, or as of the token of an append.",
        hint="Give one of these: datetime(2026, 1, 1, tzinfo=UTC), or placed.token of an append.",
    )


def _at(snapshot: VersionSnapshot, since: KeptSince, at: int, view: str, now: int) -> int:
    if at > now:
        raise NotYet(
            f'what view "{view}" will be at {_shown(at)} is not known yet',
            detail=f"It is {_shown(now)}.",
            hint="Ask as of a time that has passed; for what it is now, leave as_of out.",
            view=view,
        )
    if at < since.at:
        raise _gone(view, since, f"what it was at {_shown(at)}")
    found = snapshot.position_at(at)
    return since.position if found is None else max(found, since.position)


def _reached(snapshot: VersionSnapshot, since: KeptSince, token: str, view: str) -> int:
    wanted = parse_token(token)
    applied = snapshot.offsets()
    # Before the first batch nothing was in, and nothing was there.
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
        raise _gone(view, since, f"what it was as of {token}")
    return position


def _gone(view: str, since: KeptSince, what: str) -> FellOff:
    return FellOff(
        f'view "{view}" does not keep {what}',
        detail=f"Its history goes back to {_shown(since.at)}.",
        hint="Ask as of a later time, or of a later append. How long history is kept is a setting of the view: "
        f'stem.view("{view}", history="90 days").',
        view=view,
    )


def _shown(at: int) -> str:
    return as_datetime(at).isoformat().replace("+00:00", "Z")
