"""Which sealed files are read in which batch, and what is in the log up to there: without Spark."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mainstem
from mainstem.errors import Conflict, CorruptHome
from mainstem.flows.native_catch_up import NativeCatchUp
from mainstem.log.embedded.upkeep.manifest import SealedEntry
from mainstem.log.embedded.upkeep.sealing import seal
from mainstem.log.transaction_cut import NO_SPANS, TransactionCut, TransactionSpans
from mainstem.spark.checkpoint.native_history import (
    HistoryLimits,
    NativeHistory,
    Portion,
    link_history,
    noted_history,
    portions_of,
    whole_portions,
)

EVERYTHING = HistoryLimits(rows_min=1, rows_max=1 << 40, file_rows_max=1 << 40, bytes_max=1 << 40, ordered=False)


def entry(base: int, rows: int, taken: int, appended: int) -> SealedEntry:
    """A segment of so many rows, in which some offsets are taken by other things."""
    end = base + rows + taken
    return SealedEntry(base, end, f"{base}.parquet", 100, 0, rows, 1, appended, appended, 0, 0, 0)


segments = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5), st.integers(0, 100)), max_size=8)


@given(
    drawn=st.lists(segments, min_size=1, max_size=4),
    starts=st.lists(st.integers(0, 1000), min_size=4, max_size=4),
    rows_max=st.integers(1, 200),
    files_max=st.integers(1, 5),
    ordered=st.booleans(),
)
def test_every_file_is_in_one_portion_and_each_partition_s_are_in_order(drawn, starts, rows_max, files_max, ordered):
    sealed = {}
    for number, parts in enumerate(drawn):
        base, sealed[number] = starts[number], []
        for rows, taken, appended in parts:
            sealed[number].append(entry(base, rows, taken, appended))
            base = sealed[number][-1].end
    limits = HistoryLimits(1, rows_max, 1 << 40, 1 << 40, ordered)
    portions = portions_of(sealed, dict(enumerate(starts[: len(drawn)])), limits, files_max)

    files = [name for portion in portions for name in portion.files]
    named = {f"{number}-{it.file}": (number, it) for number, parts in sealed.items() for it in parts if it.rows}
    assert sorted(files) == sorted(named)
    read = dict(enumerate(starts[: len(drawn)]))
    for portion in portions:
        within = [named[name] for name in portion.files]
        assert portion.rows == sum(it.rows for _, it in within) > 0
        assert portion.rows <= rows_max or len(within) == 1
        assert len(within) <= files_max
        assert not ordered or len({number for number, _ in within}) == len(within)
        for number, it in within:
            # All that comes before it in its partition is in already, but for what has no rows.
            assert all(other.end <= it.base for other in sealed[number] if read[number] < other.end <= it.base)
            assert read[number] <= it.base
            read[number] = it.end
        for number, end in portion.ends.items():
            # What is said to be in is in: no segment with rows lies between.
            assert read[number] <= end
            assert not any(it.rows and read[number] < it.end <= end for it in sealed[number])
            read[number] = end
    if portions:
        assert portions[-1].ends == {
            number: parts[-1].end if parts else starts[number] for number, parts in sealed.items()
        }


def test_links_stay_when_the_log_drops_its_files_and_the_note_tells_of_them(tmp_path: Path):
    checkpoint = str(tmp_path / "flows" / "f" / "v1")
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        topic = stem.create_topic("orders", schema="n BIGINT", keep="1 KiB")
        for first in (0, 100):
            topic.append([{"n": n} for n in range(first, first + 100)])
            topic.seal()
        topic.append([{"n": 200}])
        assert link_history(topic.backend, checkpoint, HistoryLimits(201, 500, 500, 1 << 40, ordered=True)) is None
        assert link_history(topic.backend, checkpoint, HistoryLimits(1, 50, 99, 1 << 40, ordered=True)) is None
        history = link_history(topic.backend, checkpoint, HistoryLimits(200, 50, 100, 1 << 40, ordered=True))
        slower = link_history(topic.backend, checkpoint, EVERYTHING)
        assert topic.drop_expired().records == 200
    assert history is not None
    assert [(portion.rows, portion.ends) for portion in history.portions] == [(100, {0: 100}), (100, {0: 200})]
    assert len(os.listdir(history.waiting)) == 2

    # Two runs at once: what the first one noted counts for both.
    history.note(checkpoint)
    assert slower is not None
    slower.note(checkpoint)
    assert noted_history(checkpoint) == history
    assert history.end == {"topic": "orders", "id": history.topic_id, "offsets": {"0": 200}}

    history.place(0)
    history.place(0)
    assert (history.find_missing(0), len(history.find_missing(1))) == ([], 1)
    history.let_go(0)
    assert os.listdir(history.read) == []
    history.remove()
    assert os.listdir(tmp_path / "flows/f/v1/history") == ["note"]


def test_a_damaged_note_is_never_believed(tmp_path: Path):
    assert noted_history(str(tmp_path)) is None
    history = NativeHistory("orders", "id", f"{tmp_path}/history/x", ())
    os.makedirs(history.waiting)
    os.makedirs(history.read)
    history.note(str(tmp_path))
    path = tmp_path / "history" / "note"
    whole = path.read_bytes()
    for place in range(len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(CorruptHome):
            noted_history(str(tmp_path))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptHome):
        noted_history(str(tmp_path))


def test_a_home_that_was_moved_goes_on_between_batches_and_is_refused_inside_of_one(tmp_path: Path):
    before, after = tmp_path / "before", tmp_path / "after"
    history = NativeHistory("orders", "id", f"{before}/history/x", (Portion(("0-a.parquet",), 5, {0: 5}),) * 2)
    os.makedirs(history.waiting)
    os.makedirs(history.read)
    history.note(str(before))
    before.rename(after)
    flow: Any = None
    log: Any = None
    begun = NativeCatchUp.begin(flow, str(after), log)
    assert begun is not None
    assert (begun.history.folder, begun.over) == (f"{after}/history/x", False)
    for folder in ("offsets", "commits"):
        (after / folder).mkdir()
    (after / "offsets" / "0").write_text('v1\n{}\n{"logOffset":0}')
    with pytest.raises(Conflict, match="was moved in the middle of a batch"):
        NativeCatchUp.begin(flow, str(after), log)
    (after / "commits" / "0").write_text("v1\n{}")
    assert NativeCatchUp.begin(flow, str(after), log) is not None
    after.rename(before)
    back = NativeCatchUp.begin(flow, str(before), log)
    assert back is not None
    assert back.history == history


def test_a_portion_of_files_ends_where_no_transaction_is_cut(tmp_path):
    with mainstem.open(tmp_path / "home") as stem:
        topic = stem.create_topic("t", schema="k STRING", key="k", partitions=2)
        rows = [{"k": str(number)} for number in range(20)]
        for _ in range(3):
            with stem.transaction() as transaction:
                transaction.append(topic, rows)
            topic.seal()
        small = HistoryLimits(1, 1, 1 << 40, 1 << 40, ordered=True)
        linked = link_history(topic.backend, str(tmp_path / "one"), small)
        assert linked is not None
        assert [portion.rows for portion in linked.portions] == [20, 20, 20]
        # One more file of one partition ends inside of a transaction: it is read from the topic.
        with stem.transaction() as transaction:
            transaction.append(topic, rows)
        topic.backend.store.partitions[0].roll()
        assert seal(topic.backend.store, 0) == 1
        again = link_history(topic.backend, str(tmp_path / "two"), small)
        assert again is not None
        assert again.portions == linked.portions
        assert sorted(os.listdir(again.waiting)) == sorted(name for portion in again.portions for name in portion.files)


@pytest.mark.parametrize(
    ("spans", "limits", "expected"),
    [
        ([], HistoryLimits(1, 1, 1 << 40, 1 << 40, ordered=False), ["0-a", "1-a", "0-b"]),
        ([], EVERYTHING, ["0-a 1-a 0-b"]),
        ([(1, 0, 5), (1, 0, 5)], HistoryLimits(1, 20, 1 << 40, 1 << 40, ordered=False), ["0-a 1-a", "0-b"]),
        ([(1, 8, 12), (1, 0, 5)], EVERYTHING, ["0-a 1-a 0-b"]),
        ([(1, 8, 12), (1, 0, 5)], HistoryLimits(1, 1, 29, 1 << 40, ordered=False), None),
        ([(1, 8, 12), (1, 0, 5)], HistoryLimits(1, 1, 30, 1 << 40, ordered=True), None),
        # What lies behind the last place where none is cut is read from the topic.
        ([(1, 18, 22), (1, 0, 5)], EVERYTHING, ["0-a"]),
        ([(1, 18, 22), (1, 0, 5)], HistoryLimits(11, 1, 1 << 40, 1 << 40, ordered=False), None),
    ],
)
def test_portions_between_which_a_transaction_is_cut_are_put_together(spans, limits, expected):
    portions = [
        Portion(("0-a",), 10, {0: 10, 1: 0}), Portion(("1-a",), 10, {0: 10, 1: 10}), Portion(("0-b",), 10, {0: 20, 1: 10})
    ]  # fmt: skip
    known = {number: TransactionSpans.of([span]) for number, span in enumerate(spans)} or {0: NO_SPANS, 1: NO_SPANS}
    found = whole_portions(portions, TransactionCut({0: 0, 1: 0}, known), limits, files_max=9)
    assert (None if found is None else [" ".join(portion.files) for portion in found]) == expected
