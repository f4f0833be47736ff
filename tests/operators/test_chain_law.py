"""The law for chains of operators: neither how rows are cut into batches nor a restart changes results or late rows."""

from __future__ import annotations

from random import Random

import pytest

from tests.operators.operator_chains import any_chain, cut, outcome, written


def check_chain(seed: int, *, keys: int, pieces: str) -> None:
    random = Random(seed)
    chain = any_chain(random)
    script = written(random, chain.streams, keys=keys)
    expected = outcome(chain, script, cut(script, pieces))
    for batches in (1, random.randint(2, 4), random.randint(5, 9)):
        found = outcome(chain, script, cut(script, pieces, random, batches))
        assert found.rows == expected.rows, f"seed {seed}, {batches} batches: {chain.text}"
        assert found.late == expected.late, f"seed {seed}, {batches} batches: {chain.text}"


@pytest.mark.thorough
def test_no_cut_into_batches_changes_what_a_chain_of_operators_gives() -> None:
    """Each key is a case: 140 of them. Windows, joins and look-ups stand behind each other in every order."""
    for seed in (33, 34, 55, 56, 68, 70, 75):
        check_chain(seed, keys=20, pieces="scripted")


@pytest.mark.thorough
def test_a_chain_of_operators_gives_what_it_gives_row_by_row() -> None:
    for seed in (36, 55, 72):
        check_chain(seed, keys=2, pieces="single rows")


@pytest.mark.long
def test_no_cut_changes_what_any_of_many_chains_gives() -> None:
    for seed in range(150):
        check_chain(seed, keys=20, pieces="scripted")
