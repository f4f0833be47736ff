"""The steps that a console is started with: what is done, what is said of it, and files that are no walk."""

import json

import pytest

import mainstem
from mainstem.errors import Invalid
from mainstem.workbench.console.guided_walk import GuidedWalk, read_walk
from mainstem.workbench.console.sql_answer import SqlAnswers
from tests.workbench.console_process import running_console

ROWS = {"title": "Rows", "text": "Look.", "link": "#/topics/orders"}
COUNTED = "SELECT count(*) > 1 AS done, count(*) || ' orders' AS said FROM orders"


@pytest.fixture
def written(tmp_path):
    def write(*steps: object) -> str:
        path = tmp_path / "walk.json"
        path.write_text(json.dumps({"title": "Two minutes", "steps": steps}))
        return str(path)

    return write


def test_a_step_is_done_by_what_happened_and_stays_so(clock, tmp_path, written):
    walk = read_walk(written({**ROWS, "sql": COUNTED}, {**ROWS, "title": "Back", "address": "at"}))
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        guided = GuidedWalk(walk, SqlAnswers(stem), clock)

        def states() -> list[tuple[bool, str]]:
            clock.advance("1 second")
            return [(step["done"], step["said"]) for step in guided.answer()["steps"]]

        assert states() == [(False, ""), (False, "")]
        orders = stem.create_topic("orders", schema="n INT")
        orders.append([{"n": 1}])
        assert states() == [(False, "1 orders"), (False, "")]
        orders.append([{"n": 2}])
        # At most once a second, however many ask.
        assert guided.answer()["steps"][0]["done"] is False
        assert states() == [(True, "2 orders"), (False, "")]
        orders.append([{"n": 3}])
        assert states() == [(True, "2 orders"), (False, "")]


def test_the_api_tells_the_steps_and_no_sql(tmp_path, written):
    path = written({**ROWS, "sql": COUNTED, "action": {"name": "kill", "label": "Kill it", "body": {"flow": "x"}}})
    with (
        mainstem.open(tmp_path / "home", upkeep="manual") as stem,
        running_console(stem.home, "--walk", path) as console,
    ):
        found = console.get("/api/walk")
        assert "orders" in found["steps"][0]["waits"]
        assert found == {
            "id": found["id"], "title": "Two minutes",
            "steps": [{**ROWS, "address": "", "action": {"name": "kill", "label": "Kill it", "body": {"flow": "x"}},
                       "done": False, "said": "", "waits": found["steps"][0]["waits"]}],
        }  # fmt: skip


def test_without_a_walk_there_are_no_steps(tmp_path):
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem, running_console(stem.home) as console:
        assert console.get("/api/walk")["steps"] == []


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({"title": "Rows"}, "text"),
        ({**ROWS, "sql": COUNTED, "address": "at"}, "'Rows'"),
        (ROWS, "'Rows'"),
        ({**ROWS, "link": "javascript:alert(1)", "address": "at"}, "not a page of the console"),
        ({**ROWS, "address": "at", "action": {"name": "burn", "label": "Burn", "body": {}}}, "'burn'"),
        ({**ROWS, "address": "at", "more": 1}, "more"),
    ],
)
def test_a_file_that_is_no_walk_is_refused(written, step, said):
    with pytest.raises(Invalid, match="is not a walk") as refused:
        read_walk(written(step))
    assert said in refused.value.detail
    assert refused.value.hint


def test_a_file_that_is_not_there_is_said(cli, tmp_path):
    mainstem.open(tmp_path / "home").close()
    said = cli("console", "--home", str(tmp_path / "home"), "--port", "0", "--walk", str(tmp_path / "nothing.json"))
    assert "nothing.json" in said.err
    assert said.status == 1
