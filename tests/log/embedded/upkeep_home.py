"""A home in memory for tests of upkeep: its clock stands still, and nothing is done in the background."""

from collections.abc import Iterable
from typing import Any

from mainstem.clock import ManualClock
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.embedded.upkeep.manifest import Manifest
from mainstem.log.embedded.write.partition import Partition
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.log.embedded.memory_files import MemoryFiles

HOME = "/home"
SCHEMA = "k string, n bigint"


def opened(files: MemoryFiles, clock: ManualClock) -> Mainstem:
    return Mainstem(EmbeddedLog(HOME, files=files, clock=clock))


def partition_of(topic: Topic, number: int = 0) -> Partition:
    return topic.backend.store.partitions[number]  # type: ignore[attr-defined, no-any-return]


def manifest_of(topic: Topic, number: int = 0) -> Manifest:
    return partition_of(topic, number).manifest_file.read()


def fill(topic: Topic, pairs: Iterable[tuple[str, int]]) -> None:
    topic.append([{"k": key, "n": number} for key, number in pairs])


def sealed(topic: Topic, *appends: Iterable[tuple[str, int]]) -> None:
    """Append, and make a sealed segment of it."""
    for pairs in appends:
        fill(topic, pairs)
    topic.seal()


def shown(topic: Topic, **where: Any) -> list[tuple[int, str, int | None]]:
    """Offset, key and number of every record."""
    return [
        (row["record"]["offset"], row["k"], row["n"]) for batch in topic.batches(**where) for row in batch.to_pylist()
    ]


def accounted(manifest: Manifest) -> list[int]:
    """For each sealed segment, how many of its offsets are neither a record nor a marker nor aborted."""
    return [
        entry.end - entry.base - entry.rows - entry.marked - sum(end - first for first, end in entry.aborted)
        for entry in manifest.segments
    ]
