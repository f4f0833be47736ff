"""AppendResult: the offsets of an append, and a token for everything up to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from mainstem.arguments import INTEGER_MAX, show_value
from mainstem.errors import Invalid

__all__ = ["AppendResult", "parse_token", "token_of"]

TOKEN = re.compile(r"([A-Za-z0-9_.-]+)@(\d+:\d+(?:,\d+:\d+)*)")


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The result of an append: its offsets in each partition (the first, and the one after the last).

    `token` names the end of the append in every partition: `topic.batches(stop=result.token)` stops there, and
    `start=result.token` continues after it. `appended` is False if nothing was appended: the sequence had been appended
    before, or there were no rows.

    >>> placed = AppendResult({0: (40, 42)}, datetime(2026, 1, 1), "orders@0:42,1:17")
    >>> placed.count
    2
    """

    offsets: Mapping[int, tuple[int, int]]
    appended_at: datetime
    token: str
    appended: bool = True

    @property
    def count(self) -> int:
        """The number of records."""
        return sum(end - first for first, end in self.offsets.values())


def token_of(ends: Mapping[str, Mapping[int, int]]) -> str:
    """A token for the ends of one topic or several.

    >>> token_of({"orders": {0: 42, 1: 17}})
    'orders@0:42,1:17'
    """
    return ";".join(
        f"{topic}@" + ",".join(f"{partition}:{end}" for partition, end in sorted(offsets.items()))
        for topic, offsets in sorted(ends.items())
    )


def parse_token(token: str) -> dict[str, dict[int, int]]:
    """The end offsets in a token, by topic and partition.

    >>> parse_token("orders@0:42,1:17;payments@0:3")
    {'orders': {0: 42, 1: 17}, 'payments': {0: 3}}
    """
    matches = [TOKEN.fullmatch(part) for part in token.split(";")] if isinstance(token, str) else [None]
    if not all(matches):
        raise Invalid(
            f"{show_value(token)} is not a position in a topic",
            detail='A position is "earliest", "latest", a datetime with a zone, {partition: offset}, or the token of '
            "an append.",
            hint="Give one of these; a token is a string such as orders@0:42,1:17.",
        )
    return {match[1]: _offsets(match[2].split(",")) for match in matches if match}


def _offsets(parts: Iterable[str]) -> dict[int, int]:
    # No offset is larger.
    return {int(partition): min(int(end), INTEGER_MAX) for partition, end in (part.split(":") for part in parts)}
