"""S1: the driver is killed, Java and all, at every step of a batch, again and again; then the sinks hold each row once.

One chain: each run goes on from what the one before left, and is killed at the next point. In it are four flows, into a
topic, a view and files, and through a stage into a view; each kill strikes all of them, wherever they are. The steps of a batch, and where they are
met from Python:

    offset log      before: latestOffset, commit          after: partitions
    state           before: partitions, read              after: sink_rows_computed
    sink rows       before: batch_begun                   inside: sink_rows_written, view_rows_written
    sink commit     before: before_sink_commit, view_checked      after: sink_committed, view_committed
    stage           runs written: sink_rows_computed      late rows: stage_late_appended   manifest: stage_manifest_written
    commit log      before: batch_written                 inside: a file left empty        after: commit
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import mainstem
from mainstem.spark.checkpoint.checkpoint_offsets import last_batch
from mainstem.spark.checkpoint.flow_store import FlowStore
from tests.flows.killed_driver import WATERMARK, prepare

pytestmark = pytest.mark.starts_servers

# Of the driver, or of a source.
POINTS = [
    ("", "latestOffset:1"),
    ("", "partitions:1"),
    ("batch_begun:1", ""),
    ("", "read:1"),
    ("sink_rows_computed:1", ""),
    ("sink_rows_written:1", ""),
    ("sink_rows_written:2", ""),
    ("view_rows_written:1", ""),
    ("view_batch_written:1", ""),
    ("view_checked:2", ""),
    ("before_sink_commit:1", ""),
    ("before_sink_commit:2", ""),
    ("sink_committed:1", ""),
    ("sink_committed:3", ""),
    ("view_committed:1", ""),
    ("batch_written:1", ""),
    ("stage_late_appended:1", ""),
    ("stage_manifest_written:1", ""),
    ("stage_late_appended:2", ""),
    ("stage_manifest_written:2", ""),
    ("", "commit:1"),
]
# One of each kind of step; before a release all of them.
EVERY_RUN = [
    ("", "latestOffset:1"),
    ("sink_rows_written:1", ""),
    ("before_sink_commit:2", ""),
    ("sink_committed:3", ""),
    ("batch_written:1", ""),
    ("stage_manifest_written:2", ""),
]
FLOWS = ["remainders", "per_store", "kept", "per_window"]
DRIVER = Path(__file__).parent / "killed_driver.py"


def run_driver(folder: Path, number: int, point: str = "", source_point: str = "", **environment: str) -> int:
    """Run the program until it ends or is killed; its exit status."""
    command = [sys.executable, str(DRIVER), f"{folder}/home", f"{folder}/out/kept", str(number), source_point]
    root = DRIVER.parent.parent.parent
    known = {**os.environ, "PYTHONPATH": f"{root}/src:{root}", **environment}
    if point:
        known["MAINSTEM_CRASH_AT"] = point
    with (folder / "said").open("wb") as said:
        done = subprocess.run(command, env=known, stdout=said, stderr=said, start_new_session=True, timeout=600)
    assert done.returncode in (0, -9), (folder / "said").read_text()[-3000:]
    return done.returncode


def leave_commits_half_written(folder: Path) -> int:
    """As a power cut would: the file is there, and nothing is in it."""
    left = 0
    for flow in FLOWS:
        checkpoint = FlowStore(f"{folder}/home", flow).checkpoint(1)
        planned, committed = last_batch(checkpoint, "offsets"), last_batch(checkpoint)
        if planned is not None and planned != committed:
            Path(checkpoint, "commits", str(planned)).touch()
            left += 1
    return left


def differences(folder: Path) -> tuple[int, list[str]]:
    """How many rows were compared with DuckDB's answers on the same log, and what differs."""
    with mainstem.open(folder / "home") as stem:
        orders = stem.topic("orders").to_arrow().drop_columns(["record"])
        remainders = stem.topic("remainders").to_arrow().select(["order_id", "remainder"])
        unfit = stem.topic("remainders.rejected").to_arrow().select(["order_id"])
        per_store = stem.view("per_store").to_arrow().select(["store", "orders", "amount"])
        files = stem.files(folder / "out" / "kept").to_arrow().select(["order_id", "store"])
        nowhere = stem.topic("kept.rejected").to_arrow().select(["order_id"])
        per_window = stem.view("per_window").to_arrow().select(["window", "store", "orders", "amount"])
        shown = [{**row, "window": row["window"]["start"]} for row in per_window.to_pylist()]
        per_window = pa.Table.from_pylist(shown) if shown else per_window
        late = stem.topic("per_window.late").to_arrow().select(["store", "orders", "amount"])
        timely = stem.topic("orders").to_arrow(watermark=WATERMARK)
        reached = stem.topic("orders").backend.watermark_from(
            {number: stem.topic("orders").backend.latest(number) for number in range(2)}, 10_000_000
        )
    window = "to_timestamp(7 * floor(epoch(placed_at) / 7))"
    too_late = f"record.watermark >= {window} + INTERVAL 7 SECONDS"
    glob = duckdb.sql(f"SELECT order_id, store FROM '{folder}/out/kept/**/*.parquet'").to_arrow_table()
    questions = {
        "topic": (remainders, "SELECT order_id, amount % 140 FROM orders WHERE amount % 140 <= 127"),
        "rejected by the topic": (unfit, "SELECT order_id FROM orders WHERE amount % 140 > 127"),
        "view": (per_store, "SELECT store, count(*), sum(amount)::BIGINT FROM orders GROUP BY store"),
        "files": (files, "SELECT order_id, store FROM orders WHERE store <> ''"),
        "files by glob": (glob, "SELECT order_id, store FROM orders WHERE store <> ''"),
        "view of windows": (
            per_window,
            (
                f"SELECT * FROM (SELECT {window} AS start, store, count(*), sum(amount)::BIGINT FROM timely "
                f"WHERE NOT coalesce({too_late}, false) GROUP BY 1, 2) WHERE epoch_us(start) + 7000000 <= {reached}"
            ),
        ),
        "too late for its window": (late, f"SELECT store, 1, amount FROM timely WHERE {too_late}"),
        "rejected by files": (nowhere, "SELECT order_id FROM orders WHERE store = ''"),
    }
    compared, found = len(orders), []
    for sink, (table, question) in questions.items():
        assert isinstance(orders, pa.Table)
        assert isinstance(timely, pa.Table)
        expected = Counter(duckdb.sql(question).fetchall())
        actual = Counter(tuple(row.values()) for row in table.to_pylist())
        compared += expected.total()
        if actual != expected:
            missing, more = (expected - actual).total(), (actual - expected).total()
            found.append(f"{sink}: {missing} rows missing, {more} too many, of {expected.total()}")
    return compared, found


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "points", [pytest.param(EVERY_RUN, id="some"), pytest.param(POINTS, marks=pytest.mark.long, id="all")]
)
def test_a_driver_killed_at_every_step_counts_each_row_once(
    tmp_path: Path, fault_report: Callable[..., None], points: list[tuple[str, str]]
) -> None:
    prepare(f"{tmp_path}/home")
    kills, half_written = 0, 0
    for number, (point, source_point) in enumerate(points):
        # The first has the Java options that users get, the others those that take less time.
        options = {"JDK_JAVA_OPTIONS": ""} if number == 0 else {}
        killed = run_driver(tmp_path, number, point, source_point, **options)
        assert killed == -9, f"{point or source_point} was not reached"
        kills += 1
        if point.startswith("batch_written"):
            half_written += leave_commits_half_written(tmp_path)
    assert run_driver(tmp_path, len(points)) == 0
    compared, found = differences(tmp_path)
    fault_report(
        "S1", points=kills, compared=compared, violations=found, sinks="topic, view, files, stage", half=half_written
    )
    assert half_written > 0


@pytest.mark.timeout(1200)
def test_a_topic_without_batch_numbers_is_caught(tmp_path: Path) -> None:
    prepare(f"{tmp_path}/home")
    assert run_driver(tmp_path, 0, "batch_written:1", MAINSTEM_TEST_MUTANT="yes") == -9
    assert run_driver(tmp_path, 1, MAINSTEM_TEST_MUTANT="yes") == 0
    with mainstem.open(tmp_path / "home") as stem:
        found = Counter(stem.topic("remainders").to_arrow(columns=["order_id"]).column("order_id").to_pylist())
    assert max(found.values()) > 1
