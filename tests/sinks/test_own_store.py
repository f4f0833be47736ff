"""The store of the guide "a store of your own" keeps the contract of a store, and is what the page shows."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mainstem import Conflict, Mainstem
from mainstem.batch import FlowRun
from mainstem.clock import SystemClock
from mainstem.sinks import Fences, Store
from mainstem.testing import StoreContract
from mainstem.workbench.cli.main import run
from mainstem.workbench.cli.program_file import load_program
from tests.sinks.own_store import SqliteStore

REPOSITORY = Path(__file__).parent.parent.parent


class TestSqliteStore(StoreContract):
    way = "tests.sinks.own_store:SqliteStore"

    def opens_with(self, folder: Path) -> tuple[str, dict[str, Any]]:
        return self.way, {"path": str(folder / "rows.db"), "table": "rows"}

    def save(self, folder: Path) -> bytes:
        file = folder / "rows.db"
        return file.read_bytes() if file.exists() else b""

    def restore(self, folder: Path, saved: bytes) -> None:
        (folder / "rows.db").write_bytes(saved)

    def put_foreign(self, folder: Path) -> bool:
        with closing(sqlite3.connect(folder / "rows.db")) as database:
            database.execute("CREATE TABLE rows (mine)")
        return True


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        ("WithoutTransaction", "test_at_each_step_of_a_commit_readers_see_whole_batches"),
        (
            "WithoutTransaction",
            "test_at_each_step_of_a_fill_readers_see_the_whole_old_or_the_whole_new_version",
        ),
        ("FillingInPlace", "test_at_each_step_of_a_fill_readers_see_the_whole_old_or_the_whole_new_version"),
        ("WithoutLock", "test_of_commits_at_the_same_moment_one_succeeds"),
        ("SwitchingAnyway", "test_a_switch_after_a_fence_has_moved_changes_nothing"),
        ("TakingForeignTables", "test_foreign_content_is_refused"),
    ],
)
def test_the_kit_catches_a_broken_store(broken: str, test: str, tmp_path: Path) -> None:
    kit = TestSqliteStore()
    kit.way = f"tests.sinks.broken_stores:{broken}"
    with pytest.raises(AssertionError):
        getattr(kit, test)(tmp_path)


def test_the_page_shows_the_class_that_is_tested() -> None:
    page = (REPOSITORY / "docs" / "guides" / "own_store.md").read_text()
    _, _, code = (Path(__file__).parent / "own_store.py").read_text().partition('"""\n\n')
    assert f"```python\n{code}```" in page


PROGRAM = """
from mainstem import Flow
from mainstem.operators import table
from tests.sinks.own_store import SqliteStore


def flows(stem):
    notes = table(stem.topic("notes").stream(), key="id")
    yield Flow(notes, into=stem.store("notes", SqliteStore({path!r}, "notes"), key="id"))
"""


def test_commands_find_the_store_of_a_program_that_spark_has_to_build(
    stem: Mainstem, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "notes.py"
    program.write_text(PROGRAM.format(path=str(tmp_path / "notes.db")))
    topic = stem.create_topic("notes", schema="id INT, note STRING", key="id")
    topic.append([{"id": 1, "note": "buy milk"}])
    where = ["--program", str(program), "--home", stem.home]
    assert run(["store", "describe", "notes", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "empty"
    stem.run(load_program(str(program)).flows, until="idle")
    for name in ("store:notes", "store.of.others"):
        assert run(["compare", "topic:notes", name, "--home", stem.home]) == 1
        assert "--program FILE" in capsys.readouterr().err.rpartition("Hint:")[2]
    assert run(["compare", "topic:notes", "store:notes", *where]) == 0
    assert "are equal, at one position: 1 same" in capsys.readouterr().out


@pytest.mark.parametrize("versions", [(1, 1), (2, 1), (1, 2)])
def test_a_flow_of_another_home_is_refused_whatever_its_version(tmp_path: Path, versions: tuple[int, int]) -> None:
    schema = pa.schema([("id", pa.int64()), ("title", pa.string())])
    homes = [
        Store(str(tmp_path / home), "rows", SqliteStore(str(tmp_path / "rows.db"), "rows"), key="id", identity=home,
              clock=SystemClock())
        for home in ("one", "other")
    ]  # fmt: skip
    for store, version in zip(homes, versions, strict=True):
        store.record.use(version)
    one, other = homes
    writer = one.table_writer(FlowRun("rows", 1, versions[0]), schema)
    writer.finish()
    with pytest.raises(Conflict, match="of another home"):
        other.table_writer(FlowRun("rows", 1, versions[1]), schema)
    assert one.backend.fences() == Fences(writer.fence, None)
    # By hand it takes the store over.
    taken = other.at_version(3).table_writer(FlowRun("rows", 1, 3), schema)
    assert taken.finish()
    assert one.backend.fences() == Fences(taken.fence, None)
