"""SQL over one table: DuckDB, which is given the rows as Arrow since it cannot open the file of a view itself."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from mainstem.errors import Invalid
from mainstem.log.query_limits import QueryLimits

__all__ = ["query_table"]


def query_table(name: str, rows: pa.Table, sql: str, parameters: Sequence[object], limits: QueryLimits) -> pa.Table:
    """The answer, with the rows as a table of that name.

    >>> query_table("n", pa.table({"a": [1, 2]}), "SELECT max(a) AS m FROM n WHERE a < ?", [2], QueryLimits()).to_pylist()
    [{'m': 1}]
    """
    import duckdb

    from mainstem.log.sql_sandbox import SqlSandbox

    with SqlSandbox.opened(limits) as sandbox:
        sandbox.connection.register(name, rows)
        sandbox.lock()
        try:
            return sandbox.answer(sql, parameters)
        except duckdb.Error as error:
            lines = str(error).splitlines() or [type(error).__name__]
            raise Invalid(
                f"the query cannot be run: {lines[0][:200]}",
                detail="\n".join(line for line in lines[1:] if line.strip()) or f"DuckDB says: {lines[0]}",
                hint=f'The one table is "{name}", with the columns {", ".join(rows.schema.names)}. '
                "Each ? needs a value.",
            ) from error
