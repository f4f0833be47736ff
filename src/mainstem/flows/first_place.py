"""The first of many places at which something holds, found with few looks of several places each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["first_place"]

# Of some places, in order, whether it holds at each.
Look = Callable[[Sequence[int]], Sequence[bool]]


def first_place(before: int, known: int, ways: int, look: Look) -> int:
    """The first place behind `before` at which it holds, if it holds at `known` and from the first one on.

    A look is dear (a replay of the log), one more place in it is not: so each look is at up to `ways` places between.

    >>> looks = []
    >>> def look(places):
    ...     looks.append(list(places))
    ...     return [place >= 700 for place in places]
    >>> first_place(-1, 1000, 9, look), len(looks)
    (700, 3)
    """
    while known - before > 1:
        count = min(ways, known - before - 1)
        places = [before + (known - before) * number // (count + 1) for number in range(1, count + 1)]
        for place, holds in zip(places, look(places), strict=True):
            if holds:
                known = place
                break
            before = place
    return known
