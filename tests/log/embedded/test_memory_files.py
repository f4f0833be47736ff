"""The machine in memory loses what a real one may lose, and nothing else."""

import errno

import pytest

from tests.log.embedded.memory_disk import MODES
from tests.log.embedded.memory_files import MemoryFiles, Stopped


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    files.make_directory("/home")
    files.sync_directory("/")
    return files


def write(files: MemoryFiles, path: str, data: bytes, *, synced: bool) -> None:
    handle = files.create(path)
    files.pwrite(handle, data, 0)
    if synced:
        files.sync(handle)
        files.sync_directory("/home")
    files.close(handle)


def test_what_was_synced_is_there_after_a_power_cut(files):
    write(files, "/home/file", b"synced", synced=True)
    for mode in MODES:
        after = files.crash(1, mode)
        assert after.content("/home/file") == b"synced"


def test_what_was_not_synced_may_be_there_or_not(files):
    write(files, "/home/file", b"synced", synced=True)
    handle = files.open("/home/file")
    files.pwrite(handle, b"unsynced", 6)
    found = {mode: {files.crash(seed, mode).content("/home/file") for seed in range(40)} for mode in MODES}
    assert found["lost"] == {b"synced"}
    assert found["kept"] == {b"syncedunsynced"}
    assert found["zeros"] == {b"synced" + bytes(8)}
    assert all(b"syncedunsynced".startswith(data) for data in found["prefix"])
    assert len(found["prefix"]) > 3
    assert found["pieces"] == {b"synced", b"syncedunsynced"}
    assert all(len(data) == 14 and data.startswith(b"synced") for data in found["garbage"])


def test_a_name_needs_its_directory_synced(files):
    handle = files.create("/home/file")
    files.pwrite(handle, b"data", 0)
    files.sync(handle)
    there = {"/home/file"[6:] in files.crash(seed, "pieces").names("/home") for seed in range(20)}
    assert there == {True, False}
    assert files.crash(0, "lost").names("/home") == []
    files.sync_directory("/home")
    assert files.crash(0, "lost").content("/home/file") == b"data"


def test_a_rename_is_there_whole_or_not_at_all(files):
    write(files, "/home/old", b"old", synced=True)
    write(files, "/home/new", b"new", synced=True)
    files.rename("/home/new", "/home/old")
    found = {tuple(files.crash(seed, "pieces").names("/home")) for seed in range(20)}
    assert found == {("new", "old"), ("old",)}
    assert files.content("/home/old") == b"new"


def test_a_failed_fsync_forgets_what_it_could_not_write(files):
    write(files, "/home/file", b"", synced=True)
    handle = files.open("/home/file")
    files.machine.random.seed(3)
    for number in range(8):
        files.pwrite(handle, bytes([65 + number]), number)
    files.fail_at(1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        files.sync(handle)
    files.sync(handle)
    assert files.pread(handle, 8, 0) == b"ABCDEFGH"
    assert files.crash(0, "lost").content("/home/file") != b"ABCDEFGH"
    files.pwrite(handle, b"ABCDEFGH", 0)
    files.sync(handle)
    assert files.crash(0, "lost").content("/home/file") == b"ABCDEFGH"


def test_a_process_stops_at_a_call_and_for_ever(files):
    write(files, "/home/file", b"before", synced=False)
    handle = files.open("/home/file")
    assert files.try_lock(handle, 0)
    other = files.process()
    other_handle = other.open("/home/file")
    assert not other.try_lock(other_handle, 0)
    assert other.lock_holder(other_handle, 0) == files.pid
    files.stop_at(2, done="all")
    files.size(handle)
    with pytest.raises(Stopped):
        files.pwrite(handle, b"after!", 0)
    with pytest.raises(Stopped):
        files.unlock(handle, 0)
    assert other.try_lock(other_handle, 0)
    assert other.pread(other_handle, 6, 0) == b"after!"


def test_a_lock_goes_with_any_handle_of_its_process(files):
    write(files, "/home/file", b"", synced=False)
    handle, second = files.open("/home/file"), files.open("/home/file")
    assert files.try_lock(handle, 0)
    files.close(second)
    other = files.process()
    assert other.try_lock(other.open("/home/file"), 0)


def test_a_write_that_fails_may_have_been_done_in_part(files):
    write(files, "/home/file", b"", synced=False)
    handle = files.open("/home/file")
    sizes = set()
    for _ in range(30):
        files.truncate(handle, 0)
        files.fail_at(1, errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            files.pwrite(handle, b"12345", 0)
        sizes.add(files.size(handle))
    assert sizes == {0, 1, 2, 3, 4, 5}


def test_a_parquet_file_can_be_written_and_read(files):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"n": [1, 2, 3]})
    with files.arrow_output("/home/table.parquet") as sink:
        pq.write_table(table, sink)
    assert pq.read_table(files.arrow_input("/home/table.parquet")) == table
