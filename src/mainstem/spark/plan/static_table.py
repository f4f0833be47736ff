"""StaticTable: the side of a join that is no stream, read once for a start of a flow, for a `LookUp`.

Spark reads such a side again for every batch. It is read once here only if that makes no difference: it is in memory
(`createDataFrame`, VALUES, `range`), or it is in files of this machine, whose listing Spark keeps too, and which are checked
before every batch. Anything else (a database, a table of a catalog, files elsewhere, a cached frame, a function that is not
deterministic) is left to Spark, and so is a table that is not small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import pyarrow as pa

from mainstem.spark.look_up import How, LookUp, TableFile, state_of_files
from mainstem.spark.plan.catalyst_expression import NotTranslated, is_plain, kind_of, parts_of, translate, type_of
from mainstem.spark.plan.row_expression import Condition, Expression, can_fail
from mainstem.spark.plan.row_functions import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ROWS_MAX", "StaticJoin", "StaticTable", "TableRead", "check_tables", "read_join"]

# It is sent to the readers with every batch.
ROWS_MAX = 100_000
BYTES_MAX = 16 << 20
TOO_LARGE = f"a join with a table of more than {ROWS_MAX:,} rows or {BYTES_MAX >> 20} MB"

# By Spark's name of the type, and whether the stream is on the left.
_HOW: dict[tuple[str, bool], How] = {
    ("INNER", True): "inner",
    ("INNER", False): "inner",
    ("LEFT OUTER", True): "left",
    ("RIGHT OUTER", False): "left",
    ("LEFT SEMI", True): "semi",
    ("LEFT ANTI", True): "anti",
}

# Leaves in memory. An RDD is one if it was made of a list.
_IN_MEMORY = ("LocalRelation", "OneRowRelation", "Range")


@dataclass(frozen=True)
class StaticTable:
    """What a join takes from a table: the keys, and the columns that it adds, each with its name by its id in the plan."""

    rows: pa.RecordBatch
    added: dict[int, str]
    files: tuple[TableFile, ...]


@dataclass
class StaticJoin:
    """A join of a stream with a table, in a plan."""

    stream: Any
    static: Any
    how: How
    # The keys of both sides, in pairs; and what else must hold for two rows to match.
    keys: list[tuple[Any, Any]] = field(default_factory=list)
    others: list[Any] = field(default_factory=list)

    def describe(self, name: str, spark: SparkSession) -> StaticTable:
        """Its table without rows, if it can be read. `name`: what the names of the columns begin with."""
        _check_constant(self.static, spark)
        types = {f"{name}_{place}": type_of(column) for place, column in enumerate(self._columns)}
        if odd := [kind for kind in types.values() if not is_plain(kind)]:
            raise NotTranslated(f"a join with a table that has the type {odd[0]}")
        schema = pa.schema([(name, arrow_type(kind)) for name, kind in types.items()])
        ids = [_id(column) for column in self._columns[len(self.keys) :]]
        added = dict(zip(ids, schema.names[len(self.keys) :], strict=True))
        return StaticTable(pa.RecordBatch.from_pylist([], schema=schema), added, ())

    def read(self, name: str, spark: SparkSession) -> StaticTable:
        """Its table."""
        found = self.describe(name, spark)
        rows, files = _read(self.static, self._columns, found.rows.schema, spark)
        return replace(found, rows=rows, files=files)

    @cached_property
    def _columns(self) -> list[Any]:
        added = parts_of(self.static.output()) if self.how in ("inner", "left") else []
        return [*(theirs for _, theirs in self.keys), *added]

    def look_up(self, known: Mapping[int, Expression], condition: Condition | None, table: StaticTable) -> LookUp:
        """The join over Arrow. `known`: the columns of the stream before it; `condition`: the filter before it."""
        # What keys are computed from is computed for all rows. Any other column Spark computes before the join or behind it.
        first = {_id(column) for ours, _ in self.keys for column in parts_of(ours.references())}
        if any(can_fail(value) for number, value in known.items() if number not in first):
            raise NotTranslated("a join behind a column that can fail")
        return LookUp(
            condition, tuple(translate(ours, known) for ours, _ in self.keys), self.how, table.rows, table.files
        )


# How the table of a join is read; see `StaticJoin`.
TableRead = Callable[[StaticJoin, str, "SparkSession"], StaticTable]


def read_join(node: Any) -> StaticJoin:
    """A join of a plan; raises `NotTranslated` if it is not one of a stream with a table by equal keys."""
    left, right = node.left(), node.right()
    if left.isStreaming() == right.isStreaming():
        raise NotTranslated("Join")
    how = _HOW.get((str(node.joinType().sql()), left.isStreaming()))
    if how is None or node.condition().isEmpty():
        raise NotTranslated(f"Join {node.joinType().sql()}")
    found = StaticJoin(*((left, right) if left.isStreaming() else (right, left)), how)
    ours, theirs = found.stream.outputSet(), found.static.outputSet()
    for part in _conjuncts(node.condition().get()):
        pair = (part.left(), part.right()) if kind_of(part) == "EqualTo" else ()
        pair = pair[::-1] if pair and pair[0].references().subsetOf(theirs) else pair
        if pair and pair[0].references().subsetOf(ours) and pair[1].references().subsetOf(theirs):
            if type_of(pair[0]) != type_of(pair[1]) or not is_plain(type_of(pair[0])):
                raise NotTranslated(str(part.sql()))
            one, other = map(_without_normalization, pair)
            found.keys.append((one, other))
        elif how == "inner":
            found.others.append(part)
        else:
            raise NotTranslated(str(part.sql()))
    if not found.keys:
        raise NotTranslated("a join without equal keys")
    return found


def _id(column: Any) -> int:
    return int(column.exprId().id())


def _conjuncts(condition: Any) -> list[Any]:
    if kind_of(condition) != "And":
        return [condition]
    return [*_conjuncts(condition.left()), *_conjuncts(condition.right())]


def _without_normalization(key: Any) -> Any:
    """A key without the functions that give it one NaN and one zero: a look-up does that itself."""
    for kind in ("KnownFloatingPointNormalized", "NormalizeNaNAndZero"):
        key = key.child() if kind_of(key) == kind else key
    return key


def check_tables(rows: DataFrame) -> None:
    """Raise `NotTranslated` if a table of a frame may differ in every batch, though its optimized plan does not say so."""
    session, plan = rows.sparkSession._jsparkSession, rows._jdf.queryExecution().analyzed()
    if not plan.deterministic():
        # The optimizer filters rows in memory itself, once for this plan.
        raise NotTranslated("a join with a table that may differ in every batch")
    cache = session.sharedState().cacheManager()

    def is_cached(part: Any) -> bool:
        if not part.isStreaming() and cache.lookupCachedData(session, part).isDefined():
            return True
        return any(map(is_cached, parts_of(part.children())))

    if not cache.isEmpty() and is_cached(plan):
        # It may be older than what it was made from.
        raise NotTranslated("a join with a cached table")


def _check_constant(plan: Any, spark: SparkSession) -> None:
    """Raise `NotTranslated` if a plan may give other rows in another batch, or is known to be large."""
    patterns = spark._jvm.org.apache.spark.sql.catalyst.trees.TreePattern  # type: ignore[union-attr]
    if plan.containsPattern(patterns.PLAN_EXPRESSION()):
        raise NotTranslated("a join with a table that has a query within an expression")
    leaves = _leaves(plan)
    for leaf in leaves:
        if not _is_known(leaf):
            raise NotTranslated(f"a join with a table that may change ({leaf.nodeName()})")
    # Of an RDD Spark does not know the size.
    sizes = [int(str(leaf.stats().sizeInBytes())) for leaf in leaves if leaf.nodeName() != "LogicalRDD"]
    if sum(sizes) > BYTES_MAX:
        raise NotTranslated(TOO_LARGE)


def _read(
    plan: Any, columns: list[Any], schema: pa.Schema, spark: SparkSession
) -> tuple[pa.RecordBatch, tuple[TableFile, ...]]:
    """These columns of a plan, with the names and types of a schema, and the files that they come from."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    frame = _frame(plan, dict(zip(schema.names, columns, strict=True)), spark)
    try:
        # Before it is read: what changes meanwhile is seen when the files are checked.
        files = state_of_files(map(_local_path, frame.inputFiles()))
        if files and not str(spark.sparkContext.master).startswith("local"):
            raise NotTranslated("a join with files, in a session that is not local")
        found = frame.limit(ROWS_MAX + 1).toArrow()
    except (OSError, Py4JError, PySparkException) as error:
        raise NotTranslated("a join with a table that cannot be read") from error
    if found.num_rows > ROWS_MAX or found.nbytes > BYTES_MAX:
        raise NotTranslated(TOO_LARGE)
    arrays = [_one(column.combine_chunks()) for column in found.cast(schema).columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema), files


