"""Two versions of a view compared: which rows are equal, and the SQL that finds out.

`new` and `old` are the tables of their rows. Both stores speak nearly the same SQL: what differs is how equality counts
nulls (SQLite's `IS` is everybody else's `IS NOT DISTINCT FROM`), and what can be compared at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from mainstem.views.sqlite.sqlite_columns import arrow_column, quoted

__all__ = ["KINDS", "Difference", "Kind", "VersionPair", "difference_of"]

SHOWN_MAX = 10

Kind = Literal["same", "changed", "added", "removed"]
KINDS: tuple[Kind, ...] = ("same", "changed", "added", "removed")

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Difference:
    """How one version differs from another: counts, and the first ten rows of each kind, by key.

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
    """The newer version `n` and the one before, `o`."""

    key: tuple[str, ...]
    new_schema: pa.Schema
    old_schema: pa.Schema
    new: str
    old: str
    is_same: str = "IS"
    # Whether values of the two types can be compared; where not, only two nulls are the same.
    comparable: Callable[[pa.DataType, pa.DataType], bool] = lambda new, old: True
    # How a column is selected, so that `arrow_column` takes it.
    selected: Callable[[str, pa.Field], str] = lambda alias, one: f"{alias}.{quoted(one.name)}"

    @property
    def values(self) -> list[str]:
        """The columns of the newer one that are not in the key."""
        return [name for name in self.new_schema.names if name not in self.key]

    @property
    def shared(self) -> list[str]:
        """Those that the older one has too."""
        return [name for name in self.values if name in self.old_schema.names]

    @property
    def compatible(self) -> bool:
        """Whether a row of the old one can be shown as a row of the new one: no column has changed its type."""
        types = {one.name: one.type for one in self.old_schema}
        return all(types[one.name].equals(one.type) for one in self.new_schema if one.name in types)

    def source(self, kind: Kind) -> str:
        """What stands behind FROM for the rows of a kind."""
        keys = " AND ".join(self._same(name, "=") for name in self.key)
        same = [self._same(name, self.is_same) for name in self.shared]
        same += [f"n.{quoted(name)} IS NULL" for name in self.values if name not in self.old_schema.names]
        same += [
            f"o.{quoted(name)} IS NULL"
            for name in self.old_schema.names
            if name not in self.key and name not in self.new_schema.names
        ]
        equal = " AND ".join(same) or "1 = 1"
        return {
            "same": f"{self.new} AS n JOIN {self.old} AS o ON {keys} WHERE {equal}",
            "changed": f"{self.new} AS n JOIN {self.old} AS o ON {keys} WHERE NOT ({equal})",
            "added": f"{self.new} AS n WHERE NOT EXISTS (SELECT 1 FROM {self.old} AS o WHERE {keys})",
            "removed": f"{self.old} AS o WHERE NOT EXISTS (SELECT 1 FROM {self.new} AS n WHERE {keys})",
        }[kind]

    def _same(self, name: str, operator: str) -> str:
        column = quoted(name)
        if self.comparable(self.new_schema.field(name).type, self.old_schema.field(name).type):
            return f"n.{column} {operator} o.{column}"
        return f"(n.{column} IS NULL AND o.{column} IS NULL)"

    def count(self, kind: Kind) -> str:
        return f"SELECT count(*) FROM {self.source(kind)}"

    def first(self, kind: Kind) -> str:
        """The first rows of a kind, by key."""
        new = [self.selected("n", one) for one in self.new_schema]
        old = [self.selected("o", one) for one in self.old_schema]
        columns = {"changed": old + new, "added": new, "removed": old}[kind]
        order = ", ".join(f"{'o' if kind == 'removed' else 'n'}.{quoted(name)}" for name in self.key)
        return f"SELECT {', '.join(columns)} FROM {self.source(kind)} ORDER BY {order} LIMIT {SHOWN_MAX}"


def difference_of(pair: VersionPair, before: int, after: int, execute: Callable[[str], Sequence[Row]]) -> Difference:
    """Counts and first rows; `execute` runs one statement, all of them at one moment."""
    counts = {kind: execute(pair.count(kind))[0][0] for kind in KINDS}
    rows = {kind: execute(pair.first(kind)) for kind in KINDS[1:]}
    width = len(pair.old_schema)
    was = _dicts([row[:width] for row in rows["changed"]], pair.old_schema)
    became = _dicts([row[width:] for row in rows["changed"]], pair.new_schema)
    return Difference(
        before,
        after,
        **counts,
        changed_rows=list(zip(was, became, strict=True)),
        added_rows=_dicts(rows["added"], pair.new_schema),
        removed_rows=_dicts(rows["removed"], pair.old_schema),
    )


def _dicts(rows: Sequence[Row], schema: pa.Schema) -> list[dict[str, Any]]:
    if not rows:
        return []
    columns = [
        arrow_column(list(values), one.type).to_pylist()
        for values, one in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return [dict(zip(schema.names, values, strict=True)) for values in zip(*columns, strict=True)]
