"""What every test can use, and the count of those that could not run here."""

import gc
import json
import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from mainstem.clock import ManualClock
from mainstem.spark.java_patches import short_run_options
from tests.contracts.promises import is_left_out
from tests.cpu_budget import CpuMeter, cost_table
from tests.fast_run import forbid_servers, is_slow, too_slow
from tests.kafka_broker import KafkaBroker
from tests.needs import COULD_NOT_RUN, cannot_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mainstem.stem import Mainstem
    from tests.postgres_server import PostgresServer
    from tests.spark_cluster import SparkCluster

# No deadline: the machine is shared, so how long one example took says nothing. What fails prints how to repeat it.
hypothesis.settings.register_profile("mainstem", deadline=None, print_blob=True)
hypothesis.settings.load_profile("mainstem")

# What a test process holds of Spark, SQLite and Arrow is not a forked child's to take apart: its threads are not there.
os.register_at_fork(after_in_child=gc.freeze)

# Java of a test lives for seconds. Tests that use `users_java` run without these options.
if JAVA_OPTIONS := " ".join(short_run_options()):
    os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OPTIONS)

# Tools for file systems lie where the path of an ordinary user does not look.
_SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


@pytest.fixture
def clock() -> ManualClock:
    """Time that stands still until the test moves it."""
    return ManualClock()


@pytest.fixture
def repository() -> Path:
    """The root of the source tree."""
    return Path(__file__).parent.parent


@pytest.fixture
def users_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that the test starts have the Java options that users get: both compilers."""
    monkeypatch.delenv("JDK_JAVA_OPTIONS", raising=False)


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """The one Spark session of this test process; commands that want one find it. Only the end of all tests stops it."""
    from mainstem.spark.spark_session import spark_session

    session = spark_session("local[2]")
    yield session
    session.stop()


@pytest.fixture
def stem(spark: "SparkSession", tmp_path: Path) -> Iterator["Mainstem"]:
    """A home of its own for each test, on the Spark session of all tests."""
    import mainstem

    with mainstem.open(tmp_path / "home", upkeep="manual", spark=spark) as opened:
        yield opened


@pytest.fixture
def on_kafka(spark: "SparkSession", kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator["Mainstem"]:
    """A home whose log is on the test process's broker, with topics of its own there."""
    import mainstem

    home = tmp_path / "on_kafka"
    home.mkdir()
    (home / "kafka.toml").write_text(f'prefix = "t{uuid.uuid4().hex[:8]}."\n')
    with mainstem.open(home, log=f"kafka://{kafka_broker.address}", spark=spark) as opened:
        yield opened


@pytest.fixture
def one_bucket(spark: "SparkSession") -> Iterator[None]:
    """Stages with half the tasks, for a test with many of them: what several buckets do is seen elsewhere."""
    known = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", known)


@pytest.fixture(scope="session")
def postgres() -> Iterator["PostgresServer"]:
    """The one PostgreSQL of this test process; a test that stops it starts it again."""
    from tests.postgres_server import PostgresServer

    with PostgresServer() as server:
        yield server


@pytest.fixture
def views_address(postgres: "PostgresServer") -> Iterator[str]:
    """Where a test's own views are: a schema of its own in that database, its password in the address."""
    from mainstem.views.postgres.postgres_backend import PostgresBackend

    address = postgres.new_address()
    yield address
    # Views share their connections, so those are not closed with a view that a test drops without a word.
    PostgresBackend(address).close()


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """The one Kafka broker of this test process. Each test has topics of its own in it, by a prefix of its own."""
    broker = KafkaBroker()
    yield broker
    broker.close()


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator["SparkCluster"]:
    """The one standalone cluster of this test process: a master and two workers."""
    from tests.spark_cluster import SparkCluster

    cluster = SparkCluster()
    yield cluster
    cluster.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast", action="store_true", help="only what needs neither Java nor a server (tests/fast_run.py)"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("fast"):
        forbid_servers()
    config.pluginmanager.register(CpuMeter(), "cpu_meter")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A log is not put to tests of what it does not promise, and a fast run has no servers."""
    fast = config.getoption("fast")
    left_out = {
        item
        for item in items
        if is_left_out(getattr(item, "cls", None), getattr(item, "function", None)) or (fast and is_slow(item))
    }
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    items[:] = in_running_order(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def in_running_order(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """The same tests; in each worker's share (all begin with equal ones) those that fork come first and those with Spark last:
    to fork a process that has had Spark in it costs many times as much. Of each kind the thorough ones come first: at the
    end only quick ones are left, and no worker waits long for another."""
    kinds: dict[tuple[int, bool], list[pytest.Item]] = {
        (place, quick): [] for place in range(3) for quick in (False, True)
    }
    for item in items:
        with_spark = "spark" in getattr(item, "fixturenames", ())
        place = 0 if item.get_closest_marker("forks") else 2 if with_spark else 1
        kinds[place, item.get_closest_marker("thorough") is None].append(item)
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for kind in kinds.values():
        for number, share in enumerate(shares):
            share.extend(kind[len(kind) * number // workers : len(kind) * (number + 1) // workers])
    return [item for share in shares for item in share]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        package, command = mark.args[0], mark.kwargs["command"]
        if shutil.which(command, path=_SEARCH_PATH) is None:
            cannot_run(package, f'there is no command "{command}"')
    if item.get_closest_marker("needs_root") and os.geteuid() != 0:
        cannot_run("root", "this is not root")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ended = [report for reports in terminalreporter.stats.values() for report in reports]
    for line in cost_table(report for report in ended if getattr(report, "when", None) == "teardown"):
        terminalreporter.write_line(line)
    reasons = [
        str(report.longrepr).partition(COULD_NOT_RUN)[2]
        for outcome in ("skipped", "failed", "error")
        for report in terminalreporter.stats.get(outcome, [])
        if COULD_NOT_RUN in str(report.longrepr)
    ]
    if terminalreporter.config.getoption("fast"):
        for line in too_slow(ended):
            terminalreporter.write_line(line)
    needs = Counter(reason.partition(":")[0] for reason in reasons)
    missing = ", ".join(f"{count} for want of {need}" for need, count in sorted(needs.items()))
    terminalreporter.write_line(f"tests that could not run here: {needs.total()}{f' ({missing})' if missing else ''}")


@pytest.fixture
def fault_report(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Judges a fault test: fails it if anything was violated, and writes its figures down where the run wants them.

    `points`: how many faults were tried. `compared`: how many facts (acknowledged records, blocks) were looked at after
    them. With MAINSTEM_FAULT_REPORT set, a line of JSON is added to that file.
    """
    started = time.perf_counter()

    def report(
        fault: str, *, points: int, compared: int, violations: Sequence[object], seed: object = None, **more: object
    ) -> None:
        line = {
            "fault": fault,
            "test": request.node.nodeid,
            "points": points,
            "compared": compared,
            "violations": len(violations),
            "seed": seed,
            "seconds": round(time.perf_counter() - started, 1),
            **more,
        }
        print(json.dumps(line))
        if path := os.environ.get("MAINSTEM_FAULT_REPORT"):
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        first = "".join(f"\n  {violation}" for violation in violations[:10])
        assert not violations, (
            f"{fault}: {points} points, {compared} compared, {len(violations)} violations{first}\n{line}"
        )
        assert points > 0, f"{fault}: no point was tried"
        assert compared > 0, f"{fault}: nothing was compared"

    return report
