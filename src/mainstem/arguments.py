"""Checks of the arguments of public functions, made before anything else is done.

Each function returns the argument in one normal form, or raises `Invalid`. `checked_call` and `checked_calls` are decorators:
a misspelled or missing argument is then `Invalid` too, with the arguments that there are, instead of Python's TypeError.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, TypeVar, cast

from mainstem.errors import Invalid, did_you_mean

__all__ = [
    "INTEGER_MAX",
    "call_with_stem",
    "check_choice",
    "checked_call",
    "checked_calls",
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

Called = TypeVar("Called", bound=Callable[..., Any])
Kind = TypeVar("Kind", bound=type)
Made = TypeVar("Made")


def checked_call(function: Called) -> Called:
    """The function, which raises `Invalid` if it is called with arguments that it does not have.

    >>> @checked_call
    ... def queue(name, *, lease="1 minute"): ...
    >>> queue("tasks", leas="2 minutes")
    Traceback (most recent call last):
    mainstem.Invalid: queue has no argument "leas"
    Detail: Its arguments are: name, lease.
    Hint: Did you mean "lease"?
    """

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except TypeError as error:
            # One raised by the call itself, not inside the function, has no further frame.
            trace = error.__traceback__
            if trace is None or trace.tb_next is not None:
                raise
            raise _wrong_call(function, given, named) from None

    return cast("Called", call)


def checked_calls(kind: Kind) -> Kind:
    """The class, with `checked_call` for its own public methods, and for its fields if it is a dataclass.

    What a program does not make itself, such as a message, is made as fast as without it.
    """
    own = ("__init__",) if is_dataclass(kind) else ()
    for name, value in list(vars(kind).items()):
        if name in own or not name.startswith("_"):
            if inspect.isfunction(value):
                setattr(kind, name, checked_call(value))
            elif isinstance(value, classmethod):
                setattr(kind, name, classmethod(checked_call(value.__func__)))
    return kind


def _wrong_call(function: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]) -> Invalid:
    parameters = inspect.signature(function).parameters
    known = [name for name in parameters if name not in ("self", "cls")]
    # A class of Spark's side is known to users by the name of the class that it extends.
    called = function.__qualname__.rpartition("<locals>.")[2].removeprefix("Spark").removesuffix(".__init__")
    detail = f"Its arguments are: {', '.join(known)}." if known else "It has no arguments."
    unknown = next((name for name in named if name not in parameters), None)
    if unknown is not None:
        return Invalid(
            f'{called} has no argument "{unknown}"', detail=detail, hint=did_you_mean(unknown, known) or "Leave it out."
        )
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    by_place = [name for name, parameter in parameters.items() if parameter.kind in kinds]
    if len(given) > len(by_place):
        own = [name for name in by_place if name in known]
        rest = [name for name in known if name not in own]
        return Invalid(
            f"{called} takes {len(own)} arguments without a name, not {len(given) - len(by_place) + len(own)}",
            detail=detail,
            hint=f"Name the others: {rest[0]}=..." if rest else "Leave the others out.",
        )
    if twice := next((name for name in by_place[: len(given)] if name in named), None):
        return Invalid(f'{called} is given the argument "{twice}" twice', detail=detail, hint="Give it once.")
    needed = [
        name
        for name, it in parameters.items()
        if it.default is it.empty and it.kind not in (it.VAR_POSITIONAL, it.VAR_KEYWORD)
    ]
    missing = next((name for name in needed if name not in named and name not in by_place[: len(given)]), "")
    return Invalid(f'{called} needs the argument "{missing}"', detail=detail, hint=f"Give it: {missing}=...")


def call_with_stem(function: Callable[[Any], Made], stem: object, name: str) -> Made:
    """Call the function of a program, `flows` or `captures`; raises `Invalid` if it does not take one argument.

    >>> call_with_stem(lambda: [], None, "flows")
    Traceback (most recent call last):
    mainstem.Invalid: flows cannot be called with a mainstem
    Detail: Python says: <lambda>() takes 0 positional arguments but 1 was given.
    Hint: Give the function one argument: def flows(stem): ...
    """
    try:
        return function(stem)
    except TypeError as error:
        # One raised by the call itself, not inside the function, has no further frame.
        trace = error.__traceback__
        if trace is None or trace.tb_next is not None:
            raise
        raise Invalid(
            f"{name} cannot be called with a mainstem",
            detail=f"Python says: {error}.",
            hint=f"Give the function one argument: def {name}(stem): ...",
        ) from None


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
