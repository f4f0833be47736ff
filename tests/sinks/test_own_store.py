"""The store of the guide "a store of your own" keeps the contract of a store, and is what the page shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mainstem.testing import StoreContract

REPOSITORY = Path(__file__).parent.parent.parent


class TestSqliteStore(StoreContract):
    def opens_with(self, folder: Path) -> tuple[str, dict[str, Any]]:
        return "tests.sinks.own_store:SqliteStore", {"path": str(folder / "rows.db"), "table": "rows"}

    def save(self, folder: Path) -> bytes:
        file = folder / "rows.db"
        return file.read_bytes() if file.exists() else b""

    def restore(self, folder: Path, saved: bytes) -> None:
        (folder / "rows.db").write_bytes(saved)


def test_the_page_shows_the_class_that_is_tested() -> None:
    page = (REPOSITORY / "docs" / "guides" / "own_store.md").read_text()
    _, _, code = (Path(__file__).parent / "own_store.py").read_text().partition('"""\n\n')
    assert f"```python\n{code}```" in page
