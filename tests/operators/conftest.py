"""How much of the generated cases a run tries."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture(params=[pytest.param(3, id="some"), pytest.param(1, marks=pytest.mark.long, id="all")])
def share(request: pytest.FixtureRequest) -> Callable[[int], int]:
    """Of so many scripts those that are tried: a third in every run of the tests, all of them before a release."""
    divisor: int = request.param
    return lambda scripts: -(-scripts // divisor)
