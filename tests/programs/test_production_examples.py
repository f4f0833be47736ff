"""The programs of examples/ in two worlds: an embedded home, and Kafka with a Spark cluster and PostgreSQL. The same rows.

Not a line of a program is changed: the home says where topics and views are (kafka.toml, views.toml), and Spark's own
settings where it runs. What a program prints, and with that what it found equal to its recomputation, must be what the page
of the tour says, which an embedded home printed. Beyond that all views and topics are compared row by row. Left out are where
and when a record was appended, which is another log's; in which batch a late row was found, since batches are cut otherwise;
and the topic in which flows report how fast they are. Two programs that die on purpose, Spark and all, are compared by what
they print alone.
"""

import json
import os
import re
import subprocess
import sys
import uuid
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import mainstem
from examples import tour
from mainstem.stem import Mainstem
from tests.kafka_broker import KafkaBroker
from tests.postgres_server import PostgresServer
from tests.programs.production_examples import SHOP, run
from tests.programs.test_examples import ON_SPARK, on_the_page
from tests.spark_cluster import SparkCluster

ROOT = Path(__file__).parent.parent.parent
ALL = [*ON_SPARK, SHOP]
# In every run: each operator of two streams (a join of streams, look-ups with corrections, a join of tables by foreign key, with
# top and aggregate behind it), and a shop (production_shop.py) with Spark's own windows. Our windows are on the page of production, whose test
# is beside this one. All programs take a quarter of an hour.
EVERY_RUN = ["click_through_rate", "tax_rate_changes", "timeline_cache", SHOP]
# So many rows of views are compared at least: those of every run have some 610.
ROWS_MIN = 600
# Each starts Spark again and again; once is enough, in the world where it is harder.
DYING = ("crash_anywhere", "zombie_is_fenced")
SECONDS_MAX = 1500
# A program that starts another one leaves it a core.
SPARK = """
spark.master {address}
spark.cores.max 1
spark.sql.shuffle.partitions 2
"""


def prepare(folder: Path, programs: list[str], broker: KafkaBroker, postgres: PostgresServer) -> None:
    """A home for each program, with what it says of the world."""
    for name in programs:
        home = folder / name
        home.mkdir(parents=True)
        prefix = f"e{uuid.uuid4().hex[:8]}."
        (home / "kafka.toml").write_text(f'brokers = ["{broker.address}"]\nprefix = "{prefix}"\n')
        (home / "views.toml").write_text(f"url = {json.dumps(postgres.new_address())}\n")


def run_in_production(folder: Path, programs: list[str], cluster: SparkCluster) -> None:
    settings = folder / "conf"
    settings.mkdir()
    (settings / "spark-defaults.conf").write_text(SPARK.format(address=cluster.address))
    environment = {**os.environ, "SPARK_CONF_DIR": str(settings), "PYTHONPATH": str(ROOT)}
    # How this process's own Spark starts its workers is no concern of that one.
    environment.pop("PYSPARK_PYTHON", None)
    command = [sys.executable, "-m", "tests.programs.production_examples", str(folder), *programs]
    ended = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]


def kept(home: Path) -> dict[str, list[str]]:
    """Every row of every view and topic of a home, in one order."""
    with mainstem.open(home) as stem:
        assert isinstance(stem, Mainstem)
        topics = [name for name in stem.topics() if not name.startswith("mainstem.")]
        found = {f"view {name}": shown(stem.view(name).to_arrow()) for name in stem.views()}
        return found | {
            f"topic {name}": shown(stem.topic(name).to_arrow(), late=name.endswith(".late")) for name in topics
        }


def shown(table: pa.Table, *, late: bool = False) -> list[str]:
    rows = table.drop_columns(["batch"] if late else []).to_pylist()
    for row in rows:
        if "record" in row:
            row["record"] = row["record"]["change"]
    return sorted(map(str, rows))


def operators_of(programs: list[str]) -> set[str]:
    """Those for tables and for two streams, which programs import."""
    imported = re.compile(r"^from mainstem.operators import (.*)$", re.MULTILINE)
    texts = [(ROOT / f"examples/{name}.py").read_text() for name in programs if name != SHOP]
    lines = [line for text in texts for line in imported.findall(text)]
    return set(", ".join(lines).split(", ")) & {"aggregate", "distinct", "enrich", "join", "table", "top"}


def test_every_operator_of_joins_and_tables_that_an_example_uses_is_in_every_run():
    assert operators_of(EVERY_RUN) == operators_of(ON_SPARK)
    assert operators_of(ON_SPARK) >= {"aggregate", "enrich", "join", "table", "top"}


@pytest.mark.thorough
@pytest.mark.starts_servers
@pytest.mark.timeout(SECONDS_MAX + 1200)
@pytest.mark.parametrize(
    "programs", [pytest.param(EVERY_RUN, id="some"), pytest.param(ALL, marks=pytest.mark.long, id="all")]
)
def test_the_examples_give_the_same_views_on_kafka_a_cluster_and_postgresql(
    programs: list[str],
    spark: SparkSession,
    kafka_broker: KafkaBroker,
    spark_cluster: SparkCluster,
    postgres: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    production, embedded = tmp_path / "production", tmp_path / "embedded"
    prepare(production, programs, kafka_broker, postgres)
    run_in_production(production, programs, spark_cluster)
    opened = mainstem.open
    with monkeypatch.context() as patch:
        patch.setattr(mainstem, "open", partial(opened, spark=spark))
        for name in programs:
            if name not in DYING:
                (embedded / name).mkdir(parents=True)
                run(name, str(embedded / name))

    printed = {name: (production / f"{name}.printed").read_text() for name in programs}
    expected = {name: tour.without_measures(on_the_page(name)) for name in programs if name != SHOP}
    assert {name: tour.without_measures(printed[name]) for name in programs if name != SHOP} == expected
    assert printed[SHOP] == ""
    same = {name: kept(production / name) for name in programs if name not in DYING}
    assert same == {name: kept(embedded / name) for name in same}
    views = {
        (name, title): len(rows) for name, found in same.items() for title, rows in found.items() if title[:4] == "view"
    }
    assert sum(views.values()) > ROWS_MIN, views
