"""The benchmarks run and print every figure. What the figures are is no test: the machine is shared."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.log import SUBJECTS

# How many figures each subject gives.
FIGURES = {
    "batches": 2,
    "single": 2,
    "threads": 2,
    "reading": 2,
    "sealing": 1,
    "query": 2,
    "following": 2,
    "opening": 2,
    "volume": 4,
}


@pytest.mark.thorough
def test_a_quick_run_prints_every_figure(repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.log", "--quick", "--folder", str(tmp_path)]
    run = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    *lines, last = run.stdout.splitlines()
    figures = json.loads(last)["figures"]
    given = [figure["name"].partition(":")[0] for figure in figures]
    assert {subject: given.count(subject) for subject in given} == FIGURES
    assert list(FIGURES) == list(SUBJECTS)
    for figure in figures:
        assert any(line.startswith(figure["name"]) and figure["goal"] in line for line in lines), figure["name"]
    # Nothing is left behind.
    assert list(tmp_path.iterdir()) == []
