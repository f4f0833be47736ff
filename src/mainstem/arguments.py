"""Checks of the arguments of public functions, made before anything else is done.

Each function returns the argument in one normal form, or raises `Invalid`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mainstem.errors import Invalid, did_you_mean

__all__ = [
    "INTEGER_MAX",
    "check_choice",
    "column_names",
    "find_name",
    "path_text",
    "show_value",
    "text",
    "type_name",
    "values",
    "whole_number",
]

# Counts, offsets and versions are 64-bit integers wherever they are stored.
INTEGER_MAX = (1 << 63) - 1
_SHOWN_MAX = 60


def type_name(value: object) -> str:
    """The name of a value's type that users know: a topic is a Topic, also where it has the methods of Spark.

    >>> type_name([1]), type_name(None)
    ('list', 'NoneType')
    """
    kinds = type(value).__mro__
    inside = [
        kind for kind in kinds if kind.__module__.startswith("mainstem.") and not kind.__name__.startswith("Spark")
    ]
    return (inside or kinds)[0].__name__ if kinds[0].__name__.startswith("Spark") else kinds[0].__name__


def show_value(value: object) -> str:
    """A value as an error shows it: one line, whatever it is; text in double quotes.

    >>> print(show_value("a\\nb"), show_value([1]))
    "a?b" [1]
    """
    try:
        shown = f'"{value}"' if isinstance(value, str) else repr(value)
    except Exception:  # noqa: BLE001 - a value that cannot be shown is named by its type
        shown = f"<{type_name(value)}>"
    visible = "".join(c if c.isprintable() else "?" for c in shown[:_SHOWN_MAX])
    return visible if len(shown) <= _SHOWN_MAX else f"{visible}..."


def whole_number(value: object, setting: str, *, least: int = 0, hint: str = "") -> int:
    """A whole number of at least `least` that fits into 64 bits.

    >>> whole_number(3, "count")
    3
    """
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= INTEGER_MAX:
        return value
    raise Invalid(
        f"{setting} {show_value(value)} is not a whole number from {least} to {INTEGER_MAX}",
        detail=f"It is of type {type_name(value)}.",
        hint=hint or f"Give an integer: {setting}={max(least, 1)}.",
    )


def text(value: object, setting: str, *, hint: str = "") -> str:
    """Text that can be written as UTF-8.

    >>> text("orders", "name")
    'orders'
    """
    if not isinstance(value, str):
        raise Invalid(
            f"{setting} {show_value(value)} is not text",
            detail=f"It is of type {type_name(value)}.",
            hint=hint or f"Give {setting} as a string.",
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Invalid(
            f"{setting} {show_value(value)} is not valid Unicode",
            detail=f"Character {error.start} is half of a surrogate pair, which UTF-8 cannot encode.",
            hint="Decode the text with the encoding that it was written in.",
        ) from error
    return value


def check_choice(value: object, setting: str, choices: Sequence[str], *, detail: str = "") -> str:
    """One of several words.

    >>> check_choice("epoch", "since", ["epoch", "first row"])
    'epoch'
    """
    if isinstance(value, str) and value in choices:
        return value
    near = did_you_mean(value, choices) if isinstance(value, str) else ""
    words = ", ".join(f'"{word}"' for word in choices)
    raise Invalid(
        f"{setting} {show_value(value)} is not known",
        detail=detail or f"The choices are: {words}.",
        hint=near or f"Choose one of these: {words}.",
    )


def column_names(value: object, setting: str) -> tuple[str, ...]:
    """One column name, or several, as a tuple.

    >>> column_names("store", "key"), column_names(["store", "day"], "key")
    (('store',), ('store', 'day'))
    """
    if isinstance(value, str):
        return (value,)
    # A mapping or a set has no order to rely on; bytes would be numbers.
    names = (
        tuple(value) if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | dict | set) else None
    )
    if names is None or not all(isinstance(name, str) for name in names):
        raise Invalid(
            f"{setting} {show_value(value)} is not a list of column names",
            detail=f"It is of type {type_name(value)}.",
            hint=f'Give a name or a list of names: {setting}="id", {setting}=["store", "day"].',
        )
    return names


def path_text(value: object, setting: str) -> str:
    """A path as text.

    >>> path_text("data/shop", "home")
    'data/shop'
    """
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise Invalid(
            f"{setting} {show_value(value)} is not a path",
            detail="It is empty, holds a NUL character, or is neither a string nor a pathlib.Path.",
            hint=f'Give a path: {setting}="data/shop".',
        )
    return text(path, setting)


def values(given: object, setting: str) -> list[object]:
    """The values of a query's parameters.

    >>> values((1, "a"), "parameters")
    [1, 'a']
    """
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | bytearray | Mapping):
        return list(given)
    raise Invalid(
        f"{setting} {show_value(given)} is not a list of values",
        detail=f"It is of type {type_name(given)}.",
        hint=f"Give a list with a value for each ?: {setting}=[1].",
    )


def find_name(value: object, kind: str, known: type) -> str:
    """The name of a thing that was given by its name or as itself.

    >>> find_name("orders", "topic", int)
    'orders'
    """
    if isinstance(value, str):
        return value
    if isinstance(value, known):
        thing: Any = value
        return str(thing.name)
    raise Invalid(
        f"{show_value(value)} is not a {kind}",
        detail=f"It is of type {type_name(value)}.",
        hint=f'Give its name, or the {kind} itself: stem.{kind}("...").',
    )
