"""Sealing: what was in blocks is in a Parquet file afterwards, the same for every reader, whenever it is cut short."""

import errno
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mainstem.clock import ManualClock
from mainstem.errors import DiskFull, Unavailable
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.embedded.read import sealed_segment
from mainstem.log.embedded.upkeep.sealing import seal
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.log.embedded.memory_files import MemoryFiles
from tests.log.embedded.upkeep_home import SCHEMA, accounted, fill, manifest_of, opened, partition_of, sealed, shown


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def stem(files: MemoryFiles, clock: ManualClock) -> Mainstem:
    return opened(files, clock)


@pytest.fixture
def topic(stem: Mainstem) -> Topic:
    return stem.create_topic("orders", schema=SCHEMA, key="k")


def test_rows_are_the_same_after_sealing(stem: Mainstem, clock: ManualClock) -> None:
    orders = stem.create_topic(
        "rich",
        schema="k string, at timestamp, tags array<string>, place struct<x: double, y: double>",
        key="k",
        event_time="at",
    )
    headers = [{"key": "trace", "value": b"\0\x01"}]
    row = {"k": "a", "at": datetime(2026, 1, 1, tzinfo=UTC), "tags": ["x", None], "place": {"x": 1.0, "y": None}}
    orders.append([row, {**row, "k": "b", "record": {"change": "update", "headers": headers}}])
    clock.advance("1 minute")
    orders.append([{**row, "k": "c", "tags": None, "place": None}])
    orders.delete(["a"])
    before = orders.to_arrow(watermark="10 seconds")
    assert orders.seal() == 1
    assert orders.to_arrow(watermark="10 seconds").equals(before)
    assert orders.to_arrow(columns=["at"]).equals(before.drop_columns(["k", "tags", "place", "record"]).append_column(
        before.schema.field("record").with_type(orders.to_arrow().schema.field("record").type),
        orders.to_arrow().column("record"),
    ))  # fmt: skip


def test_several_closed_segments_become_one_file_and_the_blocks_go(files: MemoryFiles, topic: Topic) -> None:
    partition = partition_of(topic)
    for number in range(4):
        fill(topic, [("a", number)])
        partition.roll()
    assert len([name for name in files.names(partition.folder) if name.endswith(".blocks")]) == 5
    assert topic.seal() == 1
    names = files.names(partition.folder)
    assert [len([name for name in names if name.endswith(end)]) for end in (".parquet", ".blocks", ".index")] == [
        1,
        1,
        1,
    ]
    assert shown(topic) == [(0, "a", 0), (1, "a", 1), (2, "a", 2), (3, "a", 3)]
    assert topic.seal() == 0


def test_a_file_is_not_much_larger_than_a_segment(stem: Mainstem) -> None:
    topic = stem.create_topic("small", schema=SCHEMA, key="k", segment_bytes_max=2000)
    for number in range(30):
        fill(topic, [("a", number)] * 10)
    assert topic.seal() > 3
    assert [number for _, _, number in shown(topic)] == [number for number in range(30) for _ in range(10)]
    assert accounted(manifest_of(topic)) == [0] * len(manifest_of(topic).segments)


def test_it_stops_at_an_open_transaction_and_leaves_aborted_records_out(stem: Mainstem, topic: Topic) -> None:
    fill(topic, [("a", 0)])
    undone = stem.transaction()
    undone.append(topic, [{"k": "b", "n": 1}, {"k": "b", "n": 2}])
    undone.abort()
    done = stem.transaction()
    done.append(topic, [{"k": "c", "n": 3}])
    topic.seal()
    fill(topic, [("d", 4)])
    topic.seal()
    # Everything behind the first record of the open one waits, and blocks before it in its segment with it.
    assert manifest_of(topic).end == 0
    done.commit()
    assert topic.seal() == 1
    manifest = manifest_of(topic)
    assert shown(topic) == [(0, "a", 0), (4, "c", 3), (5, "d", 4)]
    assert manifest.segments[0].marked == 2
    assert manifest.segments[0].aborted == [[1, 3]]
    assert accounted(manifest) == [0]


def test_columns_that_were_added_are_null_in_what_was_there(stem: Mainstem, topic: Topic) -> None:
    sealed(topic, [("a", 0)])
    fill(topic, [("b", 1)])
    topic.alter(schema="k string, n bigint, note string")
    topic.append([{"k": "c", "n": 2, "note": "new"}])
    before = topic.to_arrow()
    topic.seal()
    assert topic.to_arrow().equals(before)
    assert topic.to_arrow().column("note").to_pylist() == [None, None, "new"]
    assert [entry.schema_version for entry in manifest_of(topic).segments] == [1, 2]


