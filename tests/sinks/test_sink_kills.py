"""S1 without Spark: who writes a topic or files is killed at every named point, again and again; each row is there once.

The driver's own steps, with Spark, are in tests/flows/test_exactly_once.py; those of a view in tests/views/.
"""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import mainstem
from mainstem.batch import Batch, FlowRun
from mainstem.crash_points import reach
from mainstem.sinks.file_commits import CommittedBatch
from mainstem.sinks.file_sink import FileWriter
from mainstem.spark.checkpoint.rejected_rows import RejectedRows, reject
from mainstem.spark.sources.topic_writer import TopicWriter
from tests.sinks.arrow_file_writer import ArrowFileWriter, begin, committed_ids, globbed_ids, killed_at, rows_of, write

pytestmark = pytest.mark.forks

SEED = 4_101
KILLS = 40
BATCHES = 4
POINTS = ["sink_rows_computed", "sink_rows_written", "before_sink_commit", "sink_committed"]


# Files


def write_files(folder: Path, kind: type[FileWriter] = ArrowFileWriter) -> None:
    """As the runner does it: from the batch after the last one held, `BATCHES` of them."""
    run, writer = begin(folder, writer=kind)
    for batch in range(writer.committed_batch + 1, writer.committed_batch + 1 + BATCHES):
        write(run, writer, batch)


def kill_files(folder: Path, kills: int, kind: type[FileWriter] = ArrowFileWriter) -> tuple[int, int, list[str]]:
    chance = random.Random(SEED)
    compared, violations = 0, []
    for kill in range(kills):
        if violations and kind is not ArrowFileWriter:
            break  # A broken build: one is enough.
        point = f"{chance.choice(POINTS)}:{chance.randint(1, BATCHES)}"
        assert killed_at(point, lambda: write_files(folder, kind)), f"{point} was not reached"
        committed_batch = (
            -1
            if not (folder / "out/orders/_mainstem/sink.json").exists()
            else begin(folder, writer=kind)[1].committed_batch
        )
        expected = list(range((committed_batch + 1) * 10))
        for reader, found in (("ours", committed_ids(folder)), ("glob", globbed_ids(folder))):
            compared += len(expected)
            if found != expected:
                violations.append(f"kill {kill} at {point}: {reader} shows {len(found)} rows, not {len(expected)}")
    return kills, compared, violations


@pytest.mark.thorough
def test_files_written_by_killed_runs_hold_each_row_once(tmp_path: Path, fault_report: Callable[..., None]) -> None:
    kills, compared, violations = kill_files(tmp_path, KILLS)
    fault_report("S1 files without Spark", points=kills, compared=compared, violations=violations, seed=SEED)


class UnnamedFiles(ArrowFileWriter):
    """A broken build: what a killed run left is not removed."""

    def _remove_leftovers(self):
        pass


class EarlyCommit(ArrowFileWriter):
    """A broken build: the batch is committed before its files are in place."""

    def _move(self, staged, taken, batch):
        self._commits.commit(self._run.version, CommittedBatch(batch.number, self._run.epoch, rows=0))
        return super()._move(staged, taken, batch)


@pytest.mark.parametrize("broken", [UnnamedFiles, EarlyCommit])
def test_a_broken_files_sink_is_caught(tmp_path: Path, broken: type[FileWriter]) -> None:
    assert kill_files(tmp_path, KILLS, broken)[2]


# Topics


def write_topic(folder: Path, kind: type[TopicWriter] = TopicWriter) -> None:
    """Every other row does not fit into the topic: it is rejected, in the same transaction."""
    with mainstem.open(folder / "home", upkeep="manual") as stem:
        run = FlowRun("copies", 1)
        writer = kind(stem.log, stem.topic("copies"), run)
        rejected = RejectedRows(stem.log, str(folder), sink="topic copies")
        first = writer.committed_batch + 1
        for batch in range(first, first + BATCHES):
            table = rows_of(batch).append_column("small", [[300 * (number % 2) for number in range(10)]])
            writer.append(table, Batch(batch, run, rejected=rejected))


def kill_topic(folder: Path, kills: int, kind: type[TopicWriter] = TopicWriter) -> tuple[int, int, list[str]]:
    chance = random.Random(SEED)
    (folder / "metadata").write_text('{"id": "one"}')
    with mainstem.open(folder / "home", upkeep="manual") as stem:
        stem.create_topic("copies", schema="id BIGINT, store STRING, amount DOUBLE, small TINYINT", partitions=3)
    compared, violations = 0, []
    for kill in range(kills):
        if violations and kind is not TopicWriter:
            break
        point = f"{chance.choice(POINTS[1:])}:{chance.randint(1, BATCHES)}"
        assert killed_at(point, lambda: write_topic(folder, kind)), f"{point} was not reached"
        with mainstem.open(folder / "home", upkeep="manual") as stem:
            committed_batch = kind(stem.log, stem.topic("copies"), FlowRun("copies", 1)).committed_batch
            found = Counter(stem.topic("copies").to_arrow(columns=["id"]).column("id").to_pylist())
            if "copies.rejected" in stem.topics():
                found += Counter(stem.topic("copies.rejected").to_arrow(columns=["id"]).column("id").to_pylist())
        compared += (committed_batch + 1) * 10
        if found != Counter(range((committed_batch + 1) * 10)):
            violations.append(f"kill {kill} at {point}: {found.total()} rows, not {(committed_batch + 1) * 10}")
    return kills, compared, violations


@pytest.mark.thorough
def test_a_topic_written_by_killed_runs_holds_each_row_once(tmp_path: Path, fault_report: Callable[..., None]) -> None:
    kills, compared, violations = kill_topic(tmp_path, KILLS)
    fault_report("S1 topic without Spark", points=kills, compared=compared, violations=violations, seed=SEED)


class NoTransaction(TopicWriter):
    """A broken build: rows and rejected rows are appended as they come."""

    def _append(self, fitting, batch, table=None, rejections=()):
        reject(batch, table, rejections, taken=len(fitting))
        for number in range(len(fitting)):
            reach("before_sink_commit")
            self._producer.append(self._topic, fitting.slice(number, 1), sequence=batch.number * 1000 + number)
            reach("sink_rows_written")
        reach("sink_committed")


def test_a_broken_topic_sink_is_caught(tmp_path: Path) -> None:
    assert kill_topic(tmp_path, KILLS, NoTransaction)[2]
