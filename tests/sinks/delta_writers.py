"""Writers of Delta tables in processes of their own, which race or are killed.

Deltalake must not be used in a forked child of a process that has used it. So children are forked from a server that has
only imported it.
"""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pyarrow as pa

from mainstem.crash_points import VARIABLE, reach
from mainstem.sinks.delta_store import DeltaStore
from mainstem.sinks.store_backend import Fence, FenceMoved, StoreChange
from mainstem.testing.store_trial import StoreTrial, changes

__all__ = ["BATCHES", "TwoCommits", "WithoutLooking", "begun", "commit_round", "kill_writer", "race_processes"]

# That a writer commits before it is killed, at most.
BATCHES = 3

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


class WithoutLooking(DeltaStore):
    """A broken build: any fence is taken for the expected one."""

    _expected: Fence | None = None

    def _committed(self, change):
        self._expected = change.expected
        try:
            return super()._committed(change)
        finally:
            self._expected = None

    def _fence_of(self, table):
        return self._expected or super()._fence_of(table)


class TwoCommits(DeltaStore):
    """A broken build: rows are committed before the fence."""

    def commit(self, change):
        if change.upserts is not None:
            super().commit(replace(change, fence=change.expected))
            change = replace(change, upserts=None)
            reach("store_batch_written")
        super().commit(change)


# Races


def begun(folder: Path, kind: type[DeltaStore] = DeltaStore) -> tuple[DeltaStore, Fence]:
    """A table without rows and without a key."""
    backend = kind(folder / "lake/raced")
    fence = Fence("home", "raced", 1, 1, (), "id BIGINT, title STRING")
    backend.commit(StoreChange("live", None, fence))
    return backend, fence


def commit_round(backend: DeltaStore, fence: Fence, batch: int, who: int) -> Fence:
    after = replace(fence, batch=batch, epoch=1 + who, offsets={"orders": {0: batch + 1}})
    rows = pa.table({"id": pa.array([batch], pa.int64()), "title": [str(who)]})
    backend.commit(StoreChange("live", fence, after, rows))
    return after


def _race(path: str, who: int, rounds: int, barrier: Barrier, results: Any) -> None:
    backend = DeltaStore(path)
    for number in range(rounds):
        fence = backend.fences().live
        assert fence is not None
        barrier.wait(60)
        try:
            commit_round(backend, fence, number, who)
        except FenceMoved:
            pass
        else:
            results.put((number, who))
        barrier.wait(60)


def race_processes(folder: Path, rounds: int) -> list[str]:
    """As threads, but two processes."""
    backend, _ = begun(folder)
    barrier, results = _processes.Barrier(2), _processes.Queue()
    racers = [_processes.Process(target=_race, args=(backend.path, who, rounds, barrier, results)) for who in range(2)]
    for racer in racers:
        racer.start()
    won = sorted(results.get(timeout=120) for _ in range(rounds))
    for racer in racers:
        racer.join()
        assert racer.exitcode == 0
    fence = backend.fences().live
    assert fence is not None
    rows = sorted((row["id"], int(row["title"])) for batch in backend.read(fence) for row in batch.to_pylist())
    expected = [(number, who) for number, (_, who) in zip(range(rounds), won, strict=True)]
    return [] if results.empty() and rows == won == expected else [f"won {won}, rows {rows}"]


# Kills


def _write(folder: str, kind: type[DeltaStore], key: tuple[str, ...], epoch: int, point: str) -> None:
    os.environ[VARIABLE] = point
    way = f"{kind.__module__}:{kind.__name__}"
    trial = StoreTrial(Path(folder), way, {"path": f"{folder}/lake/tried"}, key)
    writer = trial.begin(epoch)
    first = writer.committed_batch + 1
    for batch in range(first, first + BATCHES):
        rows = [(number, "x", "insert") for number in range(batch * 10, batch * 10 + 10)]
        trial.write(writer, batch, changes(rows))


def kill_writer(folder: Path, kind: type[DeltaStore], key: tuple[str, ...], *, epoch: int, point: str) -> None:
    """A run that goes on with the table is killed at a named point."""
    process = _processes.Process(target=_write, args=(str(folder), kind, key, epoch, point))
    process.start()
    process.join(60)
    assert process.exitcode == -9, f"{point}: exit {process.exitcode}"
