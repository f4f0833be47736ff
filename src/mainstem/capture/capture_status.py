"""CaptureStatus: what a capture is doing, in a file of the home; and the requests that a user leaves for it.

captures/<name>/status.json        replaced about once a second by the run
captures/<name>/requests/<n>.json  a snapshot, a pause, a stop; the run takes and removes them
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mainstem.capture.capture import Capture
from mainstem.capture.source import Health
from mainstem.processes import Identity, alive, this_process

__all__ = ["CaptureStatus", "StatusFile", "all_statuses"]

# An alarm when more than this share of what the server may keep is held.
ALARM_SHARE = 0.5


@dataclass(frozen=True)
class CaptureStatus:
    """A capture at one moment. `held_bytes`: what the server keeps for it; `left_bytes`: how much more it may, None if
    there is no limit. `snapshot`: the tables that are being read: rows so far, about how many, and why."""

    name: str
    source: str
    topics: Mapping[str, str]
    state: str
    at: str
    process: Identity
    position: str | None = None
    changes: int = 0
    held_bytes: int | None = None
    left_bytes: int | None = None
    alarm: bool = False
    paused: bool = False
    snapshot: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @classmethod
    def of(
        cls, capture: Capture, state: str, position: str | None, changes: int, health: Health | None,
        snapshot: Mapping[str, Any], error: str, *, paused: bool,
    ) -> CaptureStatus:  # fmt: skip
        """The status now."""
        held, left = (None, None) if health is None else (health.held_bytes, health.left_bytes)
        alarm = held is not None and left is not None and held > ALARM_SHARE * (held + max(left, 0))
        return cls(
            capture.name, capture.source.shown, capture.topics, state, datetime.now(UTC).isoformat(timespec="seconds"),
            this_process(), position, changes, held, left, alarm, paused, snapshot, error,
        )  # fmt: skip

    @property
    def running(self) -> bool:
        """Whether its process still exists."""
        return self.state not in ("stopped", "failed") and alive(self.process)


class StatusFile:
    """The files of one capture in a home."""

    def __init__(self, home: str, name: str) -> None:
        self._folder = Path(home, "captures", name)
        self._path = self._folder / "status.json"
        self._requests = self._folder / "requests"

    def write(self, status: CaptureStatus) -> None:
        """Replace the status. Not synced: it tells of a process, which a crash of the machine ends."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(asdict(status)))
        os.replace(beside, self._path)

    def read(self) -> CaptureStatus | None:
        """The last status; None if the capture never ran in this home."""
        try:
            return CaptureStatus(**json.loads(self._path.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def request(self, kind: str, **fields: Any) -> Path:
        """Leave a request for the run; the file exists until the run has followed it."""
        self._requests.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = f"{datetime.now(UTC).timestamp():020.6f}-{uuid.uuid4().hex[:8]}"
        beside = self._requests / f"{number}.new"
        beside.write_text(json.dumps({"kind": kind, **fields}))
        path = self._requests / f"{number}.json"
        os.replace(beside, path)
        return path

    def requests(self) -> dict[Path, dict[str, Any]]:
        """The requests so far, in order, by file: the run removes it when the request is in its state. A stop is left for
        `stop_requested`."""
        paths = sorted(self._requests.glob("*.json")) if self._requests.exists() else []
        found = {path: json.loads(path.read_text()) for path in paths}
        return {path: request for path, request in found.items() if request["kind"] != "stop"}

    def stop_requested(self) -> bool:
        """Whether the run is to stop; the request is removed."""
        for path in sorted(self._requests.glob("*.json")) if self._requests.exists() else []:
            if json.loads(path.read_text())["kind"] == "stop":
                path.unlink()
                return True
        return False

    def remove(self) -> None:
        """Remove status and requests."""
        for path in [*self._requests.glob("*"), self._path]:
            path.unlink(missing_ok=True)


def all_statuses(home: str) -> list[CaptureStatus]:
    """The captures that ran in a home, by name."""
    folder = Path(home, "captures")
    names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    found = (StatusFile(home, name).read() for name in names)
    return [one for one in found if one is not None]
