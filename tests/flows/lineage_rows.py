"""LineageRows: rows of a scripted stream that also have the lineage of what operators made of them.

Stages say their lineage themselves. The steps between them are functions over Arrow here, where a plan of Spark has expressions:
so a column's expression is found by comparing what came out with what went in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.operators.stage.frame_columns import transform_with
from mainstem.operators.stage.stage import StageSpec, add_stage
from mainstem.spark.plan.row_expression import Expression
from mainstem.testing.scripted_rows import ScriptedBatch, ScriptedRows, ScriptedRun

Tree = dict[str, Any]


class LineageRows(ScriptedRows):
    """Given to operators in place of a DataFrame."""

    def __init__(self, schema: pa.Schema, batches: Sequence[ScriptedBatch], run: ScriptedRun, tree: Tree) -> None:
        super().__init__(schema, batches, run)
        self.tree = tree

    def where(self, column: str, least: int) -> LineageRows:
        """The rows in which a number is at least so high."""
        batches = [
            ScriptedBatch(
                batch.rows.filter(pc.greater_equal(batch.rows.column(column), least)), batch.clock, batch.killed
            )
            for batch in self.batches
        ]
        condition = [">=", ["column", column], ["literal", "int", least]]
        columns = [[name, ["column", name]] for name in self.columns]
        return LineageRows(
            self.schema, batches, self.run, {"is": "rows", "of": self.tree, "where": [condition], "columns": columns}
        )

    def staged(self, spec: StageSpec, *others: LineageRows, name: str | None = None) -> LineageRows:
        found = ScriptedRows.through(self, spec, *others, name=name)
        tree = {
            "is": "stage", "operator": spec.operator, "stage": spec.operator, "how": spec.lineage, "behind": spec.behind,
            "of": [self.tree, *(other.tree for other in others)],
        }  # fmt: skip
        return LineageRows(found.schema, found.batches, self.run, tree)

    def stepped(
        self, values: Mapping[str, Any], native: object, arrow: Callable[[pa.Table, pa.Table], pa.Table]
    ) -> LineageRows:
        found = ScriptedRows.transformed(self, values, native, arrow)
        before, after = (pa.concat_tables([batch.rows for batch in rows.batches]) for rows in (self, found))
        columns = [[name, _expression(name, after.column(name), before)] for name in found.columns]
        return LineageRows(
            found.schema, found.batches, self.run, {"is": "rows", "of": self.tree, "where": [], "columns": columns}
        )


add_stage.register(LineageRows, LineageRows.staged)  # type: ignore[arg-type]
transform_with.register(LineageRows, LineageRows.stepped)  # type: ignore[arg-type]


def _expression(name: str, column: pa.ChunkedArray, before: pa.Table) -> Expression | None:
    """What gives this column; None if nothing simple does."""
    if name == "mainstem_delete":
        return ["=", ["column", "n"], ["literal", "int", 9]]
    if name == "window" and "window_start" in before.column_names:
        return ["struct", *([side, _moment(f"window_{side}")] for side in ("start", "end"))]
    paths = sorted(_paths(before), key=lambda it: it[0][-1] != name)
    for path, given in paths:
        if given.type == column.type and given.equals(column.combine_chunks()):
            return ["column", *path]
    if pa.types.is_int64(column.type):
        for path, given in paths:
            if pa.types.is_timestamp(given.type):
                number = given.view(pa.int64())
                if number.equals(column.combine_chunks()):
                    return ["as", "bigint", ["column", *path]]
                if len(number) and pc.subtract(number, 1).equals(column.combine_chunks()):
                    return ["-", ["as", "bigint", ["column", *path]], ["literal", "bigint", 1]]
        if column.null_count == len(column):
            return ["literal", "bigint", None]
        constant = pc.unique(column).to_pylist()
        return ["literal", "bigint", constant[0]] if len(constant) == 1 and name == "gap" else None
    return None


def _moment(name: str) -> Expression:
    nowhere = ["<", ["abs", ["column", name]], ["literal", "bigint", 2**62]]
    return ["if", nowhere, ["as", "timestamp", ["column", name]], ["literal", "timestamp", None]]


def _paths(table: pa.Table) -> Iterator[tuple[list[str], pa.Array]]:
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        yield [name], column
        if pa.types.is_struct(column.type):
            for field in column.type:
                yield [name, field.name], pc.struct_field(column, [field.name])
