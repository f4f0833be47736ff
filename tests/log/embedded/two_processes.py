"""Two processes on one machine in memory that use the same partition in turn, and what it has promised them."""

from __future__ import annotations

import itertools

import google_crc32c

from mainstem.clock import ManualClock
from mainstem.errors import MainstemError
from mainstem.log.embedded.write.partition import Partition, Pending
from tests.log.embedded.acknowledged import Acknowledged, make_partition, open_partition, read_all, unsound_indexes
from tests.log.embedded.memory_disk import Mode
from tests.log.embedded.memory_files import MemoryFiles

# So small that a segment is full after some appends.
SEGMENT_BYTES_MAX = 900

# Two processes take turns: the one that is stopped leaves the other where it was.
SCRIPT = [
    "append A", "append B", "append A", "look B", "group A", "append B", "append A", "append B", "roll A", "append B",
    "produce A", "produce B", "look A", "append B", "take over B", "append A", "append B", "look B", "group B",
    "produce A", "roll B", "take over A", "append B", "append A", "look A",
]  # fmt: skip


class World:
    """Two processes with the same partition open, and what it has promised them.

    With `let_go` each has let go of all its files before every step, and keeps as few as it can.
    """

    def __init__(self, seed: int, *, let_go: bool = False) -> None:
        self.let_go = let_go
        self.clock = ManualClock()
        self.promised = Acknowledged()
        self.numbers = itertools.count()
        self.files = {"A": MemoryFiles()}
        self.files["A"].machine.random.seed(seed)
        if let_go:
            self.files["A"].machine.handles_max = 1
        make_partition(self.files["A"], self.clock)
        self.files["A"].sync_everything()  # a broken build is to be found out by what comes now
        self.files["B"] = self.files["A"].process()
        self.partitions = {name: self.opened(files) for name, files in self.files.items()}

    def opened(self, files: MemoryFiles) -> Partition:
        return open_partition(files, self.clock, segment_bytes_max=SEGMENT_BYTES_MAX)

    def payload(self) -> bytes:
        number = next(self.numbers)
        return b"%d-" % number + b"x" * (number * 37 % 120)

    def step(self, step: str) -> None:
        action, _, name = step.rpartition(" ")
        partition = self.partitions[name]
        self.clock.advance("1 second")
        if self.let_go:
            partition.files.kept.close_all_idle()
        if action == "append":
            self.promised.append(partition, self.payload(), next(self.numbers) % 4 + 1)
        elif action == "produce":
            pending = Pending(self.payload(), 1, producer_id=7, producer_epoch=1, sequence=next(self.numbers))
            self._submit(partition, [pending])
        elif action == "group":
            self._submit(partition, [Pending(self.payload(), 2) for _ in range(5)])
        elif action == "roll":
            partition.roll()
        elif action == "take over":
            partition.take_over()
        else:
            self.promised.look(read_all(partition.files, partition.published_end()))

    def _submit(self, partition: Partition, group: list[Pending]) -> None:
        for pending in group:
            pending.payload_crc = google_crc32c.value(pending.payload)
        self.promised.submitted.update({bytes(pending.payload): pending.count for pending in group})
        partition._commit(group)
        self.promised.offsets.update({bytes(pending.payload): pending.base_offset for pending in group})

    def go_on(self, partition: Partition, where: str) -> list[str]:
        """Use the partition after a crash: read, append, roll, and read again."""
        try:
            wrong = self.promised.violations(read_all(partition.files, partition.published_end()), where)
            if partition.fenced():
                partition.take_over()
            for _ in range(2):
                self.promised.append(partition, self.payload())
            partition.roll()
            self.promised.append(partition, self.payload())
            stored = read_all(partition.files, partition.published_end())
            self.promised.look(stored)
            wrong += self.promised.violations(stored, f"{where}, gone on")
            return wrong + [
                f"{where}: {index}" for index in unsound_indexes(partition.files, partition.published_end())
            ]
        except (MainstemError, AssertionError, OSError) as error:
            return [f"{where}: {type(error).__name__}: {error} {getattr(error, 'detail', '')}"]

    def moved_to(self, files: MemoryFiles) -> World:
        """A world with the same promises on another machine, with no process in it yet."""
        other = object.__new__(World)
        other.let_go = self.let_go
        other.clock, other.numbers = self.clock, itertools.count(10_000)
        other.promised = Acknowledged()
        other.promised.submitted = dict(self.promised.submitted)
        other.promised.offsets = dict(self.promised.offsets)
        other.promised.seen = dict(self.promised.seen)
        other.files = {"A": files}
        other.partitions = {}
        return other

    def after_power_cut(self, seed: int, mode: Mode, where: str) -> list[str]:
        """What is wrong after a power cut at this moment; this world stays as it is."""
        where = f"{where}, power cut ({mode})"
        other = self.moved_to(self.files["A"].crash(seed, mode))
        try:
            partition = other.opened(other.files["A"])
        except (MainstemError, OSError) as error:
            return [f"{where}: {type(error).__name__}: {error} {getattr(error, 'detail', '')}"]
        return other.go_on(partition, where)