def test_another_process_may_have_altered_the_topic_meanwhile(
    files: MemoryFiles, clock: ManualClock, topic: Topic
) -> None:
    with opened(files.process(), clock) as other:
        other.topic("orders").alter(schema="k string, n bigint, note string")
        other.topic("orders").append([{"k": "c", "n": 2, "note": "new"}])
        partition_of(topic).roll()
        topic.seal()
        assert other.topic("orders").to_arrow().column("note").to_pylist() == ["new"]
        assert topic.to_arrow().column("note").to_pylist() == ["new"]


def test_single_appends_become_one_row_group(files: MemoryFiles, topic: Topic) -> None:
    for number in range(300):
        fill(topic, [("a", number)])
    topic.seal()
    entry = manifest_of(topic).segments[0]
    data = files.content(f"{partition_of(topic).folder}/{entry.file}")
    assert pq.ParquetFile(pa.BufferReader(data)).num_row_groups == 1


def test_a_row_group_has_a_bound_in_bytes(files: MemoryFiles, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_segment, "ROW_GROUP_BYTES", 100_000)
    monkeypatch.setattr("mainstem.log.embedded.upkeep.sealing.BATCH_BYTES", 10_000)
    for number in range(10):
        topic.append([{"k": "x" * 40_000, "n": number}])
    topic.seal()
    entry = manifest_of(topic).segments[0]
    data = files.content(f"{partition_of(topic).folder}/{entry.file}")
    assert pq.ParquetFile(pa.BufferReader(data)).num_row_groups >= 3
    assert [number for _, _, number in shown(topic, start={0: 4}, stop={0: 7})] == [4, 5, 6]


def test_a_reader_under_way_goes_on(topic: Topic) -> None:
    for number in range(3):
        fill(topic, [("a", number)])
        partition_of(topic).roll()
    reading = topic.batches()
    seen = [next(reading).column("n").to_pylist()]
    topic.seal()
    seen += [batch.column("n").to_pylist() for batch in reading]
    assert [number for numbers in seen for number in numbers] == [0, 1, 2]


def test_a_partition_that_was_taken_over_is_sealed_up_to_where_it_was(topic: Topic) -> None:
    fill(topic, [("a", 0), ("b", 1)])
    topic.take_over()
    fill(topic, [("c", 2)])
    topic.seal()
    assert shown(topic) == [(0, "a", 0), (1, "b", 1), (2, "c", 2)]


def test_what_a_cut_short_pass_left_is_removed(files: MemoryFiles, topic: Topic) -> None:
    folder = partition_of(topic).folder
    fill(topic, [("a", 0)])
    files.put(f"{folder}/00000000000000000000-00000000.parquet", b"half")
    files.put(f"{folder}/00000000000000000000-11111111.parquet.new", b"half")
    topic.seal()
    assert [name for name in files.names(folder) if "parquet" in name] == [manifest_of(topic).segments[0].file]


def test_any_tool_can_read_a_sealed_file(tmp_path: Path) -> None:
    with Mainstem(EmbeddedLog(tmp_path / "home")) as stem:
        topic = stem.create_topic("orders", schema=SCHEMA, key="k")
        sealed(topic, [("a", 1), ("b", 2)])
        [file] = (tmp_path / "home" / "topics" / "orders" / "0").glob("*.parquet")
        assert pq.read_table(file).column("n").to_pylist() == [1, 2]
        found = duckdb.sql(f"SELECT k, record.offset, record.change FROM '{file}' ORDER BY record.offset").fetchall()
        assert found == [("a", 0, "insert"), ("b", 1, "insert")]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_call_that_fails_leaves_everything_as_it_was(files: MemoryFiles, clock: ManualClock, error: int) -> None:
    with opened(files, clock) as stem:
        topic = stem.create_topic("orders", schema=SCHEMA, key="k")
        fill(topic, [("a", number) for number in range(50)])
        partition_of(topic).roll()
        files.sync_everything()
        before = shown(topic)
    refusal = DiskFull if error == errno.ENOSPC else Unavailable
    number, failed = 0, True
    while failed:
        number += 1
        copy = files.copy()
        with opened(copy, clock) as stem:
            topic = stem.topic("orders")
            copy.fail_at(number, error)
            try:
                seal(topic.backend.store, 0)  # type: ignore[attr-defined]
                failed = bool(copy.machine.failed)
            except refusal:
                pass
            copy.machine.fails.clear()
            assert shown(topic) == before
            topic.seal()
            assert shown(topic) == before
            names = copy.names(partition_of(topic).folder)
            assert len([name for name in names if ".parquet" in name]) == 1
    assert number > 50
