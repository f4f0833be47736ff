"""Two versions of a view compared: which rows are equal, and the SQL that finds out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from mainstem.names import quote_name
from mainstem.views.sql.sql_tables import Row, SqlConnection, SqlTables, list_columns
from mainstem.views.sqlite.sqlite_columns import arrow_column

__all__ = ["Difference", "Kind", "SHOWN_MAX", "VersionPair"]

SHOWN_MAX = 10

Kind = Literal["same", "changed", "added", "removed"]
KINDS: tuple[Kind, ...] = ("same", "changed", "added", "removed")


@dataclass(frozen=True)
class Difference:
    """How one version differs from another: counts, and some rows of each kind, by key: the first ten, or a page of them.

    A changed row is a pair, old and new. A column that one version lacks is null there.
    """

    before: int
    after: int
    same: int
    changed: int
    added: int
    removed: int
    changed_rows: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    added_rows: list[dict[str, Any]] = field(default_factory=list)
    removed_rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class VersionPair:
    """The new version, `n` in SQL, and the old one, `o`."""

    new: SqlTables
    old: SqlTables

    @property
    def compatible(self) -> bool:
        """Whether old rows can be read with the new schema: no column has changed its type."""
        types = {one.name: one.type for one in self.old.schema}
        return all(types[one.name].equals(one.type) for one in self.new.schema if one.name in types)

    def source(self, kind: Kind) -> str:
        """The FROM clause for the rows of a kind."""
        keys = " AND ".join(self._same(name, "=") for name in self.new.key)
        shared = [name for name in self.new.values if name in self.old.values]
        same = [self._same(name, self.new.is_same) for name in shared]
        for alias, tables in (("n", self.new), ("o", self.old)):
            same += [f"{alias}.{quote_name(name)} IS NULL" for name in tables.values if name not in shared]
        equal = " AND ".join(same) or "1 = 1"
        new, old = self.new.rows, self.old.rows
        return {
            "same": f"{new} AS n JOIN {old} AS o ON {keys} WHERE {equal}",
            "changed": f"{new} AS n JOIN {old} AS o ON {keys} WHERE NOT ({equal})",
            "added": f"{new} AS n WHERE NOT EXISTS (SELECT 1 FROM {old} AS o WHERE {keys})",
            "removed": f"{old} AS o WHERE NOT EXISTS (SELECT 1 FROM {new} AS n WHERE {keys})",
        }[kind]

    def _same(self, name: str, operator: str) -> str:
        column = quote_name(name)
        if self.new.comparable(self.new.schema.field(name).type, self.old.schema.field(name).type):
            return f"n.{column} {operator} o.{column}"
        return f"(n.{column} IS NULL AND o.{column} IS NULL)"

    def order(self, kind: Kind) -> str:
        """The order by key of the rows of a kind."""
        return list_columns(self.new.key, "o" if kind == "removed" else "n")

    def difference(self, connection: SqlConnection, limit: int = SHOWN_MAX, skip: int = 0) -> Difference:
        """Counts, and up to `limit` rows of each kind after the first `skip`, inside a snapshot transaction."""
        counts, rows = {}, {}
        for kind in KINDS:
            source = self.source(kind)
            ((counts[kind],),) = connection.query(f"SELECT count(*) FROM {source}")
            if kind != "same":
                new, old = self.new.select_columns("n"), self.old.select_columns("o")
                columns = {"changed": f"{old}, {new}", "added": new, "removed": old}[kind]
                select = f"SELECT {columns} FROM {source} ORDER BY {self.order(kind)} LIMIT $1 OFFSET $2"
                rows[kind] = connection.query(select, limit, skip)
        width = len(self.old.schema)
        was = _dicts([row[:width] for row in rows["changed"]], self.old.schema)
        became = _dicts([row[width:] for row in rows["changed"]], self.new.schema)
        return Difference(
            self.old.version,
            self.new.version,
            **counts,
            changed_rows=list(zip(was, became, strict=True)),
            added_rows=_dicts(rows["added"], self.new.schema),
            removed_rows=_dicts(rows["removed"], self.old.schema),
        )


def _dicts(rows: Sequence[Row], schema: pa.Schema) -> list[dict[str, Any]]:
    if not rows:
        return []
    columns = [
        arrow_column(list(values), one.type).to_pylist()
        for values, one in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return [dict(zip(schema.names, values, strict=True)) for values in zip(*columns, strict=True)]
