"""ScriptedPlan: a stage of windows over rows that a test scripted, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Invalid
from mainstem.log.record import RECORD_MARK
from mainstem.operators.aggregates.aggregate_text import AggregateText, computed, read_aggregate_text
from mainstem.operators.stage.frame_columns import WINDOW_MARK
from mainstem.operators.stage.stage import StageSpec
from mainstem.operators.windows.window_kinds import Sessions, WindowKind
from mainstem.operators.windows.window_plan import (
    check_corrections,
    check_names,
    parameters_of,
    shown_as,
    stage_spec,
    with_late_names,
)
from mainstem.operators.windows.window_rows import WindowRows
from mainstem.operators.windows.window_time import RowTime

__all__ = ["ScriptedPlan", "scripted_plan"]

_TIME = pa.timestamp("us", "UTC")
_WINDOW = pa.struct([("start", _TIME), ("end", _TIME)])


@dataclass(frozen=True)
class ScriptedPlan:
    """As `WindowPlan`, for `ScriptedRows`."""

    spec: StageSpec
    names: tuple[str, ...]
    written: AggregateText
    results: str

    def shown(self, rows: Any) -> Any:
        """What the user gets of the stage."""
        empty = self._columns(rows.schema.empty_table())
        marks = {"window": {WINDOW_MARK: self.results}, "record": RECORD_MARK}
        fields = [pa.field(at.name, at.type, metadata=marks.get(at.name)) for at in empty.schema]
        return rows.mapped(self._columns, pa.schema(fields))

    def _columns(self, rows: pa.Table) -> pa.Table:
        answers = rows.select([f"o{number}" for number in range(len(self.written.calls))])
        columns = {name: rows.column(f"by_{place}") for place, name in enumerate(self.names)}
        columns["window"] = _windows(rows)
        for name, sql in self.written.answers.items():
            plain = sql in answers.column_names
            columns[name] = answers.column(sql) if plain else computed({name: sql}, answers).column(0)
        columns["pane"] = rows.column("pane")
        columns["record"] = rows.column("record")
        return pa.table(columns)


def scripted_plan(
    schema: pa.Schema,
    window: WindowKind,
    names: Sequence[str],
    aggregates: Sequence[Any],
    time: RowTime,
    settings: Mapping[str, Any],
) -> ScriptedPlan:
    """The same checks as for a DataFrame."""
    if isinstance(window, Sessions) and not isinstance(window.gap, int):
        raise Invalid(
            "a session gap that is a column needs Spark, and this test runs without it",
            hint="Use run_on_spark instead of run, or one gap for all rows.",
        )
    taken_back = None
    if check_corrections(schema) and time.record is not None:
        taken_back = f"\"{time.record}\".change = 'delete'"
    written = read_aggregate_text(schema, aggregates, "time_of_row", taken_back)
    check_names(names, list(written.answers))
    key = pa.schema([pa.field(f"by_{place}", schema.field(name).type) for place, name in enumerate(names)])
    spec = stage_spec(window, key, written.aggregates, settings, time)
    titles = {number: written.bare.get(number, call.text) for number, call in enumerate(written.calls)}
    ready: WindowRows = spec.prepare_rows.__self__  # type: ignore[attr-defined]

    def prepare(rows: pa.Table) -> pa.Table:
        return ready.arrow(_narrowed(rows, names, time, window, written))

    calls = [call.text for call in written.calls]
    parameters = parameters_of(window, names, calls, time, spec.engine)
    spec = replace(with_late_names(spec, names, titles, written.calls), prepare_rows=prepare, parameters=parameters)
    return ScriptedPlan(spec, tuple(names), written, shown_as(settings))


def _narrowed(
    rows: pa.Table, names: Sequence[str], time: RowTime, window: WindowKind, written: AggregateText
) -> pa.Table:
    """What `WindowPlan.before` selects."""
    narrow = time.arrow(rows)
    for place, name in enumerate(names):
        narrow = narrow.append_column(f"by_{place}", rows.column(name))
    if isinstance(window, Sessions):
        narrow = narrow.append_column("gap", pa.array(np.full(rows.num_rows, window.gap, np.int64)))
    timed = rows.append_column("time_of_row", narrow.column("time"))
    for name, sql in written.inputs.items():
        narrow = narrow.append_column(name, computed({name: sql}, timed).column(0))
    return narrow


def _windows(rows: pa.Table) -> pa.Array:
    """The column `window`; `everything` begins and ends nowhere, and of `validity` the last ends nowhere."""
    ends = []
    for name in ("window_start", "window_end"):
        nowhere = pc.greater_equal(pc.abs(rows.column(name)), 2**62)
        known = pc.if_else(nowhere, None, rows.column(name)).combine_chunks()
        ends.append((known.chunk(0) if isinstance(known, pa.ChunkedArray) else known).view(_TIME))
    return pa.StructArray.from_arrays(ends, fields=list(_WINDOW))
