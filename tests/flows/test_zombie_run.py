"""A whole `mainstem run` on Kafka that was stopped, replaced, and continued: nothing that it writes is ever seen.

It stands still, Spark and all, when each of its flows has written a batch and not committed it: into a topic (an open
transaction on the broker), a view (one in PostgreSQL) and files. Its successor does that batch and more. What was ever to be
seen is asked of those who forget nothing: a foreign consumer of the topic (read_committed, from the beginning), the changes
of the view, and the names of the files.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from pyspark.sql import SparkSession

import mainstem
from mainstem.stem import Mainstem
from tests.flows.zombie_program import flows
from tests.kafka_broker import KafkaBroker
from tests.waiting import SECONDS_MAX

ROOT = Path(__file__).parent.parent.parent
SCHEMA = "order_id BIGINT, amount BIGINT"


@pytest.fixture
def production(
    spark: SparkSession, kafka_broker: KafkaBroker, views_address: str, tmp_path: Path
) -> Iterator[Mainstem]:
    """A home whose log and views are elsewhere, for who says no more than its path."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "kafka.toml").write_text(f'brokers = ["{kafka_broker.address}"]\nprefix = "z{uuid.uuid4().hex[:8]}."\n')
    (home / "views.toml").write_text(f'url = "{views_address}"\n')
    with mainstem.open(home, spark=spark) as stem:
        stem.create_topic("orders", schema=SCHEMA, key="order_id")
        stem.create_topic("shipped", schema=SCHEMA, key="order_id")
        yield stem


def orders(first: int, end: int) -> list[dict[str, int]]:
    return [{"order_id": number, "amount": number * number} for number in range(first, end)]


@contextmanager
def zombie(stem: Mainstem, said: Path, *only: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run that stands still, with all that it started, in the middle of its first batch."""
    command = [sys.executable, "-m", "tests.flows.zombie_run", stem.home, *only]
    known = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    with said.open("wb") as log, subprocess.Popen(command, cwd=ROOT, env=known, stdout=log, stderr=log) as process:
        try:
            # Told by the kernel, and not by looking again and again.
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), said.read_text(errors="replace")[-3000:]
            send(process.pid, signal.SIGSTOP)
            yield process
        finally:
            send(process.pid, signal.SIGCONT)
            if process.poll() is None:
                process.terminate()
                process.wait(SECONDS_MAX)


def send(pid: int, number: signal.Signals) -> None:
    """To a process and everything below it."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split() if Path(f"/proc/{pid}").exists() else []:
        send(int(child), number)
    if Path(f"/proc/{pid}").exists():
        os.kill(pid, number)


def seen(stem: Mainstem) -> dict[str, list[Any]]:
    """All that anybody was ever shown of the three sinks."""
    history = stem.view("amounts").changes_between(0, stem.view("amounts").last_position(), 100_000).rows.to_pylist()
    files = sorted(Path(stem.home, "files", "orders").rglob("*.parquet"))
    return {
        "topic": committed(stem, "shipped"),
        "view": [(row["order_id"], row["record"]["change"]) for row in history],
        "files": [number for file in files for number in pq.read_table(file).column("order_id").to_pylist()],
    }


def committed(stem: Mainstem, topic: str) -> list[str]:
    """The keys of all messages that a foreign program is shown."""
    settings = {"bootstrap.servers": stem.log.address.removeprefix("kafka://"), "group.id": "foreign"}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
    found = []
    try:
        consumer.assign([TopicPartition(stem.log.kafka_name(topic), 0, 0)])  # type: ignore[attr-defined]
        while (message := consumer.poll(60)) is not None and message.error() is None:
            found.append(message.key().decode())
        assert message is not None
        assert message.error().code() == KafkaError._PARTITION_EOF
    finally:
        consumer.close()
    return found


def twice(found: dict[str, list[Any]]) -> list[str]:
    return [f"{sink}: {row}" for sink, rows in found.items() for row, count in Counter(rows).items() if count > 1]


def test_nothing_is_seen_of_a_run_that_was_stopped_replaced_and_continued(
    production: Mainstem, tmp_path: Path, fault_report: Callable[..., None]
) -> None:
    production.topic("orders").append(orders(0, 60))
    production.run(flows, until="idle")
    production.topic("orders").append(orders(60, 80))
    said = tmp_path / "said"
    with zombie(production, said) as older:
        production.topic("orders").append(orders(80, 100))
        production.run(flows, until="idle")
        asleep = seen(production)
        send(older.pid, signal.SIGCONT)
        status = older.wait(SECONDS_MAX)
    awake = seen(production)
    production.topic("orders").append(orders(100, 130))
    production.run(flows, until="idle")
    found = seen(production)

    text = said.read_text(errors="replace")
    assert (status, text.count("Fenced")) == (1, 3), text[-3000:]
    violations = [f"{sink} changed when it went on" for sink, rows in asleep.items() if awake[sink] != rows]
    violations += twice(found) + [f"{sink}: {len(rows)} rows" for sink, rows in found.items() if len(rows) != 130]
    fault_report("S8 zombie", points=3, compared=3 * 130, violations=violations)


def test_a_run_that_nobody_fences_would_be_seen(production: Mainstem, tmp_path: Path) -> None:
    production.topic("orders").append(orders(0, 30))
    with zombie(production, tmp_path / "said", "shipped", MAINSTEM_TEST_MUTANT="yes") as older:
        production.run(flows, until="idle")
        send(older.pid, signal.SIGCONT)
        # Its next batch is refused; what it had written is there by then.
        production.topic("orders").append(orders(30, 40))
        older.wait(SECONDS_MAX)
    assert [row for row in Counter(committed(production, "shipped")).values() if row > 1]
