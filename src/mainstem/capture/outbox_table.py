"""OutboxTable: the table of an outbox. A row is inserted and deleted in the same transaction: only the log keeps it.

id        text, chosen by the application or random
topic     text
key       JSON, or null
payload   JSON: the row, values as in `mainstem topic append`
headers   JSON, or null: [["trace", "7"], ["token", {"base64": "AAE="}]]
"""

from __future__ import annotations

__all__ = ["OUTBOX", "OUTBOX_COLUMNS", "postgres_outbox_sql", "sqlite_outbox_sql"]

OUTBOX = "mainstem_outbox"
OUTBOX_COLUMNS = ("id", "topic", "key", "payload", "headers")

_DEFINITION = "(id text PRIMARY KEY NOT NULL, topic text NOT NULL, key text, payload text NOT NULL, headers text)"


def postgres_outbox_sql() -> str:
    """The statement that makes it."""
    return f"CREATE TABLE IF NOT EXISTS public.{OUTBOX} {_DEFINITION}"


def sqlite_outbox_sql() -> str:
    """The statement that makes it in SQLite; a capture's trigger on it keeps the inserted rows."""
    return f"CREATE TABLE IF NOT EXISTS {OUTBOX} {_DEFINITION}"
