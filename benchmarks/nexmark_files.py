"""The bids as files, for plain Spark to read and for DuckDB to check answers against."""

from __future__ import annotations

import os
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.nexmark import Nexmark
from benchmarks.nexmark_queries import SIDE_KEYS, Query


@dataclass(frozen=True)
class NexmarkFiles:
    """A folder with the bids of a market, in files of so many rows, as Parquet and as JSON lines.

    Two files of a quarter of a million rows are one micro-batch on two cores: large enough that what a batch costs does
    not count, small enough that there are several.
    """

    folder: str
    market: Nexmark
    file_rows: int = 250_000

    @property
    def parquet(self) -> str:
        return f"{self.folder}/parquet"

    @property
    def json(self) -> str:
        return f"{self.folder}/json"

    @property
    def side(self) -> str:
        return f"{self.folder}/side.parquet"

    @property
    def rows(self) -> int:
        return self.market.count("bids")

    def write_json_and_parquet(self) -> None:
        """Write the same rows in both forms, and the side input, which is there only when all is."""
        self.write()
        side = f"{self.side}.unfinished"
        os.rename(self.side, side)
        self.write_json()
        os.rename(side, self.side)

    def write(self) -> None:
        """Write the Parquet files and the side input."""
        os.makedirs(self.parquet)
        for number, batch in enumerate(self.market.batches("bids", rows_max=self.file_rows)):
            # As the log writes its sealed segments, and as Spark writes by itself: Snappy is the quickest to read.
            pq.write_table(pa.table(batch), f"{self.parquet}/bids-{number:05d}.parquet", compression="snappy")
        keys = pa.array(range(SIDE_KEYS), pa.int64())
        values = pa.array([f"side-{number}" for number in range(SIDE_KEYS)])
        pq.write_table(pa.table({"side_key": keys, "value": values}), self.side)

    def write_json(self) -> None:
        """Write the same rows as JSON lines, file by file."""
        os.makedirs(self.json)
        columns = '* REPLACE (strftime("at", \'%Y-%m-%dT%H:%M:%S.%fZ\') AS "at")'
        with _connected() as connection:
            for name in sorted(os.listdir(self.parquet)):
                stem = name.removesuffix(".parquet")
                connection.execute(
                    f"COPY (SELECT {columns} FROM '{self.parquet}/{name}') TO '{self.json}/{stem}.json' (FORMAT json)"
                )

    def check(self, query: Query, answer: str | pa.Table, *, files: str = "*.parquet") -> int:
        """Compare rows (a table, or SQL that gives them) with what DuckDB answers on these files; how many there are.

        Rows are compared as a multiset: their number, and the sum of a hash of each.
        """
        with self._asked(files) as connection:
            if isinstance(answer, str):
                connection.execute(f"CREATE VIEW answered AS {answer}")
            else:
                connection.register("answered", answer)
            connection.execute(f"CREATE VIEW right_answer AS {query.answer}")
            wanted = _kinds(connection, "right_answer")
            for name in ("right_answer", "answered"):
                columns = _comparable(wanted, _kinds(connection, name))
                connection.execute(f"CREATE TABLE {name}_rows AS SELECT {columns} FROM {name}")
            expected, found = (_fingerprint(connection, name) for name in ("right_answer_rows", "answered_rows"))
            if expected != found:
                missing = connection.execute("FROM right_answer_rows EXCEPT ALL FROM answered_rows LIMIT 5").fetchall()
                added = connection.execute("FROM answered_rows EXCEPT ALL FROM right_answer_rows LIMIT 5").fetchall()
                raise AssertionError(f"{query.name}: {expected} is right, {found} was given; {missing=} {added=}")
            return expected[0]

    def _asked(self, files: str) -> duckdb.DuckDBPyConnection:
        connection = _connected()
        connection.execute(f"CREATE VIEW bids AS FROM '{self.parquet}/{files}'")
        connection.execute(f"CREATE VIEW side AS FROM '{self.side}'")
        return connection


def _connected() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _kinds(connection: duckdb.DuckDBPyConnection, name: str) -> dict[str, str]:
    return {row[0]: row[1] for row in connection.execute(f"DESCRIBE {name}").fetchall()}


def _comparable(wanted: dict[str, str], kinds: dict[str, str]) -> str:
    """The wanted columns; times as numbers, since one side may know their zone and the other not."""
    return ", ".join(
        f'epoch_us("{name}") AS "{name}"' if kinds[name].startswith("TIMESTAMP") else f'"{name}"::{kind} AS "{name}"'
        for name, kind in wanted.items()
    )


def _fingerprint(connection: duckdb.DuckDBPyConnection, name: str) -> tuple[int, int]:
    row = connection.execute(f"SELECT count(*), coalesce(sum(hash(it)::HUGEINT), 0) FROM {name} AS it").fetchone()
    assert row is not None
    return int(row[0]), int(row[1])
