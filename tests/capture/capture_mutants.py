"""Deliberately broken captures: a test that does not notice them notices nothing.

    with capture_mutant("unchanged value as null"): ...

Each is a patch of one function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from mainstem.capture.capture_log import CaptureLog
from mainstem.capture.capture_run import CaptureRun
from mainstem.capture.postgresql.pgoutput import PgOutput, show_lsn
from mainstem.capture.postgresql.postgres_connection import PostgresChunk
from mainstem.capture.snapshots import Snapshots
from mainstem.capture.source import Committed, Event, SourceConnection

__all__ = ["CAPTURE_MUTANTS", "capture_mutant"]

Patch = tuple[object, str, object]


def _confirmed_before_the_commit() -> list[Patch]:
    handle = CaptureRun._handle

    def early(self: CaptureRun, event: Event, connection: SourceConnection, snapshots: Snapshots) -> None:
        if isinstance(event, Committed):
            connection.confirm(event.position)
        handle(self, event, connection, snapshots)

    return [(CaptureRun, "_handle", early)]


def _position_committed_apart_from_the_rows() -> list[Patch]:
    commit = CaptureLog.commit

    def apart(self: CaptureLog, position: str | None, transactions: Any = ()) -> None:
        if self._open is not None:
            self._open.commit()
            self._open = None
        commit(self, position, transactions)

    return [(CaptureLog, "commit", apart)]


def _visibility_by_position() -> list[Patch]:
    return [(PostgresChunk, "sees", lambda self, transaction: True)]


def _unchanged_value_as_null() -> list[Patch]:
    return [(CaptureRun, "_fill", lambda self, changes, columns, connection: None)]


def _batch_cut_inside_a_transaction() -> list[Patch]:
    take = PgOutput.take

    def cut(self: PgOutput) -> list[Event]:
        inside = self.inside
        events = take(self)
        return [*events, Committed(show_lsn(self.end), [])] if inside else events

    return [(PgOutput, "take", cut)]


def _snapshot_before_the_stream_is_there() -> list[Patch]:
    return [(Snapshots, "_waits_for_stream", lambda self, table: False)]


CAPTURE_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    name.removeprefix("_").replace("_", " "): made
    for name, made in list(globals().items())
    if callable(made) and getattr(made, "__annotations__", {}).get("return") == "list[Patch]"
}


@contextmanager
def capture_mutant(name: str) -> Iterator[None]:
    """Captures, broken in one way, inside."""
    with ExitStack() as stack:
        for target, attribute, broken in CAPTURE_MUTANTS[name]():
            stack.enter_context(mock.patch.object(target, attribute, broken))
        yield
