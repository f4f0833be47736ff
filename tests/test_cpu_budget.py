"""What tests cost: processes are counted whether they live or have ended, and folders are summed."""

import subprocess
import sys

import pytest

from tests.cpu_budget import BUDGET, COLLECTION, PROPERTY, cost_table

# Uses half a second of a processor, however long that takes, and then waits to be told to end.
BUSY = "import time\nwhile time.process_time() < 0.5: pass\nprint('done', flush=True)\ninput()"
# The same in a child of its own, which it waits for.
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])"
# In a process that has no other children: under the one that runs tests there are servers, whose processes come and go.
METER = """
import subprocess, sys
from tests.cpu_budget import tree_seconds
before = tree_seconds()
with subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
    process.stdout.readline()
    alive = tree_seconds() - before
    process.communicate(b"\\n")
print(alive, tree_seconds() - before)
"""


@pytest.mark.parametrize("program", [BUSY, PARENT], ids=["child", "grandchild"])
def test_a_process_counts_while_it_lives_and_when_it_has_ended(program: str, repository) -> None:
    printed = subprocess.run(
        [sys.executable, "-c", METER, program], cwd=repository, check=True, capture_output=True, text=True
    )
    alive, ended = map(float, printed.stdout.split())
    # Times of living processes are known to a hundredth of a second.
    assert 0.45 < alive <= ended + 0.05


def report(path: str, seconds: float, *more: tuple[str, float]) -> pytest.TestReport:
    return pytest.TestReport(
        f"{path}::test",
        ("tests/contracts/log_contract.py", 0, "test"),
        {},
        "passed",
        None,
        "teardown",
        user_properties=[*more, (PROPERTY, seconds)],
    )


def test_folders_are_summed_and_what_is_over_its_budget_is_marked() -> None:
    ended = [
        report("tests/log/test_rows.py", 1.5, (COLLECTION, 4.0)),
        report("tests/log/embedded/test_block.py", 9.0),
        report("tests/log/test_topic.py", 2.5),
        report("tests/new/test_new.py", 1.0, (COLLECTION, 5.0)),
    ]
    lines = cost_table(ended, {COLLECTION: 10, "tests/log": 4, "tests/log/embedded": 8})
    assert [line.split() for line in lines] == [
        ["folder", "tests", "CPU", "seconds", "budget"],
        ["collection", "9", "10"],
        ["tests/log", "2", "4", "4"],
        ["tests/log/embedded", "1", "9", "8", "OVER", "BUDGET"],
        ["tests/new", "1", "1", "0", "OVER", "BUDGET"],
        ["all", "4", "23", "22", "OVER", "BUDGET"],
    ]


def test_a_run_without_tests_has_no_table() -> None:
    assert cost_table([]) == []


def test_the_budgets_are_two_cores_for_25_minutes(repository) -> None:
    assert sum(BUDGET.values()) == 2 * 30 * 60
    assert [folder for folder in BUDGET if folder != COLLECTION and not (repository / folder).is_dir()] == []
