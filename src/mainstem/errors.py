"""Every error Mainstem raises on purpose.

    MainstemError
    ├── NotFound (LookupError)     TopicNotFound, GroupNotFound, QueueNotFound, FlowNotFound, ViewNotFound
    ├── AlreadyExists              TopicExists
    ├── Invalid (ValueError)       InvalidName, SchemaMismatch, InvalidRows, NewerFormat
    ├── Conflict                   AppendConflict, BeyondEnd, Fenced
    ├── FellOff                    the range that is gone, and how to go on; MissedDeletions
    ├── Corrupt                    CorruptBlock, CorruptManifest, CorruptSegment, CorruptHome, CorruptView
    ├── Unavailable (OSError)      BrokerUnavailable, DatabaseUnavailable, DiskFull, LockHeld,
    │                              IncompleteAppend, NotYet
    └── FlowFailed                 what a flow died of; its cause is the error's cause

The branch is the policy: `Unavailable` may be tried again, `Conflict` is for the caller to decide anew, `Corrupt` stops
at once and names file and byte, `Invalid` and `NotFound` are mistakes in a program or a command.

An error is three sentences: what is wrong (`error.summary`: lower case, no full stop, the thing in double quotes), the
facts, and what to do. `str(error)` has all three, so that they are printed, logged and in every traceback:

    mainstem.TopicNotFound: topic "ordres" does not exist
    Detail: The log in "data/shop" has 2 topics: customers, orders.
    Hint: Did you mean "orders"?
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

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
    "QueueNotFound",
    "SchemaMismatch",
    "TopicExists",
    "TopicNotFound",
    "Unavailable",
    "ViewNotFound",
    "did_you_mean",
    "summary_of",
]

# Fields live in `__dict__`, which is what pickle carries. A field named like one of these would land in a slot of the
# built-in exception instead and be lost on the way, without an error.
_TAKEN_BY_PYTHON = frozenset([*dir(OSError), "summary", "parts"])


class MainstemError(Exception):
    """What every error of Mainstem is.

    `str(error)` is all three parts, a line each, so that they are printed and logged too; `summary` is the first alone.
    Further keyword arguments become attributes. `args` holds the summary alone and everything else lies in `__dict__`, so
    an error comes out of `pickle` whole.

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
        """The three parts, each with its title; one that is missing is left out."""
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
    """Something was named that is not there."""


class TopicNotFound(NotFound):
    """The log has no topic of this name."""

    topic: str = ""


class GroupNotFound(NotFound):
    """The topic has no reader group of this name."""

    topic: str = ""
    group: str = ""


class FlowNotFound(NotFound):
    """No flow of that name runs in the program, or ever ran in the home."""


class QueueNotFound(NotFound):
    """The topic has no queue of this name."""

    topic: str = ""
    queue: str = ""


class ViewNotFound(NotFound):
    """The home has no view of this name, or the view no such version."""

    view: str = ""


class AlreadyExists(MainstemError):
    """Something was to be made that is there already."""


class TopicExists(AlreadyExists):
    """The log has a topic of this name."""

    topic: str = ""


class Invalid(MainstemError, ValueError):
    """What was given cannot be right, whatever the state of the log."""


class InvalidName(Invalid):
    """A name that could not be a file name everywhere, or would be mistaken for another."""

    name: object = ""


class SchemaMismatch(Invalid):
    """Rows or a schema that do not fit the topic's schema."""

    column: str = ""


class InvalidRows(Invalid):
    """A row that the topic cannot take; nothing of the append was written.

    `row` counts from 0 in what was given; it is None where no single row is to blame.
    """

    row: int | None = None
    column: str = ""


class NewerFormat(Invalid):
    """Files written by a later Mainstem than this one."""

    found_version: int = 0
    known_version: int = 0


class Conflict(MainstemError):
    """Somebody else decided otherwise meanwhile, or earlier: look again and decide anew."""


class AppendConflict(Conflict):
    """Something else was appended first: a conditional append found another end, or a producer's sequence comes out of
    order. Nothing was written."""


class BeyondEnd(Conflict):
    """A reader was to go on from `position`, and the partition ends before it, at `end`: the log was set back since, or it is
    the position of another one. What is appended up to there would never be read."""

    topic: str = ""
    partition: int = 0
    position: int = 0
    end: int = 0


class Fenced(Conflict):
    """A later run of the same producer, member or holder has taken over; this one may not write any more."""

    epoch: int | None = None
    current_epoch: int | None = None


class FlowFailed(MainstemError):
    """A flow stopped by itself; its cause is the error's cause. What it did not finish is done by the next run."""

    flow: str | None = None
    batch: int | None = None


class FellOff(MainstemError):
    """A reader wanted records that are no longer kept: offsets `first_lost` to `last_lost`, both included."""

    topic: str = ""
    partition: int = 0
    first_lost: int = 0
    last_lost: int = 0


class MissedDeletions(FellOff):
    """A reader goes on from `first_lost`, and compaction has dropped tombstones that it had not read, up to `last_lost`."""


class Corrupt(MainstemError):
    """Bytes on disk are not what was written there: `path`, and `position` where it is known."""

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
    """The machine cannot do it now; the same call may succeed later."""


class DatabaseUnavailable(Unavailable):
    """A database cannot be reached, or ended the connection; `address` is its address, without a password."""

    address: str = ""


class DiskFull(Unavailable):
    """No space is left for the append; nothing was acknowledged, and reading goes on."""

    path: str = ""


class LockHeld(Unavailable):
    """A process holds a lock and does not go on; `pid` is that process."""

    pid: int = 0
    path: str = ""


class BrokerUnavailable(Unavailable):
    """No broker of the log answers, or none lets us in; `address` names those that were asked."""

    address: str = ""


class IncompleteAppend(Unavailable):
    """An append over several partitions reached only some of them.

    A producer's retry with the same sequence completes the rest and repeats nothing. `pid` is the process that holds the lock
    of a partition and does not go on; 0 if that is not the cause.
    """

    topic: str = ""
    written: tuple[int, ...] = ()
    not_written: tuple[int, ...] = ()
    pid: int = 0


class NotYet(Unavailable):
    """A view has not applied what a token stands for; `missing` says of each topic and partition what was asked for.

    `missing[topic][partition]` is (the offset that is applied up to, the offset that was asked for).
    """

    view: str = ""
    missing: Mapping[str, Mapping[int, tuple[int, int]]] = MappingProxyType({})


def summary_of(error: BaseException) -> str:
    """What any error says, in one sentence if it is one of ours: to be put into another message."""
    return error.summary if isinstance(error, MainstemError) else str(error)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A hint naming the one of `names` that `name` was probably meant to be; empty if none is near.

    >>> did_you_mean("ordres", ["customers", "orders"])
    'Did you mean "orders"?'
    >>> did_you_mean("zebra", ["customers", "orders"])
    ''
    """
    by_folded = {known.casefold(): known for known in names}
    near = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    return f'Did you mean "{by_folded[near[0]]}"?' if near else ""
