"""Started by Spark instead of Python: requests a fork from the warm process, or executes the interpreter itself.

    python -I -S warm_client.py PYTHON ARGUMENT ...

Started a few times for every flow, so it imports only built-in modules: 10 ms. See `warm_workers`.
"""

from __future__ import annotations

import _socket
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["ADDRESS", "own_path"]

# The variable with the path of the socket, or "off".
ADDRESS = "MAINSTEM_WARM_WORKERS"


def run(python: str, arguments: list[str]) -> NoReturn:
    """Run a module in a fork of the warm process and exit with its code, or execute Python."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = own_path(environment.get("PYTHONPATH", ""))
    address = environment.get(ADDRESS, "off")
    if address != "off" and arguments[:1] == ["-m"]:
        socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        # Where a standard stream is closed, the socket has its number.
        pid = _ask(socket, address, arguments[1:], environment) if socket.fileno() > 2 else 0
        if pid:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, lambda received, _: os.kill(pid, received))
            # Only the fork may hold the streams, so that they end with it.
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nothing, stream)
            sys.exit(int.from_bytes(socket.recv(4, _socket.MSG_WAITALL) or b"\1", "little"))
        socket.close()
    os.execve(python, [python, *arguments], environment)


def own_path(path: str) -> str:
    """The path without Spark's own copy of PySpark, an archive that every interpreter would compile again: 0.75 seconds, and
    on a busy machine more than Spark's timeout of ten seconds for a worker."""
    entries = [
        entry
        for entry in path.split(":")
        if entry and not (entry.endswith(".zip") and "/pyspark/python/lib/" in entry) and not _is_jar(entry)
    ]
    return ":".join(dict.fromkeys(entries))


def _is_jar(entry: str) -> bool:
    return entry.endswith(".jar") and "/jars/" in entry


def _ask(socket: _socket.socket, address: str, command: list[str], environment: dict[str, str]) -> int:
    """The pid of the fork, or 0: no warm process, or it refuses."""
    descriptors = b"".join(stream.to_bytes(4, sys.byteorder) for stream in (0, 1, 2))
    try:
        parts = [str(len(command)), *command, os.getcwd(), *(f"{name}={value}" for name, value in environment.items())]
        request = b"\0".join(map(os.fsencode, parts))
        socket.connect(address)
        # SOL_SOCKET, SCM_RIGHTS
        socket.sendmsg([len(request).to_bytes(4, "little")], [(1, 1, descriptors)])
        socket.sendall(request)
        answer = socket.recv(4)
    except OSError:
        return 0
    return int.from_bytes(answer, "little") if len(answer) == 4 else 0


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
