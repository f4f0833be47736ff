"""Batches into a folder of files: each once, whatever happens to who writes them."""

import glob
import os
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import mainstem
from mainstem.batch import Batch, FlowRun
from mainstem.errors import Conflict, Corrupt, Fenced, Invalid, InvalidRows, NotFound, SchemaMismatch
from mainstem.sinks.file_commits import MERGED
from mainstem.spark.checkpoint.rejected_rows import RejectedRows
from tests.sinks.arrow_file_writer import SCHEMA, begin, committed_ids, globbed_ids, rows_of, sink_at, write


def test_what_was_written_is_read_back_by_everybody(tmp_path: Path) -> None:
    run, writer = begin(tmp_path)
    for batch in range(3):
        write(run, writer, batch)

    expected = pa.concat_tables([rows_of(batch) for batch in range(3)])
    ours = sink_at(tmp_path).to_arrow().sort_by("id")
    arrow = ds.dataset(tmp_path / "out" / "orders", partitioning="hive").to_table().sort_by("id")
    found = duckdb.sql(f"SELECT id, store, amount FROM '{tmp_path}/out/orders/**/*.parquet' ORDER BY id").fetchall()

    assert ours.to_pylist() == expected.to_pylist()
    assert arrow.select(SCHEMA.names).to_pylist() == expected.to_pylist()
    assert found == [tuple(row.values()) for row in expected.to_pylist()]
    assert glob.glob(f"{tmp_path}/out/.orders.staging/*") == []
    assert (tmp_path / "out/orders/store=A/out.orders-v1-000000000002-0000.parquet").exists()


def test_a_batch_without_rows_is_held_too(tmp_path: Path) -> None:
    run, writer = begin(tmp_path)
    writer.write(SCHEMA.empty_table(), Batch(0, run))

    assert (writer.committed_batch, begin(tmp_path)[1].committed_batch, committed_ids(tmp_path)) == (0, 0, [])


def test_what_was_moved_and_not_committed_is_removed_by_the_next_run(tmp_path: Path, monkeypatch) -> None:
    run, writer = begin(tmp_path)
    write(run, writer, 0)
    monkeypatch.setattr(writer._commits, "commit", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write(run, writer, 1)
    assert (committed_ids(tmp_path), globbed_ids(tmp_path)) == (list(range(10)), list(range(20)))

    run, writer = begin(tmp_path)

    assert (writer.committed_batch, globbed_ids(tmp_path)) == (0, list(range(10)))
    write(run, writer, 1)
    assert committed_ids(tmp_path) == globbed_ids(tmp_path) == list(range(20))


def test_an_older_run_commits_nothing_any_more(tmp_path: Path) -> None:
    old_run, old = begin(tmp_path)
    write(old_run, old, 0)
    run, writer = begin(tmp_path)
    with pytest.raises(Fenced):
        write(old_run, old, 1)
    write(run, writer, 1)

    assert committed_ids(tmp_path) == globbed_ids(tmp_path) == list(range(20))


def test_a_run_fenced_while_it_moves_its_files_does_not_commit_them(tmp_path: Path, monkeypatch) -> None:
    old_run, old = begin(tmp_path)
    move = old._move

    def move_and_be_replaced(*arguments):
        moved = move(*arguments)
        # The epoch is raised; the rest of the new run's beginning waits for the lock.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mainstem.sinks.file_sink.FileWriter._begin", lambda *_: None)
            begin(tmp_path)
        return moved

    monkeypatch.setattr(old, "_move", move_and_be_replaced)
    with pytest.raises(Fenced):
        write(old_run, old, 0)
    assert committed_ids(tmp_path) == []
    run, writer = begin(tmp_path)
    write(run, writer, 0)

    assert committed_ids(tmp_path) == globbed_ids(tmp_path) == list(range(10))


def test_another_version_is_refused_and_what_is_there_stays(tmp_path: Path) -> None:
    run, writer = begin(tmp_path)
    write(run, writer, 0)
    with pytest.raises(Conflict, match="cannot have another beside it") as refused:
        begin(tmp_path, version=2)
    assert "its own folder" in refused.value.hint
    assert committed_ids(tmp_path) == globbed_ids(tmp_path) == list(range(10))
    write(run, writer, 1)
    assert (sink_at(tmp_path).version, committed_ids(tmp_path)) == (1, list(range(20)))


def test_the_commits_of_many_batches_lie_in_few_files(tmp_path: Path) -> None:
    run, writer = begin(tmp_path, partition_by=())
    row = rows_of(0).slice(0, 1)
    for batch in range(2 * MERGED + 3):
        writer.write(row, Batch(batch, run))

    assert len(os.listdir(tmp_path / "out/orders/_mainstem/v1")) == 5
    assert len(sink_at(tmp_path, ()).to_arrow()) == 2 * MERGED + 3
    assert begin(tmp_path, partition_by=())[1].committed_batch == 2 * MERGED + 2


def test_a_row_whose_folder_would_be_that_of_a_null_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "metadata").write_text('{"id": "x"}')
    rows = pa.table({"id": [1, 2, 3], "store": ["A", "", None], "amount": [1.0, 2.0, 3.0]}, schema=SCHEMA)
    with mainstem.open(tmp_path / "home") as stem:
        rejected = RejectedRows(stem.log, str(tmp_path / "checkpoint"), sink="files out.orders", share_max=0.5)
        run, writer = begin(tmp_path)
        written = writer.write(rows, Batch(0, run, rejected=rejected))
        found = stem.topic("out.orders.rejected").to_arrow().to_pylist()
        with pytest.raises(InvalidRows, match="rejects 1 of 1 rows"):
            writer.write(rows.slice(1, 1), Batch(1, run, rejected=rejected))

    assert (written.rows, written.rejected, writer.committed_batch) == (2, 1, 0)
    assert [(row["id"], row["store"], row["row"]) for row in found] == [
        (2, "", '{"id": 2, "store": "", "amount": 2.0}')
    ]
    assert found[0]["rejection"]["reason"].startswith('column "store" is ""')
    assert committed_ids(tmp_path) == globbed_ids(tmp_path) == [1, 3]


