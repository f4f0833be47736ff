"""One program, two worlds: an embedded home, and Kafka with a Spark cluster and PostgreSQL. The same rows in the end."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import mainstem
from mainstem.stem import Mainstem
from tests.flows.kafka_shop import answers, flows, orders, prepare
from tests.kafka_broker import KafkaBroker
from tests.spark_cluster import SparkCluster

ROOT = Path(__file__).parent.parent.parent


def run_in_production(home: Path, log: str, views: str, spark: str) -> None:
    (home / "conf").mkdir(exist_ok=True)
    (home / "conf" / "spark-defaults.conf").write_text("spark.sql.shuffle.partitions 2\n")
    environment = {**os.environ, "SPARK_CONF_DIR": str(home / "conf"), "PYTHONPATH": str(ROOT)}
    environment.pop("PYSPARK_PYTHON", None)
    program = [sys.executable, "-m", "tests.flows.production_program", str(home), log, views, spark]
    ended = subprocess.run(program, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]


# In every run: test_killed_executors, with the same servers, other flows and more faults.
@pytest.mark.long
def test_a_program_gives_the_same_on_kafka_a_cluster_and_postgresql(
    stem: Mainstem, kafka_broker: KafkaBroker, spark_cluster: SparkCluster, views_address: str, tmp_path: Path
) -> None:
    prepare(stem)
    stem.topic("orders").append(orders(0, 600))
    stem.run(flows, until="idle")
    home = tmp_path / "production"
    home.mkdir()
    (home / "kafka.toml").write_text(f'prefix = "t{uuid.uuid4().hex[:8]}."\n')
    address = f"kafka://{kafka_broker.address}"
    with mainstem.open(home, log=address, views=views_address) as production:
        prepare(production)
        production.topic("orders").append(orders(0, 400))
        run_in_production(home, address, views_address, spark_cluster.address)
        production.topic("orders").append(orders(400, 200))
        # The same flows, begun by another driver; one of the machines is gone by then.
        with spark_cluster.without_worker(0):
            run_in_production(home, address, views_address, spark_cluster.address)

        assert answers(production) == answers(stem)
