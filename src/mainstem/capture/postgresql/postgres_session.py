"""PostgresSession: a connection that gives up a server which says nothing in the middle of a query.

The kernel finds a machine that is gone within half a minute (keepalives), but not a server that hangs: its machine still
answers. A query may take long before its first row, so the limit is far above what a chunk of a snapshot takes.
"""

from __future__ import annotations

import select
import time
from collections.abc import Generator
from typing import Any, NoReturn

import psycopg

__all__ = ["PostgresSession"]

SILENT_SECONDS_MAX = 600.0


class PostgresSession(psycopg.Connection[tuple[Any, ...]]):
    """Raises an `OperationalError` after so much silence, and is closed then."""

    def wait(self, gen: Generator[Any, Any, Any], *given: Any, **settings: Any) -> Any:
        """What psycopg calls for everything that it waits for."""
        return super().wait(self._bounded(gen), *given, **settings)

    def _bounded(self, waiting: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        heard_at = time.monotonic()
        try:
            wanted = next(waiting)
            while True:
                # Nothing (0) about ten times a second.
                ready = yield wanted
                if ready:
                    heard_at = time.monotonic()
                elif time.monotonic() - heard_at > SILENT_SECONDS_MAX:
                    self._give_up()
                wanted = waiting.send(ready)
        except StopIteration as ended:
            return ended.value

    def wait_for_input(self) -> None:
        """For who reads from libpq directly."""
        waiting = select.poll()
        waiting.register(self.pgconn.socket, select.POLLIN)
        if not waiting.poll(SILENT_SECONDS_MAX * 1000):
            self._give_up()
        self.pgconn.consume_input()

    def _give_up(self) -> NoReturn:
        # First, since a transaction would be rolled back over it.
        self.close()
        raise psycopg.OperationalError(f"the server said nothing for {SILENT_SECONDS_MAX:.0f} seconds")
