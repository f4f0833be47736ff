"""mainstem view rebuild: what it shows, asks and does, on versions that are made here instead of by Spark."""

import pyarrow as pa
import pytest

from mainstem.batch import Batch, FlowRun
from mainstem.stem import Mainstem
from mainstem.views.view import View
from mainstem.workbench.cli import rebuild_command

SCHEMA = pa.schema({"store": pa.string(), "revenue": pa.int64()})


def write(view: View, rows: dict[str, int], run: FlowRun) -> None:
    writer = view.writer(run, SCHEMA)
    writer.apply(pa.table({"store": list(rows), "revenue": list(rows.values())}, SCHEMA), Batch(0, run))
    writer.close()


class Rebuilt:
    """A rebuild whose replay is done at once."""

    def __init__(self, view: View, rows: dict[str, int]) -> None:
        self.view, self.rows, self.kept = view, rows, False
        self.version = view.new_version(SCHEMA)

    def __enter__(self):
        return self

    def __exit__(self, *ended: object) -> None:
        if not self.kept:
            self.view.drop_version(self.version)

    def wait(self, tell) -> None:
        tell(0, 10)
        write(self.view, self.rows, FlowRun("revenue", 2, version=self.version))
        tell(10, 10)

    def difference(self):
        return self.view.difference(1, self.version)

    def keep_both(self) -> None:
        self.kept = True

    def apply(self) -> None:
        self.keep_both()
        self.view.use(self.version)


@pytest.fixture
def revenue(place, stem, monkeypatch):
    """A view of twelve rows, whose rebuild changes one of them, removes one and adds eleven."""
    (place / "shop.py").write_text("def flows(stem):\n    return []\n")
    stem.create_topic("orders", schema="n INT")
    view = View(stem.home, "revenue", key="store")
    before = {f"s{number:02d}": number for number in range(12)}
    write(view, before, FlowRun("revenue", 1))
    after = {f"s{number:02d}": number for number in range(1, 12)} | {"s05": 500} | {f"t{n:02d}": n for n in range(11)}
    monkeypatch.setattr(Mainstem, "spark", None)
    monkeypatch.setattr(Mainstem, "rebuild", lambda self, name, flows: Rebuilt(view, after))
    yield view
    view.close()


def live(view: View) -> tuple[int, list[int]]:
    return view.describe().live.number, [version.number for version in view.versions()]


def test_it_shows_how_the_versions_differ_and_puts_the_new_one_to_use(cli, revenue):
    said = cli("view", "rebuild", "revenue", "--program", "shop.py", "--apply")

    assert (said.status, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0] == "version 2 against version 1: 10 same, 1 changed, 11 added, 1 removed"
    assert ["s05", "revenue", "5", "500"] in [line.split() for line in lines]
    assert ["t09", "9"] in [line.split() for line in lines]
    assert ["t10", "10"] not in [line.split() for line in lines]
    assert "... and 1 more" in lines
    assert ["s00", "0"] in [line.split() for line in lines]
    assert lines[-1] == "version 2 of revenue is live; to return: mainstem view versions revenue --use 1"
    assert live(revenue) == (2, [1, 2])


def test_it_tells_a_program(cli, revenue):
    facts = cli("view", "rebuild", "revenue", "--program", "shop.py", "--keep-both", "--json").json

    difference = facts.pop("difference")
    assert facts == {"view": "revenue", "version": 2, "live": 1, "outcome": "keep"}
    assert [difference[kind] for kind in ("same", "changed", "added", "removed")] == [10, 1, 11, 1]
    assert difference["changed_rows"] == [
        {"was": {"store": "s05", "revenue": 5}, "is": {"store": "s05", "revenue": 500}}
    ]
    assert len(difference["added_rows"]) == 10
    assert difference["removed_rows"] == [{"store": "s00", "revenue": 0}]
    assert live(revenue) == (1, [1, 2])


@pytest.mark.parametrize(
    ("answers", "last", "versions"),
    [
        ("y\n", "version 2 of revenue is live; to return: mainstem view versions revenue --use 1", (2, [1, 2])),
        ("n\ny\n", "version 2 of revenue is kept; to use it: mainstem view versions revenue --use 2", (1, [1, 2])),
        ("n\nn\n", "version 2 of revenue was dropped; version 1 is live", (1, [1])),
    ],
)
def test_it_asks_a_person(cli, revenue, monkeypatch, answers, last, versions):
    monkeypatch.setattr(rebuild_command, "is_interactive", lambda: True)

    said = cli("view", "rebuild", "revenue", "--program", "shop.py", stdin=answers)

    assert said.out.splitlines()[-1] == last
    assert said.err.startswith('Make version 2 of view "revenue" the live one? [y/N]: ')
    assert live(revenue) == versions


@pytest.mark.parametrize("words", [[], ["--apply", "--keep-both"]])
def test_what_to_do_must_be_said_where_nobody_can_be_asked(cli, revenue, words):
    assert cli("view", "rebuild", "revenue", "--program", "shop.py", *words).status == 2
    assert live(revenue) == (1, [1])
