"""QueueState: which messages of a queue are held, returned, parked or being rejected.

A state machine without files: it applies entries. `queue_take` and the decisions below say which entries are valid.

A queue has, per partition, a cursor: the offset of the first record it has not read. Of the records before it, the
state has only those that are not done, each as an `OpenMessage`, and the addresses of the last `REJECTED_MAX` rejected
ones; the others are acknowledged or filtered out, and take no space. So the state grows with the messages in flight,
delayed, parked or rejected, not with the topic.

Entries (kind, then its fields; a message is named [partition, offset], a row seen for the first time is
[partition, offset, appended_at, key]):

    opened        settings, cursors
    taken         again, first, holder, until, cursors, behind    the next take holds them; `behind` wait for a key
    passed        cursors, behind                                 read, nothing to deliver
    acknowledged  messages
    extended      messages, until
    released      messages, until, error
    rejecting     again, first, cursors                           the next rejection: intent; see `queue_rejections`
    rejected      sequence                                        ... and done
    restored      messages                                        rejected ones wait again, as if never delivered
    dropped       messages                                        rejected ones are done
    rewound       to, cursors, open, rejected                     these partitions are restored
    deleted

In `rejecting`, `again` and `first` add cause and reason to each message. The messages of `restored` are rows seen for the
first time. `rejected` of `rewound` has runs of rejected messages, [partition, offset, count, rejected at], and only a
rewind to a time has it: other ones forget the rejections from the new cursor on. The first entry that moves a cursor after the
queue began to read a partition also has `cleaned`: how far the partition was compacted at that time (see
`missed_deletions`). Before that, `unread` says that it is not known yet. Older versions wrote neither, nor `rejected`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from datetime import timedelta
from typing import Any, Self

from mainstem.arguments import show_value
from mainstem.errors import Conflict, Fenced, Invalid
from mainstem.log.missed_deletions import UNREAD
from mainstem.log.queues.queue_settings import QueueSettings
from mainstem.log.state_ledger import Entry
from mainstem.processes import Identity

__all__ = [
    "Address",
    "OpenMessage",
    "QueueState",
    "Rejection",
    "RestoredRow",
    "acknowledge",
    "delete",
    "drop",
    "extend",
    "open_queue",
    "reject",
    "release",
    "restore",
    "rewind",
    "rewind_to_state",
]

# Partition and offset.
Address = tuple[int, int]
# The address of a rejected message, its append time, and its key if the queue is ordered.
RestoredRow = tuple[Address, int, str | None]
# The index of the holder in a message's list.
HOLDER_PLACE = 6
# Rejected messages that can be restored: of more, the oldest are forgotten. They stay in the rejected topic.
REJECTED_MAX = 100_000


@dataclass(slots=True)
class OpenMessage:
    """A message that is not done.

    held      take > 0: `holder` (None: the owner of the receipt) has it until `until`
    returned  take = 0, deliveries > 0: to be delivered again, from `until` on
    parked    deliveries = 0: never delivered, because an earlier message of its key is open
    waiting   deliveries = 0, restored_at > 0: was rejected, and is delivered in its turn

    `taken_at`: when it was delivered last, 0 if an older version did that.
    """

    partition: int
    offset: int
    appended_at: int
    key: str | None
    deliveries: int = 0
    take: int = 0
    holder: Identity | None = None
    until: int = 0
    first_error: str | None = None
    last_error: str | None = None
    taken_at: int = 0
    restored_at: int = 0

    @property
    def waiting(self) -> bool:
        """Whether it was restored, and not delivered since."""
        return self.restored_at > 0 and not self.deliveries

    @property
    def address(self) -> Address:
        """The partition and offset of its record."""
        return self.partition, self.offset

    @property
    def age_order(self) -> tuple[int, int, int]:
        """Sorts oldest first, over all partitions; within one in the order of the topic."""
        return self.appended_at, self.partition, self.offset

    @property
    def receipt(self) -> str:
        """The receipt of this delivery only."""
        return f"{self.partition}-{self.offset}-{self.take}"


@dataclass(slots=True)
class Rejection:
    """A message to be rejected: cause rejected | expired | length | deliveries | fell_off."""

    partition: int
    offset: int
    cause: str
    reason: str
    deliveries: int = 0
    first_error: str | None = None
    last_error: str | None = None


@dataclass(slots=True)
class QueueState:
    """The state of one queue over one topic; times in microseconds."""

    opened_at: int | None = None
    # How often a queue of this name was created: facts cached for one are invalid for the next.
    openings: int = 0
    settings: QueueSettings = field(default_factory=QueueSettings)
    cursors: dict[int, int] = field(default_factory=dict)
    open: dict[Address, OpenMessage] = field(default_factory=dict)
    # The number of takes and rejections. They only increase, even after a rewind or a deletion, so receipts and
    # sequences are unique.
    takes: int = 0
    sequence: int = 0
    # Decided rejections that may not be in their topic yet: sequence -> (decided at, messages).
    rejecting: dict[int, tuple[int, list[Rejection]]] = field(default_factory=dict)
    # The rejected messages that were neither restored nor dropped, in the order of their rejections, and when that was.
    rejected: dict[Address, int] = field(default_factory=dict)
    # UNREAD: nothing was read there yet; 0 if unknown.
    cleaned: dict[int, int] = field(default_factory=dict)
    # The counters of the queue since it was opened.
    counts: dict[str, int] = field(default_factory=dict)

    def floor(self, partition: int) -> int:
        """The lowest offset of a partition that is not settled."""
        opened = (message.offset for message in self.open.values() if message.partition == partition)
        return min(opened, default=self.cursors[partition])

    # Entries

    def apply(self, entry: Entry, at: int) -> None:
        """Apply one entry."""
        self.cleaned |= {int(partition): at for partition, at in entry.get("cleaned", {}).items()}
        match entry["kind"]:
            case "opened":
                self.opened_at = at
                self.openings += 1
                self.settings = QueueSettings.from_json(entry["settings"])
                self._move(entry["cursors"])
                self._begin(entry)
            case "taken":
                self._take(entry, at)
            case "passed":
                self._move(entry["cursors"])
                self._add(entry["behind"])
            case "acknowledged":
                for partition, offset in entry["messages"]:
                    del self.open[partition, offset]
                self._count("acknowledged", len(entry["messages"]))
            case "extended":
                for partition, offset in entry["messages"]:
                    self.open[partition, offset].until = entry["until"]
            case "released":
                for partition, offset in entry["messages"]:
                    self._release(self.open[partition, offset], entry["until"], entry["error"])
                self._count("released", len(entry["messages"]))
            case "rejecting":
                self._reject(entry, at)
            case "rejected":
                del self.rejecting[entry["sequence"]]
            case "restored":
                for message in self._add(entry["messages"]):
                    message.restored_at = at
                    del self.rejected[message.address]
                self._count("restored", len(entry["messages"]))
            case "dropped":
                for partition, offset in entry["messages"]:
                    del self.rejected[partition, offset]
                self._count("dropped", len(entry["messages"]))
            case "rewound":
                self._rewind(entry)
            case "deleted":
                self.opened_at = None
                self.settings = QueueSettings()
                self.cursors, self.open, self.rejected, self.counts, self.cleaned = {}, {}, {}, {}, {}
            case unknown:
                raise ValueError(f"a queue has no entries of kind {unknown!r}")

    def _take(self, entry: Entry, at: int) -> None:
        self.takes += 1
        taken = [self.open[partition, offset] for partition, offset in entry["again"]]
        self._count("redelivered", sum(message.deliveries > 0 for message in taken))
        taken += self._add(entry["first"])
        for message in taken:
            message.deliveries += 1
            message.take = self.takes
            message.holder = entry["holder"]
            message.until = entry["until"]
            message.taken_at = at
        self._count("delivered", len(taken))
        self._add(entry["behind"])
        self._move(entry["cursors"])

    def _release(self, message: OpenMessage, until: int, error: str | None) -> None:
        message.take = 0
        message.holder = None
        message.until = until
        message.taken_at = 0
        if error is not None:
            message.first_error = message.first_error or error
            message.last_error = error

    def _reject(self, entry: Entry, at: int) -> None:
        # At least the time: a queue created again after its topic was deleted must not begin below the last sequence of
        # the rejected topic, which still exists.
        self.sequence = max(self.sequence + 1, at)
        rejections = []
        for partition, offset, cause, reason in entry["again"]:
            message = self.open.pop((partition, offset))
            errors = message.first_error, message.last_error
            rejections.append(Rejection(partition, offset, cause, reason, message.deliveries, *errors))
        rejections += [Rejection(*first) for first in entry["first"]]
        self.rejecting[self.sequence] = at, rejections
        self._move(entry["cursors"])
        for rejection in rejections:
            self._count(rejection.cause, 1)
            # Last in the order, also if it was forgotten here and is rejected again.
            self.rejected.pop((rejection.partition, rejection.offset), None)
            self.rejected[rejection.partition, rejection.offset] = at
        while len(self.rejected) > REJECTED_MAX:
            del self.rejected[next(iter(self.rejected))]

    def _rewind(self, entry: Entry) -> None:
        put_back = {int(partition) for partition in entry["cursors"]}
        self.open = {address: message for address, message in self.open.items() if address[0] not in put_back}
        self._move(entry["cursors"])
        self._begin(entry)
        for message in _messages(entry["open"], []):
            self.open[message.address] = message
        as_then = "rejected" in entry
        self.rejected = {
            address: at
            for address, at in self.rejected.items()
            if address[0] not in put_back or not (as_then or address[1] >= self.cursors[address[0]])
        }
        self.rejected |= _read_runs(entry.get("rejected", ()))

    def _add(self, rows: Iterable[list[Any]]) -> list[OpenMessage]:
        added = [OpenMessage(*row) for row in rows]
        self.open |= {message.address: message for message in added}
        return added

    def _move(self, cursors: dict[str, int]) -> None:
        self.cursors |= {int(partition): offset for partition, offset in cursors.items()}

    def _begin(self, entry: Entry) -> None:
        for partition in map(int, entry["cursors"]):
            if entry.get("unread"):
                self.cleaned[partition] = UNREAD
            else:
                self.cleaned.pop(partition, None)

    def _count(self, what: str, times: int) -> None:
        if times:
            self.counts[what] = self.counts.get(what, 0) + times

    # Snapshots

    def rewound_entry(self, partitions: Iterable[int]) -> Entry:
        """The `rewound` entry that restores these partitions to this state; held messages become due at once."""
        chosen = [partition for partition in sorted(partitions) if partition in self.cursors]
        messages = [
            replace(message, take=0, holder=None, until=0, taken_at=0) if message.take else message
            for message in self.open.values()
            if message.partition in chosen
        ]
        rejected = {address: at for address, at in self.rejected.items() if address[0] in chosen}
        cursors = {str(p): self.cursors[p] for p in chosen}
        return {"cursors": cursors, "open": _rows(messages, []), "rejected": _runs(rejected)}

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON: a short list for each open message, each holder once."""
        holders: list[Identity] = []
        return {
            "opened_at": self.opened_at,
            "openings": self.openings,
            "settings": self.settings.to_json(),
            "cursors": {str(partition): cursor for partition, cursor in sorted(self.cursors.items())},
            "open": _rows(self.open.values(), holders),
            "holders": holders,
            "takes": self.takes,
            "sequence": self.sequence,
            "rejecting": [
                [sequence, at, [astuple(rejection) for rejection in rejections]]
                for sequence, (at, rejections) in self.rejecting.items()
            ],
            "rejected": _runs(self.rejected),
            "counts": self.counts,
            "cleaned": {str(partition): cleaned for partition, cleaned in sorted(self.cleaned.items())},
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        """The state of a snapshot."""
        return cls(
            opened_at=snapshot["opened_at"],
            openings=snapshot["openings"],
            settings=QueueSettings.from_json(snapshot["settings"]),
            cursors={int(partition): cursor for partition, cursor in snapshot["cursors"].items()},
            open={message.address: message for message in _messages(snapshot["open"], snapshot["holders"])},
            takes=snapshot["takes"],
            sequence=snapshot["sequence"],
            rejecting={
                sequence: (at, [Rejection(*rejection) for rejection in rejections])
                for sequence, at, rejections in snapshot["rejecting"]
            },
            counts=dict(snapshot["counts"]),
            # These two are missing in snapshots of older versions.
            rejected=_read_runs(snapshot.get("rejected", ())),
            cleaned={int(partition): cleaned for partition, cleaned in snapshot.get("cleaned", {}).items()},
        )


def _rows(messages: Iterable[OpenMessage], holders: list[Identity]) -> list[list[Any]]:
    """Messages as lists, without trailing default values; a holder is its index in `holders`."""
    rows = []
    for message in messages:
        holder = None
        if message.holder is not None:
            if message.holder not in holders:
                holders.append(message.holder)
            holder = holders.index(message.holder)
        row = [message.partition, message.offset, message.appended_at, message.key, message.deliveries, message.take]
        # Only messages without a holder have an `until` of 0, so a holder with index 0 is never cut.
        row += [holder, message.until, message.first_error, message.last_error, message.taken_at, message.restored_at]
        while row[-1] in (None, 0) and len(row) > 4:
            row.pop()
        rows.append(row)
    return rows


def _messages(rows: Iterable[list[Any]], holders: list[Identity]) -> list[OpenMessage]:
    messages = []
    for row in rows:
        values = list(row)
        if len(values) > HOLDER_PLACE and values[HOLDER_PLACE] is not None:
            values[HOLDER_PLACE] = holders[values[HOLDER_PLACE]]
        messages.append(OpenMessage(*values))
    return messages


def _runs(rejected: Mapping[Address, int]) -> list[list[int]]:
    """Rejected messages as runs, [partition, offset, count, rejected at]: many are rejected together.

    >>> _runs({(0, 7): 50, (0, 8): 50, (0, 9): 60})
    [[0, 7, 2, 50], [0, 9, 1, 60]]
    """
    runs: list[list[int]] = []
    for (partition, offset), at in rejected.items():
        last = runs[-1] if runs else [-1, 0, 0, 0]
        if [last[0], last[1] + last[2], last[3]] == [partition, offset, at]:
            last[2] += 1
        else:
            runs.append([partition, offset, 1, at])
    return runs


def _read_runs(runs: Iterable[list[int]]) -> dict[Address, int]:
    return {(partition, first + step): at for partition, first, count, at in runs for step in range(count)}


# Decisions of a queue besides a take: each takes the state and returns the entries to append.
#
# Pure functions, run by `StateLedger.decide`. A receipt names one delivery of one message; once that message was
# settled, or delivered to another consumer, the receipt is invalid and its use is fenced.


RECEIPT = re.compile(r"([0-9]{1,9})-([0-9]{1,19})-([0-9]{1,19})")
MICROSECOND = timedelta(microseconds=1)


def open_queue(state: QueueState, name: str, given: QueueSettings | None, cursors: Mapping[int, int]) -> list[Entry]:
    """Create the queue, starting at `cursors`; if it exists, check its settings."""
    if state.opened_at is None:
        settings = given or QueueSettings()
        return [{"kind": "opened", "settings": settings.to_json(), "cursors": _cursors_json(cursors), "unread": True}]
    if given is not None and (differences := state.settings.differences(given)):
        raise Conflict(
            f'queue "{name}" exists with other settings',
            detail=f"{'; '.join(differences).capitalize()}.",
            hint="Open it without settings to use it as it is, or delete it and create it again.",
        )
    return []


def acknowledge(state: QueueState, receipts: Iterable[str]) -> tuple[list[Entry], list[str]]:
    """Settle the messages whose receipts are valid; return the invalid receipts."""
    held: dict[str, OpenMessage] = {}
    stale = []
    for receipt in dict.fromkeys(receipts):
        message = _find_held(state, receipt)
        if message is None:
            stale.append(receipt)
        else:
            held[receipt] = message
    addresses = [message.address for message in held.values()]
    return [{"kind": "acknowledged", "messages": addresses}] if addresses else [], stale


def extend(state: QueueState, now: int, receipt: str, duration: timedelta) -> tuple[list[Entry], int]:
    """Extend the lease of a message to `duration` from now; returns when it ends."""
    message = _require_held(state, receipt)
    until = now + duration // MICROSECOND
    return [{"kind": "extended", "messages": [message.address], "until": until}], until


def release(state: QueueState, now: int, receipt: str, delay: timedelta | None, error: str | None) -> list[Entry]:
    """Return a message, or reject it after the last delivery. Without a delay the queue's retry sets it."""
    message = _require_held(state, receipt)
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
        entries.append(_rejecting_entry(message, "deliveries", f"given out {times} without being acknowledged"))
    return entries


def reject(state: QueueState, receipt: str, reason: str) -> list[Entry]:
    """Send a message to the rejected topic."""
    return [_rejecting_entry(_require_held(state, receipt), "rejected", reason)]


def restore(state: QueueState, messages: Iterable[RestoredRow]) -> tuple[list[Entry], list[Address]]:
    """Return rejected messages to the waiting ones; also return those that are not rejected."""
    known: dict[Address, list[Any]] = {}
    unknown = []
    for address, appended_at, key in messages:
        if address in state.rejected:
            known[address] = [*address, appended_at, key]
        else:
            unknown.append(address)
    return [{"kind": "restored", "messages": list(known.values())}] if known else [], unknown


def drop(state: QueueState, addresses: Iterable[Address]) -> tuple[list[Entry], list[Address]]:
    """Forget rejected messages; also return those that are not rejected."""
    wanted = list(dict.fromkeys(addresses))
    known = [address for address in wanted if address in state.rejected]
    unknown = [address for address in wanted if address not in state.rejected]
    return [{"kind": "dropped", "messages": known}] if known else [], unknown


def rewind(to: str, cursors: Mapping[int, int]) -> list[Entry]:
    """Move partitions to an offset: messages before it count as done, later ones as never delivered."""
    return [{"kind": "rewound", "to": to, "cursors": _cursors_json(cursors), "open": [], "unread": True}]


def rewind_to_state(to: str, earlier: QueueState, added: Mapping[int, int]) -> list[Entry]:
    """Restore all partitions to an earlier state. `added`: partitions it did not have, and where they begin."""
    entry = earlier.rewound_entry(earlier.cursors)
    cursors = _cursors_json(added) | entry["cursors"]
    return [{"kind": "rewound", **entry, "to": to, "cursors": cursors, "unread": True}]


def delete() -> list[Entry]:
    """Delete the queue; its receipts become invalid."""
    return [{"kind": "deleted"}]


def _find_held(state: QueueState, receipt: str) -> OpenMessage | None:
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


def _require_held(state: QueueState, receipt: str) -> OpenMessage:
    message = _find_held(state, receipt)
    if message is None:
        raise fenced_error([receipt])
    return message


def fenced_error(receipts: list[str], acknowledged: int = 0) -> Fenced:
    """The error for receipts that are no longer valid."""
    shown = ", ".join(f'"{receipt}"' for receipt in receipts[:5]) + (", ..." if len(receipts) > 5 else "")
    others = f" The other {acknowledged} were acknowledged." if acknowledged else ""
    return Fenced(
        f"receipt {shown} is no longer valid" if len(receipts) == 1 else f"receipts {shown} are no longer valid",
        detail="The message was already settled with this receipt, or its lease expired and another consumer took it, or "
        f"the queue was rewound.{others}",
        hint="Take again; extend the lease of work that takes longer.",
        receipts=tuple(receipts),
    )


def _rejecting_entry(message: OpenMessage, cause: str, reason: str) -> Entry:
    return {"kind": "rejecting", "again": [[*message.address, cause, reason]], "first": [], "cursors": {}}


def _cursors_json(cursors: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): cursor for partition, cursor in sorted(cursors.items())}
