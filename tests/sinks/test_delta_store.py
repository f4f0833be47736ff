"""A Delta table keeps the contract of a store, whatever others do to it that Delta allows."""

from __future__ import annotations

import json
import os
import random
import shutil
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType

from mainstem.errors import Conflict, DiskFull, Invalid, Unavailable
from mainstem.sinks import delta_store
from mainstem.sinks.delta_store import DeltaStore
from mainstem.sinks.store_backend import Fence, FenceMoved, StoreChange
from mainstem.testing.store_contract import StoreContract
from mainstem.testing.store_trial import SCHEMA, VALUES, StoreTrial, batch_of, changes, rows_after
from tests.sinks.delta_writers import (
    BATCHES,
    TwoCommits,
    WithoutLooking,
    begun,
    commit_round,
    kill_writer,
    race_processes,
)

SEED = 7_103


class TestDeltaStore(StoreContract):
    kills = 1  # More of them are below, and cost less.

    def opens_with(self, folder: Path) -> tuple[str, dict[str, Any]]:
        return "mainstem.sinks.delta_store:DeltaStore", {"path": str(folder / "lake/tried")}

    def save(self, folder: Path) -> Path | None:
        if not (folder / "lake").exists():
            return None
        return Path(shutil.copytree(folder / "lake", folder / "saved" / uuid.uuid4().hex))

    def restore(self, folder: Path, saved: Path | None) -> None:
        shutil.rmtree(folder / "lake", ignore_errors=True)
        if saved is not None:
            shutil.copytree(saved, folder / "lake")

    def put_foreign(self, folder: Path) -> bool:
        write_deltalake(folder / "lake/tried", pa.table({"id": [1]}))
        return True


def trial_in(folder: Path, key: tuple[str, ...] = ("id",)) -> StoreTrial:
    return StoreTrial(folder, "mainstem.sinks.delta_store:DeltaStore", {"path": str(folder / "lake/tried")}, key)


def table_in(folder: Path) -> DeltaTable:
    return DeltaTable(str(folder / "lake/tried"))


def test_without_a_key_rows_are_appended(tmp_path: Path) -> None:
    trial = trial_in(tmp_path, ())
    writer = trial.begin(1)
    for number in range(2):
        trial.write(writer, number, changes([(1, "a", "insert"), (1, "a", "insert"), (None, None, "insert")]))
    trial.write(writer, 2, changes([]))
    found = trial.store.to_arrow()
    assert found.num_rows == 6
    assert sorted(found.column("id").to_pylist(), key=str) == [1, 1, 1, 1, None, None]
    following = trial.begin(2, version=2)
    trial.write(following, 2, changes([(7, "b", "insert")]))
    assert following.finish()
    assert trial.rows() == {7: "b"}
    assert table_in(tmp_path).to_pyarrow_table().num_rows == 1


def test_keys_of_every_type_find_their_rows(tmp_path: Path) -> None:
    for number, (data_type, given) in enumerate(VALUES):
        if pa.types.is_nested(data_type):
            continue
        schema = pa.schema([("id", data_type), ("title", pa.string()), SCHEMA.field("record")])
        trial = trial_in(tmp_path / str(number))
        writer = trial.begin(1, schema=schema)
        for batch in range(2):
            rows = [(value, f"{value!r} {batch}", "insert") for value in given]
            trial.write(writer, batch, changes(rows, schema, first=1_000 * batch))
        values = list({repr(value): value for value in given}.values())
        assert trial.store.to_arrow().num_rows == len(values)
        for value in [*values[:5], values[-1]] if len(values) > 5 else values:
            found = trial.store.get(value)
            assert found is not None, (data_type, value)
            assert found["title"] == f"{value!r} 1"
            trial.write(writer, trial.store.status.batch + 1, changes([(value, None, "delete")], schema, first=5_000))
            assert trial.store.get(value) is None, (data_type, value)


# What others do


