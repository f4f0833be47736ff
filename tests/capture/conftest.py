"""A captured database for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.captured_shop import CapturedShop, captured_shop
from tests.postgres_server import PostgresServer


@pytest.fixture
def shop(postgres: PostgresServer, tmp_path: Path) -> Iterator[CapturedShop]:
    """A database of its own and an empty home."""
    with captured_shop(postgres, tmp_path / "home") as made:
        yield made
