"""The state of a user's own operator as text and back: JSON in which every value has its type.

    null, true, 7, 1.5, "text"      as in JSON
    {"list": [...]}                 also tuple and set
    {"dict": [[key, value], ...]}
    {"time": microseconds}          a datetime, in UTC
    {"date": "2026-01-31"}
    {"span": microseconds}          a timedelta
    {"decimal": "1.50"}
    {"bytes": "..."}                in base 64
    {"fields": {...}}               a dataclass

So a text can be read without the class that wrote it: the state of an older version of a program becomes a dict, which
the newer version upgrades to its own state, key by key, when a key is next used.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import types
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from mainstem.clock import as_datetime, as_us
from mainstem.errors import Invalid
from mainstem.operators.stage.engine import NEVER, BatchClock
from mainstem.operators.stage.stage_task import END_OF_TIME

__all__ = ["StateText", "Timer", "Timers", "type_name"]


# Timers of a user's own operator, for one key.


# The last time of a datetime; with batch rows the clock is later than that.
_LAST = as_us(datetime.max.replace(tzinfo=UTC))


class Timer(NamedTuple):
    """A timer of a key: its time in microseconds, and its name. Ordered as they fire."""

    kind: Literal["event", "processing"]
    at: int
    name: str


class Timers:
    """The timers of one key: set, moved and cancelled by name. A name is one timer, in event time or processing time.

    >>> from datetime import UTC, datetime
    >>> timers = Timers({}, BatchClock(now=0))
    >>> timers.set_event("close", datetime(2026, 1, 1, 12, 30, tzinfo=UTC))
    >>> timers.set_event("close", datetime(2026, 1, 1, 12, 45, tzinfo=UTC))
    >>> timers.cancel("close"), timers.cancel("close")
    (True, False)
    """

    def __init__(self, set_before: dict[str, Timer], clock: BatchClock) -> None:
        self.by_name = dict(set_before)
        self._clock = clock
        # The earliest event-time timer, checked before every row.
        self.next_event = _earliest(self.by_name)

    @property
    def now(self) -> datetime:
        """The processing time recorded for the batch: a replayed batch sees the same time."""
        return as_datetime(max(0, min(self._clock.now, _LAST)))

    @property
    def ended(self) -> bool:
        """Whether no more rows can arrive, as with batch rows: then every timer fires, whatever its time."""
        return self._clock.watermark >= END_OF_TIME

    def set_event(self, name: str, at: datetime) -> None:
        """Fire when the watermark reaches `at`."""
        self._set("event", name, at)

    def set_processing(self, name: str, at: datetime) -> None:
        """Fire when processing time (the clock) reaches `at`."""
        self._set("processing", name, at)

    def cancel(self, name: str) -> bool:
        """Cancel a timer; returns whether there was one."""
        found = self.by_name.pop(name, None)
        if found is None:
            return False
        if found.at == self.next_event:
            self.next_event = _earliest(self.by_name)
        return True

    def _set(self, kind: Literal["event", "processing"], name: str, at: datetime) -> None:
        if not isinstance(name, str) or not isinstance(at, datetime):
            raise Invalid(
                f"a timer {name!r} cannot be set to {at!r}",
                detail="A timer needs a name and a datetime with a time zone.",
                hint='For example: timers.set_event("close", row["at"] + timedelta(minutes=30)).',
            )
        timer, before = Timer(kind, as_us(at), name), self.by_name.get(name)
        self.by_name[name] = timer
        if len(self.by_name) == 1:
            self.next_event = timer.at if kind == "event" else NEVER
        elif before is not None and before.at == self.next_event:
            self.next_event = _earliest(self.by_name)
        elif kind == "event" and timer.at < self.next_event:
            self.next_event = timer.at


def _earliest(timers: dict[str, Timer]) -> int:
    return min((timer.at for timer in timers.values() if timer.kind == "event"), default=NEVER)


# The types of the fields of each dataclass.
Types = dict[type, dict[str, Any]]

_MICROSECOND = timedelta(microseconds=1)
_PLAIN = (bool, int, float, str, bytes, datetime, date, timedelta, Decimal)
_SEQUENCES = (list, tuple, set)
_ALLOWED = (
    "bool, int, float, str, bytes, datetime, date, timedelta, Decimal, list[...], tuple[..., ...], set[...], "
    "dict[..., ...], other dataclasses, and each of them `| None`"
)


class StateText:
    """Writes and reads values of one dataclass; its constructor rejects types that it could not write."""

    def __init__(self, state: type) -> None:
        if not (isinstance(state, type) and dataclasses.is_dataclass(state)):
            raise Invalid(
                f'State "{getattr(state, "__name__", state)}" is not a dataclass',
                detail="The state of a key must be a dataclass, which declares its fields and their types.",
                hint="Write @dataclass above it.",
            )
        for field in dataclasses.fields(state):
            if field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise Invalid(
                    f'field "{field.name}" of State has no default',
                    detail="A new key starts with State().",
                    hint=f"Give it one: {field.name}: ... = ..., or field(default_factory=list).",
                )
        self.state = state
        # Looked up now, so that errors are raised before a flow runs; and Spark's workers lack the module that defines the
        # types.
        self._types = _types_in(state)
        self.described = {name: _deep_name(hint, self._types) for name, hint in self._types[state].items()}

    def new(self) -> Any:
        """The state of a new key."""
        return self.state()

    def write(self, value: Any) -> str:
        """A state as text; the same text for an equal state."""
        if type(value) is not self.state:
            raise Invalid(
                f"the state was replaced by a {type(value).__name__}",
                detail=f"The state of a key must be a {self.state.__name__}.",
                hint="Change the fields of the given state instead.",
            )
        return _to_json(self._codec.encode(value, "")["fields"])

    def read(self, text: str) -> Any:
        """The state that was written as this text by this version of the class."""
        return self._codec.decode({"fields": json.loads(text)})

    @cached_property
    def _codec(self) -> _Codec:
        return _codec(self.state, self._types)

    def __getstate__(self) -> dict[str, Any]:
        """Without the functions of `_codec`, which each worker makes for itself."""
        return {name: value for name, value in vars(self).items() if name != "_codec"}

    @staticmethod
    def fields(text: str) -> dict[str, Any]:
        """The fields of a text, whichever class wrote it."""
        return {name: _decode(value) for name, value in json.loads(text).items()}


def type_name(hint: Any) -> str:
    """A type as its author would write it."""
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")


def _hints(state: type) -> dict[str, Any]:
    try:
        hints = get_type_hints(state)
    except NameError as error:
        raise Invalid(
            f'a type in "{state.__name__}" cannot be found: {error}',
            detail="Types of a state are looked up in the module that defines it.",
            hint="Define it at the top of the module, or name it without quotes.",
        ) from error
    return {field.name: hints[field.name] for field in dataclasses.fields(state)}


def _types_in(state: type) -> Types:
    """The types of the fields of a dataclass and of those in it; raises for a type that cannot be stored."""
    found: Types = {}
    waiting = [state]
    while waiting:
        kind = waiting.pop()
        if kind in found:
            continue
        found[kind] = _hints(kind)
        for name, hint in found[kind].items():
            inner = _dataclasses_in(hint)
            if inner is None:
                raise Invalid(
                    f'field "{name}" of {kind.__name__} has a type that cannot be stored: {type_name(hint)}',
                    detail=f"A state may contain {_ALLOWED}.",
                    hint="Use one of these.",
                )
            waiting += inner
    return found


def _dataclasses_in(hint: Any) -> list[type] | None:
    """The dataclasses in a type; None if the type cannot be stored."""
    inner, _ = _without_none(hint)
    if inner in _PLAIN or inner is Ellipsis:
        return []
    if isinstance(inner, type) and dataclasses.is_dataclass(inner):
        return [inner]
    if get_origin(inner) not in (*_SEQUENCES, dict):
        return None
    parts = [_dataclasses_in(of) for of in get_args(inner)]
    return None if None in parts else [kind for part in parts if part for kind in part]


def _deep_name(hint: Any, types: Types) -> str:
    """A type with the types in it: a dataclass inside a state may change too."""
    inner, optional = _without_none(hint)
    if inner in types:
        parts = ", ".join(f"{name}: {_deep_name(of, types)}" for name, of in types[inner].items())
        name = f"{inner.__name__}({parts})"
    elif get_args(inner):
        name = f"{get_origin(inner).__name__}[{', '.join(_deep_name(of, types) for of in get_args(inner))}]"
    else:
        name = type_name(inner)
    return f"{name} | None" if optional else name


def _without_none(hint: Any) -> tuple[Any, bool]:
    """The type, and whether it is optional."""
    if get_origin(hint) in (types.UnionType, Union):
        others = [of for of in get_args(hint) if of is not type(None)]
        if len(others) == 1:
            return others[0], True
    return hint, False


@dataclass(frozen=True)
class _Codec:
    """Writes and reads values of one type. Made once for each type, since looking up types takes longer than the rest."""

    # The value as JSON; its path in the state is for errors.
    encode: Callable[[Any, str], Any]
    decode: Callable[[Any], Any]
    # The types of values that are the same in JSON, unchecked.
    same: frozenset[type] = frozenset()


def _codec(hint: Any, types: Types) -> _Codec:
    inner, optional = _without_none(hint)
    origin, of = get_origin(inner), get_args(inner)
    parts = [_codec(part, types) for part in of if part is not Ellipsis]
    if origin is dict:
        found = _dict_codec(parts[0], parts[1], hint)
    elif origin is tuple and of[1:] != (Ellipsis,):
        found = _tuple_codec(parts, hint)
    elif origin in _SEQUENCES:
        found = _sequence_codec(origin, parts[0], hint)
    elif inner in types:
        found = _dataclass_codec(inner, {name: _codec(of, types) for name, of in types[inner].items()}, hint)
    else:
        found = _plain_codec(inner, hint)
    return _optional(found) if optional else found


def _dataclass_codec(kind: type, fields: dict[str, _Codec], hint: Any) -> _Codec:
    def encode(value: Any, path: str) -> Any:
        if type(value) is not kind:
            raise _unfit(value, hint, path)
        inside = f"{path}." if path else ""
        return {"fields": {name: of.encode(getattr(value, name), inside + name) for name, of in fields.items()}}

    def decode(value: Any) -> Any:
        stored = value["fields"]
        return kind(**{name: of.decode(stored[name]) for name, of in fields.items()})

    return _Codec(encode, decode)


def _dict_codec(key: _Codec, item: _Codec, hint: Any) -> _Codec:
    def encode(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise _unfit(value, hint, path)
        return {"dict": [[key.encode(name, path), item.encode(of, path)] for name, of in value.items()]}

    return _Codec(encode, lambda value: {key.decode(name): item.decode(of) for name, of in value["dict"]})


def _tuple_codec(parts: list[_Codec], hint: Any) -> _Codec:
    def encode(value: Any, path: str) -> Any:
        if not isinstance(value, tuple) or len(value) != len(parts):
            raise _unfit(value, hint, path)
        return {"list": [of.encode(element, path) for of, element in zip(parts, value, strict=True)]}

    def decode(value: Any) -> Any:
        return tuple(of.decode(element) for of, element in zip(parts, value["list"], strict=True))

    return _Codec(encode, decode)


def _sequence_codec(origin: Any, element: _Codec, hint: Any) -> _Codec:
    def encode(value: Any, path: str) -> Any:
        if not isinstance(value, origin):
            raise _unfit(value, hint, path)
        same = set(map(type, value)) <= element.same
        found = list(value) if same else [element.encode(one, path) for one in value]
        # Sorted, because a set has no order and equal states must give equal texts.
        return {"list": sorted(found, key=json.dumps) if origin is set else found}

    if element.same:
        return _Codec(encode, lambda value: origin(value["list"]))
    return _Codec(encode, lambda value: origin(map(element.decode, value["list"])))


def _plain_codec(kind: Any, hint: Any) -> _Codec:
    def encode_float(value: Any, path: str) -> Any:
        if type(value) not in (int, float):
            raise _unfit(value, hint, path)
        return float(value)

    def encode_tagged(value: Any, path: str) -> Any:
        if type(value) is not kind:
            raise _unfit(value, hint, path)
        return {tag: write(value)}

    def encode(value: Any, path: str) -> Any:
        if type(value) is not kind:
            raise _unfit(value, hint, path)
        return value

    if kind in _TAGGED:
        tag, write = _TAGGED[kind]
        read = _READ[tag]
        return _Codec(encode_tagged, lambda value: read(value[tag]))
    return _Codec(encode_float if kind is float else encode, _same, frozenset({kind}))


def _optional(of: _Codec) -> _Codec:
    encode, decode = of.encode, of.decode
    return _Codec(
        lambda value, path: None if value is None else encode(value, path),
        lambda value: None if value is None else decode(value),
        of.same | {type(None)} if of.same else of.same,
    )


def _same(value: Any) -> Any:
    return value


def _unfit(value: Any, hint: Any, path: str) -> Invalid:
    return Invalid(
        f'field "{path}" of the state is {value!r}',
        detail=f"It is declared as {type_name(hint)}.",
        hint="Declare the type of the value that you assign.",
    )


_to_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode

# The tag of a type that JSON lacks, and how it is written and read.
_TAGGED: dict[type, tuple[str, Callable[[Any], Any]]] = {
    datetime: ("time", as_us),
    date: ("date", date.isoformat),
    timedelta: ("span", lambda value: value // _MICROSECOND),
    Decimal: ("decimal", str),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode()),
}
_READ: dict[str, Callable[[Any], Any]] = {
    "list": lambda values: [_decode(value) for value in values],
    "dict": lambda pairs: {_hashable(_decode(key)): _decode(value) for key, value in pairs},
    "fields": lambda fields: {name: _decode(value) for name, value in fields.items()},
    "time": as_datetime,
    "date": date.fromisoformat,
    "span": lambda us: us * _MICROSECOND,
    "decimal": Decimal,
    "bytes": base64.b64decode,
}


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        ((tag, inner),) = value.items()
        return _READ[tag](inner)
    return value


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
