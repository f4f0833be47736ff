"""Stores against their bare clients: `python -m benchmarks.stores [--rows 100000] [--batch 5000] [--only postgres,redis,...] [--json]`.

Each store takes the same batches (inserts, then updates and deletes) as its bare client, with the same durability, in turns;
CPU seconds of this process and of the server. The client only writes the rows: no fence, no rejected rows, no merging.

Starts real servers of its own. Prints a table, and as the last line all of it as JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Literal

import psycopg
import pyarrow as pa

from benchmarks.figure import Figure, table
from benchmarks.process_tree import cpu_seconds
from mainstem.batch import Batch, FlowRun
from mainstem.clock import SystemClock
from mainstem.log.record import RECORD
from mainstem.sinks.store import Store
from mainstem.sinks.store_backend import StoreBackend
from tests.postgres_server import PostgresServer
from tests.redis_server import RedisServer

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("title", pa.string()),
        ("price", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("record", RECORD),
    ]
)
ROUNDS = 3
GOAL = 2.0
WORDS = [
    "red",
    "green",
    "blue",
    "shoes",
    "shirt",
    "hat",
    "small",
    "large",
    "cotton",
    "leather",
    "summer",
    "winter",
    "cheap",
    "fine",
]


def batches(rows: int, size: int) -> list[pa.Table]:
    """All rows as inserts; then a part of them again, as updates and deletes."""
    made = []
    for first in range(0, rows + rows // 2, size):
        keys = [(place % rows) for place in range(first, first + size)]
        titles = [f"{WORDS[key % 14]} {WORDS[key // 14 % 14]} {first} {key}" for key in keys]
        deleted = [first >= rows and key % 10 == 0 for key in keys]
        record = pa.StructArray.from_arrays(
            [
                pa.array([0] * size, pa.int32()), pa.array(range(first, first + size), pa.int64()),
                pa.array([0] * size, pa.timestamp("us", "UTC")),
                pa.array(["delete" if gone else "insert" for gone in deleted]), pa.nulls(size, RECORD.field("headers").type),
            ],
            fields=list(RECORD),
        )  # fmt: skip
        at = pa.array([1_700_000_000_000_000 + key for key in keys], pa.timestamp("us", "UTC"))
        made.append(
            pa.table([pa.array(keys, pa.int64()), titles, [key / 7 for key in keys], at, record], schema=SCHEMA)
        )
    return made


def through_store(backend: StoreBackend, given: list[pa.Table], home: str) -> None:
    store = Store(home, "tried", backend, key="id", identity="benchmark", clock=SystemClock())
    run = FlowRun("tried", 1)
    writer = store.table_writer(run, SCHEMA)
    for number, rows in enumerate(given):
        writer.commit(writer.prepare(rows), Batch(number, run, {"orders": {0: number}}))
    writer.close()


def split(rows: pa.Table) -> tuple[pa.Table, list[int]]:
    """Rows to write, and keys to delete."""
    gone = pa.compute.equal(rows.column("record").combine_chunks().field("change"), "delete")
    return rows.filter(pa.compute.invert(gone)).drop_columns(["record"]), rows.filter(gone).column("id").to_pylist()


# PostgreSQL


def postgres(given: list[pa.Table], folder: Path) -> Iterator[Figure]:
    from mainstem.sinks.postgres_store import PostgresStore

    with PostgresServer() as server:
        number = 0

        def ours() -> None:
            nonlocal number
            number += 1
            through_store(PostgresStore(server.address(), f"ours_{number}"), given, str(folder / f"home{number}"))

        def bare() -> None:
            nonlocal number
            number += 1
            write_bare(server.address(), f"bare_{number}", given)

        yield measured("postgres", ours, bare)


def write_bare(address: str, name: str, given: list[pa.Table]) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(
            f"CREATE TABLE {name} (id bigint PRIMARY KEY, title text, price double precision, at timestamptz)"
        )
        connection.execute("CREATE TEMP TABLE given (id bigint, title text, price double precision, at timestamptz)")
        for rows in given:
            written, gone = split(rows)
            with connection.transaction():
                connection.execute("TRUNCATE given")
                with connection.cursor().copy("COPY given FROM STDIN") as copy:
                    for row in zip(*(column.to_pylist() for column in written.columns), strict=True):
                        copy.write_row(row)
                connection.execute(
                    f"INSERT INTO {name} SELECT * FROM given ON CONFLICT (id) DO UPDATE SET title = excluded.title, "
                    "price = excluded.price, at = excluded.at"
                )
                if gone:
                    connection.execute(f"DELETE FROM {name} WHERE id = ANY(%s)", [gone])


# Delta


def delta(given: list[pa.Table], folder: Path) -> Iterator[Figure]:
    from mainstem.sinks.delta_store import DeltaStore

    number = 0

    def ours() -> None:
        nonlocal number
        number += 1
        through_store(DeltaStore(folder / f"ours_{number}"), given, str(folder / f"home_of_delta_{number}"))

    def bare() -> None:
        nonlocal number
        number += 1
        merge_bare(folder / f"bare_{number}", given)

    yield measured("delta", ours, bare)


def merge_bare(path: Path, given: list[pa.Table]) -> None:
    from deltalake import DeltaTable, Schema

    schema = pa.schema([field for field in SCHEMA if field.name != "record"])
    table = DeltaTable.create(path, Schema.from_arrow(schema))
    columns = {f"o.{name}": f"n.{name}" for name in schema.names}
    for rows in given:
        written, gone = split(rows)
        marked = [part.append_column("gone", pa.array([bool(place)] * part.num_rows)) for place, part in enumerate(
            [written, pa.table({"id": pa.array(gone, pa.int64())})]
        )]  # fmt: skip
        source = pa.concat_tables(marked, promote_options="default")
        merge = table.merge(source, "o.id = n.id", source_alias="n", target_alias="o").when_matched_delete("n.gone")
        merge.when_matched_update(columns).when_not_matched_insert(columns, "NOT n.gone").execute()


# Redis


def redis(given: list[pa.Table], folder: Path) -> Iterator[Figure]:
    from mainstem.sinks.redis_store import RedisStore

    forms: tuple[Literal["json", "hash"], ...] = ("json", "hash")
    with RedisServer(appendonly=True) as server:
        for form in forms:
            number = 0

            def ours(form: Literal["json", "hash"] = form) -> None:
                nonlocal number
                number += 1
                backend = RedisStore(server.address(), f"ours_{form}_{number}:", form=form)
                through_store(backend, given, str(folder / f"home_{form}_{number}"))

            def bare(form: str = form) -> None:
                nonlocal number
                number += 1
                put_bare(server, f"bare_{form}_{number}:", given, form)

            yield measured(f"redis ({form})", ours, bare)


def put_bare(server: RedisServer, prefix: str, given: list[pa.Table], form: str) -> None:
    with server.client() as client:
        for rows in given:
            written, gone = split(rows)
            with client.pipeline() as pipe:
                for row in written.to_pylist():
                    key = f"{prefix}{row['id']}"
                    row["at"] = row["at"].isoformat()
                    if form == "json":
                        pipe.set(key, json.dumps(row))
                    else:
                        pipe.delete(key)
                        pipe.hset(key, mapping=row)
                for key in gone:
                    pipe.delete(f"{prefix}{key}")
                pipe.execute()


# Search index


def search(given: list[pa.Table], folder: Path) -> Iterator[Figure]:
    from mainstem.sinks.search_index import SearchFolder

    number = 0

    def ours() -> None:
        nonlocal number
        number += 1
        backend = SearchFolder(str(folder / f"home_of_search_{number}/search/tried"), ["title"])
        through_store(backend, given, str(folder / f"home_of_search_{number}"))

    def bare() -> None:
        nonlocal number
        number += 1
        index_bare(folder / f"bare_index_{number}", given)

    yield measured("search index", ours, bare)


def index_bare(path: Path, given: list[pa.Table]) -> None:
    """One document for each row: its key as a term, its title as words, the whole row stored."""
    import tantivy

    from mainstem.sinks.search_index import HEAP_BYTES

    builder = tantivy.SchemaBuilder()
    builder.add_integer_field("id", stored=True, indexed=True)
    builder.add_text_field("title", index_option="freq")
    builder.add_bytes_field("row", stored=True)
    path.mkdir()
    writer = tantivy.Index(builder.build(), str(path)).writer(HEAP_BYTES, 1)
    for rows in given:
        written, gone = split(rows)
        for key in gone:
            writer.delete_documents_by_term("id", key)
        for row in written.to_pylist():
            writer.delete_documents_by_term("id", row["id"])
            row["at"] = row["at"].isoformat()
            document = tantivy.Document()
            document.add_integer("id", row["id"])
            document.add_text("title", row["title"])
            document.add_bytes("row", json.dumps(row).encode())
            writer.add_document(document)
        writer.commit()
    writer.wait_merging_threads()


# Measuring


def measured(name: str, ours: Callable[[], None], bare: Callable[[], None]) -> Figure:
    """Both in turns; the ratio of the medians. CPU seconds of this process and of the server, which it started."""
    taken: dict[str, list[float]] = {"ours": [], "bare": []}
    for _ in range(ROUNDS):
        for title, work in (("ours", ours), ("bare", bare)):
            before = cpu_seconds()
            work()
            taken[title].append(cpu_seconds() - before)
    mine, theirs = median(taken["ours"]), median(taken["bare"])
    detail = (
        f"{mine:.2f} and {theirs:.2f} CPU seconds; rounds from {min(taken['ours']):.2f} to {max(taken['ours']):.2f}"
    )
    facts = {"ours_cpu_seconds": mine, "bare_cpu_seconds": theirs}
    return Figure(f"{name} against its bare client, CPU", mine / theirs, at_most=GOAL, detail=detail, facts=facts)


STORES: dict[str, Callable[[list[pa.Table], Path], Iterator[Figure]]] = {
    "delta": delta,
    "postgres": postgres,
    "redis": redis,
    "search": search,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=5_000)
    parser.add_argument("--only", default=",".join(STORES))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    given = batches(arguments.rows, arguments.batch)
    figures: list[Figure] = []
    try:
        for name in arguments.only.split(","):
            figures += STORES[name](given, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not arguments.json:
        print(table(figures))
    print(json.dumps([figure.to_json() for figure in figures]))


if __name__ == "__main__":
    main()
