"""Generated patterns and rows: the condition of a step is the letters that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from mainstem.errors import Invalid
from mainstem.operators.patterns.after_match import AfterMatch, read_after_match
from mainstem.operators.patterns.automaton import ALWAYS, Automaton
from mainstem.operators.patterns.pattern import Pattern, both, either, group, step
from tests.operators.naive_patterns import TooManyWords, words_of

CONDITIONS = ["a", "a", "b", "b", "c", "ab", "bc", None]


@dataclass(frozen=True)
class Given:
    pattern: Pattern
    # The letter and the time of each.
    rows: list[tuple[str, int]]
    within: int | None
    gap: int | None
    after_match: AfterMatch

    @property
    def until(self) -> int:
        return max((time for _, time in self.rows), default=0) + 3


def generate(seed: int) -> Given:
    random = Random(seed)
    while True:
        try:
            given = _given(random)
            words_of(given.pattern.links, len(given.rows))
            return given
        except (Invalid, TooManyWords):
            # A combination that is refused, or too large for enumeration.
            continue


def _given(random: Random) -> Given:
    names = iter("efghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    pattern = _sequence(random, names, depth=0)
    time, rows = 0, []
    for _ in range(random.randint(0, 6)):
        time += random.choice([0, 1, 1, 2, 4])
        rows.append((random.choice("aabbcd"), time))
    within = random.choice([None, 1, 3, 5, 9])
    gap = random.choice([None, None, 2, 4])
    if "not_then" in Automaton(pattern).endings and within is None and gap is None:
        within = 4
    steps = [made.name for made in pattern.taken]
    after: Any = random.choice(["no skip", "no skip", "next", "past last", "first", "last"])
    if after in ("first", "last"):
        after = (after, random.choice(steps), "or no skip")
    return Given(pattern, rows, within, gap, read_after_match(after, steps))


def _sequence(random: Random, names: Iterator[str], *, depth: int) -> Pattern:
    made = _part(random, names, depth)
    for _ in range(random.choice([0, 1, 1]) if depth else random.choice([0, 1, 2, 2, 3])):
        follow = random.choice([Pattern.then, Pattern.then, Pattern.next, Pattern.then_any])
        if random.random() < 0.2:
            negated = step(next(names), random.choice(CONDITIONS[:-1]))
            made = random.choice([Pattern.not_next, Pattern.not_then])(made, negated)
            if random.random() < 0.3:
                continue
        made = follow(made, _part(random, names, depth))
    return made


def _part(random: Random, names: Iterator[str], depth: int) -> Pattern:
    kind = random.random()
    if depth or kind < 0.75:
        made = step(next(names), random.choice(CONDITIONS))
    elif kind < 0.87:
        made = group(_sequence(random, names, depth=1))
    else:
        make = random.choice([either, both])
        made = make(_sequence(random, names, depth=1), _sequence(random, names, depth=1))
    # Loops inside groups are short: the words of a pattern are written out.
    repeat = random.random() * (0.7 if depth else 1.0)
    if repeat < 0.45:
        return made.optional() if random.random() < 0.25 else made
    made = (
        made.times(*random.choice([(2,), (1, 2), (0, 2)] if depth else [(2,), (1, 2), (0, 2), (2, 3)]))
        if repeat < 0.7
        else made.at_least(random.choice([0, 1, 2]))
    )
    if random.random() < 0.5:
        made = random.choice([Pattern.strict, Pattern.any])(made)
    if random.random() < 0.3:
        made = made.until(random.choice("bcd"))
    try:
        return made.greedy() if random.random() < 0.4 else made
    except Invalid:
        return made


def bits_of(automaton: Automaton, letter: str) -> int:
    return ALWAYS | sum(2 << place for place, letters in enumerate(automaton.conditions) if letter in str(letters))
