"""BatchGate: where a flow can be held between two batches, by any process.

    <checkpoint>/gate.<epoch>   locked (POSIX) by that run during a batch, and by the process that holds the flow
    <checkpoint>/begun          {"epoch": 7, "batch": 17, "done": true}: the last batch that a run has started; not synced

Each run has its own gate: one that a paused (zombie) run holds does not block a newer run.
While the gate is closed, the sink and the state of the stages stay as they are after one batch. Spark may still record
that this batch is committed, and plan the next one, which does not start.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mainstem.durable_files import REAL_FILES
from mainstem.file_locks import WRITE, release_lock, share_lock
from mainstem.spark.checkpoint.checkpoint_location import is_elsewhere

__all__ = ["BEGUN", "GATE", "BatchGate"]

GATE, BEGUN = "gate", "begun"

# Spark commits a batch some milliseconds after the sink. If it does not, the flow was stopped in between.
COMMIT_SECONDS_MAX = 10.0
LOOK_SECONDS = 0.005


_making = threading.Lock()


class BatchGate:
    """The gate of one run. Thread-safe."""

    def __init__(self, checkpoint: str, epoch: int) -> None:
        self._checkpoint = checkpoint
        self._epoch = epoch

    @contextmanager
    def batch(self, number: int) -> Iterator[None]:
        """A batch runs inside; waits while another process holds the flow."""
        with self._lock():
            self._note(number, done=False)
            yield
            self._note(number, done=True)

    @contextmanager
    def hold_closed(self) -> Iterator[None]:
        """Inside, the flow runs no batch; waits for the end of the current one."""
        with self._lock():
            yield

    def find_begun_batch(self) -> int | None:
        """The last batch that this run has started; None if there is none. For the holder of the gate.

        A finished batch is waited for until Spark has recorded its commit, which does not go through the gate.
        """
        try:
            with open(f"{self._checkpoint}/{BEGUN}", encoding="ascii") as file:
                content = json.load(file)
        except (FileNotFoundError, ValueError):
            return None
        if content["epoch"] != self._epoch:
            return None
        number = int(content["batch"])
        deadline = time.monotonic() + COMMIT_SECONDS_MAX
        while content["done"] and not self._committed(number) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        return number

    def _committed(self, number: int) -> bool:
        # Of a checkpoint that is stored elsewhere, the copies here follow with the next batch.
        return is_elsewhere(self._checkpoint) or os.path.exists(f"{self._checkpoint}/commits/{number}")

    def _note(self, number: int, *, done: bool) -> None:
        beside = f"{self._checkpoint}/.{BEGUN}.{self._epoch}"
        with open(beside, "w", encoding="ascii") as file:
            json.dump({"epoch": self._epoch, "batch": number, "done": done}, file)
        os.replace(beside, f"{self._checkpoint}/{BEGUN}")

    def _remove_older(self) -> None:
        for name in os.listdir(self._checkpoint):
            word, _, epoch = name.partition(".")
            if word == GATE and epoch.isdigit() and int(epoch) < self._epoch:
                with suppress(FileNotFoundError):
                    os.remove(f"{self._checkpoint}/{name}")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        os.makedirs(self._checkpoint, exist_ok=True)
        path = f"{self._checkpoint}/{GATE}.{self._epoch}"
        with _making:
            # Created once: closing a further descriptor of it would release the POSIX lock of another thread.
            if not os.path.exists(path):
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
                self._remove_older()
        lock = share_lock(REAL_FILES, path)
        try:
            with lock.hold_patiently(WRITE):
                yield
        finally:
            release_lock(lock)
