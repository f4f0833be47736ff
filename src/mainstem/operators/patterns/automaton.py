"""Automaton: a pattern as edges between the places of its steps, and the moves of a candidate for each row.

A loop is written out, so that every repetition of a step has a place of its own. An edge leads from a place to one that may
follow it, over optional parts too, and says which rows may lie between:

    next      none                      then      rows that do not satisfy the target's condition
    then_any  all                       forbidden: rows that end the edge (negations; `until` inside a loop)

Each condition has a bit, and a row is the set of conditions that it satisfies; so an edge is a few masks. A candidate is a
sequence of rows with their steps. Its state is the set of edges that are still open, so there is one candidate for each
sequence, whichever way the pattern explains it. For a row it moves like this, which is remembered for (state, bits):

    stay    the state with the row left out, or DEAD
    takes   for each step that the row can be: the state after it, and whether that is a match

See Glushkov's automaton, and the subset construction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise, permutations
from typing import NamedTuple

from mainstem.operators.patterns.pattern import (
    NEGATIONS,
    Both,
    Condition,
    Contiguity,
    Either,
    Group,
    Link,
    Part,
    Pattern,
    Step,
)

__all__ = ["ALWAYS", "DEAD", "NO_GAP", "START", "Automaton", "Gap", "Move"]

# The bit that every row has: the condition of a step without one.
ALWAYS = 1
# States.
START = 0
DEAD = -1


@dataclass(frozen=True)
class Guard:
    """A greedy loop that was left: rows that it could have taken end the edge, up to the first row of its `until`."""

    condition: int
    until: int
    # Whether the loop could only have taken the very next row.
    first_only: bool


@dataclass(frozen=True)
class Gap:
    """What lies between two places: rows that are forbidden there."""

    # For all rows up to the one taken.
    forbidden: int = 0
    # For the first row.
    first: int = 0
    # For the row that is taken.
    taken: int = 0
    guards: tuple[Guard, ...] = ()

    def __add__(self, other: Gap) -> Gap:
        return Gap(
            self.forbidden | other.forbidden,
            self.first | other.first,
            self.taken | other.taken,
            (*self.guards, *other.guards),
        )


NO_GAP = Gap()


@dataclass(frozen=True)
class Entry:
    """A place where a part may begin. `how` is None where what comes before the part decides."""

    place: int
    how: str | None = None
    gap: Gap = NO_GAP


@dataclass(frozen=True)
class Exit:
    """A place where a part may end, and the negations after it: "" | not_next | not_then."""

    place: int
    gap: Gap = NO_GAP
    ending: str = ""


@dataclass
class Fragment:
    """A part of a pattern."""

    entries: list[Entry] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    # The ways around it; empty if it cannot be left out.
    bypasses: list[Gap] = field(default_factory=list)


@dataclass
class Edge:
    """From a place to one that may follow it."""

    target: int
    how: str
    gap: Gap


class Open(NamedTuple):
    """An open edge of a candidate: one of `Automaton.edges`, or one of the marks below."""

    edge: int
    # Whether no row came since the last one taken.
    fresh: bool
    guards: tuple[Guard, ...] = ()
    forbidden: int = 0
    first: int = 0


# Marks instead of edges. The candidate is a match already; it is one at its deadline; it is one with the next row.
MATCHED, AT_DEADLINE, WITH_NEXT = -1, -2, -3


class Move(NamedTuple):
    """What a row does to a candidate."""

    stay: int
    # The step's number, the state after it (DEAD: nothing can follow), and whether that is a match.
    takes: tuple[tuple[int, int, bool], ...]
    # Whether the candidate is a match without the row.
    ends: bool


class Automaton:
    """The automaton of a pattern. Not thread-safe: it remembers moves."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        # The conditions; that of number n has the bit 2 << n.
        self.conditions: list[Condition] = []
        self.step_names = [made.name for made in pattern.taken]
        # For each place its step's number and its condition's bit.
        self._steps: list[int] = []
        self._bits: list[int] = []
        self.edges: list[Edge] = []
        self._leaving: list[list[int]] = []
        whole = self._sequence(pattern.links)
        self._exits: dict[int, list[Exit]] = {}
        for exit in whole.exits:
            self._exits.setdefault(exit.place, []).append(exit)
        # The exits after which a negation is still to be awaited.
        self._ends = [exit for exit in whole.exits if exit.ending]
        self._states: dict[frozenset[Open], int] = {}
        self._opened: list[frozenset[Open]] = []
        self._texts: dict[int, str] = {}
        # By state: its moves by bits, whether it is a match at its deadline, whether it was one already.
        self.moves: list[dict[int, Move]] = []
        self.at_deadline: list[bool] = []
        self.matched: list[bool] = []
        # By state: the conditions that its moves depend on.
        self.asked: list[int] = []
        first = []
        for entry in whole.entries:
            # Nothing is said of the rows before a match.
            self.edges.append(Edge(entry.place, "next", Gap(taken=entry.gap.taken)))
            first.append(Open(len(self.edges) - 1, False))
        self._number(frozenset(first))

    @property
    def endings(self) -> set[str]:
        """The negations that the pattern may end with."""
        return {exit.ending for exits in self._exits.values() for exit in exits} - {""}

    @property
    def every_row(self) -> bool:
        """Whether a row that satisfies no condition may matter."""
        masks = [gap.forbidden | gap.first | self._bits[edge.target] for edge in self.edges for gap in [edge.gap]]
        strict = any(edge.how == "next" for edges in self._leaving for edge in map(self.edges.__getitem__, edges))
        return strict or any(mask & ALWAYS for mask in masks) or "not_next" in self.endings

    def condition_bit(self, condition: Condition | None) -> int:
        """The bit of a condition."""
        if condition is None:
            return ALWAYS
        for number, known in enumerate(self.conditions):
            if known is condition or (isinstance(known, str) and isinstance(condition, str) and known == condition):
                return 2 << number
        self.conditions.append(condition)
        return 1 << len(self.conditions)

    # From the pattern to edges.

    def _sequence(self, links: Iterable[Link]) -> Fragment:
        links = tuple(links)
        made = Fragment(bypasses=[NO_GAP])
        for number, link in enumerate(links):
            if link.how in NEGATIONS:
                self._forbid(made, link)
                continue
            after = links[number + 1] if number + 1 < len(links) else None
            never = self._negated(after) if after is not None and after.how == "not_then" else 0
            part = self._part(link.part, link.how if number else "", never)
            entries = [replace(entry, how=entry.how or (link.how if number else None)) for entry in part.entries]
            self._connect(made.exits, entries, "then")
            made.entries += [replace(e, gap=gap + e.gap) for gap in made.bypasses for e in entries]
            around = [Exit(exit.place, exit.gap + gap) for exit in made.exits for gap in part.bypasses]
            made.exits = [*part.exits, *around]
            made.bypasses = [before + gap for before in made.bypasses for gap in part.bypasses]
        return made

    def _negated(self, link: Link) -> int:
        assert isinstance(link.part.body, Step)
        return self.condition_bit(link.part.body.condition)

    def _forbid(self, made: Fragment, link: Link) -> None:
        bit = self._negated(link)
        gap = Gap(first=bit) if link.how == "not_next" else Gap(forbidden=bit)
        # not_then decides when the match is complete, whichever comes last.
        made.exits = [Exit(exit.place, exit.gap + gap, max(exit.ending, link.how)) for exit in made.exits]
        made.bypasses = [before + gap for before in made.bypasses]

    def _connect(self, exits: Iterable[Exit], entries: Iterable[Entry], how: str, gap: Gap = NO_GAP) -> None:
        entries = list(entries)
        for exit in exits:
            for entry in entries:
                edge = Edge(entry.place, entry.how or how, exit.gap + entry.gap + gap)
                self.edges.append(edge)
                self._leaving[exit.place].append(len(self.edges) - 1)

    def _part(self, part: Part, how: str, never: int) -> Fragment:
        until = 0 if part.until is None else self.condition_bit(part.until)
        copies = [self._body(part, until) for _ in range(part.high or part.low)]
        inside = Gap(forbidden=until | never)
        for before, after in pairwise(copies):
            self._connect(before.exits, after.entries, part.inside, inside)
        if part.high is None:
            self._connect(copies[-1].exits, copies[-1].entries, part.inside, inside)
        made = Fragment([replace(e, gap=e.gap + Gap(taken=until)) for e in copies[0].entries])
        for number, copy in enumerate(copies, 1):
            if number >= part.low:
                full = number == part.high
                guard = NO_GAP if full else self._guard(part, until, first_only=part.inside == "next")
                made.exits += [replace(exit, gap=exit.gap + guard) for exit in copy.exits]
        if part.optional:
            made.bypasses = [self._guard(part, until, first_only=how == "next")]
        return made

    def _guard(self, part: Part, until: int, *, first_only: bool) -> Gap:
        if not part.greedy:
            return NO_GAP
        assert isinstance(part.body, Step)
        return Gap(guards=(Guard(self.condition_bit(part.body.condition), until, first_only),))

    def _body(self, part: Part, until: int) -> Fragment:
        body, begin = part.body, len(self.edges)
        if isinstance(body, Step):
            return self._place(body)
        if isinstance(body, Group):
            made = self._sequence(body.pattern.links)
        elif isinstance(body, Either):
            made = self._union([option.links for option in body.options])
        else:
            made = self._union(_orders(body, part.inside))
        for edge in self.edges[begin:]:
            edge.gap = edge.gap + Gap(forbidden=until)
        return made

    def _place(self, made: Step) -> Fragment:
        place = len(self._steps)
        self._steps.append(self.step_names.index(made.name))
        self._bits.append(self.condition_bit(made.condition))
        self._leaving.append([])
        return Fragment([Entry(place)], [Exit(place)])

    def _union(self, options: Iterable[tuple[Link, ...]]) -> Fragment:
        made = Fragment()
        for option in options:
            fragment = self._sequence(option)
            made.entries += fragment.entries
            made.exits += fragment.exits
        return made

    # From edges to states.

    def _number(self, opened: frozenset[Open]) -> int:
        if not any(item.edge != MATCHED for item in opened):
            return DEAD
        found = self._states.get(opened)
        if found is None:
            found = self._states[opened] = len(self._opened)
            self._opened.append(opened)
            self.moves.append({})
            self.at_deadline.append(any(item.edge == AT_DEADLINE for item in opened))
            self.matched.append(any(item.edge == MATCHED for item in opened))
            self.asked.append(self._ask(opened))
        return found

    # States as text, which is the same in every process.

    def write_state(self, state: int) -> str:
        """The open edges of a state."""
        if state not in self._texts:
            self._texts[state] = " ".join(sorted(map(self._write_open, self._opened[state])))
        return self._texts[state]

    def read_state(self, text: str) -> int:
        """The state that was written so."""
        return self._number(frozenset(map(self._read_open, text.split())))

    def _write_open(self, item: Open) -> str:
        if item.edge == MATCHED:
            return "matched"
        if item.edge >= 0:
            kind, number, guards = "edge", item.edge, self.edges[item.edge].gap.guards
        else:
            kind = "end"
            number = next(
                place for place, exit in enumerate(self._ends) if _ending(exit, item.guards, fresh=item.fresh) == item
            )
            guards = self._ends[number].gap.guards
        live = "".join(str(place) + "." for place, guard in enumerate(guards) if guard in item.guards)
        return f"{kind}:{number}:{'fresh' if item.fresh else 'waits'}:{live}"

    def _read_open(self, text: str) -> Open:
        if text == "matched":
            return Open(MATCHED, False)
        kind, number, fresh, live = text.split(":")
        gap = self.edges[int(number)].gap if kind == "edge" else self._ends[int(number)].gap
        guards = tuple(gap.guards[int(place)] for place in live.split(".") if place)
        if kind == "end":
            return _ending(self._ends[int(number)], guards, fresh=fresh == "fresh")
        return Open(int(number), fresh == "fresh", guards, gap.forbidden, gap.first)

    def _ask(self, opened: frozenset[Open]) -> int:
        asked = 0
        for item in opened:
            asked |= item.forbidden | item.first
            for guard in item.guards:
                asked |= guard.condition | guard.until
            if item.edge >= 0:
                asked |= self.edges[item.edge].gap.taken | self._bits[self.edges[item.edge].target]
        return asked

    def _open(self, place: int) -> tuple[set[Open], bool]:
        """What is open after a place, and whether that is a match."""
        found = set()
        for number in self._leaving[place]:
            gap = self.edges[number].gap
            found.add(Open(number, True, gap.guards, gap.forbidden, gap.first))
        complete = False
        for exit in self._exits.get(place, ()):
            if not exit.ending:
                complete = True
            else:
                found.add(_ending(exit, exit.gap.guards, fresh=True))
        if complete:
            found.add(Open(MATCHED, False))
        return found, complete

    def move(self, state: int, bits: int) -> Move:
        """What a row that satisfies these conditions does to a candidate in this state."""
        stays: set[Open] = set()
        taken: dict[int, list[int]] = {}
        ends = False
        for item in self._opened[state]:
            if item.edge == MATCHED:
                stays.add(item)
                continue
            guards = [guard for guard in item.guards if not bits & guard.until]
            forbidden = item.forbidden | (item.first if item.fresh else 0)
            if bits & forbidden or any(bits & guard.condition for guard in guards):
                continue
            stayed = item._replace(fresh=False, guards=tuple(guard for guard in guards if not guard.first_only))
            if item.edge == WITH_NEXT:
                ends = True
            elif item.edge == AT_DEADLINE:
                stays.add(stayed)
            else:
                edge = self.edges[item.edge]
                wanted = bits & self._bits[edge.target]
                if wanted and not bits & edge.gap.taken:
                    taken.setdefault(self._steps[edge.target], []).append(edge.target)
                if edge.how == "then_any" or (edge.how == "then" and not wanted):
                    stays.add(stayed)
        takes = []
        for step in sorted(taken):
            opened: set[Open] = set()
            complete = False
            for place in taken[step]:
                found, matches = self._open(place)
                opened |= found
                complete = complete or matches
            takes.append((step, self._number(frozenset(opened)), complete))
        made = Move(self._number(frozenset(stays)), tuple(takes), ends)
        self.moves[state][bits] = made
        return made


def _ending(exit: Exit, guards: tuple[Guard, ...], *, fresh: bool) -> Open:
    mark = WITH_NEXT if exit.ending == "not_next" else AT_DEADLINE
    return Open(mark, fresh, guards, exit.gap.forbidden, exit.gap.first)


def _orders(body: Both, how: Contiguity) -> list[tuple[Link, ...]]:
    found = []
    for order in permutations(body.members):
        first, *rest = order
        links = list(first.links)
        for member in rest:
            head, *others = member.links
            links += [replace(head, how=how), *others]
        found.append(tuple(links))
    return found
