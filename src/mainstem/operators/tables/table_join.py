"""table_join: a join of two changing tables, by primary key or by foreign key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from mainstem.errors import Invalid, did_you_mean
from mainstem.operators.stage.arrow_columns import numbers, whole
from mainstem.operators.stage.frame_columns import Shown, by_names, check_record, columns_of
from mainstem.operators.stage.hashes import mix
from mainstem.operators.stage.stage import Preparation, StageSpec, add_stage, remember
from mainstem.operators.tables.changed_rows import ChangedRows
from mainstem.operators.tables.changing import check_hashable, row_columns, show_changes
from mainstem.operators.tables.table_join_engine import HOWS, LEFT, RIGHT, TableJoinEngine

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["table_join"]


def table_join(
    left: DataFrame,
    right: DataFrame,
    *,
    on: Mapping[str, str],
    how: str = "inner",
    limit: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """Joins two changing tables on equal columns (`on`: left -> right).

    A key column with the same name on both sides is in the result once. Null equals nothing.
    """
    spec, columns = remember("table_join", lambda: _plan(left, right, on, how, limit))
    return show_changes(add_stage(left, spec, right, name=name), columns)


def _plan(
    left: DataFrame, right: DataFrame, on: Mapping[str, str], how: str, limit: int | None
) -> tuple[StageSpec, list[Shown]]:
    if how not in HOWS:
        raise Invalid(
            f'join does not support how="{how}"',
            detail=f"It must be one of: {', '.join(HOWS)}.",
            hint=did_you_mean(how, list(HOWS)) or 'For example: how="left".',
        )
    schemas = columns_of(left), columns_of(right)
    keys = by_names(list(on), schemas[LEFT], "join"), by_names(list(on.values()), schemas[RIGHT], "join")
    for schema in schemas:
        check_record(schema, "join")
        check_hashable(row_columns(schema), "join")
    _check_keys(schemas, keys)
    shared = tuple(mine for mine, other in zip(*keys, strict=True) if mine == other)
    _check_names(schemas, shared, how)
    rows = [_side(schema, key) for schema, key in zip(schemas, keys, strict=True)]
    sides = [_SideRows(changed, side, rows[1 - side].row_type) for side, changed in enumerate(rows)]
    engine = TableJoinEngine(rows[LEFT].row_type, rows[RIGHT].row_type, how, shared, limit)
    spec = StageSpec(
        "join",
        engine,
        sides[LEFT].native,
        sides[LEFT].arrow,
        others=(Preparation(sides[RIGHT].native, sides[RIGHT].arrow),),
        bounded_by="the rows of both tables",
        definition={"on": dict(on), "how": how},
        parameters={"on": dict(on), "how": how, "limit": limit},
        # It does not affect the state.
        changeable=frozenset({"limit"}),
        lineage={
            "sides": [{"on": list(changed.by), "row": list(changed.row)} for changed in rows],
            "how": how,
            "shared": list(shared),
            "tables": True,
        },
    )
    return spec, _plan_columns(schemas, shared, how)


def _side(schema: pa.Schema, key: tuple[str, ...]) -> ChangedRows:
    row = tuple(field.name for field in row_columns(schema))
    return ChangedRows(schema, key, hashed=(row,), row=row)


def _plan_columns(schemas: Sequence[pa.Schema], shared: tuple[str, ...], how: str) -> list[Shown]:
    """The columns of the left side, then those of the right one."""
    found = []
    for field in row_columns(schemas[LEFT]):
        at = f"key_{shared.index(field.name)}" if field.name in shared else f"left.{field.name}"
        found.append(Shown(at, field))
    if how in ("semi", "anti"):
        return found
    others = [field for field in row_columns(schemas[RIGHT]) if field.name not in shared]
    return [*found, *(Shown(f"right.{field.name}", field) for field in others)]


def _check_keys(schemas: Sequence[pa.Schema], keys: Sequence[tuple[str, ...]]) -> None:
    if not keys[LEFT]:
        raise Invalid("join has no columns to join on", hint='For example: on="id", or on={"author": "followee"}.')
    for mine, other in zip(*keys, strict=True):
        types = schemas[LEFT].field(mine).type, schemas[RIGHT].field(other).type
        if types[LEFT] != types[RIGHT]:
            raise Invalid(
                f'join cannot compare "{mine}" with "{other}": their types differ',
                detail=f'"{mine}" on the left is {types[LEFT]}, "{other}" on the right {types[RIGHT]}.',
                hint=f'Cast one of them first: rows.withColumn("{other}", F.col("{other}").cast(...)).',
            )


def _check_names(schemas: Sequence[pa.Schema], shared: tuple[str, ...], how: str) -> None:
    if how in ("semi", "anti"):
        return
    names = [{field.name for field in row_columns(schema)} for schema in schemas]
    if both := sorted((names[LEFT] & names[RIGHT]) - set(shared)):
        raise Invalid(
            f'both sides of a join have a column "{both[0]}"',
            detail=f"The result would have these columns twice: {', '.join(both)}.",
            hint=f'Rename one of them: rows.withColumnRenamed("{both[0]}", "..."), or leave it out.',
        )


@dataclass(frozen=True)
class _SideRows:
    """Converts the rows of one side to the input of the engine."""

    changed: ChangedRows
    side: int
    other: pa.DataType

    @property
    def _names(self) -> tuple[str, str]:
        return ("left", "right") if self.side == LEFT else ("right", "left")

    def native(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        from mainstem.spark.spark_types import spark_schema

        mine, other = self._names
        nobody = spark_schema(pa.schema([("other", self.other)])).fields[0].dataType
        rows = self.changed.native(frame)
        keyed = F.lit(True)
        for place in range(len(self.changed.by)):
            keyed = keyed & F.col(f"by_{place}").isNotNull()

        def hash_column(name: str) -> Column:
            return F.when(keyed, F.col(name)).otherwise(F.xxhash64(F.lit(mine), F.lit(name), F.col("h_0")))

        columns = {
            "group": hash_column("group"),
            "check": hash_column("check"),
            "weight": F.col("weight"),
            "h_0": F.col("h_0"),
            "side": F.lit(self.side).cast("tinyint"),
            mine: F.col("row"),
            other: F.lit(None).cast(nobody),
        }
        return rows.select(*(columns[name].alias(name) for name in _COLUMNS))

    def arrow(self, table: pa.Table) -> pa.Table:
        mine, other = self._names
        rows = self.changed.arrow(table)
        keyed = np.ones(rows.num_rows, np.bool_)
        for place in range(len(self.changed.by)):
            keyed &= np.asarray(whole(rows.column(f"by_{place}")).is_valid())
        own = numbers(rows, "h_0")
        columns: dict[str, Any] = {
            name: np.where(keyed, numbers(rows, name), mix(own, np.full(len(own), 7 * self.side + place)))
            for place, name in enumerate(("group", "check"))
        }
        columns |= {"weight": rows.column("weight"), "h_0": own, "side": np.full(len(own), self.side, np.int8)}
        columns |= {mine: rows.column("row"), other: pa.nulls(len(own), self.other)}
        return pa.table({name: columns[name] for name in _COLUMNS})


_COLUMNS = ("group", "check", "weight", "h_0", "side", "left", "right")
