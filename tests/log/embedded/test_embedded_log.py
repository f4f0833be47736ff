"""The embedded log keeps the contract of a log, all of it."""

from pathlib import Path

import pytest

from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.stem import Mainstem
from tests.contracts.log_contract import LogContract
from tests.contracts.other_process import Opener
from tests.contracts.shifted_clock import ShiftedClock


class TestEmbeddedLog(LogContract):
    @pytest.fixture
    def opener(self, tmp_path: Path, clock: ShiftedClock) -> Opener:
        return lambda: Mainstem(EmbeddedLog(tmp_path / "home", clock=clock))