def _one(column: Any) -> pa.Array:
    return column if isinstance(column, pa.Array) else pa.concat_arrays([pa.array([], column.type), *column.chunks])


def _frame(plan: Any, columns: Mapping[str, Any], spark: SparkSession) -> DataFrame:
    """These expressions over a plan, by their names."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    jvm: Any = spark._jvm
    catalyst, seq = jvm.org.apache.spark.sql.catalyst, jvm.PythonUtils.toSeq
    none = getattr(jvm.scala, "None$").__getattr__("MODULE$")
    new_id = catalyst.expressions.NamedExpression.newExprId
    named = [
        catalyst.expressions.Alias(column, name, new_id(), seq([]), none, seq([])) for name, column in columns.items()
    ]
    project = catalyst.plans.logical.Project(seq(named), plan)
    return ClassicFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, project), spark)


def _leaves(plan: Any) -> list[Any]:
    children = parts_of(plan.children())
    return [leaf for child in children for leaf in _leaves(child)] if children else [plan]


def _is_known(leaf: Any) -> bool:
    """Whether what a leaf reads stays the same, or is in files whose listing stays the same."""
    if leaf.nodeName() == "LogicalRDD":
        return _is_list(leaf.rdd())
    if leaf.nodeName() != "LogicalRelation":
        return leaf.nodeName() in _IN_MEMORY
    relation = leaf.relation()
    return kind_of(relation) == "HadoopFsRelation" and kind_of(relation.location()) == "InMemoryFileIndex"


def _is_list(rdd: Any) -> bool:
    """Whether an RDD was made of a list alone."""
    before = parts_of(rdd.dependencies())
    return all(_is_list(it.rdd()) for it in before) if before else kind_of(rdd) == "ParallelCollectionRDD"


def _local_path(address: str) -> str:
    """The path of a file on this machine; raises `NotTranslated` if it is elsewhere."""
    parts = urlparse(address)
    if parts.scheme != "file":
        raise NotTranslated("a join with files that are not on this machine")
    return unquote(parts.path)
