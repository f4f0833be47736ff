"""Taking over from a stopped process that holds a lock: of a partition, of a ledger, of the home itself.

The process is killed, if it still holds the lock; the partition gets a new epoch, which fences its unfinished writes. A
ledger is a partition too, and gets a snapshot at the beginning of its new segment.
"""

from __future__ import annotations

from typing import Any

from mainstem.file_locks import SYNC, UPKEEP, WRITE, PartitionLock
from mainstem.log.embedded.ledger import Ledger
from mainstem.log.embedded.write.partition import Partition
from mainstem.log.upkeep_report import TakeOverReport
from mainstem.processes import stopped

__all__ = ["take_over_if_stuck", "take_over_ledger_if_stuck", "take_over_lock_if_stuck", "take_over_partition"]

NOTHING = TakeOverReport()


def take_over_partition(partition: Partition) -> TakeOverReport:
    """Take a partition over, stopped holder or not; also lifts the fence after a failed fsync."""
    ended: list[str] = []
    with partition.lock.take_over(UPKEEP, ended):
        partition.take_over(ended)
    return TakeOverReport(tuple(ended), (partition.title,))


def take_over_if_stuck(partition: Partition) -> TakeOverReport:
    """Take a partition over if it cannot be appended to: a stopped process holds its lock, or an fsync failed."""
    return take_over_partition(partition) if _is_stuck(partition) else NOTHING


def take_over_ledger_if_stuck(ledger: Ledger[Any]) -> TakeOverReport:
    """The same for a ledger."""
    if not _is_stuck(ledger.partition):
        return NOTHING
    report = take_over_partition(ledger.partition)
    ledger.write_snapshot()
    return report


def take_over_lock_if_stuck(lock: PartitionLock, title: str) -> TakeOverReport:
    """Kill a stopped process that holds a lock under which only complete files are renamed."""
    if not _is_held_by_stopped_process(lock, WRITE):
        return NOTHING
    ended: list[str] = []
    with lock.take_over(WRITE, ended):
        return TakeOverReport(tuple(ended), (title,))


def _is_stuck(partition: Partition) -> bool:
    return partition.fenced() or any(
        _is_held_by_stopped_process(partition.lock, byte) for byte in (UPKEEP, WRITE, SYNC)
    )


def _is_held_by_stopped_process(lock: PartitionLock, byte: int) -> bool:
    pid = lock.holder(byte)
    return pid is not None and stopped(pid)
