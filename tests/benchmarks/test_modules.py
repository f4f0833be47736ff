"""Every benchmark can be imported: what they use of each other and of the product is there."""

import importlib
from pathlib import Path

import pytest

import benchmarks

MODULES = sorted(path.stem for path in Path(benchmarks.__file__).parent.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_is_imported(name: str) -> None:
    importlib.import_module(f"benchmarks.{name}")
