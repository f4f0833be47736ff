"""Programs over tables that change, generated: the same chain of operators on engines without Spark, on Spark, and as SQL.

Every node of a chain has the columns case_id, a, b, c, so that any operator may follow any other. Many cases go through
one chain at once, told apart by `case_id`; each has a history of its own. What stands between the operators (filters,
projections, unions) is Spark's own where there is Spark, and done over Arrow where there is none.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.record import record_array, record_schema
from mainstem.operators.aggregate import aggregate
from mainstem.operators.distinct import distinct
from mainstem.operators.stage.engine import BatchClock
from mainstem.operators.table import table
from mainstem.operators.tables.table_join import table_join
from mainstem.operators.top import top
from mainstem.testing.scripted_rows import ScriptedBatch, ScriptedRows, ScriptedRun

COLUMNS = pa.schema([("case_id", pa.int32()), ("a", pa.int32()), ("b", pa.string()), ("c", pa.int64())])
FACTS = pa.schema([*COLUMNS, ("moment", pa.int32())])
NAMES = "case_id, a, b, c"


@dataclass(frozen=True)
class Node:
    """Rows on their way, and the SQL of the same over all changes so far."""

    rows: Any
    sql: str
    # What each operator of ours gave on the way: nothing in it may be taken back and put out unchanged.
    given: tuple[Any, ...] = ()


@dataclass(frozen=True)
class History:
    """The changes of a table, batch by batch: facts with `record`, and `deleted` and `place` for SQL."""

    batches: list[pa.Table]

    def scripted(self, run: ScriptedRun, killed: set[int]) -> ScriptedRows:
        schema = record_schema(FACTS)
        batches = [
            ScriptedBatch(batch.select(schema.names), BatchClock(), number in killed)
            for number, batch in enumerate(self.batches)
        ]
        return ScriptedRows(schema, batches, run)

    def plain(self) -> pa.Table:
        """All of it, with the batch of each row."""
        parts = [
            batch.drop_columns(["record"]).append_column("batch", pa.array(np.full(batch.num_rows, number)))
            for number, batch in enumerate(self.batches)
        ]
        return pa.concat_tables(parts)


def history(chance: np.random.Generator, cases: int, batches: int, rows: int) -> History:
    """Facts in any order: inserts, updates, deletes, rows that say what is known, rows that come late."""
    made, offset = [], 0
    before: pa.Table | None = None
    for number in range(batches):
        count = int(chance.integers(0, rows + 1)) * cases
        columns = {
            "case_id": pa.array(chance.integers(0, cases, count).astype(np.int32)),
            "a": pa.array(chance.integers(0, 4, count).astype(np.int32)),
            "b": _sometimes_null(chance, pa.array(chance.choice(["x", "y", "z"], count), pa.string())),
            "c": _sometimes_null(chance, pa.array(chance.integers(-2, 6, count))),
            "moment": _sometimes_null(chance, pa.array((number * 2 + chance.integers(-4, 5, count)).astype(np.int32))),
        }
        facts = pa.Table.from_arrays(list(columns.values()), schema=FACTS)
        if before is not None and before.num_rows:
            # Some are delivered again.
            again = before.take(pa.array(chance.integers(0, before.num_rows, before.num_rows // 4)))
            facts = pa.concat_tables([facts, again])
        facts = facts.take(pa.array(chance.permutation(facts.num_rows))).combine_chunks()
        before = facts
        deleted = chance.random(facts.num_rows) < 0.25
        change = pa.array(np.where(deleted, "delete", np.where(chance.random(len(deleted)) < 0.5, "insert", "update")))
        record = record_array(0, offset, 0, count=facts.num_rows, change=change)
        place = pa.array(np.arange(offset, offset + facts.num_rows))
        offset += facts.num_rows
        # A delete says when it was, or it would take away whatever is there.
        dated = pc.if_else(pa.array(deleted), pc.fill_null(facts.column("moment"), 0), facts.column("moment"))
        facts = facts.set_column(4, "moment", dated)
        made.append(
            facts.append_column("record", record)
            .append_column("deleted", pa.array(deleted))
            .append_column("place", place)
        )
    return History(made)


def _sometimes_null(chance: np.random.Generator, values: pa.Array) -> pa.Array:
    return pc.if_else(pa.array(chance.random(len(values)) < 0.1), pa.scalar(None, values.type), values)


# What stands between operators: done by Spark in a flow


def mapped(rows: Any, function: Callable[[pa.Table], dict[str, Any]], **native: str) -> Any:
    """A projection onto the four columns; `native`: what Spark makes of some of them."""
    if not isinstance(rows, ScriptedRows):
        return rows.selectExpr(*(f"{native.get(name, name)} AS {name}" for name in NAMES.split(", ")), "record")
    schema = pa.schema([*COLUMNS, rows.schema.field("record")])

    def selected(batch: pa.Table) -> pa.Table:
        columns = {name: batch.column(name) for name in NAMES.split(", ") if name in batch.column_names}
        columns |= function(batch)
        return pa.table({**{name: columns[name] for name in NAMES.split(", ")}, "record": batch.column("record")})

    return rows.mapped(selected, schema)


def filtered(node: Node, chance: random.Random) -> Node:
    conditions: list[tuple[str, Callable[[pa.Table], Any]]] = [
        ("c > case_id % 4 - 1", lambda rows: pc.greater(rows.column("c"), _thresholds(rows))),
        ("b IS NOT NULL", lambda rows: rows.column("b").is_valid()),
        ("b = 'x' OR a > 1", lambda rows: pc.or_kleene(pc.equal(rows.column("b"), "x"), pc.greater(rows.column("a"), 1))),
    ]  # fmt: skip
    sql, condition = chance.choice(conditions)
    if isinstance(node.rows, ScriptedRows):
        rows = node.rows.mapped(lambda batch: batch.filter(condition(batch)), node.rows.schema)
    else:
        rows = node.rows.where(sql)
    return Node(rows, f"SELECT {NAMES} FROM ({node.sql}) WHERE {sql}", node.given)


def _thresholds(rows: pa.Table) -> pa.Array:
    return pa.array(np.asarray(rows.column("case_id")).astype(np.int64) % 4 - 1)


def projected(node: Node, chance: random.Random) -> Node:
    sql, function, native = chance.choice(PROJECTIONS)
    return Node(mapped(node.rows, function, **native), f"SELECT {sql} FROM ({node.sql})", node.given)


def _half(rows: pa.Table) -> dict[str, Any]:
    return {"a": pc.divide(rows.column("a"), pa.scalar(2, pa.int32()))}


def _plainer(rows: pa.Table) -> dict[str, Any]:
    return {"b": pa.array(["x"] * rows.num_rows, pa.string()), "c": pc.abs(rows.column("c"))}


PROJECTIONS: list[tuple[str, Callable[[pa.Table], dict[str, Any]], dict[str, str]]] = [
    ("case_id, a // 2 AS a, b, c", _half, {"a": "CAST(a div 2 AS INT)"}),
    ("case_id, a, 'x' AS b, abs(c) AS c", _plainer, {"b": "'x'", "c": "abs(c)"}),
]


def united(node: Node, other: Node) -> Node:
    if isinstance(node.rows, ScriptedRows):
        batches = [
            ScriptedBatch(pa.concat_tables([one.rows, two.rows]), one.clock, one.killed)
            for one, two in zip(node.rows.batches, other.rows.batches, strict=True)
        ]
        rows: Any = ScriptedRows(node.rows.schema, batches, node.rows.run)
    else:
        rows = node.rows.unionByName(other.rows)
    sql = f"SELECT {NAMES} FROM ({node.sql}) UNION ALL SELECT {NAMES} FROM ({other.sql})"
    return Node(rows, sql, (*node.given, *other.given))


# Operators


def tabled(rows: Any, source: str, key: tuple[str, ...], order_by: str | None) -> Node:
    order = "moment DESC NULLS LAST, place DESC" if order_by else "place DESC"
    newest = f"row_number() OVER (PARTITION BY {', '.join(key)} ORDER BY {order}) AS newest"
    sql = f"SELECT {NAMES} FROM (SELECT *, {newest} FROM {source}) WHERE newest = 1 AND NOT deleted"
    found = table(rows, key=key, order_by=order_by)
    return Node(mapped(found, lambda _: {}), sql, (found,))


def made_distinct(node: Node, chance: random.Random) -> Node:
    found = distinct(node.rows)
    return Node(found, f"SELECT DISTINCT {NAMES} FROM ({node.sql})", (*node.given, found))


def first_ones(node: Node, chance: random.Random) -> Node:
    count, by = chance.randint(1, 3), ["case_id", *chance.choice([[], ["b"], ["a"]])]
    order, sql = chance.choice(ORDERS)
    ties = ", ".join(f"{name} NULLS FIRST" for name in NAMES.split(", "))
    place = f"row_number() OVER (PARTITION BY {', '.join(by)} ORDER BY {sql}, {ties}) AS place"
    sql = f"SELECT {NAMES} FROM (SELECT *, {place} FROM ({node.sql})) WHERE place <= {count}"
    found = top(node.rows, count, by=by, order=order)
    return Node(found, sql, (*node.given, found))


ORDERS = [
    (["c DESC"], "c DESC NULLS LAST"),
    (["b", "c DESC NULLS FIRST"], "b NULLS FIRST, c DESC NULLS FIRST"),
    (["c ASC NULLS LAST", "a DESC"], "c ASC NULLS LAST, a DESC NULLS LAST"),
]


def aggregated(node: Node, chance: random.Random) -> Node:
    by = chance.choice(["a", "b"])
    wanted = chance.sample(AGGREGATES, 2)
    found = aggregate(
        node.rows, by=["case_id", by], aggregates=[f"{ours} AS o_{at}" for at, (ours, _) in enumerate(wanted)]
    )
    sql = ", ".join(f"{theirs} AS o_{at}" for at, (_, theirs) in enumerate(wanted))
    grouped = f"SELECT case_id, {by}, {sql} FROM ({node.sql}) GROUP BY case_id, {by}"
    passed = (*node.given, found)
    whole = "CAST(trunc({}) AS BIGINT)".format
    if by == "a":
        rows = mapped(
            found, lambda batch: {"b": _whole(batch, "o_0").cast(pa.string()), "c": _whole(batch, "o_1")},
            b="CAST(CAST(o_0 AS BIGINT) AS STRING)", c="CAST(o_1 AS BIGINT)",
        )  # fmt: skip
        sql = f"SELECT case_id, a, CAST({whole('o_0')} AS VARCHAR) AS b, {whole('o_1')} AS c FROM ({grouped})"
    else:
        rows = mapped(
            found, lambda batch: {"a": _small(batch), "c": _whole(batch, "o_1")},
            a="CAST(CAST(o_0 AS BIGINT) % 4 AS INT)", c="CAST(o_1 AS BIGINT)",
        )  # fmt: skip
        sql = f"SELECT case_id, CAST({whole('o_0')} % 4 AS INTEGER) AS a, b, {whole('o_1')} AS c FROM ({grouped})"
    return Node(rows, sql, passed)


def _whole(rows: pa.Table, name: str) -> Any:
    return pc.trunc(rows.column(name)).cast(pa.int64())


def _small(rows: pa.Table) -> Any:
    values = _whole(rows, "o_0")
    quotient = pc.multiply(pc.divide(values, 4), 4)
    return pc.subtract(values, quotient).cast(pa.int32())


# Ours, and DuckDB's.
AGGREGATES = [
    ("count(*)", "count(*)"),
    ("count(c)", "count(c)"),
    ("sum(c)", "CAST(sum(c) AS BIGINT)"),
    ("min(c)", "min(c)"),
    ("max(c)", "max(c)"),
    ("count(DISTINCT c)", "count(DISTINCT c)"),
    ("median(c)", "median(c)"),
]


def joined(node: Node, other: Node, chance: random.Random) -> Node:
    how = chance.choice(["inner", "left", "right", "full", "semi", "anti"])
    on = chance.choice(["a", "b"])
    right = _renamed(other.rows, on)
    found = table_join(node.rows, right, on={"case_id": "case_id", on: on}, how=how)
    passed = (*node.given, *other.given, found)
    ours, theirs = f"({node.sql}) AS l", f"({other.sql}) AS r"
    same = f"l.case_id = r.case_id AND l.{on} = r.{on}"
    if how in ("semi", "anti"):
        return Node(found, f"SELECT {NAMES} FROM {ours} {how.upper()} JOIN {theirs} ON {same}", passed)
    kept = "b" if on == "a" else "a"
    sql = (
        f"SELECT coalesce(l.case_id, r.case_id) AS case_id, coalesce(l.{on}, r.{on}) AS {on}, l.{kept}, r.c "
        f"FROM {ours} {how.upper()} JOIN {theirs} ON {same}"
    )
    rows = mapped(found, lambda batch: {"c": batch.column("c2")}, c="c2")
    return Node(rows, f"SELECT {NAMES} FROM ({sql})", passed)


def _renamed(rows: Any, on: str) -> Any:
    names = [name if name in ("case_id", on, "record") else f"{name}2" for name in rows.schema.names]
    if not isinstance(rows, ScriptedRows):
        return rows.select(*(rows[old].alias(name) for old, name in zip(rows.columns, names, strict=True)))
    schema = pa.schema([field.with_name(name) for field, name in zip(rows.schema, names, strict=True)])
    return rows.mapped(lambda batch: batch.rename_columns(names), schema)


@dataclass(frozen=True)
class Program:
    """A chain of operators over two tables."""

    seed: int
    operators: tuple[str, ...]
    node: Node


class Tables:
    """The tables that programs begin with, each made once."""

    def __init__(self, sources: Sequence[Any]) -> None:
        self._sources = sources
        self._made: dict[Any, Node] = {}

    def pick(self, place: int, chance: random.Random) -> Node:
        order_by = chance.choice([None, "moment"])
        key = ("case_id", *chance.choice([("a",), ("a", "b")]))
        if (place, key, order_by) not in self._made:
            self._made[place, key, order_by] = tabled(self._sources[place], f"facts_{place}", key, order_by)
        return self._made[place, key, order_by]

    def given(self) -> list[Any]:
        """What the tables themselves gave so far."""
        return [passed for node in self._made.values() for passed in node.given]


def program(seed: int, tables: Tables) -> Program:
    """One chain: up to four operators behind the tables it begins with."""
    chance = random.Random(seed)
    mine, theirs = (tables.pick(place, chance) for place in range(2))
    node, names = mine, []
    for _ in range(chance.randint(1, 4)):
        name = chance.choice(list(OPERATORS))
        if name in ("union", "join"):
            other = chance.choice([theirs, filtered(theirs, chance), node])
            node = united(node, other) if name == "union" else joined(node, other, chance)
        else:
            node = OPERATORS[name](node, chance)
        names.append(name)
    return Program(seed, tuple(names), node)


OPERATORS: dict[str, Callable[[Node, random.Random], Node]] = {
    "filter": filtered,
    "project": projected,
    "distinct": made_distinct,
    "top": first_ones,
    "aggregate": aggregated,
    "union": filtered,
    "join": filtered,
}
