"""wait_until looks until something has happened, and fails if it does not."""

import pytest

from tests.waiting import wait_until


def test_it_looks_again_until_it_has_happened():
    looks = iter([False, False, True, False])
    wait_until(lambda: next(looks))
    assert list(looks) == [False]


def test_what_does_not_happen_is_a_failure():
    with pytest.raises(AssertionError, match="it has not happened in 0 seconds"):
        wait_until(lambda: False, seconds_max=0)
