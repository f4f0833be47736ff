"""PostgresWatch: waits for commits to a view, which PostgreSQL signals (LISTEN, NOTIFY) as soon as they are visible."""

from __future__ import annotations

import psycopg

from mainstem.postgres.postgres_address import unreachable
from mainstem.postgres.postgres_pool import PostgresPool

__all__ = ["PostgresWatch", "channel_of"]


def channel_of(view_id: str) -> str:
    """The channel of a view's commits."""
    return f"mainstem_{view_id}"


class PostgresWatch:
    """Any commit after its creation ends the next `wait`. One waiting thread at a time."""

    def __init__(self, pool: PostgresPool, view_id: str) -> None:
        self._address = pool.address
        self._connection = pool.connect("mainstem watch")
        try:
            self._connection.execute(f'LISTEN "{channel_of(view_id)}"')
        except psycopg.Error as error:
            self._connection.close()
            raise unreachable(self._address, error) from error

    def wait(self, seconds: float) -> bool:
        """True after a commit; False when the time is over."""
        try:
            return any(True for _ in self._connection.notifies(timeout=max(0.0, seconds), stop_after=1))
        except psycopg.Error as error:
            raise unreachable(self._address, error) from error

    def close(self) -> None:
        self._connection.close()
