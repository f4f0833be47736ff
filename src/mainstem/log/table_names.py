"""TableNames: which topics and views a statement names, and what they are called in DuckDB.

In DuckDB `orders` and `Orders` are one name; in a home they are two topics. The exact name is meant: where a statement names
both, its references are given names that differ, in DuckDB's own syntax tree, and the old name as their alias. Where the
home has only one of them, any spelling finds it, as in SQL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby

import duckdb
import pyarrow as pa

from mainstem.log.sql_sandbox import nodes, queries, split_statement, syntax_tree

__all__ = ["TableNames", "shown_tables"]

SHOW_TABLES = re.compile(r"\s*SHOW\s+(ALL\s+)?TABLES\s*;?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TableNames:
    """`called` has every table that the statement may name, with its name in DuckDB."""

    called: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, sql: str, names: Iterable[str]) -> TableNames:
        """
        >>> TableNames.of('SELECT * FROM ORDERS', ["orders", "returns"]).called
        {'orders': 'orders'}
        >>> TableNames.of('SELECT * FROM "Orders"', ["orders", "Orders"]).called
        {'Orders': 'Orders'}
        >>> TableNames.of('FROM orders SELECT *, (SELECT max(n) FROM "Orders")', ["orders", "Orders"]).called
        {'Orders': 'Orders #0', 'orders': 'orders #1'}
        """
        called: dict[str, str] = {}
        mentioned = sorted(
            (name for name in names if _mentions(sql, name, re.IGNORECASE)), key=lambda n: (n.lower(), n)
        )
        for _, alike in groupby(mentioned, key=str.lower):
            group = list(alike)
            exact = group if len(group) == 1 else [name for name in group if _mentions(sql, name, 0)]
            called |= {name: name if len(exact) == 1 else f"{name} #{place}" for place, name in enumerate(exact)}
        return cls(called)

    def applied(self, connection: duckdb.DuckDBPyConnection, sql: str) -> str:
        """The statement with the names that the tables have in DuckDB."""
        renamed = {name: called for name, called in self.called.items() if name != called}
        if not renamed:
            return sql
        before, select = split_statement(connection, sql)
        tree = syntax_tree(connection, select)
        own = {entry["key"] for query in queries(tree) for entry in query["cte_map"]["map"]}
        for node in nodes(tree):
            name = node.get("table_name")
            if node.get("type") == "BASE_TABLE" and name in renamed and name not in own:
                node["table_name"] = renamed[name]
                node["qualified_name"]["path"][-1] = renamed[name]
                node["alias"] = node["alias"] or name
        rows = connection.execute("SELECT json_deserialize_sql(?::json)", [json.dumps(tree)]).fetchall()
        return f"{before} {rows[0][0]}"


def shown_tables(sql: str, topics: Iterable[str], views: Iterable[str]) -> pa.Table | None:
    """The answer to SHOW TABLES: all topics and views that a query can name; None for another statement.

    DuckDB knows only of those that a statement names, so its own answer would be empty.

    >>> shown_tables("show tables;", ["orders"], ["revenue"]).to_pylist()
    [{'name': 'orders', 'kind': 'topic'}, {'name': 'revenue', 'kind': 'view'}]
    """
    if SHOW_TABLES.fullmatch(sql) is None:
        return None
    # Where a topic and a view share a name, the topic is meant.
    kinds = dict(sorted((dict.fromkeys(views, "view") | dict.fromkeys(topics, "topic")).items()))
    return pa.table({"name": pa.array(kinds, pa.string()), "kind": pa.array(kinds.values(), pa.string())})


def _mentions(sql: str, name: str, flags: int) -> bool:
    """Whether the name stands in the statement as a word. One that is no table there costs a look and nothing else."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", sql, flags) is not None
