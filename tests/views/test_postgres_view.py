"""Views in PostgreSQL keep the contract of a view, all of it."""

from functools import partial
from pathlib import Path

import pytest

from mainstem.views.postgres.postgres_backend import PostgresBackend
from mainstem.views.view import View
from tests.contracts.shifted_clock import ShiftedClock
from tests.contracts.view_contract import ViewContract
from tests.contracts.view_rows import OpenView


class TestPostgresView(ViewContract):
    @pytest.fixture
    def clock(self) -> ShiftedClock:
        return ShiftedClock()

    @pytest.fixture
    def open_view(self, tmp_path: Path, clock: ShiftedClock, views_address: str) -> OpenView:
        return partial(View, tmp_path / "home", clock=clock, backend=PostgresBackend(views_address))
