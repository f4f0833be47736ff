"""What a person is told of a queue: how its messages stand, and which of them are parked."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from mainstem.log.lag import Lag
from mainstem.log.queue_settings import QueueSettings
from mainstem.log.queue_state import QueueState

__all__ = ["PARKED", "QueueDescription", "parked_table"]

PARKED = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.string()),
        ("appended_at", pa.timestamp("us", "UTC")),
        # delay: was released and is to be given out again from `due_at` on; key: waits for an earlier one of its key
        ("waits_for", pa.string()),
        ("due_at", pa.timestamp("us", "UTC")),
        ("deliveries", pa.int32()),
        ("first_error", pa.string()),
        ("last_error", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """A queue as it is now.

    held       given out, within the lease, to a process that lives
    returned   given out before, to be given out again: now (`due`) or later
    parked     never given out, waiting for an earlier message of the same key
    rejecting  decided to be rejected, not yet known to have reached the topic of the rejected
    counts     delivered, redelivered, acknowledged, released, and rejected by cause, since the queue was made
    """

    name: str
    topic: str
    rejected_topic: str
    settings: QueueSettings
    held: int
    returned: int
    due: int
    parked: int
    rejecting: int
    cursors: dict[int, int]
    lag: Lag
    counts: dict[str, int] = field(default_factory=dict)


def parked_table(state: QueueState, now: int) -> pa.Table:
    """The messages that are neither done with, nor held, nor due: what waits for a delay or for its key."""
    rows = [
        {
            "partition": message.partition,
            "offset": message.offset,
            "key": message.key,
            "appended_at": message.appended_at,
            "waits_for": "delay" if message.deliveries else "key",
            "due_at": message.until if message.deliveries else None,
            "deliveries": message.deliveries,
            "first_error": message.first_error,
            "last_error": message.last_error,
        }
        for message in sorted(state.open.values(), key=lambda message: message.age_order)
        if not message.take and (not message.deliveries or message.until > now)
    ]
    return pa.Table.from_pylist(rows, schema=PARKED)
