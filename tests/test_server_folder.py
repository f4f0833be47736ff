"""A test process that is killed leaves neither a server nor, once another one begins, its folder."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_folder import server_folder

ROOT = Path(__file__).parent.parent
STARTING = """
from tests.postgres_server import PostgresServer
server = PostgresServer()
print(server.pid, server._folder, flush=True)
input()
"""


@pytest.mark.starts_servers
def test_a_killed_process_leaves_no_server_and_the_next_one_removes_its_folder() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        pid, folder = process.stdout.readline().split()
        server = os.pidfd_open(int(pid))
        process.send_signal(signal.SIGKILL)
    try:
        waiting = select.poll()
        waiting.register(server, select.POLLIN)
        gone = waiting.poll(60_000)
    finally:
        os.close(server)
    mine = server_folder("probe")

    assert gone
    assert not Path(folder).exists()
    assert mine.exists()
    mine.rmdir()
