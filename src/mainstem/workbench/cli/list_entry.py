"""An entry of a list. One that is damaged says so in its line; the others are shown as ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from mainstem.errors import MainstemError, summary_of

__all__ = ["Unreadable", "json_entry", "looked_at", "table_row"]

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


def table_row(entry: T | Unreadable, row: Callable[[T], list[str]]) -> list[str]:
    """The cells of an entry: its names and what is wrong with it, where it cannot be read."""
    if isinstance(entry, Unreadable):
        return [*entry.names.values(), f"cannot be read: {entry.error}"]
    return row(entry)


def json_entry(entry: T | Unreadable, to_json: Callable[[T], dict[str, Any]]) -> dict[str, Any]:
    """The entry for a program; `error` says what is wrong with one that cannot be read."""
    return {**entry.names, "error": entry.error} if isinstance(entry, Unreadable) else to_json(entry)
