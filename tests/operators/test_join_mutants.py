"""Joins that are wrong in one thing each: the comparison with the naive one finds every one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mainstem.operators.joins import join_engine
from mainstem.operators.joins.join_terms import LEFT, RIGHT, JoinTerms, shift
from tests.operators.naive_join import Terms
from tests.operators.test_join_properties import check_every_batch

Mutation = Callable[[pytest.MonkeyPatch], None]
# One of them takes some twenty, the others a few.
SEEDS = 80
FULL = Terms("full", 4, 10, 3)


def no_lateness(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JoinTerms, "last_watermarks", JoinTerms.up)


def nobody_hopeless(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JoinTerms, "hopeless", lambda self, times, watermarks: np.zeros(len(times), np.bool_))


def forgotten_when_closed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        JoinTerms, "eviction_watermarks", lambda self, side, times: shift(self.last_watermarks(side, times), 1)
    )


def forgotten_one_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        JoinTerms, "eviction_watermarks", lambda self, side, times: shift(self.last_watermarks(side, times), self.span)
    )


def sides_swapped(patch: pytest.MonkeyPatch) -> None:
    right = JoinTerms.range_of
    patch.setattr(JoinTerms, "range_of", lambda self, side, times: right(self, 1 - side, times))


def right_not_followed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JoinTerms, "follows", lambda self, side: side == LEFT)


def up_one_too_early(patch: pytest.MonkeyPatch) -> None:
    right = JoinTerms.up
    patch.setattr(JoinTerms, "up", lambda self, side, times: right(self, side, times) - 1)


def nothing_taken_back(patch: pytest.MonkeyPatch) -> None:
    followed = join_engine._Batch._follow

    def wrong(self: Any) -> None:
        followed(self)
        self.taken_back[:] = False

    patch.setattr(join_engine._Batch, "_follow", wrong)


def first_meetings_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A row that met somebody is not written again."""
    put = join_engine._Batch.put

    def wrong(self: Any) -> Any:
        self.after = np.where(self._fresh, self.after, self.met)
        return put(self)

    patch.setattr(join_engine._Batch, "put", wrong)


def one_item_for_both_sides(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(join_engine, "mix", lambda side, partition, offset, tie: offset)


def nulls_meet(patch: pytest.MonkeyPatch) -> None:
    flags = join_engine._flags
    patch.setattr(join_engine, "_flags", lambda rows, name: flags(rows, name) | (name == "keyed"))


def new_ones_do_not_meet(patch: pytest.MonkeyPatch) -> None:
    pairs = join_engine._Batch._pairs

    def wrong(self: Any, side: int, keys: Any, asking: Any, others: Any) -> Any:
        return pairs(self, side, keys, asking, others[~self._fresh[others]] if side == LEFT else others)

    patch.setattr(join_engine._Batch, "_pairs", wrong)


def kept_ones_of_the_left_do_not_meet(patch: pytest.MonkeyPatch) -> None:
    pairs = join_engine._Batch._pairs
    patch.setattr(
        join_engine._Batch,
        "_pairs",
        lambda self, side, keys, asking, others: pairs(
            self, side, keys, asking, others[: 0 if side == RIGHT else None]
        ),
    )


MUTATIONS: list[tuple[Mutation, Terms]] = [
    (no_lateness, FULL),
    (nobody_hopeless, FULL),
    (forgotten_when_closed, FULL),
    (forgotten_one_too_early, Terms("full", 0, 0, 0)),
    (sides_swapped, FULL),
    (right_not_followed, FULL),
    (up_one_too_early, FULL),
    (nothing_taken_back, FULL),
    (nothing_taken_back, Terms("anti", 4, 4, 9)),
    (first_meetings_forgotten, FULL),
    (first_meetings_forgotten, Terms("semi", 10, 10, 9)),
    (one_item_for_both_sides, FULL),
    (nulls_meet, FULL),
    (new_ones_do_not_meet, FULL),
    (kept_ones_of_the_left_do_not_meet, FULL),
]


@pytest.mark.parametrize(
    ("mutation", "terms"), MUTATIONS, ids=[f"{mutation.__name__}-{terms.how}" for mutation, terms in MUTATIONS]
)
def test_a_wrong_join_is_found(mutation: Mutation, terms: Terms, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    for seed in range(SEEDS):
        try:
            check_every_batch(terms, seed)
            check_every_batch(terms, seed, keys=12)
            # Here both sides come in one batch.
            check_every_batch(terms, seed, "one")
        except AssertionError:
            return
    pytest.fail(f"{mutation.__name__} was not found by {SEEDS} scripts")
