"""The errors that Mainstem raises.

    MainstemError
    ├── NotFound (LookupError)     TopicNotFound, GroupNotFound, QueueNotFound, FlowNotFound, ViewNotFound
    ├── AlreadyExists              TopicExists
    ├── Invalid (ValueError)       InvalidName, SchemaMismatch, InvalidRows, NewerFormat
    ├── Conflict                   AppendConflict, BeyondEnd, Fenced
    ├── FellOff                    records that are no longer retained; MissedDeletions, PositionLost
    ├── Corrupt                    CorruptBlock, CorruptManifest, CorruptSegment, CorruptHome, CorruptView
    ├── Unavailable (OSError)      BrokerUnavailable, DatabaseUnavailable, DiskFull, LockHeld,
    │                              IncompleteAppend, NotYet
    └── FlowFailed                 a flow failed; `__cause__` is the reason

The branch tells how to handle an error: retry after `Unavailable`; after `Conflict` read again and decide again;
`Corrupt` stops at once and names the file and byte; `Invalid` and `NotFound` are mistakes in a program or a command.

An error has three parts: what is wrong (`error.summary`: lower case, no full stop, the thing in double quotes), the
facts (`detail`), and what to do (`hint`). `str(error)` has all three, so that they are printed, logged and in every
traceback:

    mainstem.TopicNotFound: topic "ordres" does not exist
    Detail: The log in "data/shop" has 2 topics: customers, orders.
    Hint: Did you mean "orders"?
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Self

__all__ = [
    "AlreadyExists",
    "AppendConflict",
    "BeyondEnd",
    "BrokerUnavailable",
    "Conflict",
    "Corrupt",
    "CorruptBlock",
    "CorruptHome",
    "CorruptManifest",
    "CorruptSegment",
    "CorruptView",
    "DatabaseUnavailable",
    "DiskFull",
    "FellOff",
    "Fenced",
    "FlowFailed",
    "FlowNotFound",
    "GroupNotFound",
    "IncompleteAppend",
    "Invalid",
    "InvalidName",
    "InvalidRows",
    "LockHeld",
    "MainstemError",
    "MissedDeletions",
    "NewerFormat",
    "NotFound",
    "NotYet",
    "PositionLost",
    "QueueNotFound",
    "SchemaMismatch",
    "TopicExists",
    "TopicNotFound",
    "Unavailable",
    "ViewNotFound",
    "did_you_mean",
    "reason_of",
    "summary_of",
]

# Fields live in `__dict__`, which is what pickle carries. A field named like one of these would land in a slot of the
# built-in exception instead and be lost on the way, without an error.
_TAKEN_BY_PYTHON = frozenset([*dir(OSError), "summary", "parts"])


class MainstemError(Exception):
    """The base class of all errors of Mainstem.

    `str(error)` has all three parts, one per line, so that they are printed and logged too; `summary` is the first
    alone. Further keyword arguments become attributes. `args` holds only the summary and everything else is in
    `__dict__`, so `pickle` preserves the whole error.

    >>> error = MainstemError('topic "ordres" is odd', detail="It has no rows.", hint="Append some.", topic="ordres")
    >>> print(error)
    topic "ordres" is odd
    Detail: It has no rows.
    Hint: Append some.
    >>> error.summary, error.topic
    ('topic "ordres" is odd', 'ordres')
    """

    detail: str = ""
    hint: str = ""

    def __init__(self, message: str, *, detail: str = "", hint: str = "", **fields: object) -> None:
        super().__init__(message)
        if taken := sorted(_TAKEN_BY_PYTHON.intersection(fields)):
            raise TypeError(f"an error's field may not be called {', '.join(taken)}: Python's exceptions use that name")
        self.detail = detail.strip()
        self.hint = hint.strip()
        self.__dict__.update(fields)

    @property
    def summary(self) -> str:
        """What is wrong, in one sentence."""
        return str(self.args[0]) if self.args else ""

    def parts(self) -> list[str]:
        """The parts, each with its title; a missing one is left out."""
        titled = [f"{title}: {text}" for title, text in (("Detail", self.detail), ("Hint", self.hint)) if text]
        return [self.summary, *titled]

    def __str__(self) -> str:
        return "\n".join(self.parts())

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        _show_as_public(cls)


def _show_as_public(error_class: type[MainstemError]) -> None:
    """Tracebacks then say `mainstem.TopicNotFound`, the name a user imports, instead of where it is defined."""
    if error_class.__module__ == __name__:
        error_class.__module__ = __name__.partition(".")[0]


_show_as_public(MainstemError)


class NotFound(MainstemError, LookupError):
    """Something with this name does not exist."""


class TopicNotFound(NotFound):
    """The log has no topic with this name."""

    topic: str = ""


class GroupNotFound(NotFound):
    """The topic has no reader group with this name."""

    topic: str = ""
    group: str = ""


class FlowNotFound(NotFound):
    """No flow with this name runs in the program, or ever ran in the home."""


class QueueNotFound(NotFound):
    """The topic has no queue with this name."""

    topic: str = ""
    queue: str = ""


class ViewNotFound(NotFound):
    """The home has no view with this name, or the view has no such version."""

    view: str = ""


class AlreadyExists(MainstemError):
    """Something with this name already exists."""


class TopicExists(AlreadyExists):
    """The log already has a topic with this name."""

    topic: str = ""


class Invalid(MainstemError, ValueError):
    """An argument is invalid, whatever the state of the log."""


class InvalidName(Invalid):
    """A name that is not a valid file name on every system, or could be confused with another."""

    name: object = ""


class SchemaMismatch(Invalid):
    """Rows or a schema that do not match the topic's schema."""

    column: str = ""


