"""The benchmark of views runs and prints its figures. What they are is no test: the machine is shared."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.thorough
def test_a_quick_run_prints_every_figure(repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.view_upserts", "--quick", "--folder", str(tmp_path)]
    run = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    figures = json.loads(run.stdout.splitlines()[-1])["figures"]
    assert [figure["goal"] for figure in figures] == ["<= 2", "<= 2", "reported"]
    assert list(tmp_path.iterdir()) == []
