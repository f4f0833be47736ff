"""What may be entered into a queue besides a take: each decision looks at the state and gives the entries to append.

Pure functions, to be run by `StateLedger.decide`. A receipt names one delivery of one message; once that message was
settled, or given to somebody else, the receipt is worth nothing and its holder is refused with `Fenced`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta

from mainstem.arguments import show_value
from mainstem.errors import Conflict, Fenced, Invalid
from mainstem.log.queue_settings import QueueSettings
from mainstem.log.queue_state import OpenMessage, QueueState
from mainstem.log.state_ledger import Entry

__all__ = ["acknowledge", "delete", "extend", "open_queue", "reject", "release", "rewind", "rewind_to_state"]

RECEIPT = re.compile(r"([0-9]{1,9})-([0-9]{1,19})-([0-9]{1,19})")
MICROSECOND = timedelta(microseconds=1)


def open_queue(state: QueueState, name: str, given: QueueSettings | None, cursors: Mapping[int, int]) -> list[Entry]:
    """Make the queue, starting at `cursors`; or, if it is there, see that it is what was asked for."""
    if state.opened_at is None:
        settings = given or QueueSettings()
        return [{"kind": "opened", "settings": settings.to_json(), "cursors": _named(cursors), "unread": True}]
    if given is not None and (differences := state.settings.differences(given)):
        raise Conflict(
            f'queue "{name}" is there with other settings',
            detail=f"{'; '.join(differences).capitalize()}.",
            hint="Open it without settings to use it as it is, or delete it first to make it anew.",
        )
    return []


def acknowledge(state: QueueState, receipts: Iterable[str]) -> tuple[list[Entry], list[str]]:
    """Settle the messages whose receipts still count; the receipts that do not are handed back."""
    held: dict[str, OpenMessage] = {}
    stale = []
    for receipt in dict.fromkeys(receipts):
        message = _held(state, receipt)
        if message is None:
            stale.append(receipt)
        else:
            held[receipt] = message
    addresses = [message.address for message in held.values()]
    return [{"kind": "acknowledged", "messages": addresses}] if addresses else [], stale


def extend(state: QueueState, now: int, receipt: str, duration: timedelta) -> tuple[list[Entry], int]:
    """Hold a message for `duration` from now; until when that is."""
    message = _must_hold(state, receipt)
    until = now + duration // MICROSECOND
    return [{"kind": "extended", "messages": [message.address], "until": until}], until


def release(state: QueueState, now: int, receipt: str, delay: timedelta | None, error: str | None) -> list[Entry]:
    """Give a message back, or reject it if it was given out often enough. Without a delay the queue's retry says it."""
    message = _must_hold(state, receipt)
    settings = state.settings
    if delay is None:
        delay = timedelta(0) if settings.retry is None else settings.retry.delay(message.deliveries)
    entries: list[Entry] = [
        {
            "kind": "released",
            "messages": [message.address],
            "until": now + delay // MICROSECOND,
            "error": error,
        }
    ]
    if settings.deliveries_max is not None and message.deliveries >= settings.deliveries_max:
        times = "once" if message.deliveries == 1 else f"{message.deliveries} times"
        entries.append(_rejecting(message, "deliveries", f"given out {times} without being acknowledged"))
    return entries


def reject(state: QueueState, receipt: str, reason: str) -> list[Entry]:
    """Send a message to the rejected."""
    return [_rejecting(_must_hold(state, receipt), "rejected", reason)]


def rewind(to: str, cursors: Mapping[int, int]) -> list[Entry]:
    """Put partitions to an offset: what is before it is done with, what follows was never given out."""
    return [{"kind": "rewound", "to": to, "cursors": _named(cursors), "open": [], "unread": True}]


def rewind_to_state(to: str, earlier: QueueState, added: Mapping[int, int]) -> list[Entry]:
    """Put all partitions back to an earlier state. `added` are those it did not know, and where they begin."""
    entry = earlier.returned_to(earlier.cursors)
    cursors = _named(added) | entry["cursors"]
    return [{"kind": "rewound", "to": to, "cursors": cursors, "open": entry["open"], "unread": True}]


def delete() -> list[Entry]:
    """End the queue; what its receipts stood for is forgotten."""
    return [{"kind": "deleted"}]


def _held(state: QueueState, receipt: str) -> OpenMessage | None:
    match = RECEIPT.fullmatch(receipt) if isinstance(receipt, str) else None
    if match is None:
        raise Invalid(
            f"{show_value(receipt)} is not a receipt",
            detail='A receipt is three numbers, for instance "0-17-42".',
            hint="Use the receipt as the take gave it.",
        )
    partition, offset, take = map(int, match.groups())
    message = state.open.get((partition, offset))
    return message if message is not None and message.take == take else None


def _must_hold(state: QueueState, receipt: str) -> OpenMessage:
    message = _held(state, receipt)
    if message is None:
        raise fenced([receipt])
    return message


def fenced(receipts: list[str], acknowledged: int = 0) -> Fenced:
    """The refusal of receipts that are worth nothing any more."""
    shown = ", ".join(f'"{receipt}"' for receipt in receipts[:5]) + (", ..." if len(receipts) > 5 else "")
    others = f" The other {acknowledged} were acknowledged." if acknowledged else ""
    return Fenced(
        f"receipt {shown} is no longer valid" if len(receipts) == 1 else f"receipts {shown} are no longer valid",
        detail="The message was settled under this receipt already, or its lease ended and somebody else has it, or "
        f"the queue was rewound.{others}",
        hint="Take again; extend the lease of work that takes longer than the lease.",
        receipts=tuple(receipts),
    )


def _rejecting(message: OpenMessage, cause: str, reason: str) -> Entry:
    return {"kind": "rejecting", "again": [[*message.address, cause, reason]], "first": [], "cursors": {}}


def _named(cursors: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): cursor for partition, cursor in sorted(cursors.items())}