def test_foreign_content_is_refused(tmp_path: Path) -> None:
    for name, make in {
        "table": lambda path: write_deltalake(path, pa.table({"id": [1]})),
        "files": lambda path: (path.mkdir(), (path / "a.parquet").write_bytes(b"x")),
        "file": lambda path: path.write_text("x"),
        "broken": lambda path: (
            (path / "_delta_log").mkdir(parents=True),
            (path / f"_delta_log/{0:020}.json").write_text("{"),
        ),
    }.items():
        (folder := tmp_path / name / "lake").mkdir(parents=True)
        make(folder / "tried")
        trial = trial_in(tmp_path / name)
        with pytest.raises(Conflict) as raised:
            trial.begin(1)
        assert raised.value.hint
        with pytest.raises(Conflict):
            trial.backend.fences()
    assert DeltaTable(str(tmp_path / "table/lake/tried")).version() == 0


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "lake/tried").mkdir(parents=True)
    trial = trial_in(tmp_path)
    trial.write(trial.begin(1), 0, batch_of(0))
    assert trial.rows() == rows_after(0)


def test_object_stores_and_columns_that_delta_has_not_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="not a local path"):
        DeltaStore("s3://bucket/table")
    store = DeltaStore(tmp_path / "t")
    for schema in (
        pa.schema([("id", pa.int64()), ("at", pa.time64("us"))]),
        pa.schema([("id", pa.int64()), ("ID", pa.int64())]),
        pa.schema([("id", pa.int64()), ("a b", pa.int64())]),
        pa.schema([("id", pa.int64()), ("s", pa.list_(pa.struct([("a=b", pa.int64())])))]),
        pa.schema([("id", pa.list_(pa.int64()))]),
    ):
        with pytest.raises(Invalid) as raised:
            store.check(schema, ("id",))
        assert raised.value.detail
        assert raised.value.hint


def test_maintenance_by_others_and_clean_up_of_the_log_leave_the_fence(tmp_path: Path) -> None:
    trial = trial_in(tmp_path)
    writer = trial.begin(1)
    for number in range(6):
        trial.write(writer, number, batch_of(number))
        other = table_in(tmp_path)
        if number == 1:
            other.optimize.z_order(["id"])
        elif number == 2:
            other.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        elif number == 3:
            other.alter.add_columns([Field("note", PrimitiveType("string"))])
            table_in(tmp_path).update({"note": "'seen'"})
        elif number == 4:
            other.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
            (other := table_in(tmp_path)).create_checkpoint()
            other.cleanup_metadata()
    log = tmp_path / "lake/tried/_delta_log"
    assert len(list(log.glob("*.json"))) < table_in(tmp_path).version()
    assert writer.find_change() is None
    trial.write(writer, 6, batch_of(6))
    assert trial.rows() == rows_after(6)
    notes = {row["id"]: row["note"] for row in table_in(tmp_path).to_pyarrow_table().to_pylist()}
    assert notes == {key: "seen" if key <= 12 else None for key in rows_after(6)}
    assert trial.begin(2).committed_batch == 6


def test_the_fence_is_whole_when_no_commit_of_ours_is_left_in_the_log(tmp_path: Path) -> None:
    trial = trial_in(tmp_path)
    writer = trial.begin(1)
    trial.write(writer, 0, batch_of(0))
    before = trial.backend.fences()
    short = dict.fromkeys(["delta.logRetentionDuration", "delta.setTransactionRetentionDuration"], "interval 0 days")
    for _ in range(3):
        table_in(tmp_path).alter.set_table_properties(short)
    (other := table_in(tmp_path)).create_checkpoint()
    other.cleanup_metadata()
    for path in (tmp_path / "lake/tried/_delta_log").glob("*.json"):
        if "mainstem.batch" in path.read_text():
            path.unlink()
    assert trial.backend.fences() == before
    trial.write(writer, 1, batch_of(1))
    assert trial.rows() == rows_after(1)


def test_columns_of_others_stay_when_it_is_filled_again(tmp_path: Path) -> None:
    trial = trial_in(tmp_path)
    writer = trial.begin(1)
    trial.write(writer, 0, changes([(1, "old", "insert"), (2, "old", "insert")]))
    table_in(tmp_path).alter.add_columns([Field("note", PrimitiveType("string"))])
    table_in(tmp_path).update({"note": "concat('note ', cast(id as string))"})
    following = trial.begin(2, version=2)
    trial.write(following, 0, changes([(2, "new", "insert"), (3, "new", "insert")]))
    assert following.finish()
    found = table_in(tmp_path).to_pyarrow_table().sort_by("id").to_pylist()
    assert found == [{"id": 2, "title": "new", "note": "note 2"}, {"id": 3, "title": "new", "note": None}]
    wider = pa.schema([*list(SCHEMA)[:2], ("note", pa.string()), SCHEMA.field("record")])
    with pytest.raises(Conflict, match="note"):
        trial.begin(3, version=2, schema=wider)


