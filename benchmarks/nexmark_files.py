"""The events as files, for plain Spark to read and for DuckDB to check answers against."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.nexmark_events import SCHEMAS, Kind, Nexmark
from benchmarks.nexmark_queries import SIDE_KEYS, Query


@dataclass(frozen=True)
class NexmarkFiles:
    """A folder with the events of a market as Parquet: of each kind as many files, each from the same events."""

    folder: str
    market: Nexmark
    # Six files of bids are a batch of half a million rows, which is also what a flow of Mainstem takes at a time.
    file_events: int = 100_000

    @property
    def side(self) -> str:
        return f"{self.folder}/side.parquet"

    def of(self, kind: Kind) -> str:
        """The folder with the files of this kind."""
        return f"{self.folder}/{kind}"

    def rows(self, query: Query) -> int:
        """How many rows the query reads."""
        return sum(self.market.count(kind) for kind in query.reads)

    def rows_of_files(self, query: Query, files: int) -> int:
        """How many rows so many files have, of the kind of which the query reads the most."""
        some = replace(self.market, events=files * self.file_events)
        return max(some.count(kind) for kind in query.reads)

    def write(self) -> None:
        """Write the files, and at last the side input."""
        for kind in SCHEMAS:
            os.makedirs(self.of(kind))
            for number, start in enumerate(range(0, self.market.events, self.file_events)):
                ends = (start, min(start + self.file_events, self.market.events))
                rows = self.market.rows(kind, *(replace(self.market, events=end).count(kind) for end in ends))
                # As the log writes its sealed segments, and as Spark writes by itself: Snappy is the quickest to read.
                pq.write_table(pa.table(rows), f"{self.of(kind)}/{number:05d}.parquet", compression="snappy")
        keys = pa.array(range(SIDE_KEYS), pa.int64())
        values = pa.array([f"side-{number}" for number in range(SIDE_KEYS)])
        pq.write_table(pa.table({"side_key": keys, "value": values}), self.side)

    def check(self, query: Query, answer: str | pa.Table) -> int:
        """Compare rows (a table, or SQL that gives them) with what DuckDB answers on these files; how many there are.

        Rows are compared as a multiset: their number, and the sum of a hash of each.
        """
        with duckdb.connect(":memory:") as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for kind in SCHEMAS:
                connection.execute(f"CREATE VIEW {kind} AS FROM '{self.of(kind)}/*.parquet'")
            connection.execute(f"CREATE VIEW side AS FROM '{self.side}'")
            if isinstance(answer, str):
                connection.execute(f"CREATE VIEW answered AS {answer}")
            else:
                connection.register("answered", answer)
            connection.execute(f"CREATE VIEW right_answer AS {query.answer}")
            wanted = _types(connection, "right_answer")
            for name in ("right_answer", "answered"):
                columns = _comparable(wanted, _types(connection, name))
                connection.execute(f"CREATE TABLE {name}_rows AS SELECT {columns} FROM {name} WHERE {query.compared}")
            expected, found = (_fingerprint(connection, name) for name in ("right_answer_rows", "answered_rows"))
            if expected != found:
                missing = connection.execute("FROM right_answer_rows EXCEPT ALL FROM answered_rows LIMIT 5").fetchall()
                added = connection.execute("FROM answered_rows EXCEPT ALL FROM right_answer_rows LIMIT 5").fetchall()
                raise AssertionError(f"{query.name}: {expected} is right, {found} was given; {missing=} {added=}")
            return expected[0]


def _types(connection: duckdb.DuckDBPyConnection, name: str) -> dict[str, str]:
    return {row[0]: row[1] for row in connection.execute(f"DESCRIBE {name}").fetchall()}


def _comparable(wanted: dict[str, str], types: dict[str, str]) -> str:
    """The wanted columns; times as numbers, since one side may know their zone and the other not."""
    return ", ".join(
        f'epoch_us("{name}") AS "{name}"' if types[name].startswith("TIMESTAMP") else f'"{name}"::{type} AS "{name}"'
        for name, type in wanted.items()
    )


def _fingerprint(connection: duckdb.DuckDBPyConnection, name: str) -> tuple[int, int]:
    row = connection.execute(f"SELECT count(*), coalesce(sum(hash(it)::HUGEINT), 0) FROM {name} AS it").fetchone()
    assert row is not None
    return int(row[0]), int(row[1])
