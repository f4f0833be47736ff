"""Where to start or stop, as one writes it at a command line.

earliest, latest
2026-01-01T09:00:00Z        a time with a zone, compared with append times
0:12,1:7                    offsets: partition:offset
orders@0:42,1:17            the token of an append
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from mainstem.errors import Invalid, did_you_mean

__all__ = ["POSITION_HELP", "parse_as_of", "parse_moment", "parse_position"]

POSITION_HELP = "earliest, latest, a time with a zone, offsets (0:12,1:7) or an append's token"
_OFFSETS = re.compile(r"\d{1,10}:\d{1,19}(,\d{1,10}:\d{1,19})*")
_WORDS = ("earliest", "latest")


def parse_position(text: str, option: str = "--start") -> str | datetime | Mapping[int, int]:
    """The position that is meant; `option` is what an error calls it.

    >>> parse_position("0:12,1:7")
    {0: 12, 1: 7}
    >>> parse_position("2026-01-01T10:00+01:00").isoformat()
    '2026-01-01T10:00:00+01:00'
    """
    word = text.strip()
    if word.lower() in _WORDS:
        return word.lower()
    if _OFFSETS.fullmatch(word):
        parts = [part.partition(":") for part in word.split(",")]
        offsets = {int(partition): int(offset) for partition, _, offset in parts}
        if len(offsets) < len(parts):
            raise Invalid(
                f'{option} "{word}" names a partition twice',
                detail="Each partition is read from one offset.",
                hint="Name each partition once, as in 0:12,1:7.",
            )
        return offsets
    if "@" in word:
        return word
    return parse_moment(word, option)


def parse_as_of(text: str | None) -> str | datetime | None:
    """As of what a view is asked: a time with a zone, or the token of an append.

    >>> parse_as_of("orders@0:42"), parse_as_of(None)
    ('orders@0:42', None)
    """
    if text is None or "@" in text:
        return text
    return parse_moment(text, "--as-of")


def parse_moment(text: str, option: str) -> datetime:
    """A time with a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(
            f'{option} "{text}" is not a position',
            detail=f"A position is {POSITION_HELP}.",
            hint=did_you_mean(text, _WORDS) or f"For example: {option} 2026-01-01T09:00:00Z",
        ) from None
    if moment.tzinfo is None:
        raise Invalid(
            f'{option} "{text}" has no zone',
            detail="The same reading of a clock is another moment in every zone of the world.",
            hint=f"For UTC write {moment.isoformat()}Z; else the distance from it, as in {moment.isoformat()}+02:00",
        )
    return moment
