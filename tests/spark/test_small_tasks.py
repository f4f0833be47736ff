"""What keeps a small batch small: few tasks, and workers that do not look through all their modules after each of them."""

import gc

from hypothesis import given
from hypothesis import strategies as st

from mainstem.spark.sources import worker_memory
from mainstem.spark.sources.topic_stream_reader import SLICE_ROWS_MIN, slices_between

ENDS = st.dictionaries(st.integers(0, 9), st.integers(0, 400_000), min_size=1)


@given(ENDS, st.data(), st.integers(1, 16))
def test_slices_cover_every_record_once_and_small_partitions_are_not_cut(ends, data, wanted):
    starts = {number: data.draw(st.integers(0, end)) for number, end in ends.items()}
    slices = slices_between(starts, ends, wanted)
    for number, end in ends.items():
        mine = [part for part in slices if part.partition == number]
        assert sum(part.end - part.start for part in mine) == end - starts[number]
        assert [part.start for part in mine[1:]] == [part.end for part in mine[:-1]]
        if end - starts[number] <= SLICE_ROWS_MIN:
            assert len(mine) <= 1


def test_a_batch_of_a_few_hundred_rows_has_one_task_for_each_partition():
    assert len(slices_between({0: 0, 1: 0}, {0: 320, 1: 100}, 2)) == 2
    assert len(slices_between({0: 0}, {0: 400_000}, 4)) == 4


def test_what_a_worker_has_imported_is_left_out_of_its_collections(monkeypatch):
    monkeypatch.setattr(worker_memory, "_tasks", 0)
    before = gc.get_freeze_count()
    try:
        for _ in range(worker_memory.TASKS + 2):
            kept = [[] for _ in range(1000)]
            worker_memory.spare_collections()
        assert gc.get_freeze_count() > before + 1000
        found = gc.get_freeze_count()
        more = [kept, [[] for _ in range(1000)]]
        worker_memory.spare_collections()
        assert gc.get_freeze_count() <= found, "only the first tasks: a later one's garbage is collected"
        del more
    finally:
        gc.unfreeze()
