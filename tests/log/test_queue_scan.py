"""The walk over what a queue has not looked at: every chunk size, every start, and what vanishes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.clock import ManualClock
from mainstem.log.queues.queue_scan import PartitionScan, QueueScan
from tests.log.memory_ledger import MemoryTopic

SCHEMA = pa.schema([("n", pa.int64()), ("kind", pa.string())])


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mainstem.log.queues.queue_scan.CHUNK_ROWS", 3)
        patch.setattr("mainstem.log.queues.queue_scan.CHUNKS_WITH_ROWS", 2)
        yield


def topic_of(*numbers: int) -> MemoryTopic:
    topic = MemoryTopic(SCHEMA, ManualClock(), key=("kind",))
    topic.append(0, *({"n": n, "kind": f"k{n}"} for n in numbers))
    return topic


def even(batch: pa.RecordBatch) -> pa.BooleanArray:
    return pc.equal(pc.bit_wise_and(batch.column("n"), 1), 0)


def walked(walk: PartitionScan) -> list[int]:
    found = []
    while (row := walk.peek()) is not None:
        found.append(row.offset)
        walk.advance()
    return found


@given(st.lists(st.booleans(), max_size=20), st.lists(st.integers(0, 22), min_size=1, max_size=4), st.booleans())
def test_every_row_that_passes_from_the_cursor_on(present: list[bool], cursors: list[int], counted: bool) -> None:
    topic = topic_of(*range(len(present)))
    topic.compact(0, *(offset for offset, there in enumerate(present) if not there))
    scan = QueueScan(topic, even)
    for cursor in cursors:
        expected = [o for o, there in enumerate(present) if there and o >= cursor and o % 2 == 0]
        walk = scan.ahead(0, cursor)
        if counted:
            assert walk.count() == len(expected)
        assert walked(walk) == expected
        kept = [offset for offset, there in enumerate(present) if there]
        assert walk.position == max(cursor, kept[-1] + 1 if kept else 0)


def test_the_position_is_behind_what_was_passed_and_no_further() -> None:
    walk = QueueScan(topic_of(1, 2, 3, 4, 5), even).ahead(0, 0)
    assert [walk.position, walk.peek() is not None, walk.position] == [0, True, 0]
    walk.advance()
    assert walk.position == 2
    walk.peek()
    assert walk.position == 3


def test_what_is_appended_later_is_found() -> None:
    topic = topic_of(0)
    scan = QueueScan(topic, None)
    assert walked(scan.ahead(0, 0)) == [0]
    topic.append(0, {"n": 1}, {"n": 2})
    assert walked(scan.ahead(0, 1)) == [1, 2]
    assert walked(scan.ahead(0, 0)) == [0, 1, 2]


def test_rows_counted_only_are_read_again_without_what_came_since() -> None:
    topic = topic_of(*range(8))
    scan = QueueScan(topic, None)
    assert scan.ahead(0, 0).count() == 8
    topic.append(0, {"n": 8}, {"n": 9})
    assert walked(scan.ahead(0, 6)) == [6, 7, 8, 9]
    row = scan.row(0, 7)
    assert row is not None
    assert row.column("n").to_pylist() == [7]


def test_rows_counted_only_that_are_gone_since() -> None:
    topic = topic_of(*range(9))
    scan = QueueScan(topic, None)
    assert scan.ahead(0, 0).count() == 9
    topic.compact(0, 6, 7, 8)
    assert walked(scan.ahead(0, 6)) == []


def test_a_single_row() -> None:
    topic = topic_of(*range(4))
    topic.compact(0, 2)
    topic.drop(0, 1)
    scan = QueueScan(topic, None)
    assert [scan.row(0, offset) is None for offset in range(5)] == [True, False, True, False, True]


def test_keys_are_text() -> None:
    topic = topic_of(7)
    topic.append(0, {"n": 8})
    walk = QueueScan(topic, None, by_key=("kind",)).ahead(0, 0)
    first = walk.peek()
    walk.advance()
    second = walk.peek()
    assert first is not None
    assert second is not None
    assert (first.key, second.key) == ("k7", None)
