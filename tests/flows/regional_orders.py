"""Orders of several regions, each in a topic of its own, and what a flow over all of them has shown."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.flows.memory_sink import MemorySink

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SCHEMA = "order_id STRING, amount BIGINT, at TIMESTAMP"


def rows(first: int, end: int) -> list[dict[str, Any]]:
    return [{"order_id": f"o-{n}", "amount": n, "at": NOON + timedelta(seconds=n)} for n in range(first, end)]


def seen(sink: MemorySink) -> list[tuple[str, int]]:
    return sorted((row["topic"], row["amount"]) for tries in sink.attempts.values() for row in tries[-1])
