"""AfterMatch: where the search goes on after a match.

no skip              every match
next                 at the row after the match's first: at most one match for each first row
past last            after the match's last row: matches do not overlap
first | last, step   at the first or last row of that step
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mainstem.errors import Invalid, did_you_mean

__all__ = ["NO_SKIP", "AfterMatch", "read_after_match"]

Kind: TypeAlias = Literal["no skip", "next", "past last", "first", "last"]
_WORDS: dict[str, Kind] = {"no skip": "no skip", "next": "next", "past last": "past last"}
_SIDES: dict[str, Kind] = {"first": "first", "last": "last"}


@dataclass(frozen=True)
class AfterMatch:
    """Where the search goes on."""

    kind: Kind = "no skip"
    step: str = ""
    # Whether a match without that row, or that begins with it, is not skipped instead of an error.
    lenient: bool = False

    def pivot(self, path: Sequence[tuple[int, str]]) -> tuple[int, bool]:
        """Candidates that begin before this row end; with True, those that begin with it too.

        `path`: the rows of the match, in order, with their steps.
        """
        if self.kind == "next":
            return path[0][0], True
        if self.kind == "past last":
            return path[-1][0], True
        rows = [row for row, step in path if step == self.step]
        if not rows and not self.lenient:
            raise Invalid(
                f'a match has no row of the step "{self.step}" to continue at',
                detail=f'after_match=("{self.kind}", "{self.step}"), and the match has: '
                f"{', '.join(dict.fromkeys(step for _, step in path))}.",
                hint=f'Use after_match=("{self.kind}", "{self.step}", "or no skip"), or a step that is not optional.',
            )
        found = path[0][0] if not rows else rows[0] if self.kind == "first" else rows[-1]
        if found == path[0][0] and not self.lenient:
            raise Invalid(
                f'after_match=("{self.kind}", "{self.step}") would find the same match again and again',
                detail=f'Its first row is the {self.kind} row of the step "{self.step}".',
                hint='Use after_match="next", or continue at a later step.',
            )
        return found, False


NO_SKIP = AfterMatch()


def read_after_match(given: str | Sequence[str], steps: Sequence[str], *, first: Sequence[str] = ()) -> AfterMatch:
    """Parse `after_match`. `first`: the step with which every match begins, if it is known and has one row.

    >>> read_after_match(("last", "small"), ["small", "large"])
    AfterMatch(kind='last', step='small', lenient=False)
    """
    if isinstance(given, str):
        if given not in _WORDS:
            raise _unknown(given)
        return AfterMatch(_WORDS[given])
    words = list(given)
    lenient = len(words) == 3 and words[2] == "or no skip"
    if not (len(words) == 2 or lenient) or words[0] not in _SIDES:
        raise _unknown(given)
    kind, name = _SIDES[words[0]], words[1]
    if name not in steps:
        raise Invalid(
            f'after_match names a step that the pattern lacks: "{name}"',
            detail=f"Its steps are: {', '.join(steps)}.",
            hint=did_you_mean(name, list(steps)) or "Name one of them.",
        )
    if name in first and not lenient:
        raise Invalid(
            f'after_match=("{kind}", "{name}") would find the same match again and again',
            detail=f'Every match begins with its {kind} row of the step "{name}".',
            hint='Use after_match="next", or continue at a later step.',
        )
    return AfterMatch(kind, name, lenient)


def _unknown(given: object) -> Invalid:
    return Invalid(
        f"after_match is {given!r}",
        detail='It is "no skip", "next", "past last", ("first", step) or ("last", step).',
        hint='For example: after_match="past last", or after_match=("last", "small").',
    )
