"""Processes that are forked from a warm one behave as if Spark had started Python."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem.spark import warm_workers
from mainstem.spark.warm_client import ADDRESS, own_path
from tests.waiting import wait_until

MODULE = """
import os, signal, sys, time
print(*sys.argv[1:], os.environ.get("MARK"), os.getcwd() == sys.path[0], "pyspark.worker" in sys.modules)
print(sys.stdin.read(), file=sys.stderr)
match sys.argv[1]:
    case "exit":
        sys.exit(int(sys.argv[2]))
    case "raise":
        raise ValueError("no")
    case "sleep":
        print(os.getpid(), flush=True)
        signal.pause()
    case "die":
        os.kill(os.getpid(), signal.SIGKILL)
"""


class Warm:
    """A warm process, and what a client of it is started with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "asked.py").write_text(MODULE)
        self.script = folder / "python"
        self.script.write_text(warm_workers.worker_script(sys.executable))
        self.script.chmod(0o700)
        self.address = ""
        self.process: subprocess.Popen[bytes] | None = None

    def client(self, *arguments: str, mark: str = "", **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.script, "-m", "asked", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={**os.environ, ADDRESS: self.address, "MARK": mark} | environment,
        )

    def run(self, *arguments: str, mark: str = "", **environment: str) -> tuple[str, str, int]:
        client = self.client(*arguments, mark=mark, **environment)
        output, errors = client.communicate("said")
        return output, errors, client.returncode


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    made = Warm(tmp_path_factory.mktemp("warm"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(ADDRESS, raising=False)
        before = len(warm_workers._running)
        warm_workers.start_warm_process()
        made.address = os.environ[ADDRESS]
        made.process = warm_workers._running[before]  # type: ignore[assignment]
    yield made
    assert made.process is not None
    assert made.process.stdin is not None
    made.process.stdin.close()
    made.process.wait(300)
    # As when the driver ends: nothing is left of it.
    assert not Path(made.address).parent.exists()
    assert made.run("exit", "0", mark="here")[0] == "exit 0 here True False\n"


def test_a_module_runs_in_a_fork_with_its_own_streams_environment_and_directory(warm: Warm) -> None:
    assert warm.run("exit", "7", mark="here") == ("exit 7 here True True\n", "said\n", 7)


def test_an_error_is_shown_and_told(warm: Warm) -> None:
    _, errors, code = warm.run("raise")
    assert errors.splitlines()[-1] == "ValueError: no"
    assert code == 1


def test_a_fork_that_was_killed_is_told(warm: Warm) -> None:
    assert warm.run("die")[2] == 128 + signal.SIGKILL


def test_the_fork_of_a_client_that_died_before_its_answer_is_terminated(warm: Warm) -> None:
    environment = {**os.environ, ADDRESS: warm.address, "MARK": ""} | warm_workers._OF_WORKERS
    environment["PYTHONPATH"] = own_path(environment.get("PYTHONPATH", ""))
    pairs = (f"{name}={value}" for name, value in environment.items())
    request = "\0".join(["3", "asked", "sleep", "x", str(warm.folder), *pairs]).encode()
    output, written = os.pipe()
    with open(os.devnull, "rb") as nothing, socket.socket(socket.AF_UNIX) as client:
        client.connect(warm.address)
        socket.send_fds(client, [len(request).to_bytes(4, "little")], [nothing.fileno(), written, 2])
        client.sendall(request)
    os.close(written)
    # It ends when no process has the other end: the fork has begun and was terminated, or was terminated before.
    with open(output, "rb") as said:
        said.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["told", "killed"])
def test_a_fork_ends_with_its_client(warm: Warm, number: signal.Signals) -> None:
    client = warm.client("sleep", "x")
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.close()
    client.stdout.readline()
    pid = int(client.stdout.readline())
    assert pid != client.pid
    client.send_signal(number)
    client.wait(300)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    client.stdout.close()
    client.stderr.close()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "other",
    [{"PYTHONPATH": "/elsewhere"}, {"PYTHONHASHSEED": "5"}, {"LD_LIBRARY_PATH": "/x"}, {"TZ": "Asia/Tokyo"}],
    ids=str,
)
def test_an_interpreter_that_would_be_another_one_is_started_as_ever(warm: Warm, other: dict[str, str]) -> None:
    assert warm.run("exit", "3", **other)[::2] == ("exit 3  True False\n", 3)


