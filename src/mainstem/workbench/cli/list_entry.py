"""An entry of a list. One that is damaged says so in its line; the others are shown as ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from mainstem.errors import MainstemError, summary_of

if TYPE_CHECKING:
    from mainstem.log.topic import Topic
    from mainstem.stem import Mainstem

__all__ = ["Unreadable", "entries_by_topic", "json_entry", "looked_at", "table_row"]

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What stands in place of an entry that cannot be read: its names, and what is wrong with it."""

    names: dict[str, str]
    error: str


def looked_at(names: dict[str, str], look: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | Unreadable:
    """What `look` finds, or why it finds nothing.

    >>> looked_at({"topic": "orders"}, int, "12")
    12
    >>> looked_at({"topic": "orders"}, open, "/nowhere").error
    "[Errno 2] No such file or directory: '/nowhere'"
    """
    try:
        return look(*arguments, **named)
    except (MainstemError, OSError) as error:
        return Unreadable(names, summary_of(error))


def entries_by_topic(
    stem: Mainstem,
    topic: str | None,
    kind: str,
    names: Callable[[Topic], list[str]],
    describe: Callable[[Topic, str], T],
) -> list[T | Unreadable]:
    """What a topic has of a kind (groups, queues), or all topics have, each described."""
    found: list[T | Unreadable] = []
    # One that was asked for by its name must be there.
    for name in stem.topics() if topic is None else [stem.topic(topic).name]:
        listed = looked_at({"topic": name, kind: ""}, lambda name: names(stem.topic(name)), name)
        if isinstance(listed, Unreadable):
            found.append(listed)
            continue
        found += [
            looked_at({"topic": name, kind: it}, lambda of, it: describe(stem.topic(of), it), name, it) for it in listed
        ]
    return found


def table_row(entry: T | Unreadable, row: Callable[[T], list[str]]) -> list[str]:
    """The cells of an entry: its names and what is wrong with it, where it cannot be read."""
    if isinstance(entry, Unreadable):
        return [*entry.names.values(), f"cannot be read: {entry.error}"]
    return row(entry)


def json_entry(entry: T | Unreadable, to_json: Callable[[T], dict[str, Any]]) -> dict[str, Any]:
    """The entry for a program; `error` says what is wrong with one that cannot be read."""
    return {**entry.names, "error": entry.error} if isinstance(entry, Unreadable) else to_json(entry)
