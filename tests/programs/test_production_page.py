"""The walk into production, done: every command of the page, against a real broker, cluster and database."""

import json
import os
import re
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.kafka_broker import KafkaBroker
from tests.postgres_server import PASSWORD, PostgresServer
from tests.spark_cluster import SparkCluster

PAGE = Path(__file__).parent.parent.parent / "docs" / "guides" / "production.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BEGIN = datetime(2026, 1, 1, 9, tzinfo=UTC)


def orders() -> str:
    rows = [
        {"order_id": n, "store": f"store {n % 3}", "amount": f"{n % 40}.50", "placed_at": str(BEGIN + timedelta(seconds=n))}
        for n in range(300)
    ]  # fmt: skip
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_the_walk_into_production(
    kafka_broker: KafkaBroker, postgres: PostgresServer, spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    address = postgres.new_address()
    shared = tmp_path / "shared" / "shop"
    shared.mkdir(parents=True)
    here = {
        '"broker1:9092", "broker2:9092"': f'"{kafka_broker.address}"',
        'prefix = "shop."': f'prefix = "shop{uuid.uuid4().hex[:8]}."',
        "replication_factor = 3": "replication_factor = 1",
        "min_insync_replicas = 2": "min_insync_replicas = 1",
        "postgresql://shop@db:5432/shop": re.sub(r":[^:@/]+@", "@", address, count=1),
        "spark://master:7077": spark_cluster.address,
        "hdfs://namenode:8020/shop": (tmp_path / "far").as_uri(),
        "/shared/shop": str(shared),
        "/backup/": f"{tmp_path}/",
    }

    def as_here(text: str) -> str:
        for there, here_it_is in here.items():
            text = text.replace(there, here_it_is)
        return text

    (tmp_path / "orders.jsonl").write_text(orders())
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.sql.shuffle.partitions 2\n")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PGPASSWORD": PASSWORD,
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
    }
    environment.pop("PYSPARK_PYTHON", None)
    said = []
    for kind, text in BLOCK.findall(PAGE.read_text()):
        if kind in ("python", "toml"):
            name = text.partition("\n")[0].removeprefix("# ")
            Path(tmp_path, as_here(name)).write_text(as_here(text))
        if kind == "sh":
            # One start of Spark less: what it says is tested elsewhere.
            commands = as_here(re.sub("^mainstem check .*$", "", text, flags=re.MULTILINE))
            ran = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", commands], cwd=tmp_path, env=environment, capture_output=True,
                text=True, timeout=400,
            )  # fmt: skip
            assert ran.returncode == 0, f"{commands}\n{ran.stdout}{ran.stderr}"
            said.append(ran.stdout)

    laptop = (tmp_path / "laptop.jsonl").read_text()
    assert laptop == (tmp_path / "production.jsonl").read_text()
    assert sum(json.loads(line)["orders"] for line in laptop.splitlines()) == 300
    doctor, _, watched, rebuilt, rolled_back, back, copied = said[1:]
    assert "all passed" in doctor
    assert sorted(path.name for path in (tmp_path / "far").iterdir()) == ["minutes", "revenue"]
    assert ("minutes" in watched, "revenue" in watched) == (True, True)
    assert "3" in rebuilt
    assert "1" in rolled_back
    assert "300" in back
    assert "copied to" in copied
