"""The order of rows by integers, and what is found in it: as numpy's own, whatever the keys are."""

import random

import numpy as np

from mainstem.operators.stage import integer_order
from mainstem.operators.stage.integer_order import is_ordered, order_rows, search, sort_distinct

CASES = 600
LOWEST, HIGHEST = -(2**63), 2**63 - 1


def generated_key(chance, count):
    """A key as engines have them: hashes, few values, times, row numbers; and the ends of 64 bits."""
    rng = np.random.default_rng(chance.getrandbits(32))
    hashes = rng.integers(LOWEST, HIGHEST, max(1, count))
    kinds = [
        lambda: hashes[:count],
        lambda: hashes[rng.integers(0, max(1, count // 8), count)],
        # Hashes that differ only in their lowest bits, so that what is cut off decides.
        lambda: (hashes[rng.integers(0, max(1, count // 8), count)] & ~np.int64(3)) + rng.integers(0, 4, count),
        lambda: rng.integers(-3, 3, count),
        lambda: rng.integers(0, 10**9, count) + 1_767_225_600_000_000,
        lambda: np.arange(count),
        lambda: -np.arange(count),
        lambda: np.full(count, 7),
        lambda: rng.choice(np.array([LOWEST, LOWEST + 1, -1, 0, HIGHEST]), count),
        lambda: rng.integers(-3, 3, count).astype(np.int32),
    ]
    return chance.choice(kinds)()


def test_rows_are_ordered_as_lexsort_orders_them(share, monkeypatch):
    monkeypatch.setattr(integer_order, "ROWS_MIN", 2)
    for seed in range(share(CASES)):
        chance = random.Random(seed)
        count = chance.choice([0, 1, 2, 3, 50, 1_500])
        keys = [generated_key(chance, count) for _ in range(chance.randint(1, 4))]
        expected = np.lexsort(keys[::-1])
        assert np.array_equal(order_rows(*keys), expected), seed
        assert order_rows(*keys).dtype == np.int64
        assert is_ordered([key[expected] for key in keys]), seed
        assert is_ordered(keys) == np.array_equal(expected, np.arange(count)), seed


def test_distinct_values_and_places_are_those_of_numpy(share, monkeypatch):
    monkeypatch.setattr(integer_order, "ROWS_MIN", 2)
    for seed in range(share(CASES)):
        chance = random.Random(seed)
        values, wanted = (generated_key(chance, chance.choice([0, 1, 2, 300])) for _ in range(2))
        assert np.array_equal(sort_distinct(values), np.unique(values)), seed
        ordered = np.sort(values)
        for side in ("left", "right"):
            assert np.array_equal(search(ordered, wanted, side), np.searchsorted(ordered, wanted, side)), seed


def test_many_rows_are_ordered_by_hashes_whose_highest_bits_are_alike():
    rng = np.random.default_rng(3)
    groups = rng.integers(0, 50, 20_000) + (rng.integers(0, 2, 20_000) << 60)
    times = rng.integers(0, 10**12, 20_000)

    assert np.array_equal(order_rows(groups, times), np.lexsort((times, groups)))
