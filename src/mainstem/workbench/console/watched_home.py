"""WatchedHome: an open home, and its map, made at most once in a while however many pages ask for it."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from mainstem.errors import MainstemError
from mainstem.stem import Mainstem
from mainstem.workbench.console.home_map import home_map
from mainstem.workbench.console.log_reach import LogReach

__all__ = ["WatchedHome"]

# A map is this old at most.
AGE_US_MAX = 500_000


class WatchedHome:
    """The home that a console shows. Thread-safe."""

    def __init__(self, stem: Mainstem) -> None:
        self.stem = stem
        self.reach = LogReach(stem.log)
        self._guard = threading.Lock()
        self._map: dict[str, Any] | None = None
        self._made_at = 0
        self.took_seconds = 0.0

    def warm(self) -> None:
        """Make the first map in a thread, before anybody asks: it opens every topic, which takes most of its time."""

        def make() -> None:
            # Who asks gets the error.
            with suppress(MainstemError, OSError):
                self.map()

        threading.Thread(target=make, name="mainstem-console first map", daemon=True).start()

    def map(self) -> dict[str, Any]:
        """The map, at most half a second old."""
        with self._guard:
            now = self.stem.log.clock.monotonic()
            if self._map is None or now - self._made_at > AGE_US_MAX:
                with self.reach.asking():
                    self._map = home_map(self.stem, known=self._map)
                self._made_at = self.stem.log.clock.monotonic()
                self.took_seconds = (self._made_at - now) / 1_000_000
            return self._map