@pytest.mark.parametrize(
    ("partition_by", "schema", "error", "message"),
    [
        (["shop"], SCHEMA, SchemaMismatch, 'lack the column "shop"'),
        (["amount"], SCHEMA, Invalid, "cannot be partitioned by column"),
        (["id", "id"], SCHEMA, Invalid, "partitioned by id, id"),
        (["id"], pa.schema([("id", pa.int64())]), Invalid, "partitioned by id"),
        ([], pa.schema([("nothing", pa.null())]), mainstem.MainstemError, "nothing"),
    ],
)
def test_rows_that_cannot_be_written_are_refused_at_once(tmp_path: Path, partition_by, schema, error, message) -> None:
    with pytest.raises(error, match=message):
        sink_at(tmp_path, partition_by).accept(schema)
    assert not (tmp_path / "out").exists()


def test_a_folder_belongs_to_one_flow_in_one_shape(tmp_path: Path) -> None:
    run, writer = begin(tmp_path)
    write(run, writer, 0)
    sink = sink_at(tmp_path)
    sink.accept(pa.schema([*SCHEMA, pa.field("added", pa.int32())]))
    with pytest.raises(SchemaMismatch, match='column "amount"'):
        sink.accept(pa.schema([("id", pa.int64()), ("store", pa.string()), ("amount", pa.int64())]))
    with pytest.raises(SchemaMismatch, match="is missing now"):
        sink.accept(pa.schema([("id", pa.int64()), ("store", pa.string())]))
    with pytest.raises(Conflict, match="partitioned by store, not by nothing"):
        sink_at(tmp_path, ()).accept(SCHEMA)
    other = mainstem.spark.checkpoint.flow_store.FlowStore(str(tmp_path / "home"), "another").begin()
    with pytest.raises(Conflict, match=r'written by flow "out\.orders"'):
        sink.writer(FlowRun("another", other.epoch), SCHEMA)


def test_a_folder_with_files_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out" / "orders").mkdir(parents=True)
    (tmp_path / "out" / "orders" / "old.parquet").touch()
    with pytest.raises(Conflict, match="no flow has written"):
        sink_at(tmp_path).accept(SCHEMA)
    with pytest.raises(NotFound, match="no flow has written"):
        sink_at(tmp_path).to_arrow()


@pytest.mark.parametrize("damage", ["missing", "cut", "commit"])
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    run, writer = begin(tmp_path)
    write(run, writer, 0)
    file = tmp_path / "out/orders/store=A/out.orders-v1-000000000000-0000.parquet"
    commit = tmp_path / "out/orders/_mainstem/v1/000000000000"
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        commit.write_bytes(commit.read_bytes().replace(b'"rows":10', b'"rows":11'))
    with pytest.raises(Corrupt, match=r"damaged|missing"):
        sink_at(tmp_path).to_arrow()
