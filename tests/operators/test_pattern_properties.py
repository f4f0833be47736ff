"""The matcher against naive enumeration, on generated patterns and rows; however the rows are split."""

from __future__ import annotations

from random import Random

import pytest

from mainstem.operators.patterns.automaton import Automaton
from mainstem.operators.patterns.matcher import Found, KeyMatches, Matcher, path_of
from tests.operators.generated_patterns import Given, bits_of, generate
from tests.operators.naive_patterns import Naive, NaiveMatch


def find(given: Given, splits: Random | None = None) -> list[NaiveMatch]:
    automaton = Automaton(given.pattern)
    matcher = Matcher(automaton, given.within, given.gap, given.after_match, timeouts=True)
    rows = [(number, bits_of(automaton, letter), time) for number, (letter, time) in enumerate(given.rows)]
    key = KeyMatches()
    found: list[Found] = []
    begin = 0
    while splits is not None and begin < len(rows):
        end = splits.randint(begin + 1, len(rows))
        # The clock may be moved up to the time of the next row.
        until = rows[end][2] if end < len(rows) else given.until
        found += matcher.run(key, rows[begin:end], until=splits.choice([None, until]))
        begin = end
    found += matcher.run(key, rows[begin:], until=given.until)
    names = automaton.step_names
    return [
        NaiveMatch(tuple((row, names[step]) for row, step in path_of(node)), at, timed_out, known_after)
        for node, at, timed_out, known_after in found
    ]


def naive(given: Given) -> list[NaiveMatch]:
    return Naive(given.pattern, given.rows, given.within, given.gap, given.after_match, given.until).run()


def order(match: NaiveMatch) -> tuple[object, ...]:
    return match.path, match.timed_out, match.known_after, str(match.at)


def check(seed: int) -> None:
    given = generate(seed)
    expected = sorted(naive(given), key=order)
    assert sorted(find(given), key=order) == expected, f"seed {seed}: {given}"
    assert sorted(find(given, Random(seed)), key=order) == expected, f"seed {seed}: {given}"


def test_every_match_is_one_that_enumeration_finds() -> None:
    for seed in range(100):
        check(seed)


@pytest.mark.thorough
def test_two_thousand_patterns_match_as_enumeration_has_it() -> None:
    for seed in range(2_000):
        check(seed)


@pytest.mark.long
def test_ten_thousand_patterns_match_as_enumeration_has_it() -> None:
    for seed in range(2_000, 12_000):
        check(seed)
