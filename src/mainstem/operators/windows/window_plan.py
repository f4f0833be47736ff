"""WindowPlan: the plan of a `windowed`: its input columns, the stage, and its output columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.durations import show_span
from mainstem.errors import Invalid
from mainstem.log.record import RECORD_MARK
from mainstem.operators.aggregates.accumulators import AggregateCall
from mainstem.operators.aggregates.aggregate_columns import WrittenAggregates, read_aggregates
from mainstem.operators.aggregates.aggregates import Aggregates
from mainstem.operators.stage.engine import Engine
from mainstem.operators.stage.frame_columns import (
    WINDOW_MARK,
    Value,
    add_columns,
    by_names,
    check_uncorrected,
    columns_of,
    quote_name,
    shown_results,
    transform_with,
)
from mainstem.operators.stage.stage import Parameter, StageSpec
from mainstem.operators.windows.window_assignment import WindowAssignment
from mainstem.operators.windows.window_engine import WindowEngine
from mainstem.operators.windows.window_kinds import Everything, Sessions, Sliding, Validity, WindowKind, show_window
from mainstem.operators.windows.window_rows import WindowRows
from mainstem.operators.windows.window_time import RowTime, row_time

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["WindowPlan", "plan_windows"]

RESERVED = ("window", "pane", "record")
_TIME = pa.timestamp("us", "UTC")
_WINDOW = pa.struct([("start", _TIME), ("end", _TIME)])


@dataclass(frozen=True)
class WindowPlan:
    """A stage of windows with the steps around it, each for Spark and over Arrow."""

    spec: StageSpec
    window: WindowKind
    key: tuple[pa.Field, ...]
    time: RowTime
    written: WrittenAggregates
    results: str

    def narrow(self, rows: DataFrame) -> DataFrame:
        """The columns that the stage needs."""
        values: dict[str, Value] = dict(self.written.inputs)
        if isinstance(self.window, Sessions) and not isinstance(self.window.gap, int):
            values["gap"] = self.window.gap
        return transform_with(rows, values, self._narrow, self._narrow_arrow)

    def show(self, rows: DataFrame) -> DataFrame:
        """The stage's output as the user sees it."""
        return transform_with(rows, self.written.answers, lambda frame, _: frame.select(*self._after), self._show_arrow)

    # With Spark. Columns are made once: each is a call to Spark, and a program may be built for each batch.

    def _narrow(self, rows: DataFrame, values: Mapping[str, Column]) -> DataFrame:
        if "gap" in values:
            _check_gap(rows, values["gap"])
        return rows.select(*self._before)

    @cached_property
    def _before(self) -> list[Any]:
        from pyspark.sql import functions as F

        keys = [F.col(quote_name(field.name)).alias(f"by_{place}") for place, field in enumerate(self.key)]
        inputs: dict[str, Any] = self.written.inputs
        return [
            *keys,
            *self.time.native_columns(),
            *_gap(self.window),
            *(column.alias(name) for name, column in inputs.items()),
        ]

    @cached_property
    def _after(self) -> list[Any]:
        from pyspark.sql import functions as F

        def moment(name: str) -> Column:
            # `everything` has neither start nor end; the last window of `validity` has no end.
            return F.when(F.abs(F.col(name)) < F.lit(2**62), F.timestamp_micros(F.col(name)))

        window = F.struct(moment("window_start").alias("start"), moment("window_end").alias("end"))
        record = {name.decode(): value.decode() for name, value in RECORD_MARK.items()}
        answers: dict[str, Any] = self.written.answers
        return [
            *(F.col(f"by_{place}").alias(at.name, metadata=_comments(at)) for place, at in enumerate(self.key)),
            window.alias("window", metadata={WINDOW_MARK: self.results}),
            *(column.alias(name) for name, column in answers.items()),
            F.col("pane"),
            F.col("record").alias("record", metadata=record),
        ]

    # Over Arrow

    def _narrow_arrow(self, rows: pa.Table, inputs: pa.Table) -> pa.Table:
        narrow = self.time.arrow(rows)
        for place, field in enumerate(self.key):
            narrow = narrow.append_column(f"by_{place}", rows.column(field.name))
        if isinstance(self.window, Sessions):
            narrow = narrow.append_column("gap", pa.array(np.full(rows.num_rows, self.window.gap, np.int64)))
        return add_columns(narrow, inputs)

    def _show_arrow(self, rows: pa.Table, answers: pa.Table) -> pa.Table:
        ends = []
        for name in ("window_start", "window_end"):
            nowhere = pc.greater_equal(pc.abs(rows.column(name)), 2**62)
            known = pc.if_else(nowhere, None, rows.column(name)).combine_chunks()
            ends.append((known.chunk(0) if isinstance(known, pa.ChunkedArray) else known).view(_TIME))
        window = pa.field("window", _WINDOW, metadata={WINDOW_MARK: self.results})
        keys = rows.select([f"by_{place}" for place in range(len(self.key))])
        shown = keys.rename_columns([field.name for field in self.key])
        shown = shown.append_column(window, pa.StructArray.from_arrays(ends, fields=list(_WINDOW)))
        return add_columns(add_columns(shown, answers), rows.select(["pane", "record"]))


