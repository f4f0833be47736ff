"""Bounded reads and queries while processes commit, abort and die, and others seal: all of a transaction or none of it.

MAINSTEM_SOAK_SECONDS sets for how long, together with the other test that runs for a time: a quarter of it is for this.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.embedded.write.partition_state import PartitionState
from mainstem.stem import Mainstem
from tests.contracts.other_process import Line, OtherProcess

pytestmark = pytest.mark.forks

SECONDS = float(os.environ.get("MAINSTEM_SOAK_SECONDS", "20")) / 4
# However busy the machine is, a reader sees by then what it must see.
SECONDS_MAX = 300
TOPICS, PARTITIONS = ("debits", "credits"), 3
PLACES = len(TOPICS) * PARTITIONS
# Every fifth transaction is aborted; its number tells.
ABORTED = 5


def write(stem: Mainstem, line: Line, first: int) -> None:
    """One row in every partition of every topic, under the transaction's own number."""
    line.say("ready")
    line.hear()
    number = first
    while line.quiet():
        number += 1
        transaction = stem.transaction()
        for topic in TOPICS:
            for partition in range(PARTITIONS):
                transaction.append(topic, [{"k": KEYS[partition], "n": number}])
        (transaction.abort if number % ABORTED == 0 else transaction.commit)()
    line.say(number - first)


def read(stem: Mainstem, line: Line, way: str) -> None:
    """Count the rows of each transaction, as many as it has places or none, until told to stop or one is torn."""
    line.say("ready")
    line.hear()
    reads, torn = 0, []
    while not torn and line.quiet():
        if way == "query":
            union = " UNION ALL ".join(f"SELECT n FROM {topic}" for topic in TOPICS)
            answer = stem.query(f"SELECT n, count(*) AS times FROM ({union}) GROUP BY n").to_pydict()
            counts, whole = dict(zip(answer["n"], answer["times"], strict=True)), PLACES
        else:
            counts, whole = (
                Counter(stem.topic(TOPICS[reads % 2]).to_arrow(columns=["n"]).column("n").to_pylist()),
                PARTITIONS,
            )
        torn += [
            f"{way} {reads}: {n} seen {seen} times" for n, seen in counts.items() if seen != whole or n % ABORTED == 0
        ]
        reads += 1
    line.say({"reads": reads, "torn": torn})
    if torn:
        line.hear()


def seal(stem: Mainstem, line: Line) -> None:
    line.say("ready")
    line.hear()
    while line.quiet(0.2):
        for topic in TOPICS:
            stem.topic(topic).seal()
    line.say(None)


def die(stem: Mainstem, line: Line) -> None:
    """Begin one that is never decided; the test kills this process."""
    transaction = stem.transaction(timeout="1 hour")
    for topic in TOPICS:
        transaction.append(topic, [{"k": KEYS[0], "n": ABORTED}])
    line.say("begun")
    line.hear()


# murmur2 places these in partitions 0, 1 and 2 of three.
KEYS = ["key-1", "key-0", "key-2"]


@pytest.fixture
def processes() -> Iterator[list[OtherProcess]]:
    started: list[OtherProcess] = []
    yield started
    for process in started:
        process.close()


def soak(home: Path, processes: list[OtherProcess], seconds: float) -> tuple[int, list[dict[str, Any]]]:
    """Everything at once for some time, or until a reader sees a torn one: how many transactions there were, and what the
    readers found."""

    def opener() -> Mainstem:
        return Mainstem(EmbeddedLog(home))

    with opener() as stem:
        for topic in TOPICS:
            stem.create_topic(
                topic, schema="k string, n bigint", key="k", partitions=PARTITIONS, segment_bytes_max="64 KiB"
            )

    def start(work: Callable[..., None], *arguments: Any) -> OtherProcess:
        processes.append(OtherProcess(opener, work, *arguments))
        assert processes[-1].hear() in ("ready", "begun")
        return processes[-1]

    writers = [start(write, 1_000_000 * (number + 1)) for number in range(2)]
    readers = [start(read, way) for way in ("batches", "batches", "query")]
    others = [start(seal)]
    for process in processes:
        process.say("begin")
    # Now and then somebody dies in the middle of one.
    for _ in range(4):
        start(die).kill()
        if wait([process.connection for process in (*writers, *readers, *others)], seconds / 4):
            break
    results = []
    for group in (writers, readers, others):
        for process in group:
            process.say("stop")
        results.append([process.hear() for process in group])
    return sum(results[0]), results[1]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_no_reader_ever_sees_a_part_of_a_transaction(
    tmp_path: Path, processes: list[OtherProcess], fault_report: Callable[..., None]
) -> None:
    transactions, found = soak(tmp_path / "home", processes, SECONDS)
    torn = [one for reader in found for one in reader["torn"]]
    reads = sum(reader["reads"] for reader in found)
    fault_report("L15 transactions", points=transactions, compared=reads, violations=torn)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_log_that_shows_what_it_knows_of_each_partition_is_found_out(
    tmp_path: Path, processes: list[OtherProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: every partition by itself shows what is decided there, at no common moment."""
    right = PartitionState.hidden_ranges_at
    monkeypatch.setattr(PartitionState, "hidden_ranges_at", lambda state, *_: right(state, {}, 1 << 62))
    _, found = soak(tmp_path / "home", processes, SECONDS_MAX)
    assert [one for reader in found for one in reader["torn"]]
