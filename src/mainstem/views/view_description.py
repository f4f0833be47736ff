"""What a view says of itself: its key and columns, its versions, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from mainstem.clock import as_datetime
from mainstem.views.view_store import VersionSnapshot, ViewStore

__all__ = ["ViewDescription", "ViewVersion", "describe", "list_versions"]


@dataclass(frozen=True)
class ViewVersion:
    """One version: who writes it and how far it is. `batch` is the last one that is in, -1 if none.

    `place` is where its rows are: a file, or a schema of the database.
    """

    number: int
    live: bool
    rows: int
    bytes: int
    ddl: str
    created_at: datetime
    flow: str | None
    epoch: int
    batch: int
    applied_at: datetime | None
    offsets: Mapping[str, Mapping[int, int]]
    place: str


@dataclass(frozen=True)
class ViewDescription:
    """A view as `describe()` gives it; `live` is the version that readers see.

    Changes behind `first_position`, up to `last_position`, can be read from the live version. `history` is how long it keeps
    what it was, None if it does not, and `history_since` from when on it can be asked. `path` is the directory that it is
    kept in, or the address of the database.
    """

    name: str
    key: tuple[str, ...]
    live: ViewVersion
    versions: tuple[int, ...]
    first_position: int
    last_position: int
    path: str
    history: timedelta | None = None
    history_since: datetime | None = None


def describe(store: ViewStore) -> ViewDescription:
    """The view as it is now."""
    with store.live() as snapshot:
        facts = snapshot.facts
        first, last = snapshot.positions()
        live, since = _version(snapshot), snapshot.kept_since()
    return ViewDescription(
        store.view,
        facts.key,
        live,
        tuple(facts.numbers()),
        first_position=max(first - 1, facts.history[-1].after),
        last_position=last,
        path=store.title,
        history=timedelta(microseconds=facts.history_age_us) if facts.history_age_us else None,
        history_since=None if since is None else as_datetime(since.at),
    )


def list_versions(store: ViewStore) -> list[ViewVersion]:
    """All versions, by number."""
    found = []
    for number in sorted(store.facts().numbers()):
        with store.at(number) as snapshot:
            found.append(_version(snapshot))
    return found


def _version(snapshot: VersionSnapshot) -> ViewVersion:
    flow, epoch, batch, applied_at = snapshot.progress()
    named = next(version for version in snapshot.facts.versions if version.number == snapshot.version)
    return ViewVersion(
        number=snapshot.version,
        live=snapshot.version == snapshot.facts.live,
        rows=snapshot.count(),
        bytes=snapshot.bytes(),
        ddl=named.schema,
        created_at=as_datetime(named.created_at),
        flow=flow,
        epoch=epoch,
        batch=batch,
        applied_at=None if applied_at is None else as_datetime(applied_at),
        offsets=snapshot.offsets(),
        place=snapshot.place,
    )
