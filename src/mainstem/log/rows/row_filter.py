"""RowFilter: the rows of a batch for which a SQL condition holds."""

from __future__ import annotations

import threading

import duckdb
import pyarrow as pa

from mainstem.errors import Invalid, did_you_mean

__all__ = ["ROUTED_MACRO", "RowFilter"]


# Routing patterns: `lazy.#`, `*.orange.*`, as in AMQP's topic exchanges.
#
# A routing key is words separated by dots; the empty key has no words. In a pattern `*` matches exactly one word, `#` any
# number of words, including none; every other word matches itself.
#
# A dot is put before every word of pattern and key, so that `#` needs no special case:
#
#     pattern  lazy.#    ->  \.lazy(\.[^.]*)*          key  lazy.orange  ->  .lazy.orange


ONE_WORD = r"\.[^.]*"
ANY_WORDS = rf"({ONE_WORD})*"

# With a constant pattern DuckDB compiles the expression once, not once per row.
ROUTED_MACRO = rf"""
CREATE MACRO routed(routing_key, pattern) AS regexp_full_match(
    CASE WHEN routing_key = '' THEN '' ELSE '.' || routing_key END,
    CASE WHEN pattern = '' THEN '' ELSE array_to_string(list_transform(string_split(pattern, '.'), lambda word:
        CASE word WHEN '*' THEN '{ONE_WORD}' WHEN '#' THEN '{ANY_WORDS}' ELSE '\.' || regexp_escape(word) END), '') END
)
"""


HINT = (
    "Write a DuckDB condition over the columns, for instance: amount > 10 and routed(kind, 'lazy.#'). "
    "Where a value may not convert, use try_cast."
)


class RowFilter:
    """A DuckDB condition over a topic's columns and `record`, checked when it is made.

    It sees one row and nothing else: no files, no other tables. Whole batches are filtered at once. Null is not true.

    >>> rows = pa.RecordBatch.from_pydict({"n": [1, 2, None], "kind": ["a", "b.c", "b"]})
    >>> RowFilter("n > 1 and routed(kind, 'b.#')", rows.schema).mask(rows).to_pylist()
    [False, True, False]
    """

    def __init__(self, condition: str, schema: pa.Schema) -> None:
        self.condition = condition
        self._lock = threading.Lock()
        # One thread: a batch is small, and its rows must come back in order.
        self._connection = duckdb.connect(":memory:", config={"threads": 1})
        self._connection.execute(ROUTED_MACRO)
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute("SET python_enable_replacements = false")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")
        self._check(schema)

    def _check(self, schema: pa.Schema) -> None:
        rows = self._connection.from_arrow(schema.empty_table())
        try:
            # As a WHERE clause, which refuses aggregates and window functions; bound, not only parsed.
            rows.filter(self._bracket()).to_arrow_table()
            kind = str(rows.project(self._bracket()).types[0])
        except duckdb.Error as error:
            raise Invalid(
                f'the condition "{self.condition}" cannot be used',
                detail=_first_lines(error),
                hint=_near_column(error, schema) or HINT,
            ) from error
        if kind not in ("BOOLEAN", '"NULL"'):
            raise Invalid(
                f'the condition "{self.condition}" is not true or false',
                detail=f"It is of type {kind}.",
                hint=HINT,
            )

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Whether the condition holds, for each row of the batch."""
        with self._lock:
            rows = self._connection.from_arrow(pa.Table.from_batches([batch]))
            try:
                found = rows.project(f"coalesce({self._bracket()}, false) AS holds").to_arrow_table()
            except duckdb.Error as error:
                raise Invalid(
                    f'the condition "{self.condition}" failed on a row',
                    detail=_first_lines(error),
                    hint=HINT,
                ) from error
        return found.column("holds").combine_chunks()

    def _bracket(self) -> str:
        # The line break ends a comment at the end of the condition.
        return f"({self.condition}\n)"


def _first_lines(error: duckdb.Error) -> str:
    """DuckDB's message without its excerpt of the statement, which is not the user's."""
    return str(error).partition("\n\nLINE ")[0].strip()


def _near_column(error: duckdb.Error, schema: pa.Schema) -> str:
    unknown = str(error).partition('Referenced column "')[2].partition('"')[0]
    return did_you_mean(unknown, schema.names) if unknown else ""
