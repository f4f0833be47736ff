"""What a tree of processes is measured by."""

import ctypes
import mmap
import os
import signal
from pathlib import Path

import pytest

from benchmarks import process_tree

SIZE = 64 << 20
# A child that has its parent's memory, as one that Java starts has for a moment.
CLONE_VM = 0x100


def test_memory_that_two_processes_share_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    held = bytearray(os.urandom(1)) * SIZE
    # Not what else this process has started: Java may grow meanwhile.
    processes, counted = process_tree._processes, {os.getpid()}
    monkeypatch.setattr(process_tree, "_processes", lambda: (it for it in processes() if it[0] in counted))
    alone = process_tree.own_bytes()
    system = ctypes.CDLL(None, use_errno=True)
    stack = ctypes.create_string_buffer(1 << 16)
    top = ctypes.c_void_p(ctypes.addressof(stack) + (1 << 16) - 16)
    # The child does nothing but wait for the end: pause() of the C library is its whole program.
    pause = ctypes.cast(system.pause, ctypes.c_void_p)
    child = system.clone(pause, top, CLONE_VM | signal.SIGCHLD, None)
    assert child > 0
    counted.add(child)
    try:
        assert process_tree.own_bytes() - alone < SIZE / 2
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert len(held) == SIZE


def test_cpu_time_is_told_by_kind_and_adds_up() -> None:
    before = process_tree.cpu_seconds()
    kinds = process_tree.cpu_seconds_by_kind()
    assert set(kinds) == {"driver", "java", "workers"}
    assert before <= sum(kinds.values()) <= process_tree.cpu_seconds()


def test_a_mapped_file_is_not_counted_as_anonymous_memory(tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    path.write_bytes(bytes(SIZE))
    own, mapped = process_tree.own_bytes(), process_tree.mapped_bytes()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        assert sum(pages[at] for at in range(0, SIZE, mmap.PAGESIZE)) == 0
        assert process_tree.mapped_bytes() - mapped > SIZE / 2
        assert process_tree.own_bytes() - own < SIZE / 2
