"""What a view says of itself: its key and columns, its versions, and how far it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from mainstem.clock import as_datetime
from mainstem.views.view_connection import Connections
from mainstem.views.view_folder import ViewFolder
from mainstem.views.view_snapshot import live_snapshot, version_snapshot

__all__ = ["ViewDescription", "ViewVersion", "describe", "list_versions"]


@dataclass(frozen=True)
class ViewVersion:
    """One version: who writes it and how far it is. `batch` is the last one that is in, -1 if none."""

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


@dataclass(frozen=True)
class ViewDescription:
    """A view as `describe()` gives it; `live` is the version that readers see.

    Changes behind `first_position`, up to `last_position`, can be read from the live version.
    """

    name: str
    key: tuple[str, ...]
    live: ViewVersion
    versions: tuple[int, ...]
    first_position: int
    last_position: int
    path: str


def describe(folder: ViewFolder, connections: Connections) -> ViewDescription:
    """The view as it is now."""
    with live_snapshot(folder, connections) as snapshot:
        facts = snapshot.facts
        first, last = snapshot.positions()
    live = _version(folder, connections, facts.live)
    kept = max(first - 1, facts.history[-1].after)
    return ViewDescription(folder.view, facts.key, live, tuple(facts.numbers()), kept, last, folder.path)


def list_versions(folder: ViewFolder, connections: Connections) -> list[ViewVersion]:
    """All versions, by number."""
    return [_version(folder, connections, number) for number in sorted(folder.facts().numbers())]


def _version(folder: ViewFolder, connections: Connections, number: int) -> ViewVersion:
    with version_snapshot(folder, connections, number) as snapshot:
        flow, epoch, batch, applied_at = snapshot.progress()
        named = next(version for version in snapshot.facts.versions if version.number == number)
        return ViewVersion(
            number=number,
            live=number == snapshot.facts.live,
            rows=snapshot.count(),
            bytes=_bytes_of(folder.version_path(number)),
            ddl=named.schema,
            created_at=as_datetime(named.created_at),
            flow=flow,
            epoch=epoch,
            batch=batch,
            applied_at=None if applied_at is None else as_datetime(applied_at),
            offsets=snapshot.offsets(),
        )


def _bytes_of(path: str) -> int:
    total = 0
    for suffix in ("", "-wal"):
        with suppress(FileNotFoundError):
            total += os.path.getsize(path + suffix)
    return total
