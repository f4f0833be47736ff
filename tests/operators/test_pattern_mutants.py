"""Matchers that are wrong in one thing each: the comparison with enumeration finds every one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mainstem.operators.patterns.after_match import AfterMatch
from mainstem.operators.patterns.automaton import NO_GAP, Automaton, Gap, Move
from mainstem.operators.patterns.matcher import KeyMatches, Matcher
from tests.operators.test_pattern_properties import check

Mutation = Callable[[pytest.MonkeyPatch], None]
SEEDS = 600


def deadline_one_later(patch: pytest.MonkeyPatch) -> None:
    right = Matcher._span
    patch.setattr(Matcher, "_span", lambda self: right(self) + 1)


def deadline_one_earlier(patch: pytest.MonkeyPatch) -> None:
    right = Matcher._span
    patch.setattr(Matcher, "_span", lambda self: right(self) - 1)


def lost_ignore_edge(patch: pytest.MonkeyPatch) -> None:
    right = Automaton._connect

    def wrong(self: Any, exits: Any, entries: Any, how: str, gap: Gap = NO_GAP) -> None:
        begin = len(self.edges)
        right(self, exits, entries, how, gap)
        for edge in self.edges[begin:]:
            edge.how = "next" if edge.how == "then" else edge.how

    patch.setattr(Automaton, "_connect", wrong)


def ignored_though_it_could_be_taken(patch: pytest.MonkeyPatch) -> None:
    right = Automaton._connect

    def wrong(self: Any, exits: Any, entries: Any, how: str, gap: Gap = NO_GAP) -> None:
        begin = len(self.edges)
        right(self, exits, entries, how, gap)
        for edge in self.edges[begin:]:
            edge.how = "then_any" if edge.how == "then" else edge.how

    patch.setattr(Automaton, "_connect", wrong)


def skip_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AfterMatch, "pivot", lambda self, path: (0, False))


def skip_one_row_short(patch: pytest.MonkeyPatch) -> None:
    right = AfterMatch.pivot
    patch.setattr(AfterMatch, "pivot", lambda self, path: (right(self, path)[0], False))


def matches_not_held_back(patch: pytest.MonkeyPatch) -> None:
    right = Matcher._release

    def wrong(self: Any, key: KeyMatches, found: Any, known_after: int) -> None:
        candidates, key.candidates = key.candidates, []
        right(self, key, found, known_after)
        key.candidates = candidates

    patch.setattr(Matcher, "_release", wrong)


def greedy_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Automaton, "_guard", lambda self, part, until, *, first_only: Gap())


def negation_left_out(patch: pytest.MonkeyPatch) -> None:
    right = Automaton._forbid

    def wrong(self: Any, made: Any, link: Any) -> None:
        before = [exit.gap for exit in made.exits]
        right(self, made, link)
        for exit, gap in zip(made.exits, before, strict=True):
            object.__setattr__(exit, "gap", gap)

    patch.setattr(Automaton, "_forbid", wrong)


def second_step_of_a_row_lost(patch: pytest.MonkeyPatch) -> None:
    right = Automaton.move

    def wrong(self: Any, state: int, bits: int) -> Move:
        made = right(self, state, bits)
        made = self.moves[state][bits] = made._replace(takes=made.takes[:1])
        return made

    patch.setattr(Automaton, "move", wrong)


MUTATIONS: list[Mutation] = [
    deadline_one_later,
    deadline_one_earlier,
    lost_ignore_edge,
    ignored_though_it_could_be_taken,
    skip_left_out,
    skip_one_row_short,
    matches_not_held_back,
    greedy_left_out,
    negation_left_out,
    second_step_of_a_row_lost,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.__name__ for mutation in MUTATIONS])
def test_a_wrong_matcher_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    for seed in range(SEEDS):
        try:
            check(seed)
        except AssertionError:
            return
    pytest.fail(f"{mutation.__name__} was not found by {SEEDS} pairs of pattern and rows")
