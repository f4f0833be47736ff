"""Every case that is there has a runner, or says that it has none yet."""

from pathlib import Path

import pytest

from tests.acceptance.case_files import RUNNERS, case, files, number_of


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_a_case_has_a_runner(path: Path) -> None:
    if number_of(path) not in RUNNERS:
        pytest.skip(f"no runner yet for {path.stem}")
    assert (Path(__file__).parent / RUNNERS[number_of(path)]).exists()


@pytest.mark.parametrize("number", RUNNERS)
def test_a_runner_has_its_case(number: str) -> None:
    assert case(number)["case"].startswith(number)
