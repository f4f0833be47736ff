"""What a tree of processes is measured by."""

import ctypes
import os
import signal

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
