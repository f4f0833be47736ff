"""One suite per protocol, which every implementation of it passes whole."""

from pathlib import Path

import pytest

# Before they are imported: an assertion that fails in a contract shows its values as one in a test file does.
pytest.register_assert_rewrite(
    *(f"tests.contracts.{path.stem}" for path in Path(__file__).parent.glob("*_contract.py"))
)
