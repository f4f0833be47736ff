"""S2: executors and Python workers of a cluster are killed in the middle of a stage, the driver and a machine too. Nothing
changes.

The log is on Kafka, views are in PostgreSQL, state lies in the home, which is the shared path. The first driver is killed, and
one of the workers of the cluster; the second driver has another port. What comes out is what an embedded home gives that
nothing happened to.
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import mainstem
from mainstem.stem import Mainstem
from tests.flows.killed_executors import DONE, answers, flows, part, prepare
from tests.kafka_broker import KafkaBroker, free_ports
from tests.spark_cluster import SparkCluster

ROOT = Path(__file__).parent.parent.parent


def run_driver(home: Path, log: str, views: str, spark: str, kills: int, port: int, **more: str) -> int:
    """Run the program on the cluster until it has done all, or is killed; its exit status."""
    (home / "conf").mkdir(exist_ok=True)
    (home / "conf" / "spark-defaults.conf").write_text(
        f"spark.driver.port {port}\nspark.sql.shuffle.partitions 2\nspark.port.maxRetries 0\n"
    )
    environment = {**os.environ, "SPARK_CONF_DIR": str(home / "conf"), "PYTHONPATH": str(ROOT), **more}
    environment.pop("PYSPARK_PYTHON", None)
    program = [sys.executable, "-m", "tests.flows.killed_executors", str(home), log, views, spark, str(kills)]
    # An executor that is killed comes back in seconds; on a busy machine in more of them.
    seconds_max = 800 + 40 * kills
    ended = subprocess.run(
        program, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=seconds_max, check=False
    )
    assert ended.returncode in (0, -9), ended.stderr[-3000:]
    return ended.returncode


@pytest.mark.thorough
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=pytest.mark.long)])
def test_executors_workers_and_the_driver_are_killed_and_nothing_changes(
    stem: Mainstem,
    kafka_broker: KafkaBroker,
    spark_cluster: SparkCluster,
    views_address: str,
    tmp_path: Path,
    kills: int,
    fault_report: Callable[..., None],
) -> None:
    prepare(stem)
    for number in range(2 + kills):
        stem.topic("orders").append(part(number))
    stem.run(flows, until="idle")
    expected = answers(stem)
    home = tmp_path / "production"
    home.mkdir()
    (home / "kafka.toml").write_text(f'prefix = "x{uuid.uuid4().hex[:8]}."\n')
    address = f"kafka://{kafka_broker.address}"
    ports = free_ports(2)
    with mainstem.open(home, log=address, views=views_address) as production:
        prepare(production)
        for number in range(2):
            production.topic("orders").append(part(number))
        killed = run_driver(
            home, address, views_address, spark_cluster.address, 0, ports[0], MAINSTEM_CRASH_AT="batch_written:2"
        )
        with spark_cluster.without_worker(0):
            ended = run_driver(home, address, views_address, spark_cluster.address, kills, ports[1])
        found = answers(production)

    assert (killed, ended) == (-9, 0)
    assert len(list((home / "ends").glob(f"{DONE}-*"))) == kills
    # The mutant, whose state dies with its process.
    assert found.pop("forgotten") != expected.pop("forgotten")
    different = [f"{name}: {row}" for name, rows in found.items() for row in {*rows} ^ {*expected[name]}]
    fault_report("S2", points=kills + 2, compared=sum(map(len, expected.values())), violations=different)
