"""S1 on the way through sealed files: the driver is killed, Java and all, around the switch to the live stream.

Every place where a run may die is in `test_native_catch_up`, without a process of its own; here Spark itself is gone with
it, in the middle of the files and between the two queries.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mainstem
from mainstem.flows import native_catch_up
from mainstem.spark.checkpoint.checkpoint_offsets import file_offset, last_batch
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.checkpoint.native_history import NativeHistory, noted_history
from tests.flows.native_killed_driver import SINKS
from tests.flows.native_shop import Shop, differences, flows

POINTS = ["history_placed:3", "history_over:1"]
DRIVER = Path(__file__).parent / "native_killed_driver.py"


def run_driver(folder: Path, point: str = "") -> int:
    """Run the program until it ends or is killed; its exit status."""
    root = DRIVER.parent.parent.parent
    known = {**os.environ, "PYTHONPATH": f"{root}/src:{root}"} | ({"MAINSTEM_CRASH_AT": point} if point else {})
    with (folder / "said").open("wb") as said:
        done = subprocess.run(
            [sys.executable, str(DRIVER), f"{folder}/home"], env=known, stdout=said, stderr=said, timeout=300,
            start_new_session=True,
        )  # fmt: skip
    assert done.returncode in (0, -9), (folder / "said").read_text()[-3000:]
    return done.returncode


def run_plain(stem: mainstem.Mainstem, monkeypatch: pytest.MonkeyPatch, sinks: Sequence[str]) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(native_catch_up, "ROWS_MIN", 1 << 62)
        stem.run(lambda stem: flows(stem, "plain", "", sinks), until="idle")


def planned_and_done(home: str, sink: str) -> tuple[str, int | None, int | None]:
    checkpoint = FlowStore(home, f"{sink}_native").checkpoint(1)
    return checkpoint, last_batch(checkpoint, "offsets"), last_batch(checkpoint)


def files_are_over(home: str, sink: str) -> bool:
    checkpoint, planned, done = planned_and_done(home, sink)
    history = noted_history(checkpoint)
    if planned is None or history is None:
        return False
    at = file_offset(checkpoint, planned)
    return at is None or (planned == done and at == history.last)


def found_if_the_switch_is_forgotten(home: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is wrong when a copy of the home, as the kill left it, is gone on with from the beginning of the topic."""
    copy = shutil.copytree(home, home.with_name("copy"))
    # Among the files a home cannot be moved: Spark has noted where they lie.
    sinks = [sink for sink in SINKS if files_are_over(str(copy), sink)]
    with mainstem.open(copy, upkeep="manual", spark=spark) as stem, monkeypatch.context() as patched:
        start = property(lambda history: {"topic": history.topic, "id": "", "offsets": {"0": 0, "1": 0}})
        patched.setattr(NativeHistory, "end", start)
        stem.run(lambda stem: flows(stem, "native", "", sinks), until="idle")
        run_plain(stem, monkeypatch, sinks)
        return differences(stem, "", sinks)[1]


@pytest.mark.timeout(1800)
def test_a_driver_killed_around_the_switch_counts_each_row_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault_report: Callable[..., None]
) -> None:
    with mainstem.open(tmp_path / "home", upkeep="manual", spark=spark) as stem:
        shop = Shop(stem, seed := 29, partitions=2)
        shop.fill(segments=4)
        for point in POINTS:
            assert run_driver(tmp_path, point) == -9, f"{point} was not reached"
            last = [planned_and_done(stem.home, sink)[:2] for sink in SINKS]
            kinds = [file_offset(checkpoint, number) is not None for checkpoint, number in last if number is not None]
            assert any(kinds), f"{point}: no flow is among the files"
            shop.append(20)
        assert found_if_the_switch_is_forgotten(tmp_path / "home", spark, monkeypatch)
        # Who goes on is another process than the one that was killed, and that is all that counts.
        stem.run(lambda stem: flows(stem, "native", "", SINKS), until="idle")
        run_plain(stem, monkeypatch, SINKS)
        compared, found = differences(stem, "", SINKS)
    fault_report("S1", points=len(POINTS), compared=compared, violations=found, seed=seed, way="around the switch")
