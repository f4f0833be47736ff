"""Python processes for Spark, forked from one that has imported everything.

Spark starts a Python interpreter for each kind of worker, and one for each source of a flow whenever the flow starts. Each
imports PySpark, pyarrow, pandas and Mainstem: 0.7 CPU seconds and 150 MB. Here one process per program imports them, and
forks the others, in milliseconds, with its pages shared:

    driver    starts the warm process before Java, and holds the pipe to its standard input: when the driver ends, it ends
    Java      starts `worker_script` as if it were Python; that is `warm_client`
    client    sends its arguments, environment, directory and standard streams over a Unix socket, and waits for the exit code
    fork      runs the module in the place of the client. Signals to the client are sent on to it; if the client is killed,
              it is terminated

    request   length u32 | number of arguments, arguments, directory, NAME=VALUE ... joined by zero bytes; three descriptors
    answer    pid u32, and at the end exit code u32

A client starts Python the usual way when there is no warm process, when its answer is not to be had, when it is told to run
anything but a module, or when a variable that an interpreter reads at its start has another value. The warm process has no
other thread of Python. `MAINSTEM_WARM_WORKERS=off` turns it off.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from mainstem.spark import warm_client
from mainstem.spark.warm_client import ADDRESS, own_path

__all__ = ["start_warm_process", "worker_script"]

# Variables that an interpreter or a library reads only at its start. Spark sets PYTHONUNBUFFERED and PYTHON_...; forks have
# unbuffered streams.
_READ_AT_START = ("LD_PRELOAD", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TZ", "LC_ALL", "LANG")
_SET_BY_SPARK = "PYTHONUNBUFFERED"
# As Spark sets them for workers; processes that only plan lack some, and need none.
_OF_WORKERS = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}

_PRELOADED = (
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.datasource_internal",
    "pandas",
    "pyarrow.compute",
    # Reads the schema of a topic.
    "sqlglot.dialects.spark",
    "mainstem.spark.sources.topic_source",
    "mainstem.spark.sources.topic_stream_reader",
)

_REQUEST_SECONDS = 10.0


def worker_script(python: str) -> str:
    """The text of a script that Spark starts instead of `python`."""
    return f'#!/bin/sh\nexec "{python}" -I -S "{warm_client.__file__}" "{python}" "$@"\n'


def start_warm_process() -> None:
    """Start it, unless it is turned off or runs; the variable tells Java's children of it."""
    if os.environ.get(ADDRESS, "on") != "on":
        return
    folder = Path(tempfile.mkdtemp(prefix="mainstem-warm-"))
    address = str(folder / "socket")
    # Created here, so that no client comes before it exists: requests wait until everything is imported.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        try:
            listening.bind(address)
        except OSError:
            # The path is too long for a socket: Spark starts Python, as without this.
            folder.rmdir()
            return
        listening.listen(128)
        process = subprocess.Popen(
            [sys.executable, "-m", "mainstem.spark.warm_workers", str(listening.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
            # Ctrl-C in the terminal is for the driver alone.
            start_new_session=True,
            env=_OF_WORKERS | os.environ | {"MAINSTEM_WARM_SOCKET": address},
        )
    _running.append(process)
    os.environ[ADDRESS] = address


# Keeps its standard input open until this process ends.
_running: list[object] = []


def main(listening_fd: int) -> None:
    """Import everything, then fork until the driver ends."""
    address = os.environ.pop("MAINSTEM_WARM_SOCKET")
    os.environ["PYTHONPATH"] = own_path(os.environ.get("PYTHONPATH", ""))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in _PRELOADED:
        try:
            importlib.import_module(module)
        except ImportError:
            # A worker that needs it raises the error.
            continue
    # It keeps no directory in use.
    os.chdir("/")
    gc.collect()
    gc.freeze()
    fork = Forks(listening_fd).serve()
    if fork is None:
        shutil.rmtree(os.path.dirname(address), ignore_errors=True)
    else:
        fork.become()
        fork.run()


class Fork:
    """The request of a client: a module, its arguments, and the environment, directory and streams of its process."""

    def __init__(self, request: bytes, streams: list[int]) -> None:
        count, *parts = map(os.fsdecode, request.split(b"\0"))
        self.module, *self.arguments = parts[: int(count)]
        self.directory, *pairs = parts[int(count) :]
        self.environment = dict(pair.partition("=")[::2] for pair in pairs)
        self.streams = streams

    def fits(self) -> bool:
        """Whether an interpreter that is started with its environment and directory would be like this one."""
        names = {name for name in {*os.environ, *self.environment} if name.startswith("PYTHON") and name[6:7] != "_"}
        return os.access(self.directory, os.X_OK) and all(
            os.environ.get(name, "") == self.environment.get(name, _OF_WORKERS.get(name, ""))
            for name in (names | {*_READ_AT_START}) - {_SET_BY_SPARK}
        )

    def become(self) -> None:
        """In the child: take over streams, directory and environment."""
        for number, stream in enumerate(self.streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(self.directory)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)

    def run(self) -> None:
        """As `python -m` does."""
        sys.argv = ["-m", *self.arguments]
        if not sys.flags.safe_path:
            sys.path[0] = self.directory
        if numpy := sys.modules.get("numpy"):
            # Else all forks would draw the same random numbers.
            numpy.random.seed()
        # Run it from its source, even if it is already imported.
        sys.modules.pop(self.module, None)
        runpy.run_module(self.module, run_name="__main__", alter_sys=True)


class Forks:
    """The running forks, and the clients that wait for them."""

    def __init__(self, listening_fd: int) -> None:
        self._listening = socket.socket(fileno=listening_fd)
        self._poll = select.poll()
        # Standard input ends with the driver.
        for descriptor in (0, listening_fd):
            self._poll.register(descriptor, select.POLLIN)
        # By the descriptor that becomes ready: of a client that died, of a process that ended.
        self._clients: dict[int, tuple[socket.socket, int]] = {}
        self._ended: dict[int, int] = {}

    def serve(self) -> Fork | None:
        """Returns None when the driver has ended, and in each fork what to run."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == 0:
                    return None
                if descriptor == self._listening.fileno():
                    fork = self._accept()
                    if fork is not None:
                        return fork
                elif descriptor in self._ended:
                    self._tell(descriptor)
                elif descriptor in self._clients:
                    self._terminate(descriptor)

    def _accept(self) -> Fork | None:
        """Returns the fork in the child, None in this process."""
        client, _ = self._listening.accept()
        client.settimeout(_REQUEST_SECONDS)
        streams: list[int] = []
        pid: int | None = None
        try:
            head, streams, _, _ = socket.recv_fds(client, 4, 3)
            size = int.from_bytes(head, "little")
            request = b""
            while len(request) < size and (more := client.recv(size - len(request))):
                request += more
            fork = Fork(request, streams) if len(request) == size and len(streams) == 3 else None
            pid = os.fork() if fork is not None and fork.fits() else None
            if pid == 0:
                assert fork is not None
                self._close(client)
                return fork
        except OSError:
            # The client died, or no process can be forked: then it starts Python itself.
            pass
        finally:
            if pid != 0:
                for stream in streams:
                    os.close(stream)
        # If the client has died, its fork is terminated when it is watched.
        with contextlib.suppress(OSError):
            client.sendall((pid or 0).to_bytes(4, "little"))
        if pid is None:
            client.close()
        else:
            self._watch(client, pid)
        return None

    def _watch(self, client: socket.socket, pid: int) -> None:
        ended = os.pidfd_open(pid)
        self._ended[ended] = client.fileno()
        self._clients[client.fileno()] = client, pid
        for descriptor in (ended, client.fileno()):
            self._poll.register(descriptor, select.POLLIN)

    def _tell(self, ended: int) -> None:
        descriptor = self._ended.pop(ended)
        self._poll.unregister(ended)
        os.close(ended)
        client, pid = self._clients.pop(descriptor)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        try:
            self._poll.unregister(descriptor)
            client.sendall((code if code >= 0 else 128 - code).to_bytes(4, "little"))
        except (KeyError, OSError):
            # The client died before.
            pass
        client.close()

    def _terminate(self, descriptor: int) -> None:
        """Terminate the fork of a client that was killed."""
        self._poll.unregister(descriptor)
        os.kill(self._clients[descriptor][1], signal.SIGTERM)

    def _close(self, client: socket.socket) -> None:
        """In the child: close all descriptors of the parent."""
        for other, _ in self._clients.values():
            other.close()
        for ended in self._ended:
            os.close(ended)
        client.close()
        self._listening.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
