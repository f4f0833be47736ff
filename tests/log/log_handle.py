"""A log opened as one process would, that can be dropped as a killed process drops it: no word said, every file closed."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from mainstem import file_locks as partition_lock
from mainstem.clock import ManualClock
from mainstem.durable_files import RealFiles
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.producer import Producer
from mainstem.log.queues.queue import Queue
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem


class DroppableFiles(RealFiles):
    """The operating system's files, with a list of what is open, for the kernel's part in a process's death."""

    # Each stands for a process of its own, which shares no locks and no handles.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(self) -> None:
        self._handles: set[int] = set()

    def open(self, path: str) -> int:
        handle = super().open(path)
        self._handles.add(handle)
        return handle

    def create(self, path: str) -> int:
        handle = super().create(path)
        self._handles.add(handle)
        return handle

    def close(self, handle: int) -> None:
        # After the drop somebody who did not know closes what is closed, perhaps a number that is in use again.
        if handle in self._handles:
            self._handles.discard(handle)
            super().close(handle)

    def arrow_output(self, path: str) -> pa.NativeFile:
        return RealFiles().arrow_output(path)

    def drop(self) -> None:
        """Close everything at once."""
        for handle in self._handles:
            os.close(handle)
        self._handles.clear()
        for key in [key for key in partition_lock._shared if key[0] is self]:
            del partition_lock._shared[key]


class LogHandle:
    """One opening of a home, with the producers and queues that were reached through it."""

    def __init__(self, home: Path, clock: ManualClock) -> None:
        self._files = DroppableFiles()
        self.log = EmbeddedLog(home, files=self._files, clock=clock)
        self.stem = Mainstem(self.log)
        self.producers: dict[str, Producer] = {}
        self._queues: dict[str, Queue] = {}

    def topic(self, name: str) -> Topic:
        return self.stem.topic(name)

    def queue(self, topic: str) -> Queue:
        if topic not in self._queues:
            self._queues[topic] = self.topic(topic).queue("work")
        return self._queues[topic]

    def kill(self) -> None:
        """End as a process does that is killed."""
        if self.log._pool is not None:
            self.log._pool.shutdown()
        self._files.drop()

    def close(self) -> None:
        self.stem.close()
