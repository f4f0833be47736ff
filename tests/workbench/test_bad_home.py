"""A home that cannot be used as it is: newer, unreadable, full, or held by a process that stands still."""

import os
import signal
import subprocess
import sys

import pytest

import mainstem
from tests.needs import cannot_run, needs, needs_root
from tests.workbench.conftest import json_lines


@pytest.fixture
def things(stem):
    return stem.create_topic("things", schema="id STRING NOT NULL", key="id")


def test_a_home_of_a_newer_format(cli, place):
    mainstem.open("shop").close()
    (place / "shop" / "mainstem.json").write_text('{"format": 99, "id": "x"}\n')

    assert cli("topic", "list").error == [
        f'mainstem.NewerFormat: home "{place}/shop" was written by a newer Mainstem',
        "Detail: It has format 99; this Mainstem knows up to 2.",
        "Hint: Install the newer Mainstem.",
    ]


@needs_root()
def test_an_unreadable_directory(cli, place):
    mainstem.open("shop").close()
    (place / "shop").chmod(0)
    # Root reads everything, so another user looks.
    os.seteuid(65534)
    try:
        error = cli("topic", "list").error
    finally:
        os.seteuid(0)

    assert error[0].startswith("mainstem.Unavailable: ")
    assert error[0].endswith("cannot be used: Permission denied")
    assert len(error) == 3


@needs("mount", command="mount")
@needs_root()
def test_a_home_on_a_full_disk(cli, place, monkeypatch):
    (place / "small").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "small"], capture_output=True, text=True
    )
    if mounted.returncode:
        cannot_run("a mounted tmpfs", mounted.stderr.strip())
    monkeypatch.setenv("MAINSTEM_HOME", "small/shop")
    try:
        cli("topic", "create", "things", "--schema", "id STRING")
        lines = json_lines(*({"id": "x" * 1000} for _ in range(2000)))
        error = cli("topic", "append", "things", "-", stdin=lines).error
        read = cli("topic", "read", "things", "--format", "json")
        cli("topic", "append", "things", "-", stdin=json_lines({"id": "fits"}))
        after = cli("topic", "read", "things", "--format", "json", "--record", "hide")
    finally:
        subprocess.run(["umount", "small"], check=True)

    assert error[0] == 'mainstem.DiskFull: no space left to append to "things" partition 0'
    assert "Nothing was written." in error[1]
    assert len(error) == 3
    assert read == (0, "", "")
    assert after.lines == [{"id": "fits"}]


HOLDER = """
import os, signal, sys
import mainstem
from mainstem.file_locks import WRITE
topic = mainstem.open("shop").topic("things")
with topic.backend.store.partitions[0].lock.hold(WRITE):
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_lock_held_by_a_stopped_process(cli, things):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER])
    try:
        os.waitpid(holder.pid, os.WUNTRACED)
        error = cli("topic", "append", "things", "-", stdin=json_lines({"id": "a"})).error
        taken = cli("topic", "append", "things", "-", "--take-over", stdin=json_lines({"id": "a"}))
        ended = holder.wait(timeout=300)
    finally:
        holder.kill()
        holder.wait()

    assert error[0].startswith("mainstem.LockHeld: the lock of ")
    assert error[0].endswith(" is held by a stopped process")
    assert error[1].startswith(f"Detail: Process {holder.pid} (")
    assert error[1].endswith(" Nothing was written.")
    assert "--take-over" in error[2]
    assert (taken.status, taken.out) == (0, "appended 1 row to things\n")
    assert taken.err.startswith(f'took over "things" partition 0; ended the stopped process {holder.pid} (')
    assert ended == -signal.SIGKILL
    assert things.to_arrow().num_rows == 1