def test_time_travel_of_the_live_table_stays_after_a_switch(tmp_path: Path) -> None:
    trial = trial_in(tmp_path)
    trial.write(trial.begin(1), 0, changes([(1, "old", "insert")]))
    version = table_in(tmp_path).version()
    following = trial.begin(2, version=2)
    trial.write(following, 0, changes([(2, "new", "insert")]))
    assert following.finish()
    old = DeltaTable(str(tmp_path / "lake/tried"), version=version)
    assert old.to_pyarrow_table().to_pylist() == [{"id": 1, "title": "old"}]
    assert sorted(path.name for path in (tmp_path / "lake").iterdir()) == ["tried"]


def test_what_a_killed_switch_left_beside_is_removed(tmp_path: Path) -> None:
    trial = trial_in(tmp_path)
    trial.write(trial.begin(1), 0, changes([(1, "old", "insert")]))
    following = trial.begin(2, version=2)
    trial.write(following, 0, changes([(2, "new", "insert")]))
    shutil.copytree(tmp_path / "lake/.tried.next", tmp_path / "left")
    assert following.finish()
    shutil.move(tmp_path / "left", tmp_path / "lake/.tried.next")
    assert trial.store.status.state == "current"
    trial.begin(3, version=2)
    assert sorted(path.name for path in (tmp_path / "lake").iterdir()) == ["tried"]
    assert trial.rows() == {2: "new"}


def test_who_reads_the_next_version_while_it_becomes_the_live_one_finds_it_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_in(tmp_path)
    trial.write(trial.begin(1), 0, changes([(1, "old", "insert")]))
    following = trial.begin(2, version=2)
    trial.write(following, 0, changes([(2, "new", "insert")]))
    read_fence, finished = delta_store.read_fence, []

    def finish_first(table: DeltaTable) -> Fence | None:
        if not finished and table.table_uri.rstrip("/").endswith(".tried.next"):
            finished.append(table)
            assert following.finish()
        return read_fence(table)

    monkeypatch.setattr(delta_store, "read_fence", finish_first)
    fences = DeltaStore(tmp_path / "lake/tried").fences()
    assert finished
    assert fences.live is not None
    assert (fences.live.version, fences.beside) == (2, None)


def test_a_live_table_that_vanished_while_the_next_was_filled(tmp_path: Path) -> None:
    trial = trial_in(tmp_path)
    trial.write(trial.begin(1), 0, changes([(1, "old", "insert")]))
    following = trial.begin(2, version=2)
    trial.write(following, 0, changes([(2, "new", "insert")]))
    shutil.rmtree(tmp_path / "lake/tried")
    assert following.finish()
    assert trial.rows() == {2: "new"}


