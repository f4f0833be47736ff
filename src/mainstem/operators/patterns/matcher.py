"""Matcher: finds the matches of one key, row by row.

Rows come in order, each with the bits of the conditions that it satisfies; their times never decrease. A candidate is a
sequence of rows that may become a match. It ends at its deadline, `within` after its first row or `gap` after its last. Then
it has timed out, or it is a match if the pattern ends with not_then.

Everything that happens at a time before a row's is done before the row, deadline by deadline, so it does not matter when
the clock is moved. A strategy that skips holds a match back while a candidate that began before it may still match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from mainstem.errors import Invalid
from mainstem.operators.patterns.after_match import NO_SKIP, AfterMatch
from mainstem.operators.patterns.automaton import DEAD, START, Automaton

__all__ = [
    "CANDIDATES_MAX",
    "NODE",
    "STATE",
    "Candidate",
    "Found",
    "KeyMatches",
    "Matcher",
    "Node",
    "Waiting",
    "path_of",
]

# Later than every time.
NEVER = 2**63 - 1
# More of one key stop the flow: nearly always a pattern that is not bounded.
CANDIDATES_MAX = 10_000

# The last row of a sequence, its step, and the sequence before it.
Node: TypeAlias = "tuple[int, int, Node | None]"
# A sequence that may become a match: its state, its rows, its first row and the time of that, and its deadline. Plain, since
# many are made.
Candidate: TypeAlias = "tuple[int, Node, int, int, int]"
STATE: Final = 0
NODE: Final = 1
FIRST: Final = 2
DEADLINE: Final = 4
# Whether a row satisfies the condition with this bit, given the rows of a candidate.
Ask: TypeAlias = Callable[[int, "Node | None", int], bool]


class Waiting(NamedTuple):
    """A match that is held back; `at` is its deadline if that completed it."""

    first: int
    node: Node
    at: int | None


class Found(NamedTuple):
    """A match, or with `timed_out` a candidate that reached its deadline."""

    node: Node
    # The deadline that completed or ended it; None if a row did.
    at: int | None
    timed_out: bool
    # The last watermark at which it is not yet known.
    known_after: int


@dataclass
class KeyMatches:
    """The candidates of one key, ordered by their first rows; and the matches that are held back."""

    candidates: list[Candidate] = field(default_factory=list)
    held: list[Waiting] = field(default_factory=list)
    # The key's value, for errors.
    shown: object = None

    @property
    def empty(self) -> bool:
        """Whether nothing is to be remembered."""
        return not self.candidates and not self.held

    @property
    def deadline(self) -> int:
        """When the next candidate ends."""
        return min((candidate[DEADLINE] for candidate in self.candidates), default=NEVER)


@dataclass
class Matcher:
    """Finds matches. Not thread-safe: the automaton remembers moves."""

    automaton: Automaton
    # In the unit of the rows' times; None: not bounded.
    within: int | None = None
    gap: int | None = None
    after_match: AfterMatch = NO_SKIP
    timeouts: bool = False
    candidates_max: int = CANDIDATES_MAX
    # The bits of conditions that depend on earlier rows, and how to ask for one of them.
    asked: int = 0
    ask: Ask | None = None

    def run(self, key: KeyMatches, rows: Iterable[tuple[int, int, int]], until: int | None = None) -> list[Found]:
        """Take the rows of a key: (number, bits, time); then move the clock to `until`. The numbers increase."""
        found: list[Found] = []
        moves, move = self.automaton.moves, self.automaton.move
        asks, skips = self.asked, self.after_match.kind != "no skip"
        candidates, within, gap = key.candidates, self.within, self.gap
        deadline, span = key.deadline, self._span()
        for row, bits, time in rows:
            if deadline <= time:
                key.candidates = candidates
                self.expire(key, time, found)
                candidates = key.candidates
                deadline = key.deadline
            done: list[Waiting] = []
            changed = False
            after: list[Candidate] = []
            for candidate in candidates:
                state = candidate[0]
                satisfied = self._ask(candidate[1], state, row, bits) if asks else bits
                made = moves[state].get(satisfied)
                if made is None:
                    made = move(state, satisfied)
                stay, takes, ends = made
                if stay == state and not takes and not ends:
                    after.append(candidate)
                    continue
                changed = True
                _, node, first, started, end = candidate
                if stay != DEAD:
                    after.append((stay, node, first, started, end))
                for step, reached, complete in takes:
                    taken = (row, step, node)
                    if complete:
                        done.append(Waiting(first, taken, None))
                    if reached != DEAD:
                        if gap is not None:
                            end = time + gap if within is None else min(started + within, time + gap)
                        after.append((reached, taken, first, started, end))
                if ends:
                    done.append(Waiting(first, node, None))
            satisfied = self._ask(None, START, row, bits) if asks else bits
            made = moves[START].get(satisfied)
            if made is None:
                made = move(START, satisfied)
            for step, reached, complete in made[1]:
                changed = True
                begun: Node = (row, step, None)
                if complete:
                    done.append(Waiting(row, begun, None))
                if reached != DEAD:
                    after.append((reached, begun, row, time, NEVER if span >= NEVER else time + span))
            if not changed:
                continue
            candidates = after
            if skips:
                key.candidates = candidates
                key.held += done
                self._release(key, found, time)
                candidates = key.candidates
            else:
                found += [Found(node, None, False, time) for _, node, _ in done]
            if len(candidates) > self.candidates_max:
                raise _too_many(key.shown, len(candidates), self.candidates_max)
            if gap is None:
                deadline = candidates[0][DEADLINE] if candidates else NEVER
            else:
                deadline = min((candidate[DEADLINE] for candidate in candidates), default=NEVER)
        key.candidates = candidates
        if until is not None:
            self.expire(key, until, found)
        return found

    def expire(self, key: KeyMatches, until: int, found: list[Found]) -> None:
        """End the candidates whose deadline is at or before this time."""
        while (deadline := key.deadline) <= until:
            done: list[Waiting] = []
            ended = [candidate for candidate in key.candidates if candidate[DEADLINE] <= deadline]
            key.candidates = [candidate for candidate in key.candidates if candidate[DEADLINE] > deadline]
            for candidate in ended:
                if self.automaton.at_deadline[candidate[STATE]]:
                    done.append(Waiting(candidate[FIRST], candidate[NODE], deadline))
                elif self.timeouts and not self.automaton.matched[candidate[STATE]]:
                    found.append(Found(candidate[NODE], deadline, True, deadline - 1))
            if self.after_match.kind == "no skip":
                found += [Found(node, deadline, False, deadline - 1) for _, node, _ in done]
            else:
                key.held += done
                self._release(key, found, deadline - 1)

    def deadline(self, started: int, last: int) -> int:
        """When a candidate ends that began and took its last row at these times."""
        ends = [NEVER if self.within is None else started + self.within, NEVER if self.gap is None else last + self.gap]
        return min(ends)

    def _span(self) -> int:
        """From the first row of a candidate to its deadline while it has no other."""
        return min((span for span in (self.within, self.gap) if span is not None), default=NEVER)

    def _ask(self, node: Node | None, state: int, row: int, bits: int) -> int:
        """The bits without those of conditions that do not hold for this candidate."""
        asked = self.asked & self.automaton.asked[state] & bits
        while asked:
            bit = asked & -asked
            asked ^= bit
            if not self.ask(bit, node, row):  # type: ignore[misc]
                bits ^= bit
        return bits

    def _release(self, key: KeyMatches, found: list[Found], known_after: int) -> None:
        """Put out the matches that no earlier candidate can hold back, and skip what overlaps."""
        while key.held:
            match = min(key.held, key=lambda held: (held.first, path_of(held.node)))
            if key.candidates and key.candidates[0][FIRST] < match.first:
                return
            key.held.remove(match)
            found.append(Found(match.node, match.at, False, known_after))
            names = self.automaton.step_names
            pivot, inclusive = self.after_match.pivot([(row, names[step]) for row, step in path_of(match.node)])
            bound = pivot + 1 if inclusive else pivot
            key.candidates = [candidate for candidate in key.candidates if candidate[FIRST] >= bound]
            key.held = [held for held in key.held if held.first >= bound]


def path_of(node: Node | None) -> list[tuple[int, int]]:
    """The rows of a sequence with the numbers of their steps, in order."""
    found = []
    while node is not None:
        found.append((node[0], node[1]))
        node = node[2]
    return found[::-1]


def _too_many(shown: object, count: int, most: int) -> Invalid:
    return Invalid(
        f"the key {shown!r} has {count:,} candidates of a match",
        detail=f"candidates_max is {most:,}. then_any and any() make a candidate of every combination of rows.",
        hint='Bound it with a smaller within=, use then instead of then_any, or after_match="past last".',
    )