class InvalidRows(Invalid):
    """A row that the topic does not accept; nothing of the append was written.

    `row` is the index of the row, from 0; None if the error does not concern a single row.
    """

    row: int | None = None
    column: str = ""


class NewerFormat(Invalid):
    """Files written by a newer Mainstem."""

    found_version: int = 0
    known_version: int = 0

    @classmethod
    def of(cls, what: str, found: int, known: int, *, where: str = "It") -> Self:
        """The error of a thing whose format is newer than the newest that is known; `where`: what has the format."""
        return cls(
            f"{what} was written by a newer Mainstem",
            detail=f"{where} has format {found}; this Mainstem knows up to {known}.",
            hint="Install the newer Mainstem.",
            found_version=found,
            known_version=known,
        )


class Conflict(MainstemError):
    """The state has changed, or differs from the one expected: read it again and decide again."""


class AppendConflict(Conflict):
    """A conditional append found another end offset, or a producer's sequence is out of order. Nothing was written."""


class BeyondEnd(Conflict):
    """A reader's `position` is beyond the `end` of the partition: the log was restored from an older copy, or the
    position is from another log. Records appended up to the position would never be read."""

    topic: str = ""
    partition: int = 0
    position: int = 0
    end: int = 0


class Fenced(Conflict):
    """A newer run of the same producer, member or holder has taken over; this one (a zombie) may no longer write."""

    epoch: int | None = None
    current_epoch: int | None = None


class FlowFailed(MainstemError):
    """A flow failed; `__cause__` is the reason. The next run repeats the unfinished batch."""

    flow: str | None = None
    batch: int | None = None


class FellOff(MainstemError):
    """A reader needs records that are no longer retained: offsets `first_lost` to `last_lost`, both included."""

    topic: str = ""
    partition: int = 0
    first_lost: int = 0
    last_lost: int = 0


class MissedDeletions(FellOff):
    """Compaction removed tombstones that a reader had not read, from `first_lost` to `last_lost`."""


class PositionLost(FellOff):
    """The source of a capture no longer has every change after `position`."""

    position: str = ""


class Corrupt(MainstemError):
    """Bytes on disk differ from what was written, in the file `path`, at `position` if it is known."""

    path: str = ""
    position: int | None = None


class CorruptBlock(Corrupt):
    """A block of an active segment fails its checksum or breaks the chain."""

    topic: str = ""
    partition: int = 0
    first_offset: int | None = None
    last_offset: int | None = None


class CorruptManifest(Corrupt):
    """The list of a partition's sealed segments fails its checksum."""


class CorruptSegment(Corrupt):
    """A sealed segment fails its checksum, or is missing."""

    topic: str = ""
    partition: int = 0
    first_offset: int | None = None
    last_offset: int | None = None


class CorruptHome(Corrupt):
    """The directory is not a home, or its description cannot be read."""


class CorruptView(Corrupt):
    """The file of a view, or its description, cannot be read."""

    view: str = ""


class Unavailable(MainstemError, OSError):
    """A resource is temporarily unavailable; the same call may succeed later."""


class DatabaseUnavailable(Unavailable):
    """A database cannot be reached, or closed the connection; `address` is its address, without a password. `refused`: it
    answered, and rejected the login, or there is no such database."""

    address: str = ""
    refused: bool = False


class DiskFull(Unavailable):
    """No space is left for the append; nothing was acknowledged, and reads still work."""

    path: str = ""


class LockHeld(Unavailable):
    """A stopped process holds a lock; `pid` is that process."""

    pid: int = 0
    path: str = ""


class BrokerUnavailable(Unavailable):
    """No broker answers, or the brokers reject the login; `address` names the brokers."""

    address: str = ""


class IncompleteAppend(Unavailable):
    """An append over several partitions reached only some of them.

    A producer's retry with the same sequence completes the rest and repeats nothing. `pid` is the stopped process that
    holds the lock of a partition; 0 if that is not the cause.
    """

    topic: str = ""
    written: tuple[int, ...] = ()
    not_written: tuple[int, ...] = ()
    pid: int = 0


class NotYet(Unavailable):
    """A view has not yet applied all records up to a token.

    `missing[topic][partition]` is (the offset applied, the offset asked for).
    """

    view: str = ""
    missing: Mapping[str, Mapping[int, tuple[int, int]]] = MappingProxyType({})


def summary_of(error: BaseException) -> str:
    """The text of any error for use in another message; of a `MainstemError` only the summary."""
    return error.summary if isinstance(error, MainstemError) else str(error)


def reason_of(error: MainstemError) -> str:
    """Summary and detail of an error in one line, without a full stop.

    >>> reason_of(Unavailable("the cache cannot be reached", detail="Connection refused.", hint="Start it."))
    'the cache cannot be reached: Connection refused'
    """
    return f"{error.summary}: {' '.join(error.detail.split()).rstrip('.')}" if error.detail else error.summary


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A hint with the one of `names` that is most similar to `name`; empty if none is similar.

    >>> did_you_mean("ordres", ["customers", "orders"])
    'Did you mean "orders"?'
    >>> did_you_mean("zebra", ["customers", "orders"])
    ''
    """
    by_folded = {known.casefold(): known for known in names}
    near = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    return f'Did you mean "{by_folded[near[0]]}"?' if near else ""
