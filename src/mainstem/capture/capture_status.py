"""CaptureStatus: what a capture is doing, in a file of the home; and the requests that a user leaves for it.

captures/<name>/status.json        replaced about once a second by the run
captures/<name>/slot.json          what this home makes in the source to keep changes, written before it is made
captures/<name>/requests/<n>.json  a snapshot, a repair, a pause, a stop, a position to note; the run removes it when it is
                                   in its state, so a crash loses none
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mainstem.capture.capture import Capture
from mainstem.capture.source import Health
from mainstem.clock import SystemClock, as_datetime
from mainstem.processes import Identity, alive, this_process

__all__ = ["SECRET", "CaptureStatus", "StatusFile", "all_statuses", "capture_names", "damaged_secret"]

# The file with the key of the hashes that replace values of masked columns.
SECRET = "mask_secret"
# An alarm when more than this share of what the server may keep is held.
ALARM_SHARE = 0.5


@dataclass(frozen=True)
class CaptureStatus:
    """A capture at one moment. `held_bytes`: what the server keeps for it; `left_bytes`: how much more it may, None if
    there is no limit. `snapshot`: the tables that are being read: rows so far, about how many, why, and about how many
    seconds are left."""

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
        snapshot: Mapping[str, Any], error: str, *, paused: bool, now: int,
    ) -> CaptureStatus:  # fmt: skip
        """The status now."""
        held, left = (None, None) if health is None else (health.held_bytes, health.left_bytes)
        alarm = held is not None and left is not None and held > ALARM_SHARE * (held + max(left, 0))
        return cls(
            capture.name, capture.source.shown, capture.topics, state, as_datetime(now).isoformat(timespec="seconds"),
            this_process(), position, changes, held, left, alarm, paused, snapshot, error,
        )  # fmt: skip

    @property
    def running(self) -> bool:
        """Whether its process still exists."""
        return self.state in ("running", "waiting") and alive(self.process)

    @property
    def alarm_text(self) -> str:
        """What an alarm says; empty if there is none."""
        if not self.alarm:
            return ""
        held, left = ((size or 0) / 2**20 for size in (self.held_bytes, self.left_bytes))
        return (
            f"the server holds {held:,.0f} MiB of its WAL, and may hold {max(left, 0):,.0f} MiB more; beyond that, changes "
            "are lost"
        )


class StatusFile:
    """The files of one capture in a home."""

    def __init__(self, home: str, name: str) -> None:
        self._folder = Path(home, "captures", name)
        self._path = self._folder / "status.json"
        self._requests = self._folder / "requests"
        self._slot = self._folder / "slot.json"

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

    def note_slot(self, identity: Mapping[str, str]) -> None:
        """Note that this home makes a slot. Synced: one that a crash left behind is known by it."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = self._slot.with_suffix(".new")
        with beside.open("w") as file:
            file.write(json.dumps(dict(identity)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self._slot)

    def slot(self) -> dict[str, str]:
        """The slot that this home made; empty if it made none."""
        try:
            return dict(json.loads(self._slot.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return {}

    def request(self, kind: str, **fields: Any) -> Path:
        """Leave a request for the run; the file exists until the run has followed it."""
        self._requests.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = f"{SystemClock().now():020}-{uuid.uuid4().hex[:8]}"
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
        """Remove all files of the capture but the secret of masked columns: with another one, equal values would no longer
        be equal in the topics."""
        for path in [*self._requests.glob("*"), *self._folder.glob("*")]:
            if path.is_file() and path.name != SECRET:
                path.unlink(missing_ok=True)
        with suppress(OSError):
            self._requests.rmdir()
        with suppress(OSError):
            self._folder.rmdir()

    def remove_secret(self) -> None:
        """Remove also the secret of masked columns."""
        (self._folder / SECRET).unlink(missing_ok=True)
        self.remove()


def capture_names(home: str) -> list[str]:
    """The captures that have files in a home."""
    folder = Path(home, "captures")
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.exists() else []


def all_statuses(home: str) -> list[CaptureStatus]:
    """The captures that ran in a home, by name."""
    found = (StatusFile(home, name).read() for name in capture_names(home))
    return [one for one in found if one is not None]


def damaged_secret(home: str, name: str) -> str:
    """What is wrong with the secret of a capture's masked columns; empty if nothing is."""
    try:
        secret = Path(home, "captures", name, SECRET).read_bytes()
    except FileNotFoundError:
        return ""
    return "" if re.fullmatch(rb"[0-9a-f]{64}", secret) else "it is not a secret of 64 hexadecimal digits"
