"""Runs of flows that end where a test says."""

from collections.abc import Callable

import pytest

from mainstem.flows import native_catch_up, runner
from mainstem.spark.checkpoint import native_history
from tests.flows.native_runs import Died


@pytest.fixture
def die_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have every flow end when it reaches a point in a batch, as if its process were killed there."""

    def at(point: str, batch: int | None = None) -> None:
        def reach(name: str, reached: int | None = None) -> None:
            if name == point and batch in (None, reached):
                raise Died(name)

        for module in (runner, native_catch_up, native_history):
            monkeypatch.setattr(module, "reach", reach)

    return at


@pytest.fixture
def few_rows_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """To be read from sealed files first."""
    monkeypatch.setattr(native_catch_up, "ROWS_MIN", 1)
