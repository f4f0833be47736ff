"""CaptureFacts: what is known about a capture: its last report, its topics, and what its source holds for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mainstem.capture.capture_status import CaptureStatus, StatusFile, all_statuses
from mainstem.clock import SystemClock
from mainstem.errors import NotFound, TopicNotFound, did_you_mean
from mainstem.log.rows.schema_ddl import type_to_ddl

if TYPE_CHECKING:
    from mainstem.capture.capture import Capture
    from mainstem.stem import Mainstem

__all__ = ["CaptureFacts", "TableFacts", "ask_source", "capture_facts", "known_captures", "status_of"]


@dataclass(frozen=True)
class TableFacts:
    """A captured table: its topic with key and columns, each with its type; empty if the topic does not exist."""

    table: str
    topic: str
    key: list[str]
    columns: dict[str, str]


@dataclass(frozen=True)
class CaptureFacts:
    """A capture. `state`: running, waiting (for its source), stopped, failed, killed, or set up."""

    status: CaptureStatus
    state: str
    pid: int | None
    tables: list[TableFacts]

    @property
    def seconds_left(self) -> float | None:
        """How long its snapshots take; None if there are none, or it cannot be told."""
        left = [one.get("seconds_left") for one in self.status.snapshot.values()]
        known = [seconds for seconds in left if seconds is not None]
        return sum(known) if known and len(known) == len(left) else None

    def to_json(self) -> dict[str, Any]:
        """The documented form."""
        return {
            "capture": self.status.name,
            "state": self.state,
            "pid": self.pid,
            "source": self.status.source,
            "position": self.status.position,
            "changes": self.status.changes,
            "held_bytes": self.status.held_bytes,
            "left_bytes": self.status.left_bytes,
            "alarm": self.status.alarm,
            "tables": self.tables,
            "snapshot": [{"table": table, **one} for table, one in self.status.snapshot.items()],
            "paused": self.status.paused,
            "seconds_left": self.seconds_left,
            "error": self.status.error or None,
            "reported_at": self.status.at.replace("+00:00", "Z"),
        }


def known_captures(stem: Mainstem) -> list[str]:
    """The captures that were ever set up or ran in a home."""
    return [one.name for one in all_statuses(stem.home)]


def status_of(stem: Mainstem, name: str) -> CaptureStatus:
    """The last report of a capture; raises if the home has none of that name."""
    found = StatusFile(stem.home, name).read()
    if found is None:
        names = known_captures(stem)
        raise NotFound(
            f'capture "{name}" does not exist',
            detail=f"The home has the captures: {', '.join(names)}." if names else "No capture ever ran in this home.",
            hint=did_you_mean(name, names)
            or "A capture is known once it was set up: mainstem capture setup PROGRAM.py",
        )
    return found


def capture_facts(stem: Mainstem, name: str) -> CaptureFacts:
    """The facts about one capture."""
    status = status_of(stem, name)
    running = status.running
    state = status.state if running or status.state not in ("running", "waiting") else "killed"
    tables = [_table(stem, table, topic) for table, topic in status.topics.items()]
    return CaptureFacts(status, state, status.process["pid"] if running else None, tables)


def _table(stem: Mainstem, table: str, topic: str) -> TableFacts:
    try:
        settings = stem.log.open_topic(topic).settings
    except TopicNotFound:
        return TableFacts(table, topic, [], {})
    columns = {
        field.name: type_to_ddl(field.type) for field in settings.schema if field.name not in ("before", "origin")
    }
    return TableFacts(table, topic, list(settings.key), columns)


def ask_source(facts: CaptureFacts, captures: Sequence[Capture], home: str) -> CaptureFacts:
    """The same with what the source holds now, if the capture does not run: nobody has looked since."""
    capture = next((one for one in captures if one.name == facts.status.name), None)
    if capture is None or facts.pid is not None:
        return facts
    connection = capture.source.open(capture.name, home)
    try:
        health = connection.health()
    finally:
        connection.close()
    before = facts.status
    now = CaptureStatus.of(
        capture,
        before.state,
        before.position,
        before.changes,
        health,
        before.snapshot,
        before.error,
        paused=before.paused,
        now=SystemClock().now(),
    )
    return replace(facts, status=replace(now, process=before.process))
