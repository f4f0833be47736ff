"""mainstem view check: what it says and its exit status, of checks that are made here instead of by Spark."""

from dataclasses import replace

import pytest

from mainstem.batch import FlowRun
from mainstem.flows.view_check import CheckedView, FirstWrong, WrongRow
from mainstem.stem import Mainstem
from mainstem.views.view import View
from tests.workbench.test_rebuild_command import write

WRONG = WrongRow("('Berlin',)", ("Berlin",), {"store": "Berlin", "revenue": 99}, {"store": "Berlin", "revenue": 12})
MISSING = WrongRow("('Rome',)", ("Rome",), None, {"store": "Rome", "revenue": 3})
UPTO = {"orders": {0: 9, 1: 4}}
RIGHT = CheckedView("revenue", 1, "revenue", 50, 50, UPTO, 7, (), None, None, 1)
FIRST = FirstWrong(WRONG, ("orders", 0, 6), {"orders": {0: 5, 1: 2}}, {"orders": {0: 8, 1: 2}}, "batch")
COMMAND = ("view", "check", "revenue", "--program", "shop.py")


@pytest.fixture
def found(place, stem, monkeypatch):
    """Says what a check is to find; gives what it was asked."""
    (place / "shop.py").write_text("def flows(stem):\n    return []\n")
    view = View(stem.home, "revenue", key="store")
    write(view, {"Berlin": 99}, FlowRun("revenue", 1))
    view.close()
    asked = {}

    def say(outcome: CheckedView) -> dict:
        def check_view(self, view, flows, **settings):
            asked.update(settings, view=view)
            return outcome

        monkeypatch.setattr(Mainstem, "spark", None)
        monkeypatch.setattr(Mainstem, "check_view", check_view)
        return asked

    return say


def test_a_view_that_is_right(cli, found):
    asked = found(RIGHT)
    said = cli(*COMMAND)
    assert (said.status, said.err) == (0, "")
    assert said.out == (
        "view revenue, version 1: 50 rows compared with the log up to orders@0:9,1:4: all are correct\n"
    )
    assert asked == {"view": "revenue", "sample": 1000, "seed": None}


def test_a_sample_says_which_and_a_running_flow_why_it_matters(cli, found):
    asked = found(replace(RIGHT, compared=11, running=4711))
    said = cli(*COMMAND, "--sample", "10", "--seed", "7")
    assert "11 rows of 50 (seed 7) compared" in said.out
    assert "Flow revenue runs in process 4711: the view is compared as it was when the check began" in said.err
    assert (asked["sample"], asked["seed"]) == (10, 7)


def test_wrong_rows_are_shown_with_the_first_offset_and_status_1(cli, found):
    found(replace(RIGHT, wrong=(WRONG, MISSING), first=FIRST, depends=("aggregate",)))
    said = cli(*COMMAND)
    assert said.status == 1
    lines = said.out.splitlines()
    assert lines[0].endswith("up to orders@0:9,1:4: 2 wrong")
    assert ["Berlin", "revenue", "99", "12"] in [line.split() for line in lines]
    assert ["Rome", "revenue", "no", "row", "3"] in [line.split() for line in lines]
    assert lines[-1] == "first wrong: Berlin, with orders[0] offset 6, in the batch of orders[0] 5-7"
    assert "aggregate is Spark's own" in said.err
    told = cli(*COMMAND, "--json")
    assert told.status == 1
    assert told.json["first"] == {
        "key": ["Berlin"], "shown": WRONG.shown, "expected": WRONG.expected, "cause": "batch",
        "record": {"topic": "orders", "partition": 0, "offset": 6},
        "start": {"orders": {"0": 5, "1": 2}}, "end": {"orders": {"0": 8, "1": 2}},
    }  # fmt: skip
    assert [row["shown"] for row in told.json["wrong"]] == [WRONG.shown, None]


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (
            replace(FIRST, cause="store"),
            (
                "changed in the store itself and not by a batch, after it was written with orders[0] offset 6, "
                "in the batch of orders[0] 5-7"
            ),
        ),
        (
            replace(FIRST, record=None),
            "with the batch of orders[0] 5-7, no record of which should have changed it",
        ),
        (
            replace(FIRST, record=None, start=None),
            "by orders[0] 0-7, orders[1] 0-1; the view has no earlier changes",
        ),
    ],
)  # fmt: skip
def test_what_is_known_of_where_it_went_wrong(cli, found, first, says):
    found(replace(RIGHT, wrong=(WRONG,), first=first))
    assert cli(*COMMAND).out.splitlines()[-1] == f"first wrong: Berlin, {says}"
