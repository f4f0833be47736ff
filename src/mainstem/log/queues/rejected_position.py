"""The position of a rejected message: the partition and offset of its record in the topic of the queue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mainstem.arguments import show_value, values
from mainstem.errors import FellOff, Invalid, NotFound
from mainstem.log.queues.queue_state import Address

__all__ = ["Rejected", "no_longer_kept", "not_rejected", "parse_addresses"]

# (0, 17), or "0:17".
Rejected = tuple[int, int] | str
_TEXT = re.compile(r"([0-9]{1,9}):([0-9]{1,18})")
SHOWN_MAX = 5


def parse_addresses(positions: Iterable[Rejected] | Rejected) -> list[Address]:
    """One position or several, each once.

    >>> parse_addresses("0:17"), parse_addresses((0, 17)), parse_addresses(["0:17", (1, 2), (0, 17)])
    ([(0, 17)], [(0, 17)], [(0, 17), (1, 2)])
    """
    single = isinstance(positions, str) or (
        isinstance(positions, tuple) and len(positions) == 2 and all(type(part) is int for part in positions)
    )
    given = [positions] if single else values(positions, "positions")
    return list(dict.fromkeys(map(_parse, given)))


def _parse(given: object) -> Address:
    if isinstance(given, str) and (found := _TEXT.fullmatch(given)) is not None:
        return int(found[1]), int(found[2])
    if isinstance(given, Sequence) and len(given) == 2 and all(type(part) is int and part >= 0 for part in given):
        return given[0], given[1]
    raise Invalid(
        f"{show_value(given)} is not the position of a message",
        detail="It is the partition and the offset of its record in the topic of the queue.",
        hint='Give a pair, (0, 17), or text, "0:17"; the messages are listed by queue.rejected() and mainstem queue describe.',
    )


def _show(addresses: Sequence[Address]) -> str:
    shown = ", ".join(f"{partition}:{offset}" for partition, offset in addresses[:SHOWN_MAX])
    return shown + (f" and {len(addresses) - SHOWN_MAX} more" if len(addresses) > SHOWN_MAX else "")


def not_rejected(queue: str, unknown: Sequence[Address], others: int, done: str) -> NotFound:
    """The error for messages that are not rejected; `others` were `done`."""
    messages = "message" if len(unknown) == 1 else "messages"
    told = f" {others} {'other was' if others == 1 else 'others were'} {done}." if others else ""
    return NotFound(
        f'queue "{queue}" has no rejected {messages} {_show(unknown)}',
        detail=f"It was never rejected, or was restored or dropped already, or the queue was rewound.{told}",
        hint="List the rejected messages: queue.rejected(), or mainstem queue describe.",
    )


def no_longer_kept(queue: str, topic: str, rejected_topic: str, lost: Sequence[Address]) -> FellOff:
    """The error for rejected messages whose records are gone."""
    partition, offset = lost[0]
    return FellOff(
        f'topic "{topic}" no longer keeps {_show(lost)}, so queue "{queue}" cannot deliver it again',
        detail=f'A rejected message is read from its topic when it is delivered. Its row is in topic "{rejected_topic}".',
        hint="Append that row to the topic again, then drop the message.",
        topic=topic,
        partition=partition,
        first_lost=offset,
        last_lost=lost[-1][1],
    )