def test_turned_off_it_starts_nothing(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESS, "off")
    running = list(warm_workers._running)
    warm_workers.start_warm_process()
    assert warm_workers._running == running
    assert warm.run("exit", "0", **{ADDRESS: "off"})[::2] == ("exit 0  True False\n", 0)


def test_where_a_path_is_too_long_for_a_socket_it_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = tmp_path / ("x" * 120)
    far.mkdir()
    monkeypatch.delenv(ADDRESS, raising=False)
    monkeypatch.setattr(warm_workers.tempfile, "tempdir", str(far))
    warm_workers.start_warm_process()
    assert ADDRESS not in os.environ
    assert list(far.iterdir()) == []


def test_a_client_in_a_directory_that_was_removed_starts_python(warm: Warm, tmp_path: Path) -> None:
    # A path relative to a directory that is gone would stop any Python.
    environment = {**os.environ, ADDRESS: warm.address, "PYTHONPATH": ""}
    gone = tmp_path / "gone"
    command = f"mkdir {gone}; cd {gone}; rmdir {gone}; exec {warm.script} -m timeit -n 1 pass"
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_client_in_a_directory_that_cannot_be_entered_starts_python(warm: Warm) -> None:
    assert not warm_workers.Fork(b"1\0asked\0/no/such/directory\0A=B", []).fits()


def test_a_large_environment_is_passed_on(warm: Warm) -> None:
    large = {f"LARGE_{number}": "x" * 60_000 for number in range(15)}
    assert warm.run("exit", "0", mark="here", **large)[0] == "exit 0 here True True\n"


def test_what_cannot_be_encoded_is_shown_escaped(warm: Warm) -> None:
    (warm.folder / "odd.py").write_text('import sys; print("caf\\udcff", file=sys.stderr)')
    environment = {**os.environ, ADDRESS: warm.address}
    done = subprocess.run([warm.script, "-m", "odd"], cwd=warm.folder, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "caf\\udcff\n")


@pytest.mark.parametrize("stream", ["<&-", ">&-", "2>&-"])
def test_a_client_with_a_closed_stream_starts_python(warm: Warm, stream: str) -> None:
    command = f"exec {warm.script} -m asked exit 4 {stream}"
    forked, started = (
        subprocess.run(
            ["sh", "-c", command],
            cwd=warm.folder,
            env={**os.environ, ADDRESS: address},
            stdin=subprocess.DEVNULL,
            capture_output=True,
        ).returncode
        for address in (warm.address, "off")
    )
    assert forked == started


def test_a_client_takes_spark_s_copy_of_itself_out_of_the_path(warm: Warm) -> None:
    mine = os.environ.get("PYTHONPATH", "")
    theirs = f"/x/pyspark/python/lib/pyspark.zip:/x/jars/spark-core.jar:{mine}:{mine}"
    assert warm.run("exit", "0", PYTHONPATH=theirs)[0] == "exit 0  True True\n"


def test_forks_draw_other_numbers(warm: Warm) -> None:
    (warm.folder / "drawn.py").write_text("import numpy, random; print(numpy.random.random(), random.random())")
    environment = {**os.environ, ADDRESS: warm.address}
    drawn = {
        subprocess.check_output([warm.script, "-m", "drawn"], cwd=warm.folder, env=environment).decode() for _ in "12"
    }
    assert len({number for line in drawn for number in line.split()}) == 4
