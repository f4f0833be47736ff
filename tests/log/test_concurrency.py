"""Processes that append, follow, seal and compact one topic at the same time, and an account of every offset.

MAINSTEM_SOAK_SECONDS sets for how long: 20 seconds unless it is set, a minute in `make test-long`.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from mainstem.clock import SystemClock
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.keep_rule import Keep
from mainstem.log.producer import Producer
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.contracts.other_process import Line, OtherProcess
from tests.log.synced_files import SyncedFiles

pytestmark = pytest.mark.forks

SECONDS = float(os.environ.get("MAINSTEM_SOAK_SECONDS", "8"))
WRITERS, FOLLOWERS, PARTITIONS = 4, 4, 4
# How many rows at a time each follower asks for.
FOLLOWED = (1, 1, 1, 64)
# Rows under keys of their own must all be seen; those under keys that come again may be compacted away.
CHURN_KEYS = 50
CHURN = 1 << 40
LAST = -1
# A row that was put together from two would not fit itself.
FACTOR, MODULUS = 7919, 1_000_003

Numbers = npt.NDArray[np.int64]


@dataclass
class Account:
    """What a writer was acknowledged: where each row lies, and whether it is to be seen."""

    offsets: list[tuple[int, int, int, int]] = field(default_factory=list)  # partition, first, end, seen or not
    numbers: list[list[int]] = field(default_factory=list)
    markers: int = 0
    appends: int = 0

    def add(self, placed: dict[int, tuple[int, int]], rows: dict[int, list[int]], seen: bool) -> None:
        self.appends += 1
        for partition, (first, end) in placed.items():
            self.offsets.append((partition, first, end, seen))
            self.numbers.append(rows[partition])


def table_of(numbers: list[int]) -> pa.Table:
    array = np.array(numbers, np.int64)
    keys = [f"churn-{n % CHURN_KEYS}" if n >= CHURN else str(n) for n in numbers]
    return pa.table({"k": keys, "n": array, "m": array * FACTOR % MODULUS})


def write(stem: Mainstem, line: Line, number: int, seed: int, report: str) -> None:
    """Append in every way there is, until told to stop."""
    dice = random.Random(seed * 100 + number)
    topic = stem.topic("soak")
    producer = stem.producer(f"writer-{number}")
    account = Account()
    next_number = (number + 1) * 1_000_000_000
    line.say("ready")
    line.hear()
    while line.quiet():
        numbers = list(range(next_number, next_number + dice.randint(1, 100)))
        next_number += len(numbers)
        numbers += [CHURN + next_number * 10 + n for n in range(dice.randint(0, 5))]
        step = dice.randrange(10)
        if step < 6:
            numbers_of = by_partition(topic, numbers)
            account.add(dict(topic.append(table_of(numbers)).offsets), numbers_of, seen=True)
        elif step < 8:
            repeated(producer, topic, numbers, account)
        else:
            in_transaction(stem, topic, numbers, account, dice.randrange(4) > 0)
    files = stem.log.files  # type: ignore[attr-defined]
    np.save(f"{report}.npy", np.array(account.offsets, np.int64).reshape(-1, 4))
    flat = [n for part in account.numbers for n in part]
    np.save(f"{report}-numbers.npy", np.array(flat, np.int64))
    line.say(
        {
            "appends": account.appends,
            "markers": account.markers,
            "syncs": files.syncs,
            "publications": files.publications,
            "too_early": files.too_early,
        }
    )


def by_partition(topic: Topic, numbers: list[int]) -> dict[int, list[int]]:
    """Which rows go where, in their order."""
    from mainstem.log.rows.partitioner import key_bytes, partitions_of

    batch = table_of(numbers).to_batches()[0]
    found: dict[int, list[int]] = {}
    for n, partition in zip(numbers, partitions_of(key_bytes(batch, ("k",)), PARTITIONS).tolist(), strict=True):
        found.setdefault(partition, []).append(n)
    return found


def repeated(producer: Producer, topic: Topic, numbers: list[int], account: Account) -> None:
    """An append whose author is not sure and does it twice."""
    sequence = numbers[0]
    placed = producer.append(topic, table_of(numbers), sequence=sequence)
    again = producer.append(topic, table_of(numbers), sequence=sequence)
    assert (placed.appended, again.appended) == (True, False)
    account.add(dict(placed.offsets), by_partition(topic, numbers), seen=True)


def in_transaction(stem: Mainstem, topic: Topic, numbers: list[int], account: Account, committed: bool) -> None:
    transaction = stem.transaction()
    half = max(1, len(numbers) // 2)
    partitions = set()
    for part in (numbers[:half], numbers[half:]):
        if part:
            placed = dict(transaction.append(topic, table_of(part)).offsets)
            account.add(placed, by_partition(topic, part), seen=committed)
            partitions |= set(placed)
    (transaction.commit if committed else transaction.abort)()
    account.markers += len(partitions)


def follow(stem: Mainstem, line: Line, report: str, rows_max: int) -> None:
    """See everything, as it comes, until the last row of every partition."""
    topic = stem.topic("soak")
    partitions = stem.log.open_topic("soak").store.partitions  # type: ignore[attr-defined]
    seen: dict[int, list[Numbers]] = {number: [] for number in range(PARTITIONS)}
    rows: dict[int, list[Numbers]] = {number: [] for number in range(PARTITIONS)}
    last = dict.fromkeys(range(PARTITIONS), -1)
    wrong: list[str] = []
    batches, ended = 0, 0
    follower = topic.follow(start="earliest", rows_max=rows_max)
    line.say("ready")
    for batch in follower:
        batches += 1
        record = batch.column("record")
        partition = record.field("partition")[0].as_py()
        offsets = record.field("offset").to_numpy()
        numbers = batch.column("n").to_numpy()
        if not (np.diff(offsets) > 0).all() or offsets[0] <= last[partition]:
            wrong.append(f"{partition}: {offsets.tolist()} after {last[partition]}")
        if not (numbers * FACTOR % MODULUS == batch.column("m").to_numpy()).all():
            wrong.append(f"{partition}: a torn row in {offsets.tolist()}")
        if offsets[-1] >= partitions[partition].published_end().offset:
            wrong.append(f"{partition}: {offsets[-1]} was seen before it was published")
        last[partition] = int(offsets[-1])
        seen[partition].append(offsets)
        rows[partition].append(numbers)
        ended += int((numbers == LAST).sum())
        if ended == PARTITIONS:
            break
    follower.close()
    for number in range(PARTITIONS):
        np.save(f"{report}-{number}.npy", np.stack([np.concatenate(seen[number]), np.concatenate(rows[number])]))
    line.say({"batches": batches, "wrong": wrong})


def seal(stem: Mainstem, line: Line) -> None:
    _again_and_again(line, stem.topic("soak").seal)


def compact(stem: Mainstem, line: Line) -> None:
    _again_and_again(line, stem.topic("soak").compact)


def _again_and_again(line: Line, work: Callable[[], Any]) -> None:
    passes = 0
    line.say("ready")
    line.hear()
    # A pause is a wait for the word to stop.
    while line.quiet(0.1):
        work()
        passes += 1
    work()
    line.say(passes)


@pytest.fixture
def processes() -> Iterator[list[OtherProcess]]:
    started: list[OtherProcess] = []
    yield started
    for process in started:
        process.close()


@pytest.mark.thorough
@pytest.mark.parametrize("seconds", [SECONDS, pytest.param(60.0, marks=pytest.mark.long)])
@pytest.mark.timeout(SECONDS * 3 + 420)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_processes_append_follow_seal_and_compact_at_once(
    tmp_path: Path, processes: list[OtherProcess], fault_report: Callable[..., None], seconds: float
) -> None:
    seed = int(os.environ.get("MAINSTEM_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"MAINSTEM_SEED={seed}")
    home, ledger = str(tmp_path / "home"), str(tmp_path / "synced")

    def opener() -> Mainstem:
        return Mainstem(EmbeddedLog(home, files=SyncedFiles(home, ledger), clock=SystemClock()))

    with opener() as stem:
        topic = stem.create_topic(
            "soak", schema="k string, n bigint, m bigint", key="k", partitions=PARTITIONS,
            keep=Keep.latest_per_key(), segment_bytes_max="256 KiB",
        )  # fmt: skip

        def start(work: Callable[..., None], *arguments: Any) -> OtherProcess:
            processes.append(OtherProcess(opener, work, *arguments))
            assert processes[-1].hear() == "ready"
            return processes[-1]

        followers = [start(follow, str(tmp_path / f"seen-{n}"), rows_max) for n, rows_max in enumerate(FOLLOWED)]
        upkeep = [start(seal), start(compact)]
        writers = [start(write, n, seed, str(tmp_path / f"acknowledged-{n}")) for n in range(WRITERS)]
        for process in [*writers, *upkeep]:
            process.say("begin")
        # Whoever says something before the time is over has failed.
        if wait([process.connection for process in processes], seconds):
            for process in processes:
                if not process.quiet():
                    process.hear()
        written = _stopped(writers)
        passes = _stopped(upkeep)
        for partition in range(PARTITIONS):
            topic.append(table_of([LAST]), partition=partition)
        watched = [follower.hear(seconds + 120) for follower in followers]
        final = topic.to_arrow()
        violations = [wrong for writer in written for wrong in writer["too_early"]]
        violations += [wrong for follower in watched for wrong in follower["wrong"]]
        violations += _judged(tmp_path, topic, final, sum(writer["markers"] for writer in written))
        assert topic.verify().sound

    figures = {
        "appends": sum(writer["appends"] for writer in written),
        "syncs": sum(writer["syncs"] for writer in written),
        "publications": sum(writer["publications"] for writer in written),
        "sealings": passes[0],
        "compactions": passes[1],
        "rows": len(final),
    }
    batches = sum(follower["batches"] for follower in watched)
    fault_report("L15", points=batches, compared=len(final) * FOLLOWERS, violations=violations, seed=seed, **figures)


def _stopped(processes: list[OtherProcess]) -> list[Any]:
    for process in processes:
        process.say("stop")
    return [process.hear(120) for process in processes]


def _judged(folder: Path, topic: Topic, final: pa.Table, markers: int) -> list[str]:
    """What is wrong with the offsets, with the rows at the end, and with what each follower saw."""
    wrong: list[str] = []
    accounts = [np.load(folder / f"acknowledged-{n}.npy") for n in range(WRITERS)]
    numbers = [np.load(folder / f"acknowledged-{n}-numbers.npy") for n in range(WRITERS)]
    record = final.column("record").combine_chunks()
    placed = np.stack(
        [record.field("partition").to_numpy(), record.field("offset").to_numpy(), final.column("n").to_numpy()]
    )
    without_record = 0
    for partition in range(PARTITIONS):
        end = topic.backend.latest(partition)
        # -2: nobody was acknowledged this offset. What was aborted is counted as accounted for, and never to be seen.
        rows = np.full(end, -2, np.int64)
        seen = np.zeros(end, bool)
        for account, flat in zip(accounts, numbers, strict=True):
            at = 0
            for where, first, stop, counts in account.tolist():
                if where == partition:
                    if (rows[first:stop] != -2).any():
                        wrong.append(f"{partition}: offsets {first} to {stop} were given out twice")
                    rows[first:stop] = flat[at : at + stop - first]
                    seen[first:stop] = counts
                at += stop - first
        rows[end - 1], seen[end - 1] = LAST, True
        without_record += int((rows == -2).sum())
        must = seen & (rows < CHURN)
        theirs = placed[1:, placed[0] == partition]
        wrong += _compared(f"partition {partition} at the end", theirs, rows, seen, must)
        for follower in range(FOLLOWERS):
            theirs = np.load(folder / f"seen-{follower}-{partition}.npy")
            wrong += _compared(f"partition {partition} of follower {follower}", theirs, rows, seen, must)
        wrong += _latest_missing(rows, seen, placed[1:, placed[0] == partition])
    if without_record != markers:
        wrong.append(f"{without_record} offsets hold no record, but there were {markers} markers")
    return wrong


def _compared(
    name: str, found: Numbers, rows: Numbers, seen: npt.NDArray[np.bool_], must: npt.NDArray[np.bool_]
) -> list[str]:
    offsets, numbers = found
    wrong = []
    if len(np.unique(offsets)) != len(offsets):
        wrong.append(f"{name}: {len(offsets) - len(np.unique(offsets))} rows came twice")
    if strange := int((rows[offsets] != numbers).sum()):
        wrong.append(f"{name}: {strange} rows are not what was acknowledged there")
    if unwanted := int((~seen[offsets]).sum()):
        wrong.append(f"{name}: {unwanted} rows of aborted transactions")
    if missing := int(must.sum() - must[offsets].sum()):
        wrong.append(f"{name}: {missing} acknowledged rows are missing")
    return wrong


def _latest_missing(rows: Numbers, seen: npt.NDArray[np.bool_], final: Numbers) -> list[str]:
    """Keys that came again may be compacted, but the latest of each is there."""
    left = set(final[0].tolist())
    latest: dict[int, int] = {}
    for offset in np.flatnonzero(seen & (rows >= CHURN)).tolist():
        latest[int(rows[offset]) % CHURN_KEYS] = offset
    return [f"the latest of key churn-{key}, at offset {at}, is gone" for key, at in latest.items() if at not in left]


def test_a_publication_before_its_fsync_is_seen(tmp_path: Path) -> None:
    """The same account, with a log that shows what is not on disk: it must be found out."""
    home, ledger = str(tmp_path / "home"), str(tmp_path / "synced")

    class Hasty(SyncedFiles):
        """Says that an fsync is done, and does none."""

        def sync(self, handle: int) -> None:
            with suppress(KeyError):
                if not self._paths[handle].endswith(".blocks"):
                    super().sync(handle)

    for files, honest in ((SyncedFiles(home, ledger), True), (Hasty(home, ledger), False)):
        with Mainstem(EmbeddedLog(home, files=files)) as stem:
            topic = stem.create_topic("soak", schema="n bigint")
            for number in range(5):
                topic.append([{"n": number}])
        assert files.publications >= 5
        assert (files.too_early == []) == honest, json.dumps(files.too_early)
