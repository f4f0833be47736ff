"""OutboxTable: the table of an outbox. A row is inserted and deleted in the same transaction: only the log keeps it."""

from __future__ import annotations

__all__ = ["OUTBOX", "postgres_outbox_sql"]

OUTBOX = "mainstem_outbox"


def postgres_outbox_sql() -> str:
    """The statement that makes it."""
    return (
        f"CREATE TABLE IF NOT EXISTS public.{OUTBOX} (id text PRIMARY KEY, topic text NOT NULL, key text, "
        "payload text NOT NULL, headers text)"
    )
