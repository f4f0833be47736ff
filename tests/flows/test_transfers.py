"""Law: whoever looks at what a flow makes of transactions, at any moment, never sees a part of one; also if it is killed."""

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import mainstem
from mainstem.views.view import View
from tests.flows import transfers
from tests.flows.transfers import Writers, make_topics
from tests.spark.sources.asked_sources import AskedSources

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


class Driver:
    """The flow in a process of its own, Java and all."""

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

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


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


@pytest.mark.parametrize(
    ("kind", "wanted", "kills"),
    [
        ("embedded", 200, 3),
        ("kafka", 200, 1),
        pytest.param("embedded", 10_000, 20, marks=pytest.mark.long),
        pytest.param("kafka", 3_000, 10, marks=pytest.mark.long),
    ],
)
def test_no_reader_of_a_view_ever_sees_half_a_transfer(home: Path, tmp_path: Path, wanted: int, kills: int):
    driver = Driver(tmp_path)
    with ExitStack() as opened:
        stem = opened.enter_context(mainstem.open(home))
        make_topics(stem)
        writers = opened.enter_context(Writers(stem, count=3, seed=kills))
        driver.start()
        try:
            view = stem.view("balances", key="account")
            while not view.exists:
                driver.check()
                # It may have been made since it was asked for.
                with suppress(mainstem.NotFound):
                    assert total(view.to_arrow()) == 0
            read: list[int] = []
            told: list[int] = []
            with subscriber(view, told):
                moments, killed = {view.last_position()}, 0
                watch = view.watch()
                while killed < kills or writers.transfers < wanted:
                    watch.wait(1)
                    moments.add(view.last_position())
                    read += [
                        total(view.to_arrow()),
                        view.query("SELECT sum(balance) FROM balances").column(0)[0].as_py() or 0,
                    ]
                    if killed < kills and len(moments) > 4:
                        driver.kill()
                        driver.start()
                        moments, killed = {view.last_position()}, killed + 1
                    driver.check()
                watch.close()
                writers.stop()
                ends = {
                    name: {number: stem.topic(name).backend.latest(number) for number in range(8)}
                    for name in transfers.TOPICS
                }
                while view.offsets() != ends:
                    driver.check()
                    read.append(total(view.to_arrow()))
        finally:
            driver.kill()
        assert set(read) == set(told) == {0}
        rows = pa.concat_tables([stem.topic(name).to_arrow().select(["account", "n"]) for name in transfers.TOPICS])
        expected = rows.group_by("account").aggregate([("n", "sum")]).sort_by("account")
        shown = view.to_arrow().sort_by("account")
        assert shown["balance"].to_pylist() == expected["n_sum"].to_pylist()
