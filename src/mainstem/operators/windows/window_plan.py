"""WindowPlan: the plan of a `windowed`: its input columns, the stage, and its output columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from mainstem.durations import show_span
from mainstem.errors import Invalid
from mainstem.log.record import RECORD_MARK
from mainstem.operators.aggregates.aggregate_columns import read_aggregates
from mainstem.operators.aggregates.aggregates import Aggregates
from mainstem.operators.stage.engine import Engine
from mainstem.operators.stage.frame_columns import (
    WINDOW_MARK,
    by_names,
    check_uncorrected,
    columns_of,
    scripted,
    shown_results,
)
from mainstem.operators.stage.stage import Parameter, StageSpec
from mainstem.operators.windows.window_assignment import WindowAssignment
from mainstem.operators.windows.window_engine import WindowEngine
from mainstem.operators.windows.window_kinds import Everything, Sessions, Sliding, Validity, WindowKind, shown_window
from mainstem.operators.windows.window_rows import WindowRows
from mainstem.operators.windows.window_time import RowTime, row_time

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "WindowPlan",
    "check_corrections",
    "check_names",
    "parameters_of",
    "planned",
    "shown_as",
    "stage_spec",
    "with_late_names",
]

RESERVED = ("window", "pane", "record")


@dataclass(frozen=True)
class WindowPlan:
    """A stage of windows with the native steps around it."""

    spec: StageSpec
    # What is selected of the rows before the stage, and of what it gives.
    before: Sequence[Column]
    after: Sequence[Column]

    def narrowed(self, rows: DataFrame) -> DataFrame:
        """What the stage needs of the rows."""
        return rows.select(*self.before)

    def shown(self, rows: DataFrame) -> DataFrame:
        """What the user gets of the stage."""
        return rows.select(*self.after)


def planned(
    rows: DataFrame,
    window: WindowKind,
    by: str | Sequence[str],
    aggregates: Sequence[Column | str],
    on: str | None,
    settings: Mapping[str, Any],
) -> Any:
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
    if scripted(rows):
        from mainstem.operators.windows.scripted_windows import scripted_plan

        return scripted_plan(schema, window, names, aggregates, time, settings)
    written = read_aggregates(rows, aggregates, time.native(), _taken_back(schema, time))
    check_names(names, list(written.answers))
    key = pa.schema([pa.field(f"by_{place}", schema.field(name).type) for place, name in enumerate(names)])
    spec = stage_spec(window, key, written.aggregates, settings, time)
    titles = {written.bare.get(number, call.text): number for number, call in enumerate(written.calls)}
    spec = with_late_names(spec, names, {number: title for title, number in titles.items()}, written.calls)
    calls = [call.text for call in written.calls]
    definition = {"window": repr(window), "by": list(names), "time": time.title, "aggregates": calls}
    spec = replace(spec, definition=definition, parameters=parameters_of(window, names, calls, time, spec.engine))
    before = [*_keys(names), *time.native_columns(), *_gap(rows, window)]
    before += [column.alias(name) for name, column in written.inputs.items()]
    return WindowPlan(spec, before, _after(schema, names, written.answers, shown_as(settings)))


def parameters_of(
    window: WindowKind, names: Sequence[str], calls: Sequence[str], time: RowTime, engine: Any
) -> dict[str, Parameter]:
    """As they take effect; those of the window stand among them."""
    return {
        **shown_window(window),
        "by": list(names),
        "aggregates": list(calls),
        "on": time.title,
        "early": None if engine.early is None else engine.early.title,
        "late": None if engine.late_trigger is None else engine.late_trigger.title,
        "lateness": show_span(engine.lateness),
        "results": engine.results,
        "on_time": engine.on_time,
    }


def stage_spec(
    window: WindowKind, key: pa.Schema, aggregates: Aggregates, settings: Mapping[str, Any], time: RowTime
) -> StageSpec:
    """The engine of a kind of windows, with what makes rows ready for it."""
    engine = _engine(window, key, aggregates, settings)
    fixed = not isinstance(window, Sessions | Sliding | Validity)
    assignment = WindowAssignment(window, settings["lateness"]) if fixed else None  # type: ignore[arg-type]
    early = settings["early"]
    # What is shown early of sessions follows the rows' own watermarks, one by one.
    single = early is not None and (early.rows is not None or not fixed)
    ready = WindowRows(key, aggregates, engine.input_schema, assignment, single, isinstance(window, Sessions))
    bound = "" if isinstance(window, Everything) else f"the watermark of {time.title}"
    decides: Literal["event", "append"] = "append" if time.appended else "event"
    return StageSpec(
        "windowed", engine, ready.native, ready.arrow, bounded_by=bound, time=decides, behind=engine.behind
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


def shown_as(settings: Mapping[str, Any]) -> str:
    """What kind of rows come out: each window once and for all ("final"), or as `results` says."""
    once = settings["early"] is None and not settings["lateness"]
    return "final" if once else str(settings["results"])


def with_late_names(
    spec: StageSpec, names: Sequence[str], titles: Mapping[int, str], calls: Sequence[Any]
) -> StageSpec:
    """What the columns of late rows are called, and which are summed up: what a sum or a count is of."""
    engine: Engine = spec.engine
    late = engine.late_schema
    if late is None:
        return spec
    renamed = {f"by_{place}": name for place, name in enumerate(names)}
    renamed |= {f"o{number}": title for number, title in titles.items()}
    taken = {at.name for at in late} - set(renamed)
    # The engine's own columns stay as they are: a user's "rows" becomes "rows_".
    unique: dict[str, str] = {}
    for column, title in renamed.items():
        while title in taken:
            title += "_"  # noqa: PLW2901
        taken.add(title)
        unique[column] = title
    units = tuple(unique[f"o{at}"] for at, call in enumerate(calls) if call.function in ("sum", "count"))
    return replace(spec, late_names=unique, late_units=units)


def check_names(by: Sequence[str], aggregates: Sequence[str]) -> None:
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


def _keys(names: Sequence[str]) -> list[Column]:
    from pyspark.sql import functions as F

    return [F.col(_quoted(name)).alias(f"by_{place}") for place, name in enumerate(names)]


def check_corrections(schema: pa.Schema) -> bool:
    """Whether the rows are windows with retractions. Raises if they are windows with results="accumulate"."""
    results = shown_results(schema)
    if results == "accumulate":
        raise Invalid(
            'windowed cannot aggregate windows with results="accumulate"',
            detail="A window that is emitted again would be counted again.",
            hint='Use results="retract": the earlier result is retracted before the new one is emitted.',
        )
    return results == "retract"


def _taken_back(schema: pa.Schema, time: RowTime) -> Column | None:
    """For windows that are corrected: which rows retract an earlier one. None if no row does."""
    from pyspark.sql import functions as F

    if not check_corrections(schema) or time.record is None:
        return None
    return F.col(_quoted(time.record))["change"] == "delete"


def _gap(rows: DataFrame, window: WindowKind) -> list[Column]:
    """A session's gap in microseconds, row by row."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DayTimeIntervalType

    if not isinstance(window, Sessions):
        return []
    if isinstance(window.gap, int):
        return [F.lit(window.gap).cast("bigint").alias("gap")]
    found = rows.select(window.gap).schema.fields[0].dataType
    if not isinstance(found, DayTimeIntervalType):
        raise Invalid(
            f"the session gap is a column of type {found.simpleString()}",
            detail="A gap that differs from row to row must be a column of durations (INTERVAL DAY TO SECOND).",
            hint='For example: sessions(gap=F.expr("make_dt_interval(0, 0, minutes)")).',
        )
    return [F.unix_micros(F.timestamp_micros(F.lit(0)) + window.gap).alias("gap")]


def _after(schema: pa.Schema, names: Sequence[str], answers: Mapping[str, Column], results: str) -> list[Column]:
    from pyspark.sql import functions as F

    def moment(name: str) -> Column:
        # `everything` begins and ends nowhere; of `validity` the last ends nowhere.
        return F.when(F.abs(F.col(name)) < F.lit(2**62), F.timestamp_micros(F.col(name)))

    window = F.struct(moment("window_start").alias("start"), moment("window_end").alias("end"))
    keys = [
        F.col(f"by_{place}").alias(name, metadata=_comments(schema.field(name))) for place, name in enumerate(names)
    ]
    record = {name.decode(): value.decode() for name, value in RECORD_MARK.items()}
    return [
        *keys,
        window.alias("window", metadata={WINDOW_MARK: results}),
        *(column.alias(name) for name, column in answers.items()),
        F.col("pane"),
        F.col("record").alias("record", metadata=record),
    ]


def _comments(field: pa.Field) -> dict[str, str]:
    """What is said of a column; marks of a topic's columns are not true of windows."""
    marks = {name.decode(): value.decode() for name, value in (field.metadata or {}).items()}
    return {name: value for name, value in marks.items() if not name.startswith("mainstem.")}


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