def plan_windows(
    rows: DataFrame,
    window: WindowKind,
    by: str | Sequence[str],
    aggregates: Sequence[Column | str],
    on: str | None,
    settings: Mapping[str, Any],
) -> WindowPlan:
    """Everything is checked here, so that errors are raised while the program is built."""
    schema = columns_of(rows)
    names = by_names(by, schema, "windowed")
    check_uncorrected(rows, schema, "windowed")
    time = row_time(schema, on)
    if rows.isStreaming and not (time.watermarked or time.appended) and not isinstance(window, Everything):
        raise Invalid(
            "windowed needs each row's watermark, and the rows have none",
            detail="A window is emitted on time when the watermark passes its end; without a watermark it never would be.",
            hint='Read the topic with stream(watermark="10 minutes"), and keep `record` in what you select.',
        )
    written = read_aggregates(rows, aggregates, time, time.record if _retracts(schema) else None)
    _check_names(names, list(written.answers))
    key = pa.schema([pa.field(f"by_{place}", schema.field(name).type) for place, name in enumerate(names)])
    spec = _stage_spec(window, key, written.aggregates, settings, time)
    titles = {number: written.bare.get(number, call.text) for number, call in enumerate(written.calls)}
    spec = _with_late_names(spec, names, titles, written.calls)
    calls = [call.text for call in written.calls]
    definition = {"window": repr(window), "by": list(names), "time": time.title, "aggregates": calls}
    spec = replace(
        spec,
        definition=definition,
        parameters=_parameters(window, names, calls, time, spec.engine),
        lineage=_lineage(window, names, spec.engine),
    )
    once = settings["early"] is None and not settings["lateness"]
    # "final" if each window is emitted once.
    results = "final" if once else str(settings["results"])
    return WindowPlan(spec, window, tuple(schema.field(name) for name in names), time, written, results)


def _parameters(
    window: WindowKind, names: Sequence[str], calls: Sequence[str], time: RowTime, engine: Any
) -> dict[str, Parameter]:
    """The effective parameters, with those of the window."""
    return {
        **show_window(window),
        "by": list(names),
        "aggregates": list(calls),
        "on": time.title,
        "early": None if engine.early is None else engine.early.title,
        "late": None if engine.late_trigger is None else engine.late_trigger.title,
        "lateness": show_span(engine.lateness),
        "results": engine.results,
        "on_time": engine.on_time,
    }


def _lineage(window: WindowKind, names: Sequence[str], engine: Any) -> dict[str, Any]:
    """How panes follow from rows; times in microseconds. The gap of sessions is null if it is a column."""
    given = {at.name: getattr(window, at.name) for at in fields(window)}
    shown = {name: value if isinstance(value, int | str) else None for name, value in given.items()}
    return {
        "window": {"kind": type(window).__name__.lower(), **shown},
        "by": [f"by_{place}" for place in range(len(names))],
        "lateness": engine.lateness,
        "early": None if engine.early is None else engine.early.describe(),
        "late": None if engine.late_trigger is None else engine.late_trigger.describe(),
        "results": engine.results,
    }


def _stage_spec(
    window: WindowKind, key: pa.Schema, aggregates: Aggregates, settings: Mapping[str, Any], time: RowTime
) -> StageSpec:
    """The stage of a kind of windows: its engine, and the preparation of rows."""
    engine = _engine(window, key, aggregates, settings)
    fixed = not isinstance(window, Sessions | Sliding | Validity)
    assignment = WindowAssignment(window, settings["lateness"]) if fixed else None  # type: ignore[arg-type]
    early = settings["early"]
    # Early results of sessions depend on the own watermark of each row.
    single = early is not None and (early.rows is not None or not fixed)
    ready = WindowRows(key, aggregates, engine.input_schema, assignment, single, isinstance(window, Sessions))
    bound = "" if isinstance(window, Everything) else f"the watermark of {time.title}"
    decides: Literal["event", "append"] = "append" if time.appended else "event"
    return StageSpec(
        "windowed",
        engine,
        ready.native,
        ready.arrow,
        bounded_by=bound,
        time=decides,
        behind=engine.behind,
        packed=engine.input_schema if ready.packable and time.record is not None else None,
    )


