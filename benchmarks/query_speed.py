"""How fast a question is answered over sealed rows, against DuckDB on the same Parquet files."""

from __future__ import annotations

import duckdb

from benchmarks.figure import Figure
from benchmarks.orders import BATCH_ROWS, create_orders, files_in, open_home, order_batch
from benchmarks.paired_timing import seconds_of, shown_seconds, timed_in_turns
from benchmarks.run_size import RunSize


def asked_of_files(paths: list[str]) -> tuple[object, ...] | None:
    """The same question to DuckDB alone, in a connection of its own as `stem.query` has one."""
    listed = ", ".join(f"'{path}'" for path in paths)
    with duckdb.connect(":memory:") as connection:
        return connection.execute(f"SELECT count(*), sum(amount) FROM read_parquet([{listed}])").fetchone()


def query(folder: str, size: RunSize) -> list[Figure]:
    """Count and sum: the first time a process asks, when the files are checked, and later."""
    home = f"{folder}/query"
    with open_home(home) as stem:
        topic = create_orders(stem)
        batch = order_batch(topic)
        for _ in range(size.query_rows // BATCH_ROWS):
            topic.append(batch)
        topic.seal()
        paths = files_in(topic, ".parquet")
        asked_of_files(paths)  # so that neither is the one that brings the files into memory
        question = "SELECT count(*) AS orders, sum(amount) AS total FROM orders"
        first = seconds_of(lambda: stem.query(question))
        answer = stem.query(question).to_pylist()[0]
        expected = asked_of_files(paths)
        if expected is None or answer["orders"] != expected[0] or abs(answer["total"] / expected[1] - 1) > 1e-9:
            raise AssertionError(f"stem.query says {answer}, DuckDB {expected}")
        timing = timed_in_turns(lambda: stem.query(question), lambda: asked_of_files(paths), rounds=size.query_rounds)
    plain = timing.facts()["baseline_seconds"]
    return [
        Figure(
            f"count and sum over {size.query_rows:,} sealed rows: times DuckDB",
            timing.slowdown,
            at_most=1.3,
            detail=f"{timing.detail}, {len(paths)} files",
            facts=timing.facts(),
        ),
        Figure(
            "the same, first time in a process (files are checked): times DuckDB",
            first / plain,
            detail=f"{shown_seconds(first)}",
            facts={"subject_seconds": first},
        ),
    ]
