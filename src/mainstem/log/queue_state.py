"""QueueState: which messages of a queue are out, come back, wait or are on their way to the rejected.

A machine without files: entries go in, the state comes out. What may be entered is decided in `queue_take` and
`queue_decisions`.

A queue keeps, per partition, a cursor: the offset of the first record nobody has looked at. Of the records before it
only those that are not done with are kept, each as an `OpenMessage`; the others are acknowledged, rejected or were
passed over, and cost nothing. So the state is as large as what is in flight, delayed or parked, not as the topic.

Entries (kind, then its fields; a message is named [partition, offset], a row seen for the first time is
[partition, offset, appended_at, key]):

    opened        settings, cursors
    taken         again, first, holder, until, cursors, behind    the next take number holds them; `behind` wait for a key
    passed        cursors, behind                                 looked at, nothing for anybody
    acknowledged  messages
    extended      messages, until
    released      messages, until, error
    rejecting     again, first, cursors                           the next rejection: intent; see `queue_rejections`
    rejected      sequence                                        ... and done
    rewound       to, cursors, open                               these partitions are put back
    deleted

In `rejecting`, `again` and `first` add cause and reason to each message. What moves a cursor for the first time since the queue
began there has `cleaned` too: how far the partition was compacted when the queue began to read it (see `missed_deletions`). Where
it begins, `unread` says that this is yet to come. An older Mainstem wrote neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Self

from mainstem.log.missed_deletions import UNREAD
from mainstem.log.processes import Identity
from mainstem.log.queue_settings import QueueSettings
from mainstem.log.state_ledger import Entry

__all__ = ["Address", "OpenMessage", "QueueState", "Rejection"]

# Partition and offset.
Address = tuple[int, int]
# Where in a message's list its holder stands.
HOLDER_PLACE = 6


@dataclass(slots=True)
class OpenMessage:
    """A message that is not done with.

    held      take > 0: `holder` (None: whoever has the receipt) has it until `until`
    returned  take = 0, deliveries > 0: to be given out again, from `until` on
    parked    deliveries = 0: never given out, because an earlier message of its key is open
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

    @property
    def address(self) -> Address:
        """Where its record lies."""
        return self.partition, self.offset

    @property
    def age_order(self) -> tuple[int, int, int]:
        """Sorts the oldest first, over all partitions; within one it is the order of the topic."""
        return self.appended_at, self.partition, self.offset

    @property
    def receipt(self) -> str:
        """What its holder shows; it fits this very delivery and no other."""
        return f"{self.partition}-{self.offset}-{self.take}"


@dataclass(slots=True)
class Rejection:
    """A message on its way to the rejected: cause rejected | expired | length | deliveries | fell_off."""

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
    # How often a queue of this name was made: what one knew does not hold for the next.
    openings: int = 0
    settings: QueueSettings = field(default_factory=QueueSettings)
    cursors: dict[int, int] = field(default_factory=dict)
    open: dict[Address, OpenMessage] = field(default_factory=dict)
    # How many takes and rejections there were. They rise for ever, also over a rewind and a deletion, so no receipt
    # and no sequence ever means two things.
    takes: int = 0
    sequence: int = 0
    # Rejections that were decided but may not have reached their topic: sequence -> (decided at, messages).
    rejecting: dict[int, tuple[int, list[Rejection]]] = field(default_factory=dict)
    # UNREAD: nothing was read there yet; 0 if it is not known.
    cleaned: dict[int, int] = field(default_factory=dict)
    # How often what happened to messages since the queue was opened.
    counts: dict[str, int] = field(default_factory=dict)

    def floor(self, partition: int) -> int:
        """The lowest offset of a partition that is not done with."""
        opened = (message.offset for message in self.open.values() if message.partition == partition)
        return min(opened, default=self.cursors[partition])

    # Entries

    def apply(self, entry: Entry, at: int) -> None:
        """Take one entry in."""
        self.cleaned |= {int(partition): at for partition, at in entry.get("cleaned", {}).items()}
        match entry["kind"]:
            case "opened":
                self.opened_at = at
                self.openings += 1
                self.settings = QueueSettings.from_json(entry["settings"])
                self._move(entry["cursors"])
                self._begin(entry)
            case "taken":
                self._take(entry)
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
            case "rewound":
                self._rewind(entry)
            case "deleted":
                self.opened_at = None
                self.settings = QueueSettings()
                self.cursors, self.open, self.counts, self.cleaned = {}, {}, {}, {}
            case unknown:
                raise ValueError(f"a queue has no entries of kind {unknown!r}")

    def _take(self, entry: Entry) -> None:
        self.takes += 1
        taken = [self.open[partition, offset] for partition, offset in entry["again"]]
        self._count("redelivered", sum(message.deliveries > 0 for message in taken))
        taken += self._add(entry["first"])
        for message in taken:
            message.deliveries += 1
            message.take = self.takes
            message.holder = entry["holder"]
            message.until = entry["until"]
        self._count("delivered", len(taken))
        self._add(entry["behind"])
        self._move(entry["cursors"])

    def _release(self, message: OpenMessage, until: int, error: str | None) -> None:
        message.take = 0
        message.holder = None
        message.until = until
        if error is not None:
            message.first_error = message.first_error or error
            message.last_error = error

    def _reject(self, entry: Entry, at: int) -> None:
        # Not below the time: a queue made anew after its topic was deleted must not begin below what the topic of the
        # rejected, which stays, has seen.
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

    def _rewind(self, entry: Entry) -> None:
        put_back = {int(partition) for partition in entry["cursors"]}
        self.open = {address: message for address, message in self.open.items() if address[0] not in put_back}
        self._move(entry["cursors"])
        self._begin(entry)
        for message in _messages(entry["open"], []):
            self.open[message.address] = message

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

    def returned_to(self, partitions: Iterable[int]) -> Entry:
        """What `rewound` needs to bring back these partitions as they are here; whatever is held comes back at once."""
        chosen = [partition for partition in sorted(partitions) if partition in self.cursors]
        messages = [
            replace(message, take=0, holder=None, until=0) if message.take else message
            for message in self.open.values()
            if message.partition in chosen
        ]
        return {"cursors": {str(p): self.cursors[p] for p in chosen}, "open": _rows(messages, [])}

    def snapshot(self) -> dict[str, Any]:
        """The whole state as JSON: a short list for each open message, each holder once."""
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
            "counts": self.counts,
            "cleaned": {str(partition): cleaned for partition, cleaned in sorted(self.cleaned.items())},
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        """The state a snapshot was made of."""
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
            # An older Mainstem did not note it.
            cleaned={int(partition): cleaned for partition, cleaned in snapshot.get("cleaned", {}).items()},
        )


def _rows(messages: Iterable[OpenMessage], holders: list[Identity]) -> list[list[Any]]:
    """Messages as lists, cut where only default values follow; a holder is its place in `holders`."""
    rows = []
    for message in messages:
        holder = None
        if message.holder is not None:
            if message.holder not in holders:
                holders.append(message.holder)
            holder = holders.index(message.holder)
        row = [message.partition, message.offset, message.appended_at, message.key, message.deliveries, message.take]
        # Only what nobody holds has an `until` of 0, so the holder with index 0 is never cut away.
        row += [holder, message.until, message.first_error, message.last_error]
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
