"""Message: one delivery of a row by a queue, until it is settled."""

from __future__ import annotations

import traceback
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mainstem.arguments import checked_calls, text
from mainstem.clock import as_datetime
from mainstem.durations import Duration
from mainstem.log.queues.queue_scan import key_text
from mainstem.log.queues.queue_state import OpenMessage
from mainstem.log.rows.partitioner import key_bytes

if TYPE_CHECKING:
    from mainstem.log.queues.queue import Queue

__all__ = ["ERROR_CHARACTERS_MAX", "Message", "error_text"]

# An error is stored with its message in the queue's state, so a long one is cut: the end of a stack trace says most.
ERROR_CHARACTERS_MAX = 2_000


@checked_calls
class Message:
    """One delivery of one row.

    row          the topic's columns
    change       insert | update | delete
    headers      (key, value) pairs
    key          the row's key as text; None if it has none
    partition    where it is in the topic
    offset
    appended_at  when it was appended
    deliveries   number of deliveries, this one included
    receipt      settles this delivery, from any process
    held_until   when the lease ends

    If it is not settled before the lease ends, or its process dies, it is delivered again, and settling it here raises
    `Fenced`.

    >>> import mainstem, tempfile
    >>> with mainstem.open(tempfile.mkdtemp()) as stem:
    ...     mails = stem.create_topic("mails", schema="address STRING")
    ...     placed = mails.append([{"address": "a@example.org"}])
    ...     queue = mails.queue("sending")
    ...     [message] = queue.take()
    ...     message.release(error="the server is busy")
    ...     [again] = queue.take()
    ...     again.row, again.deliveries, again.redelivered
    ({'address': 'a@example.org'}, 2, True)
    """

    def __init__(self, queue: Queue, opened: OpenMessage, row: pa.RecordBatch, key: tuple[str, ...]) -> None:
        values: dict[str, Any] = row.to_pylist()[0]
        record = values.pop("record")
        self._queue = queue
        self.row = values
        self.change: str = record["change"]
        self.headers = tuple((header["key"], header["value"]) for header in record["headers"] or ())
        self.key = key_text(key_bytes(row, key)[0].as_py()) if key else None
        self.partition = opened.partition
        self.offset = opened.offset
        self.appended_at: datetime = as_datetime(opened.appended_at)
        self.deliveries = opened.deliveries
        self.receipt = opened.receipt
        self.held_until: datetime = as_datetime(opened.until)

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before: part of the work may be done."""
        return self.deliveries > 1

    def acknowledge(self) -> None:
        """Settle it as done; it is not delivered again."""
        self._queue.acknowledge([self.receipt])

    def extend(self, duration: Duration) -> None:
        """Extend its lease to `duration` from now."""
        self.held_until = self._queue.extend(self.receipt, duration)

    def release(self, *, delay: Duration | None = None, error: BaseException | str | None = None) -> None:
        """Return it, to be delivered again after `delay`; by default the queue's `retry` sets the delay.

        After `deliveries_max` deliveries it goes to the rejected topic instead. `error` is stored with it.
        """
        self._queue.release(self.receipt, delay=delay, error=error)

    def reject(self, reason: str) -> None:
        """Send it to the rejected topic: it can never be processed."""
        self._queue.reject(self.receipt, reason)

    def __repr__(self) -> str:
        return f"<Message {self.receipt} of queue {self._queue.name}, delivery {self.deliveries}>"


def error_text(error: BaseException | str | None) -> str | None:
    """An error as it is stored: its message, then where it came from.

    >>> error_text(ValueError("no such address"))
    'ValueError: no such address'
    """
    if error is None:
        return None
    if not isinstance(error, BaseException):
        return text(error, "error", hint="Give the exception, or what it said.")[:ERROR_CHARACTERS_MAX]
    told = "".join(traceback.format_exception_only(error)).strip()
    stack = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    if stack:
        left = max(0, ERROR_CHARACTERS_MAX - len(told) - 1)
        told = f"{told}\n{stack[-left:]}" if left else told
    # A message may have characters that UTF-8 cannot encode; they are escaped.
    return told[:ERROR_CHARACTERS_MAX].encode(errors="backslashreplace").decode()
