"""With Spark: sinks that are restored from older copies, and a folder that is another one than before."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mainstem
from mainstem import Mainstem
from mainstem.durable_files import decode_checked, encode_checked
from mainstem.errors import Conflict, CorruptHome, FlowFailed
from mainstem.flows import runner
from mainstem.flows.flow import Flow
from mainstem.operators import table
from tests.flows.memory_sink import MemorySink
from tests.flows.native_runs import Died

pytestmark = pytest.mark.usefixtures("one_bucket")

BATCHES = 3
SINKS = ("views/seen", "topics/copied", "out/files")


def program(own: MemorySink, home: Path):
    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(stem.topic("orders").stream().drop("record"), into=stem.view("seen", key="id"))
        # Of every second batch it has rows.
        yield Flow(stem.topic("orders").stream().where("odd").drop("record"), into=stem.topic("copied"))
        yield Flow(stem.topic("orders").stream().drop("record"), into=stem.files(home / "out/files"))
        yield Flow(stem.topic("orders").stream(), into=own)
        yield Flow(table(stem.topic("orders").stream(), key="id").drop("record"), into=stem.view("staged", key="id"))

    return flows


def rows_of(batch: int) -> list[dict]:
    return [{"id": batch * 10 + n, "odd": batch % 2 == 1} for n in range(10)]


def test_a_sink_restored_from_an_older_copy_stops_its_flow(spark: SparkSession, tmp_path: Path) -> None:
    home, copies = tmp_path / "home", tmp_path / "copies"
    own = MemorySink("own")
    flows = program(own, home)
    for batch in range(BATCHES):
        with mainstem.open(home, upkeep="manual", spark=spark) as stem:
            if batch == 0:
                stem.create_topic("orders", schema="id BIGINT, odd BOOLEAN", key="id")
            stem.topic("orders").append(rows_of(batch))
            stem.run(flows, until="idle")
        for place in SINKS:
            shutil.copytree(home / place, copies / str(batch) / place)
    last = own.committed_batch
    assert sorted(path.name for path in (home / "flows/copied/v1/sink_rows").iterdir()) == ["1"]

    def restore(batch: int, *places: str) -> None:
        for place in places:
            shutil.rmtree(home / place)
            shutil.copytree(copies / str(batch) / place, home / place)

    for batch in range(BATCHES - 1):
        restore(batch, *SINKS)
        own.committed_batch = batch
        shutil.move(home / f"flows/staged/v1/stages/{last}.json", tmp_path / "manifest")
        with mainstem.open(home, upkeep="manual", spark=spark) as stem:
            stem.topic("orders").append(rows_of(BATCHES + batch))
            with stem.start(flows) as running:
                for name in running.handles:
                    # Batch 2 had no rows for the topic: as it was after batch 1 it has everything.
                    if (name, batch) == ("copied", 1):
                        running[name].wait_until_idle()
                        continue
                    with pytest.raises(FlowFailed) as failed:
                        running[name].wait_until_idle()
                    cause = failed.value.__cause__
                    assert isinstance(cause, CorruptHome), name
                    if name != "staged":
                        assert "the sink is older than the checkpoint" in str(cause), name
                        assert ("view rebuild" if name == "seen" else f'name="{name}_2"') in cause.hint
        shutil.move(tmp_path / "manifest", home / f"flows/staged/v1/stages/{last}.json")

    # The topic went on.
    restore(BATCHES - 1, "views/seen", "out/files")
    own.committed_batch = last
    with mainstem.open(home, upkeep="manual", spark=spark) as stem:
        stem.run(flows, until="idle")
        ids = list(range(10 * (2 * BATCHES - 1)))
        assert stem.view("seen").to_arrow().sort_by("id").column("id").to_pylist() == ids
        assert stem.view("staged").to_arrow().sort_by("id").column("id").to_pylist() == ids
        assert sorted(stem.files(home / "out/files").to_arrow().column("id").to_pylist()) == ids
        odd = [number for number in ids if number // 10 % 2 == 1]
        assert sorted(stem.topic("copied").to_arrow().column("id").to_pylist()) == odd


def files_flow(stem: Mainstem) -> Iterator[Flow]:
    yield Flow(stem.topic("orders").stream().drop("record"), into=stem.files("out/x"))


def test_a_flow_that_finds_another_folder_is_stopped_and_a_folder_that_was_moved_is_not(
    stem: Mainstem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stem.create_topic("orders", schema="id BIGINT, odd BOOLEAN")
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    stem.topic("orders").append(rows_of(0))
    stem.run(files_flow, until="idle")
    stem.topic("orders").append(rows_of(1))

    monkeypatch.chdir(tmp_path / "b")
    for there in (False, True):
        if there:
            other = tmp_path / "b/out/x/_mainstem"
            shutil.copytree(tmp_path / "a/out/x/_mainstem", other)
            facts = decode_checked((other / "sink.json").read_bytes())
            (other / "sink.json").write_bytes(encode_checked({**facts, "id": "another"}))
        with pytest.raises(FlowFailed) as failed:
            stem.run(files_flow, until="idle")
        cause = failed.value.__cause__
        assert isinstance(cause, Conflict)
        assert cause.summary == f'flow "out.x" has written into a different folder so far: "{tmp_path}/a/out/x"'
        assert (
            f'"{tmp_path}/b/out/x", which {"has a different id" if there else "no flow has written into"}'
            in cause.detail
        )
        assert f'stem.files("{tmp_path}/a/out/x")' in cause.hint
    shutil.rmtree(tmp_path / "b/out")

    (tmp_path / "a/out").rename(tmp_path / "c/out")
    monkeypatch.chdir(tmp_path / "c")
    stem.run(files_flow, until="idle")
    assert sorted(stem.files("out/x").to_arrow().column("id").to_pylist()) == list(range(20))

    shutil.rmtree(tmp_path / "c/out/x")
    with pytest.raises(FlowFailed) as failed:
        stem.run(files_flow, until="idle")
    assert "It was deleted since" in failed.value.__cause__.detail


def test_a_batch_whose_note_was_cut_short_is_noted_when_the_next_run_begins(
    stem: Mainstem, monkeypatch: pytest.MonkeyPatch
) -> None:
    stem.create_topic("orders", schema="id BIGINT, odd BOOLEAN")
    stem.topic("orders").append(rows_of(1))

    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(stem.topic("orders").stream().drop("record"), into=stem.topic("copied"))

    def killed(checkpoint: str, batch: int) -> None:
        if batch >= 0:
            raise Died("before the note")

    with monkeypatch.context() as patch:
        patch.setattr(runner, "note_rows", killed)
        with pytest.raises(FlowFailed):
            stem.run(flows, until="idle")
    notes = Path(stem.home) / "flows/copied/v1/sink_rows"
    assert not notes.exists()
    stem.run(flows, until="idle")
    assert [path.name for path in notes.iterdir()] == ["0"]
    assert stem.topic("copied").to_arrow().num_rows == 10
