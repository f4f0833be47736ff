"""The key of a row of a view, as arguments: a value for each column, written as in a CSV file.

A window is written as JSON, or by its start: `12:20`, `2026-11-17 12:20`, `2026-11-17T12:20:00Z`, also with its end,
`12:20-12:21`. Times are in UTC. A time without a date is looked up among the rows of the view, and so is the end of a
window: if several rows fit, the error names them.

The arguments are in the order of the key. If they do not fit its types in that order, and fit in exactly one other, that
one is meant: `view get revenue Berlin 12:20`, where the key is window, store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from itertools import permutations
from typing import TYPE_CHECKING, Any

from mainstem.errors import Invalid, NotFound
from mainstem.log.rows.column_types import is_window
from mainstem.log.rows.plain_values import NotAValue, text_reader
from mainstem.workbench.cli.terminal_table import show_count
from mainstem.workbench.cli.window_text import window_text

if TYPE_CHECKING:
    import pyarrow as pa

    from mainstem.views.view import View
    from mainstem.views.view_history import AsOf

__all__ = ["TimeOfKey", "find_key"]

# More columns than this are taken in the order given.
PERMUTED_MAX = 4
CANDIDATES_SHOWN = 5
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?"
_START = re.compile(rf"(?:(?P<date>\d{{4}}-\d{{2}}-\d{{2}})[ T])?(?P<time>{_TIME})(?:Z|\+00:00)?(?:-(?P<end>{_TIME}))?")
# What is meant as a time, also if it is none: 99:22, or 12:20- without an end.
_MEANT_AS_TIME = re.compile(r"(?:\d{4}-\d{1,2}-\d{1,2}[ T])?\d{1,2}:\d.*")


@dataclass(frozen=True)
class TimeOfKey:
    """A time that a user wrote for a window: what of its start and its end is known."""

    on: date | None
    start: time
    end: time | None

    @classmethod
    def parse(cls, text: str) -> TimeOfKey | None:
        """None if the text is not such a time.

        >>> TimeOfKey.parse("2026-11-17 9:05")
        TimeOfKey(on=datetime.date(2026, 11, 17), start=datetime.time(9, 5), end=None)
        """
        found = _START.fullmatch(text.strip())
        if found is None:
            return cls._of_zone(text)
        try:
            on = None if found["date"] is None else date.fromisoformat(found["date"])
            return cls(on, _clock(found["time"]), None if found["end"] is None else _clock(found["end"]))
        except ValueError:
            return None

    @classmethod
    def _of_zone(cls, text: str) -> TimeOfKey | None:
        """A time of another zone."""
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        if moment.tzinfo is None:
            return None
        moment = moment.astimezone(UTC)
        return cls(moment.date(), moment.time(), None)

    def fits(self, window: dict[str, datetime]) -> bool:
        """Whether a window of a row begins, and ends, then."""
        start, end = (window[side].astimezone(UTC) for side in ("start", "end"))
        return (
            start.time() == self.start
            and (self.on is None or start.date() == self.on)
            and (self.end is None or end.time() == self.end)
        )


def _clock(text: str) -> time:
    hour, _, rest = text.partition(":")
    return time.fromisoformat(f"{hour:0>2}:{rest}")


def find_key(view: View, given: Sequence[str], as_of: AsOf | None = None) -> tuple[Any, ...]:
    """The values of the key that the arguments name."""
    if len(given) != len(view.key):
        raise Invalid(
            f'a key of view "{view.name}" has {show_count(len(view.key), "value")}, not {len(given)}',
            detail=f"Its columns are: {', '.join(view.key)}.",
            hint=f"For example: mainstem view get {view.name} {' '.join(name.upper() for name in view.key)}",
        )
    values = _read_in_some_order(view, given)
    if not any(isinstance(value, TimeOfKey) for value in values):
        return tuple(values)
    return _look_up(view, values, given, as_of)


def _read_in_some_order(view: View, given: Sequence[str]) -> list[Any]:
    schema = view.schema
    types = [(name, schema.field(name).type) for name in view.key]
    try:
        return _read(types, given)
    except NotAValue as error:
        refused = error
    fitting = []
    for other in set(permutations(given)) if len(given) <= PERMUTED_MAX else ():
        try:
            fitting.append(_read(types, other))
        except NotAValue:
            continue
    if len(fitting) == 1:
        return fitting[0]
    wrong = next((text for text in given if _MEANT_AS_TIME.fullmatch(text) and TimeOfKey.parse(text) is None), None)
    if wrong is not None and any(is_window(data_type) for _, data_type in types):
        raise Invalid(
            f'"{wrong}" is not a time',
            detail="A window is written by its start, with its end if windows overlap. Hours are 0 to 23, minutes 00 to 59.",
            hint='For example: 12:20, 12:20-12:21 or "2026-11-17 12:20".',
        ) from None
    raise Invalid(str(refused), detail=f"It is in the key of view {view.name!r}.", hint=refused.hint) from None


def _read(types: Sequence[tuple[str, pa.DataType]], given: Sequence[str]) -> list[Any]:
    return [_read_part(name, data_type, text) for (name, data_type), text in zip(types, given, strict=True)]


def _read_part(name: str, data_type: pa.DataType, text: str) -> Any:
    if not is_window(data_type):
        return text_reader(data_type, name)(text)
    if (moment := TimeOfKey.parse(text)) is not None:
        return moment
    hint = 'Write its start, as in 12:20 or "2026-11-17 12:20".'
    try:
        window: dict[str, Any] = text_reader(data_type, name)(text)
    except NotAValue as error:
        raise NotAValue(name, data_type, text, hint) from error
    if window is not None and any(window.get(side) is None for side in ("start", "end")):
        raise NotAValue(name, data_type, text, f"A window in JSON has its start and its end. {hint}")
    return window


def _look_up(view: View, values: list[Any], given: Sequence[str], as_of: AsOf | None) -> tuple[Any, ...]:
    found = list(dict.fromkeys(map(_frozen, _matching(view, values, as_of))))
    if not found:
        raise NotFound(
            f'view "{view.name}" has no row with the key {", ".join(given)}',
            detail=f"Its key is {', '.join(view.key)}; a window is found by its start, in UTC.",
            hint=f"List its rows: mainstem view read {view.name} --limit 10",
        )
    if len(found) > 1:
        shown = ", ".join(_key_text(key) for key in found[:CANDIDATES_SHOWN])
        more = f" and {show_count(len(found) - CANDIDATES_SHOWN)} more" if len(found) > CANDIDATES_SHOWN else ""
        raise Invalid(
            f'{show_count(len(found), "row")} of view "{view.name}" have such a key',
            detail=f"They are: {shown}{more}.",
            hint=f'Write the date, and the end if windows overlap: "{_key_text(found[0][_window_at(found[0]) :][:1])}"',
        )
    return tuple(dict(part) if isinstance(part, tuple) else part for part in found[0])


def _matching(view: View, values: list[Any], as_of: AsOf | None) -> Iterator[list[Any]]:
    for batch in view.batches(as_of=as_of):
        for row in batch.select(list(view.key)).to_pylist():
            key = [row[name] for name in view.key]
            if all(
                wanted.fits(part) if isinstance(wanted, TimeOfKey) else wanted == part
                for wanted, part in zip(values, key, strict=True)
                if part is not None or not isinstance(wanted, TimeOfKey)
            ):
                yield key


def _frozen(key: list[Any]) -> tuple[Any, ...]:
    return tuple(tuple(part.items()) if isinstance(part, dict) else part for part in key)


def _window_at(key: tuple[Any, ...]) -> int:
    return next(number for number, part in enumerate(key) if isinstance(part, tuple))


def _key_text(key: Sequence[Any]) -> str:
    return " ".join(window_text(dict(part), today=None) if isinstance(part, tuple) else str(part) for part in key)
