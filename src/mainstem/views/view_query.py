"""SQL over one table: DuckDB, which is given the rows as Arrow since it cannot open the file of a view itself."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from mainstem.errors import Invalid

__all__ = ["query_table"]


def query_table(name: str, rows: pa.Table, sql: str, parameters: Sequence[object]) -> pa.Table:
    """The answer, with the rows as a table of that name.

    >>> query_table("n", pa.table({"a": [1, 2]}), "SELECT max(a) AS m FROM n WHERE a < ?", [2]).to_pylist()
    [{'m': 1}]
    """
    import duckdb

    with duckdb.connect(":memory:") as connection:
        # Names in a question are the view, never variables of the program that asks.
        connection.execute("SET python_enable_replacements = false")
        connection.execute("SET TimeZone = 'UTC'")
        connection.register(name, rows)
        try:
            answer = connection.sql(sql, params=list(parameters))
            return pa.table({}) if answer is None else answer.to_arrow_table()
        except duckdb.Error as error:
            lines = str(error).splitlines() or [type(error).__name__]
            raise Invalid(
                f"the query cannot be run: {lines[0][:200]}",
                detail="\n".join(line for line in lines[1:] if line.strip()) or f"DuckDB says: {lines[0]}",
                hint=f'The one table is "{name}", with the columns {", ".join(rows.schema.names)}. '
                "Each ? needs a value.",
            ) from error
