"""Law: whoever looks at what a flow makes of transactions, at any moment, never sees a part of one; also if it is killed."""

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import mainstem
from mainstem.flows.runner import RunningFlows
from mainstem.views.view import View
from tests.flows import transfers
from tests.flows.transfers import Writers, make_topics
from tests.spark.sources.asked_sources import AskedSources
from tests.waiting import wait_until

pytestmark = pytest.mark.starts_servers

PROGRAM = Path(transfers.__file__)


@pytest.fixture
def home(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Path:
    """A home, on one of the logs."""
    home = tmp_path / "home"
    if kind == "kafka":
        home.mkdir()
        broker = request.getfixturevalue("kafka_broker").address
        (home / "kafka.toml").write_text(f'brokers = ["{broker}"]\nprefix = "t{uuid.uuid4().hex[:8]}."\n')
    return home


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "wanted", "restarts"),
    [
        ("embedded", 60, 3),
        ("kafka", 60, 3),
        pytest.param("embedded", 10_000, 20, marks=pytest.mark.long),
        pytest.param("kafka", 3_000, 20, marks=pytest.mark.long),
    ],
)
def test_every_batch_of_two_topics_has_whole_transfers(home: Path, tmp_path: Path, wanted: int, restarts: int):
    requests = [{"topic": name, "columns": ("account", "n", "record"), "rows_max": 40} for name in transfers.TOPICS]
    with mainstem.open(home, upkeep="manual") as stem:
        make_topics(stem)
        sources = AskedSources(stem, tmp_path / "checkpoint", requests)
        seen: list[int] = []
        batches = restarted = 0
        with Writers(stem, count=4, seed=wanted) as writers:
            while writers.transfers < wanted or restarted < restarts:
                batch = sources.batch()
                batches += bool(batch)
                assert sum(batch) == 0
                seen += batch
                if restarted < restarts and writers.transfers > (restarted + 1) * wanted // (restarts + 1):
                    sources.restart()
                    restarted += 1
                if batches % 7 == 6:
                    stem.topic("debits").seal()
            writers.stop()
            for batch in sources.batches():
                assert sum(batch) == 0
                seen += batch
        assert (restarted, len(seen)) == (restarts, 3 * writers.transfers)
        assert sources.note.torn == 0


class Killed:
    """The flow in a process of its own, which is killed, Java and all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        root = PROGRAM.parent.parent.parent
        environment = {**os.environ, "PYTHONPATH": f"{root}/src:{root}"}
        with (self._folder / "said").open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), f"{self._folder}/home"],
                env=environment, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip

    def check(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "said").read_text()[-3000:]

    def end(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class Stopped:
    """The flow in this process, which is stopped."""

    def __init__(self, stem: mainstem.Mainstem) -> None:
        self._stem = stem
        self._running: RunningFlows | None = None

    def start(self) -> None:
        self._running = self._stem.start(transfers.flows)

    def check(self) -> None:
        assert self._running is not None
        self._running.check()

    def end(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None


@contextmanager
def subscriber(view: View, totals: list[int]) -> Iterator[None]:
    """The total after every update that a subscriber gets."""
    over = threading.Event()

    def follow() -> None:
        balances: dict[int, int] = {}
        updates = view.subscribe(wait="100 milliseconds")
        cursor = None
        while not over.is_set():
            for update in updates:
                cursor = update.cursor
                for row in update.rows.to_pylist():
                    if update.kind == "changes" and row["record"]["change"] == "delete":
                        balances.pop(row["account"])
                    else:
                        balances[row["account"]] = row["balance"]
                totals.append(sum(balances.values()))
            updates = view.subscribe(cursor, wait="100 milliseconds")

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def total(rows: pa.Table) -> int:
    return pc.sum(rows["balance"]).as_py() or 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "how", "wanted", "ends"),
    [
        ("embedded", Killed, 100, 1),
        ("kafka", Stopped, 100, 1),
        pytest.param("kafka", Killed, 200, 1, marks=pytest.mark.long),
        pytest.param("embedded", Killed, 10_000, 20, marks=pytest.mark.long),
        pytest.param("kafka", Killed, 3_000, 10, marks=pytest.mark.long),
    ],
)
def test_no_reader_of_a_view_ever_sees_half_a_transfer(
    request: pytest.FixtureRequest, home: Path, tmp_path: Path, how: type, wanted: int, ends: int
):
    at_once = max(20, wanted // 100)
    with ExitStack() as opened:
        spark = request.getfixturevalue("spark") if how is Stopped else None
        stem = opened.enter_context(mainstem.open(home, spark=spark))
        make_topics(stem)
        run: Killed | Stopped = Stopped(stem) if how is Stopped else Killed(tmp_path)
        writers = opened.enter_context(Writers(stem, count=3, seed=ends, allowed=at_once))
        run.start()
        try:
            view = stem.view("balances", key="account")
            wait_until(lambda: run.check() or view.exists)
            watch = view.watch()
            read: list[int] = []
            told: list[int] = []
            with subscriber(view, told):
                position, batches, ended = view.last_position(), 0, 0
                # More come while a batch is made of those before them.
                writers.allow(at_once)
                while ended < ends or writers.transfers < wanted:
                    watch.wait(1)
                    if view.last_position() != position:
                        position, batches = view.last_position(), batches + 1
                        writers.allow(at_once)
                    read += [
                        total(view.to_arrow()),
                        view.query("SELECT sum(balance) FROM balances").column(0)[0].as_py() or 0,
                    ]
                    if ended < ends and batches >= 4:
                        run.end()
                        run.start()
                        batches, ended = 0, ended + 1
                        writers.allow(at_once)
                    run.check()
                writers.stop()
                latest = {
                    name: {number: stem.topic(name).backend.latest(number) for number in range(transfers.PARTITIONS)}
                    for name in transfers.TOPICS
                }
                while view.offsets() != latest:
                    run.check()
                    watch.wait(1)
                    read.append(total(view.to_arrow()))
            watch.close()
        finally:
            run.end()
        assert set(read) == set(told) == {0}
        rows = pa.concat_tables([stem.topic(name).to_arrow().select(["account", "n"]) for name in transfers.TOPICS])
        expected = rows.group_by("account").aggregate([("n", "sum")]).sort_by("account")
        shown = view.to_arrow().sort_by("account")
        assert shown["balance"].to_pylist() == expected["n_sum"].to_pylist()
