"""Patterns that are refused while they are built, and what the errors say to do instead."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mainstem.errors import Invalid
from mainstem.operators.patterns.after_match import read_after_match
from mainstem.operators.patterns.pattern import Pattern, both, either, group, step

A, B, C = step("a", "x = 1"), step("b", "x = 2"), step("c", "x = 3")
REFUSED: list[tuple[Callable[[], object], str, str]] = [
    (lambda: A.then(B).times(2), "times is applied to a sequence of 2 parts", "group(a.then(b)).times"),
    (lambda: A.times(2).times(3), 'step "a" is already repeated', "group(p).times(2)"),
    (lambda: A.times(3, 2), "times(3, 2)", "times(2, 4)"),
    (lambda: A.times(0), "times(0, 0)", "at_least(2)"),
    (lambda: A.at_least(-1), "at_least(-1)", "Give 0 or more"),
    (A.strict, "which is not repeated", "times(3).strict"),
    (lambda: A.until("x = 9"), "which is not repeated", "at_least(1).until"),
    (lambda: A.times(2).strict().any(), "strict() or any() twice", "Choose one"),
    (lambda: A.at_least(1).until("x = 8").until("x = 9"), "until of step", "OR"),
    (A.greedy, "cannot be greedy", "at_least(1).greedy()"),
    (lambda: A.times(2).greedy(), "fixed number of rows", "times(2, 4).greedy()"),
    (lambda: A.at_least(1).any().greedy(), "greedy and any()", "Leave one of them out"),
    (lambda: A.at_least(1).greedy().any(), "greedy and any()", "Leave one of them out"),
    (lambda: group(A.then(B)).at_least(1).greedy(), "group cannot be greedy", "loops inside"),
    (lambda: A.then(B).then(A), 'two steps are named "a"', 'step("a_again"'),
    (lambda: A.not_then(B.times(2)), "not_then takes a single step", "OR"),
    (lambda: A.not_next(group(B.then(C))), "not_next takes a single step", "OR"),
    (lambda: group(A.not_then(B)), "a pattern inside group ends with not_then", "group(...).not_then(c)"),
    (lambda: either(A.not_next(B), C), "a pattern inside either ends with not_next", "either(...).not_next(c)"),
    (lambda: group(A.optional()), "a group may not be empty", "optional"),
    (lambda: both(A.optional(), B), "a member of both may not be empty", "both(...) itself optional"),
    (lambda: both(A, B, C, *(step(name) for name in "def")), "both has 6 members", "loop"),
    (lambda: A.then("x = 2"), "then takes a pattern, not str", "step("),  # type: ignore[arg-type]
    (lambda: step("my step", "x = 1"), "is not an identifier", "letters, digits"),
    (lambda: read_after_match("skip", ["a"]), "after_match is 'skip'", "past last"),
    (lambda: read_after_match(("last", "b"), ["a"]), "a step that the pattern lacks", "Name one"),
    (lambda: read_after_match(("first", "a"), ["a", "b"], first=["a"]), "again and again", "later step"),
]


@pytest.mark.parametrize(("build", "what", "hint"), REFUSED, ids=[what for _, what, _ in REFUSED])
def test_a_pattern_that_means_nothing_is_refused_with_the_way_round(
    build: Callable[[], object], what: str, hint: str
) -> None:
    with pytest.raises(Invalid) as raised:
        build()
    assert what in str(raised.value)
    assert hint in raised.value.hint


def test_a_pattern_is_a_value() -> None:
    first = A.times(2)
    assert first == step("a", "x = 1").times(2)
    first.then(B)
    assert first == A.times(2)


def test_a_sequence_continues_with_the_links_of_another() -> None:
    assert A.then(B.next(C)) == A.then(B).next(C)
    assert isinstance(either(A, B), Pattern)
