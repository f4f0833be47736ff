"""Slots: an end comes back, a damaged one does not, and one that is caught in the middle of a write is read again."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.durable_files import RealFiles
from mainstem.errors import MainstemError
from mainstem.log.embedded.write import heads
from mainstem.log.embedded.write.heads import SLOT_BYTES, End, Slots, create_slots, decode_end, encode_end, new_end
from tests.log.embedded.memory_files import MemoryFiles

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
ends = st.builds(End, u32, u32, u64, u64, u64, i64, i64, i64, i64, u64, u32, u32, u64)


@given(ends)
def test_an_end_comes_back(end):
    assert len(encode_end(end)) == SLOT_BYTES == 128
    assert decode_end(encode_end(end)) == end


@given(ends, st.integers(0, SLOT_BYTES * 8 - 1))
def test_an_end_with_one_bit_flipped_does_not(end, bit):
    data = bytearray(encode_end(end))
    data[bit // 8] ^= 1 << bit % 8
    assert decode_end(bytes(data)) is None


def slots(*written: End) -> tuple[MemoryFiles, Slots]:
    files = MemoryFiles()
    create_slots(files, "/heads", list(written))
    return files, Slots(files, "/heads")


ONE, TWO, THREE = (new_end(number, 0, 100 * number, 5, 1) for number in (1, 2, 3))


def test_slots_are_written_one_by_one():
    _, opened = slots(ONE, TWO)
    opened.write(1, THREE)
    assert opened.read_all(2) == [ONE, THREE]
    assert opened.read(7) is None


def test_a_slot_that_is_being_written_is_read_again(monkeypatch):
    files, opened = slots(ONE, TWO)
    whole = files.content("/heads")
    files.put("/heads", whole[:200] + b"half" + whole[204:])
    tries: list[float] = []

    def pause(seconds: float) -> None:
        tries.append(seconds)
        if len(tries) == 3:
            files.put("/heads", whole)

    monkeypatch.setattr(heads.time, "sleep", pause)
    assert opened.read(1) == TWO
    assert len(tries) == 3


def test_a_damaged_slot_is_given_up_after_a_moment(monkeypatch):
    files, opened = slots(ONE, TWO)
    files.put("/heads", b"x" * 256)
    waited: list[float] = []
    monkeypatch.setattr(heads.time, "sleep", waited.append)
    assert opened.read_all(2) == [None, None]
    assert 0 < sum(waited) < 0.1


@pytest.mark.parametrize("taken", [False, True])
def test_one_that_is_closed_under_its_reader_gives_nothing(tmp_path: Path, taken: bool) -> None:
    """Neither an error of the system's, nor, once the handle means another file, what stands in that."""
    files = RealFiles()
    for name, end in (("heads", ONE), ("others", TWO)):
        create_slots(files, f"{tmp_path}/{name}", [end])
    other = -1

    class ClosedMeanwhile(RealFiles):
        def pread(self, handle: int, length: int, position: int) -> bytes:
            nonlocal other
            opened.close()
            if taken:
                other = os.open(f"{tmp_path}/others", os.O_RDONLY)
                assert other == handle
            return super().pread(handle, length, position)

    opened = Slots(ClosedMeanwhile(), f"{tmp_path}/heads")
    try:
        with pytest.raises(MainstemError, match="is closed"):
            opened.read(0)
    finally:
        if other >= 0:
            os.close(other)


def test_of_two_ends_the_later_one_is_greater_by_epoch_then_segment_then_position():
    end = new_end(50, 40, 999, 5, 2)
    assert end.place > end._replace(epoch=1, segment=45, position=2_000).place
    assert end.place > end._replace(segment=30, position=2_000).place
    assert end.place > end._replace(position=998).place
