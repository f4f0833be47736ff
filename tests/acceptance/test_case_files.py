"""Every case that is there has a runner, or says that it has none yet; with CI=true that is a failure."""

from pathlib import Path

import pytest

from tests.acceptance.case_files import RUNNERS, case, files, number_of
from tests.needs import cannot_run


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_a_case_has_a_runner(path: Path) -> None:
    if number_of(path) not in RUNNERS:
        cannot_run("a runner", f"none yet for {path.stem}")
    assert (Path(__file__).parent / RUNNERS[number_of(path)]).exists()


@pytest.mark.parametrize("number", RUNNERS)
def test_a_runner_has_its_case(number: str) -> None:
    assert case(number)["case"].startswith(number)


def test_a_case_without_a_runner_fails_where_everything_must_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="none yet for A99_of_tomorrow"):
        test_a_case_has_a_runner(Path("A99_of_tomorrow.json"))
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception):
        test_a_case_has_a_runner(Path("A99_of_tomorrow.json"))
