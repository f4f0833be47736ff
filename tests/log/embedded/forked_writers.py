"""Writers in processes of their own, to be killed at any moment, and what they were promised, kept outside of them."""

from __future__ import annotations

import os
import select
import signal
import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

import mainstem
from mainstem import Mainstem
from mainstem.errors import MainstemError
from mainstem.log.topic import Topic

TOPIC = "orders"
SCHEMA = "id bigint, what string"

# Nothing takes this long unless it hangs.
SECONDS_MAX = 300

# An acknowledged append: partition, first offset, first id.
ACK = struct.Struct("<IQQ")


class Ack(NamedTuple):
    partition: int
    offset: int
    first_id: int


def create(home: str, *, partitions: int, segment_bytes_max: str = "64 KiB") -> None:
    with mainstem.open(home) as stem:
        stem.create_topic(TOPIC, schema=SCHEMA, partitions=partitions, segment_bytes_max=segment_bytes_max)
        # What pyarrow imports at the first use it then need not import in every child.
        stem.create_topic("before", schema=SCHEMA).append(rows_from(0, 1))


def rows_from(first_id: int, rows: int) -> pa.Table:
    """Rows that tell by themselves to which append they belong."""
    ids = np.arange(first_id, first_id + rows, dtype=np.int64)
    return pa.table({"id": ids, "what": pa.repeat("x" * 20, rows)})


class ForkedWriter:
    """A process that appends until it is killed, or until it gets an error, and tells of each acknowledgement."""

    def __init__(
        self,
        home: str,
        number: int,
        *,
        rows: int,
        partitions: int,
        opened: Callable[[str], Mainstem] = mainstem.open,
        stop_at_error: bool = True,
    ) -> None:
        self.acks: list[Ack] = []
        self._answer, question = os.pipe()
        os.set_blocking(self._answer, False)
        self._rest = b""
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._answer)
                os.dup2(
                    os.open(os.devnull, os.O_WRONLY), 2
                )  # what it says of a disk that is gone is not for the report
                _write(opened(home).topic(TOPIC), number, rows, partitions, question, stop_at_error)
            except (MainstemError, OSError, KeyboardInterrupt):
                pass
            finally:
                os._exit(0)
        os.close(question)

    def drain(self) -> None:
        """Take what it has told so far."""
        while True:
            try:
                data = os.read(self._answer, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                return
            data = self._rest + data
            whole = len(data) - len(data) % ACK.size
            self.acks += [Ack(*fields) for fields in ACK.iter_unpack(data[:whole])]
            self._rest = data[whole:]

    def wait(self, seconds: float) -> None:
        """Let it work for a while; shorter if it ends before."""
        handle = os.pidfd_open(self.pid)
        try:
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            ended.poll(seconds * 1000)
        finally:
            os.close(handle)

    def wait_for_ack(self) -> None:
        """Until it was promised something; an error if it ends before, or nothing comes for long."""
        told = select.poll()
        told.register(self._answer, select.POLLIN)
        while not self.acks:
            # It has ended if there is nothing to read all the same.
            ready = told.poll(SECONDS_MAX * 1000)
            assert ready, "a writer did not get an append through"
            assert ready[0][1] & select.POLLIN, "a writer ended before it got an append through"
            self.drain()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.drain()
        os.close(self._answer)


def _write(topic: Topic, number: int, rows: int, partitions: int, question: int, stop_at_error: bool) -> None:
    turn = 0
    while True:
        first_id = ((number << 24) + turn) * rows
        partition = (number + turn) % partitions
        turn += 1
        try:
            placed = topic.append(rows_from(first_id, rows), partition=partition)
        except MainstemError:
            if stop_at_error:
                raise
            continue
        os.write(question, ACK.pack(partition, placed.offsets[partition][0], first_id))


class CheckedTopic:
    """What a topic must hold, and how far that was looked at."""

    def __init__(self, rows: int, partitions: int) -> None:
        self.rows = rows
        self.acknowledged = 0
        self.violations: list[str] = []
        self._next = dict.fromkeys(range(partitions), 0)
        # The first id of each append that was read, by offset; what was acknowledged and not looked for yet.
        self._found: dict[int, dict[int, int]] = {number: {} for number in range(partitions)}
        self._open: list[Ack] = []

    def promise(self, acks: list[Ack]) -> None:
        self.acknowledged += len(acks) * self.rows
        self._open += acks

    def check(self, topic: Topic, where: str) -> None:
        """Read what came since the last time, and hold it against what was promised until now."""
        for partition, start in self._next.items():
            batches = list(self._batches(topic, partition, start))
            if batches:
                self._read(partition, start, batches, where)
        for ack in self._open:
            found = self._found[ack.partition].get(ack.offset)
            if found != ack.first_id:
                self.violations.append(f"{where}: {ack} was acknowledged, and {found} is there")
        self._open = []

    def check_from_start(self, topic: Topic, where: str) -> None:
        """Read everything again: nothing that was there may be another now."""
        before = {partition: dict(found) for partition, found in self._found.items()}
        self._next = dict.fromkeys(self._next, 0)
        self._found = {partition: {} for partition in self._found}
        self.check(topic, where)
        for partition, found in before.items():
            gone = [offset for offset, first_id in found.items() if self._found[partition].get(offset) != first_id]
            if gone:
                self.violations.append(f"{where}: partition {partition} held something else before at {gone[:5]}")

    def _batches(self, topic: Topic, partition: int, start: int) -> list[tuple[np.ndarray, np.ndarray]]:
        stop = topic.backend.latest(partition)
        starts = {number: (start if number == partition else 0) for number in self._next}
        stops = {number: (stop if number == partition else 0) for number in self._next}
        return [
            (
                batch.column("id").to_numpy(zero_copy_only=False),
                batch.column("record").field("offset").to_numpy(zero_copy_only=False),
            )
            for batch in topic.batches(start=starts, stop=stops, columns=["id"])
        ]

    def _read(self, partition: int, start: int, batches: list[tuple[np.ndarray, np.ndarray]], where: str) -> None:
        ids = np.concatenate([batch[0] for batch in batches])
        offsets = np.concatenate([batch[1] for batch in batches])
        where = f"{where}: partition {partition} from {start}"
        if not np.array_equal(offsets, np.arange(start, start + len(offsets))):
            self.violations.append(f"{where}: offsets are not dense")
            return
        if len(ids) % self.rows:
            self.violations.append(f"{where}: {len(ids)} rows are not whole appends of {self.rows}")
            return
        appends = ids.reshape(-1, self.rows)
        if (appends[:, 0] % self.rows).any() or not (np.diff(appends, axis=1) == 1).all():
            self.violations.append(f"{where}: an append is torn")
        found = self._found[partition]
        known = set(found.values())
        twice = known.intersection(appends[:, 0].tolist())
        if twice:
            self.violations.append(f"{where}: {len(twice)} appends are there twice")
        found.update(zip(range(start, start + len(ids), self.rows), appends[:, 0].tolist(), strict=True))
        self._next[partition] = start + len(ids)
