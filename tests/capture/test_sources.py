"""The contract of sources, for PostgreSQL and for a SQLite file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.captured_file import CapturedFile, captured_file
from tests.capture.captured_shop import CapturedShop
from tests.contracts.source_contract import SourceContract


class TestPostgres(SourceContract):
    """Logical replication."""

    @pytest.fixture
    def captured(self, shop: CapturedShop) -> CapturedShop:
        shop.sql(self.ACCOUNTS)
        return shop


class TestSqlite(SourceContract):
    """Triggers."""

    @pytest.fixture
    def captured(self, tmp_path: Path) -> Iterator[CapturedFile]:
        with captured_file(tmp_path) as file:
            file.sql(self.ACCOUNTS)
            yield file