def test_a_column_that_somebody_dropped_is_said(tmp_path: Path) -> None:
    trial = trial_in(tmp_path)
    writer = trial.begin(1)
    trial.write(writer, 0, batch_of(0))
    write_deltalake(table_in(tmp_path), pa.table({"id": [1]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(Conflict, match="title"):
        trial.write(writer, 1, batch_of(1))


def test_odd_paths_are_paths(tmp_path: Path) -> None:
    for name in ("100%20", "%2e%2e", "[x]*", "a\\b", "a\nb"):
        with pytest.raises(Invalid, match="path"):
            DeltaStore(tmp_path / name / "t")
    for name in ("a b", "ü#x?y", "a'b"):
        (folder := tmp_path / name).mkdir()
        trial = trial_in(folder)
        writer = trial.begin(1)
        trial.write(writer, 0, batch_of(0))
        following = trial.begin(2, version=2)
        trial.write(following, 0, batch_of(0))
        assert following.finish()
        assert trial.rows() == rows_after(0), name
        assert trial.store.get(3) is not None
        assert [path.name for path in folder.iterdir()] == ["lake"], name
    assert len(list(tmp_path.iterdir())) == 3


def test_features_that_deltalake_has_not_are_said_and_nothing_is_removed(tmp_path: Path) -> None:
    trial = trial_in(tmp_path)
    writer = trial.begin(1)
    trial.write(writer, 0, batch_of(0))
    for feature in ("typeWidening", "unheardOf"):
        entry = tmp_path / f"lake/tried/_delta_log/{table_in(tmp_path).version() + 1:020}.json"
        features = {"readerFeatures": [feature], "writerFeatures": [feature]}
        entry.write_text(json.dumps({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}) + "\n")
        with pytest.raises(Invalid, match="features"):
            trial.write(writer, 1, batch_of(1))
    with pytest.raises(Invalid, match="features"):
        trial.begin(2)
    assert [path.name for path in (tmp_path / "lake").iterdir()] == ["tried"]
    assert entry.exists()


@pytest.mark.parametrize("times", [1, 100])
def test_a_commit_by_others_in_between_makes_a_batch_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    trial = trial_in(tmp_path, ())
    writer = trial.begin(1)
    trial.write(writer, 0, batch_of(0))
    write, left = DeltaStore._write, [times]

    def write_late(store: DeltaStore, table: DeltaTable, change: StoreChange) -> None:
        if left[0]:
            left[0] -= 1
            write_deltalake(
                table.table_uri, pa.table({"id": pa.array([], pa.int64())}), mode="append", schema_mode="merge"
            )
        write(store, table, change)

    monkeypatch.setattr(DeltaStore, "_write", write_late)
    if times == 1:
        trial.write(writer, 1, batch_of(1))
    else:
        with pytest.raises(Unavailable, match="others commit"):
            trial.write(writer, 1, batch_of(1))
    monkeypatch.undo()
    assert trial.store.reached(1) == (1 if times == 1 else 0)
    assert trial.store.to_arrow().num_rows == (22 if times == 1 else 11)


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = trial_in(tmp_path)
    writer = trial.begin(1)

    def fail(*_: object, **__: object) -> None:
        raise DeltaError("Generic LocalFileSystem error: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr("mainstem.sinks.delta_store._merge", fail)
        with pytest.raises(DiskFull) as raised:
            trial.write(writer, 0, batch_of(0))
        assert raised.value.hint
    assert writer.find_change() is None
    trial.write(writer, 0, batch_of(0))
    assert trial.rows() == rows_after(0)


def test_a_table_that_was_restored_to_an_older_version_is_noticed(tmp_path: Path) -> None:
    trial = trial_in(tmp_path)
    writer = trial.begin(1)
    trial.write(writer, 0, batch_of(0))
    version = table_in(tmp_path).version()
    trial.write(writer, 1, batch_of(1))
    table_in(tmp_path).restore(version)
    assert isinstance(writer.find_change(), Unavailable)
    with pytest.raises(Unavailable):
        trial.write(writer, 2, batch_of(2))
    assert trial.store.reached(1) == 0
    writer = trial.begin(2)
    trial.write(writer, 1, batch_of(1))
    assert trial.rows() == rows_after(1)


@pytest.mark.parametrize("damage", ["log", "rows", "facts", "folder"])
def test_a_damaged_table_is_empty_and_can_be_filled_again(tmp_path: Path, damage: str) -> None:
    trial = trial_in(tmp_path)
    writer = trial.begin(1)
    trial.write(writer, 0, batch_of(0))
    folder = tmp_path / "lake/tried"
    if damage == "log":
        (folder / f"_delta_log/{1:020}.json").write_text('{"add')
    elif damage == "rows":
        next(folder.glob("*.parquet")).unlink()
    elif damage == "facts":
        facts = dict.fromkeys(table_in(tmp_path).metadata().configuration, "{}")
        table_in(tmp_path).alter.set_table_properties(facts, raise_if_not_exists=False)
    else:
        shutil.rmtree(folder)
    assert trial.backend.fences() == (None, None)
    assert isinstance(writer.find_change(), Unavailable)
    trial.go_on(2, 3)
    assert trial.rows() == rows_after(3)
    # Whatever it was, it was somebody's.
    assert (tmp_path / "lake/.tried.damaged").exists() == (damage != "folder")


def test_small_files_are_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem.sinks.delta_store.COMPACT_EVERY", 20)
    trial = trial_in(tmp_path, ())
    writer = trial.begin(1)
    for number in range(45):
        trial.write(writer, number, changes([(number, "x", "insert")]))
    assert writer.find_change() is None
    assert len(table_in(tmp_path).file_uris()) < 20
    assert sorted(trial.store.to_arrow().column("id").to_pylist()) == list(range(45))
    assert trial.begin(2).committed_batch == 44


def test_the_log_checkpoints_itself(tmp_path: Path) -> None:
    backend, fence = begun(tmp_path)
    for batch in range(102):
        fence = commit_round(backend, fence, batch, who=0)
    assert list((tmp_path / "lake/raced/_delta_log").glob("*.checkpoint.parquet"))
    assert backend.fences().live == fence


# Races


def race_threads(folder: Path, rounds: int, kind: type[DeltaStore] = DeltaStore) -> list[str]:
    """Two writers commit after the same fence; which rounds did not have exactly one winner."""
    backend, fence = begun(folder, kind)
    barrier = Barrier(2)
    stores = [kind(backend.path) for _ in range(2)]

    def run(who: int, number: int) -> bool:
        barrier.wait(30)
        try:
            commit_round(stores[who], fence, number, who)
        except FenceMoved:
            return False
        return True

    wrong = []
    with ThreadPoolExecutor(2) as pool:
        for number in range(rounds):
            won = list(pool.map(run, range(2), [number] * 2))
            rows = [row for row in DeltaTable(backend.path).to_pyarrow_table().to_pylist() if row["id"] == number]
            if sum(won) != 1 or len(rows) != 1 or rows[0]["title"] != str(won.index(True)):
                wrong.append(f"round {number}: {won}, {rows}")
                break
            live = backend.fences().live
            assert live is not None
            fence = live
    return wrong


@pytest.mark.parametrize("rounds", [20, pytest.param(100, marks=pytest.mark.long)])
def test_of_two_writers_one_wins(tmp_path: Path, rounds: int, fault_report: Callable[..., None]) -> None:
    (tmp_path / "threads").mkdir()
    (tmp_path / "processes").mkdir()
    wrong = race_threads(tmp_path / "threads", rounds) + race_processes(tmp_path / "processes", rounds)
    fault_report("races of Delta writers", points=2 * rounds, compared=2 * rounds, violations=wrong)


def test_a_writer_that_does_not_look_first_is_caught(tmp_path: Path) -> None:
    assert race_threads(tmp_path, 20, WithoutLooking)


# Kills


def kill_writers(folder: Path, kills: int, kind: type[DeltaStore] = DeltaStore) -> tuple[int, list[str]]:
    """Kill writers at random points, and compare the rows with the fence each time."""
    chance = random.Random(SEED)
    compared, violations = 0, []
    for kill in range(kills):
        if violations:
            break
        point = chance.choice(["before_sink_commit", "store_batch_written", "sink_committed"])
        point = f"{point}:{chance.randint(1, BATCHES)}"
        key = chance.choice([(), ("id",)]) if kind is DeltaStore else ()
        (place := folder / (key[0] if key else "appended")).mkdir(exist_ok=True)
        kill_writer(place, kind, key, epoch=kill + 1, point=point)
        backend = kind(place / "lake/tried")
        fence = backend.fences().live
        assert fence is not None
        found = sorted(row["id"] for batch in backend.read(fence) for row in batch.to_pylist())
        expected = list(range((fence.batch + 1) * 10))
        compared += len(expected)
        if found != expected:
            violations.append(f"kill {kill} at {point}: {len(found)} rows after batch {fence.batch}")
    return compared, violations


@pytest.mark.thorough
@pytest.mark.parametrize("kills", [20, pytest.param(100, marks=pytest.mark.long)])
def test_killed_writers_leave_each_batch_once(tmp_path: Path, kills: int, fault_report: Callable[..., None]) -> None:
    compared, violations = kill_writers(tmp_path, kills)
    fault_report("killed writers of a Delta table", points=kills, compared=compared, violations=violations, seed=SEED)


def test_a_writer_with_two_commits_is_caught(tmp_path: Path) -> None:
    assert kill_writers(tmp_path, 20, TwoCommits)[1]


@pytest.mark.long
class TestKilledDeltaStore(TestDeltaStore):
    kills = 20


@pytest.mark.forks
def test_a_forked_process_is_told_why_it_cannot_use_the_table(tmp_path: Path) -> None:
    trial = trial_in(tmp_path)
    trial.write(trial.begin(1), 0, batch_of(0))
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        try:
            trial.rows()
            os.write(writes, b"read")
        except Invalid as error:
            os.write(writes, "\n".join((error.summary, error.detail, error.hint)).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads) as answer:
        summary, detail, hint = answer.read().splitlines()
    os.waitpid(child, 0)
    assert summary == f"{trial.backend.location} cannot be used in a forked process"
    assert f"before it forked process {child}" in detail
    assert "spawn" in hint
    assert trial.rows() == rows_after(0)
