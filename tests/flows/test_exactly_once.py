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
from mainstem import Flow, Mainstem
from mainstem.errors import FlowFailed
from mainstem.log.activity import read_activity
from mainstem.spark.checkpoint.checkpoint_offsets import last_batch
from mainstem.spark.checkpoint.flow_store import FlowStore
from tests.flows.batch_faults import failing_at
from tests.flows.killed_driver import WATERMARK, append_twice, flows, prepare, rows_of

pytestmark = pytest.mark.starts_servers

# Of the driver, or of a source.
POINTS = [
    {"source_point": "latestOffset:1"},
    {"source_point": "partitions:1"},
    {"point": "batch_begun:1"},
    {"source_point": "read:1"},
    {"point": "sink_rows_computed:1"},
    {"point": "sink_rows_written:1"},
    {"point": "sink_rows_written:2"},
    {"point": "view_rows_written:1"},
    {"point": "view_batch_written:1"},
    {"point": "view_checked:2"},
    {"point": "before_sink_commit:1"},
    {"point": "before_sink_commit:2"},
    {"point": "sink_committed:1"},
    {"point": "sink_committed:3"},
    {"point": "view_committed:1"},
    {"point": "batch_written:1"},
    {"point": "stage_late_appended:1"},
    {"point": "stage_manifest_written:1"},
    {"point": "stage_late_appended:2"},
    {"point": "stage_manifest_written:2"},
    {"source_point": "commit:1"},
]
# One of each kind of step, in few processes: a kill strikes each flow at a step of its own. Before a release all of them.
EVERY_RUN = [
    {"source_point": "latestOffset:1"},
    {
        "together": (
            "remainders=sink_rows_written,kept=before_sink_commit,per_store=view_checked,"
            "per_window=stage_manifest_written"
        )
    },
    {"together": "remainders=sink_committed,kept=batch_written,per_store=view_committed,per_window=batch_written"},
]
ENDS = ("begun", "killed", "ended")
FLOWS = ["remainders", "per_store", "kept", "per_window"]
DRIVER = Path(__file__).parent / "killed_driver.py"


def run_driver(
    folder: Path, number: int, point: str = "", source_point: str = "", together: str = "", **environment: str
) -> int:
    """Run the program until it ends or is killed; its exit status."""
    command = [sys.executable, str(DRIVER), f"{folder}/home", f"{folder}/out/kept", str(number), source_point]
    root = DRIVER.parent.parent.parent
    known = {**os.environ, "PYTHONPATH": f"{root}/src:{root}", **environment}
    if point:
        known["MAINSTEM_CRASH_AT"] = point
    if together:
        known["MAINSTEM_TEST_TOGETHER"] = together
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


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "points", [pytest.param(EVERY_RUN, id="some"), pytest.param(POINTS, marks=pytest.mark.long, id="all")]
)
def test_a_driver_killed_at_every_step_counts_each_row_once(
    tmp_path: Path, fault_report: Callable[..., None], points: list[dict[str, str]]
) -> None:
    prepare(f"{tmp_path}/home")
    kills, half_written = 0, 0
    for number, where in enumerate(points):
        # The first has the Java options that users get, the others those that take less time.
        options = {"JDK_JAVA_OPTIONS": ""} if number == 0 else {}
        [points_of] = where.values()
        assert run_driver(tmp_path, number, **where, **options) == -9, f"{points_of} was not reached"
        kills += points_of.count("=") or 1
        if "batch_written" in points_of:
            half_written += leave_commits_half_written(tmp_path)
    assert run_driver(tmp_path, len(points)) == 0
    compared, found = differences(tmp_path)
    fault_report(
        "S1", points=kills, compared=compared, violations=found, sinks="topic, view, files, stage", half=half_written
    )
    assert half_written > 0
    with mainstem.open(tmp_path / "home") as stem:
        happened = [(row["name"], row["what"], row["epoch"]) for row in read_activity(stem.log, 0)]
    assert len(happened) == len(set(happened))
    # Each run that began ended or was killed, and the next one found that.
    begun, killed, ended = ({(flow, at) for flow, what, at in happened if what == word} for word in ENDS)
    assert begun <= killed | ended
    assert {flow for flow, _ in killed} == {flow for flow, _ in ended} == set(FLOWS)
    assert len(ended) == len(FLOWS)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_topic_without_batch_numbers_is_caught_when_its_driver_is_killed(tmp_path: Path) -> None:
    prepare(f"{tmp_path}/home")
    assert run_driver(tmp_path, 0, "batch_written:1", MAINSTEM_TEST_MUTANT="yes") == -9
    assert run_driver(tmp_path, 1, MAINSTEM_TEST_MUTANT="yes") == 0
    with mainstem.open(tmp_path / "home") as stem:
        assert max(orders_of(stem).values()) > 1


def orders_of(stem: Mainstem) -> Counter[str]:
    """How often each order is in the topic."""
    return Counter(stem.topic("remainders").to_arrow(columns=["order_id"]).column("order_id").to_pylist())


@pytest.mark.parametrize("mutant", [False, True])
def test_a_topic_without_batch_numbers_is_caught(stem: Mainstem, monkeypatch: pytest.MonkeyPatch, mutant: bool) -> None:
    """Where a batch is done again, in this process."""
    if mutant:
        append_twice(monkeypatch.setattr)
    prepare(stem.home)
    stem.topic("orders").append(rows_of(0))

    def program(stem: Mainstem) -> list[Flow]:
        return [flow for flow in flows(stem, f"{stem.home}/out") if flow.name == "remainders"]

    with failing_at("batch_written"), pytest.raises(FlowFailed):
        stem.run(program, until="idle")
    stem.run(program, until="idle")
    assert (max(orders_of(stem).values()) > 1) == mutant