def _engine(window: WindowKind, key: pa.Schema, aggregates: Aggregates, settings: Mapping[str, Any]) -> Any:
    if isinstance(window, Sessions):
        from mainstem.operators.windows.session_engine import SessionEngine

        return SessionEngine(key, aggregates, touching=window.touching, **settings)
    if isinstance(window, Sliding):
        from mainstem.operators.windows.sliding_engine import SlidingEngine

        return SlidingEngine(key, aggregates, span=window.span, **settings)
    if isinstance(window, Validity):
        from mainstem.operators.windows.validity_engine import ValidityEngine

        return ValidityEngine(key, aggregates, **settings)
    return WindowEngine(key, aggregates, **settings)


def _with_late_names(
    spec: StageSpec, names: Sequence[str], titles: Mapping[int, str], calls: Sequence[AggregateCall]
) -> StageSpec:
    """The names of the columns of late rows, and which of them are summed: those of sums and counts."""
    engine: Engine = spec.engine
    late = engine.late_schema
    if late is None:
        return spec
    renamed = {f"by_{place}": name for place, name in enumerate(names)}
    renamed |= {f"o{number}": title for number, title in titles.items()}
    taken = {at.name for at in late} - set(renamed)
    # The engine's own columns keep their names: a user's "rows" becomes "rows_".
    unique: dict[str, str] = {}
    for column, title in renamed.items():
        while title in taken:
            title += "_"  # noqa: PLW2901
        taken.add(title)
        unique[column] = title
    units = tuple(unique[f"o{at}"] for at, call in enumerate(calls) if call.function in ("sum", "count"))
    return replace(spec, late_names=unique, late_units=units)


def _check_names(by: Sequence[str], aggregates: Sequence[str]) -> None:
    """Raise if two columns of the result would have the same name."""
    for name in [*by, *aggregates]:
        if name in RESERVED:
            what = "a column of the key" if name in by else "an aggregate"
            raise Invalid(
                f'{what} is named "{name}"',
                detail="The columns of windows are the key, `window`, the aggregates, `pane` and `record`.",
                hint=f'Give it another name: .alias("{name}_of_row").',
            )
    if both := sorted(set(by) & set(aggregates)):
        raise Invalid(
            f'an aggregate has the name of a key column: "{both[0]}"',
            detail="Both are columns of the result.",
            hint=f'Give the aggregate another name: .alias("{both[0]}_total").',
        )


def _retracts(schema: pa.Schema) -> bool:
    """Whether the rows are windows with retractions. Raises if they are windows with results="accumulate"."""
    results = shown_results(schema)
    if results == "accumulate":
        raise Invalid(
            'windowed cannot aggregate windows with results="accumulate"',
            detail="A window that is emitted again would be counted again.",
            hint='Use results="retract": the earlier result is retracted before the new one is emitted.',
        )
    return results == "retract"


def _gap(window: WindowKind) -> list[Column]:
    """A session's gap in microseconds, row by row."""
    from pyspark.sql import functions as F

    if not isinstance(window, Sessions):
        return []
    if isinstance(window.gap, int):
        return [F.lit(window.gap).cast("bigint").alias("gap")]
    return [F.unix_micros(F.timestamp_micros(F.lit(0)) + window.gap).alias("gap")]


def _check_gap(rows: DataFrame, gap: Column) -> None:
    from pyspark.sql.types import DayTimeIntervalType

    found = rows.select(gap).schema.fields[0].dataType
    if not isinstance(found, DayTimeIntervalType):
        raise Invalid(
            f"the session gap is a column of type {found.simpleString()}",
            detail="A gap that differs from row to row must be a column of durations (INTERVAL DAY TO SECOND).",
            hint='For example: sessions(gap=F.expr("make_dt_interval(0, 0, minutes)")).',
        )


def _comments(field: pa.Field) -> dict[str, str]:
    """The metadata of a column without Mainstem's marks, which do not hold for windows."""
    marks = {name.decode(): value.decode() for name, value in (field.metadata or {}).items()}
    return {name: value for name, value in marks.items() if not name.startswith("mainstem.")}
