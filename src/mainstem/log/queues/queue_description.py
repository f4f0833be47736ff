"""Descriptions of a queue: how many messages are in each state, and the held and parked ones as tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from mainstem.log.lag import Lag
from mainstem.log.partition_reads import Processes
from mainstem.log.queues.queue_settings import QueueSettings
from mainstem.log.queues.queue_state import OpenMessage, QueueState
from mainstem.processes import process_name

__all__ = ["HELD", "PARKED", "QueueDescription", "held_messages", "held_table", "parked_table"]

_TIME = pa.timestamp("us", "UTC")

PARKED = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.string()),
        ("appended_at", _TIME),
        # delay: was released and is delivered again from `due_at` on; key: waits for an earlier message of its key
        ("waits_for", pa.string()),
        ("due_at", _TIME),
        ("deliveries", pa.int32()),
        ("first_error", pa.string()),
        ("last_error", pa.string()),
    ]
)
HELD = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.string()),
        ("appended_at", _TIME),
        ("receipt", pa.string()),
        # process: until its process ends or the lease does; lease: only until the lease ends
        ("held_by", pa.string()),
        # The id of that process, and its command if it runs on this machine.
        ("pid", pa.int64()),
        ("process", pa.string()),
        # Null if an older version of Mainstem delivered it.
        ("taken_at", _TIME),
        ("held_until", _TIME),
        ("deliveries", pa.int32()),
        ("first_error", pa.string()),
        ("last_error", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """A queue as it is now.

    waiting    to be delivered now: unread records (before `where`), returned ones that are due, restored ones
    held       delivered, within the lease, to a live process
    returned   to be delivered again: now (`due`) or later
    parked     never delivered, waiting for an earlier message of the same key
    rejecting  to be rejected, not yet known to be in the rejected topic
    rejected   rejected, and neither restored nor dropped since
    counts     delivered, redelivered, acknowledged, released, restored, dropped, and rejected by cause, since the queue was
               created
    """

    name: str
    topic: str
    rejected_topic: str
    settings: QueueSettings
    waiting: int
    held: int
    returned: int
    due: int
    parked: int
    rejecting: int
    rejected: int
    cursors: dict[int, int]
    lag: Lag
    counts: dict[str, int] = field(default_factory=dict)


def held_messages(state: QueueState, now: int, processes: Processes) -> list[OpenMessage]:
    """The messages that are delivered, within the lease, to a live process; oldest first."""
    held = [
        message
        for message in state.open.values()
        if message.take and message.until > now and (message.holder is None or processes.alive(message.holder))
    ]
    return sorted(held, key=lambda message: message.age_order)


def held_table(messages: Iterable[OpenMessage], processes: Processes) -> pa.Table:
    """Held messages with their holders."""
    here = processes.this_process()["boot"]
    rows = []
    for message in messages:
        holder = message.holder
        rows.append(
            {
                "partition": message.partition,
                "offset": message.offset,
                "key": message.key,
                "appended_at": message.appended_at,
                "receipt": message.receipt,
                "held_by": "lease" if holder is None else "process",
                "pid": None if holder is None else holder["pid"],
                "process": process_name(holder["pid"]) if holder is not None and holder["boot"] == here else None,
                "taken_at": message.taken_at or None,
                "held_until": message.until,
                "deliveries": message.deliveries,
                "first_error": message.first_error,
                "last_error": message.last_error,
            }
        )
    return pa.Table.from_pylist(rows, schema=HELD)


def parked_table(state: QueueState, now: int) -> pa.Table:
    """The messages that wait for a delay or for an earlier message of their key."""
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
        if not message.take and not message.waiting and (not message.deliveries or message.until > now)
    ]
    return pa.Table.from_pylist(rows, schema=PARKED)
