"""An entry of a list. A damaged one shows its error in its line; the others are shown as usual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from mainstem.errors import BrokerUnavailable, MainstemError, summary_of

if TYPE_CHECKING:
    from mainstem.log.topic import Topic
    from mainstem.stem import Mainstem

__all__ = ["Unreadable", "entries_by_topic", "json_entry", "try_look", "table_row"]

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An entry that cannot be read: its names, and the error."""

    names: dict[str, str]
    error: str


def try_look(names: dict[str, str], look: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | Unreadable:
    """The result of `look`, or its error. Brokers that are away are not the error of one entry: that one is raised.

    >>> try_look({"topic": "orders"}, int, "12")
    12
    >>> try_look({"topic": "orders"}, open, "/nowhere").error
    "[Errno 2] No such file or directory: '/nowhere'"
    """
    try:
        return look(*arguments, **named)
    except BrokerUnavailable:
        raise
    except (MainstemError, OSError) as error:
        return Unreadable(names, summary_of(error))


def entries_by_topic(
    stem: Mainstem,
    topic: str | None,
    kind: str,
    names: Callable[[Topic], list[str]],
    describe: Callable[[Topic, str], T],
) -> list[T | Unreadable]:
    """The entries of one kind (groups, queues) of a topic, or of all topics, each described."""
    found: list[T | Unreadable] = []
    # A topic given by name must exist.
    for name in stem.topics() if topic is None else [stem.topic(topic).name]:
        listed = try_look({"topic": name, kind: ""}, lambda name: names(stem.topic(name)), name)
        if isinstance(listed, Unreadable):
            found.append(listed)
            continue
        found += [
            try_look({"topic": name, kind: it}, lambda of, it: describe(stem.topic(of), it), name, it) for it in listed
        ]
    return found


def table_row(entry: T | Unreadable, row: Callable[[T], list[str]]) -> list[str]:
    """The cells of an entry; for an unreadable one its names and the error."""
    if isinstance(entry, Unreadable):
        return [*entry.names.values(), f"cannot be read: {entry.error}"]
    return row(entry)


def json_entry(entry: T | Unreadable, to_json: Callable[[T], dict[str, Any]]) -> dict[str, Any]:
    """The entry as JSON; `error` says what is wrong with an unreadable one."""
    return {**entry.names, "error": entry.error} if isinstance(entry, Unreadable) else to_json(entry)
