"""enrich: joins each row of a stream with a row of a table: the version valid at the row's time, or the latest one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from mainstem.durations import Duration, duration_us, show_duration, show_span
from mainstem.errors import Invalid
from mainstem.log.record import CORRECTED_MARK, RECORD_MARK
from mainstem.log.watermark import WATERMARKED_RECORD
from mainstem.operators.joins.enrich_engine import EnrichEngine, LatestEngine
from mainstem.operators.joins.join_columns import check_clashes, check_keys, key_names, time_of
from mainstem.operators.joins.join_results import VERSION, EnrichResults, JoinLate
from mainstem.operators.joins.join_rows import JoinSide
from mainstem.operators.joins.join_terms import LEFT, RIGHT
from mainstem.operators.stage.frame_columns import (
    Shown,
    by_names,
    check_lasting,
    check_record,
    columns_of,
    record_field,
    select_columns,
)
from mainstem.operators.stage.stage import Parameter, Preparation, StageSpec, add_stage, remember
from mainstem.operators.tables.changing import TableSource, is_changing, table_source
from mainstem.operators.windows.window_time import RowTime
from mainstem.spark.build import Build, current_build
from mainstem.spark.plan.flow_plan import leaves_in, stages_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Latest", "enrich", "latest"]

_RECORD = pa.field("record", WATERMARKED_RECORD, metadata=RECORD_MARK)


@dataclass(frozen=True)
class Latest:
    """The value of `latest()`."""


def latest() -> Latest:
    """For `enrich`: look up a row in the latest version of the table when the row arrives.

    >>> latest()
    Latest()
    """
    return Latest()


def enrich(
    rows: DataFrame,
    table: Any,
    *,
    on: str | Sequence[str] | Mapping[str, str],
    at: str | Latest | None = None,
    wait: Duration | None = None,
    corrections: Literal["ignore", "re-emit"] = "ignore",
    lateness: Duration = "1 day",
    how: Literal["left", "inner"] = "left",
    name: str | None = None,
) -> DataFrame:
    """Each row with the row of a table that has the same `on`, and `version`: when that row is valid, and its position in the
    log.

    `table`: a view, or a changing table (`table(rows, key=...)`). `at`: the column with the time of the lookup; by default the
    event time. A row waits, at most `wait`, until the watermark of both inputs has passed that time: then all versions valid
    at it have arrived. A table whose topic is idle for its `idle_after` is not waited for
    (`topic.stream(..., idle_after=...)`). A version of a table with `order_by` is valid from that time on, else from its event
    time, or its append. With at=latest() a row does not wait: it gets the latest version when it arrives, which may differ
    in a replay.

    A late version, which arrives after rows were emitted without it, is ignored; with `corrections="re-emit"` exactly the rows
    that it is valid for are retracted and emitted again. Old versions, deletions, and rows that may be corrected are evicted
    when the watermark is `lateness` past them; a later row goes to `<flow>.late`. `how`: "left" (a row without a match
    has nulls) or "inner" (it is dropped).

    >>> from mainstem.operators import table
    >>> from mainstem.testing import TestStream, TestStreams
    >>> streams = TestStreams(
    ...     homes=TestStream("user INT, zip STRING, moved_at TIMESTAMP", event_time="moved_at"),
    ...     visits=TestStream("user INT, seen_at TIMESTAMP", event_time="seen_at"),
    ... )
    >>> for zip, day in (("53111", 1), ("10115", 3)):
    ...     streams = streams.rows("homes", [{"user": 1, "zip": zip, "moved_at": f"2026-01-0{day}"}])
    >>> streams = streams.rows("visits", [{"user": 1, "seen_at": "2026-01-02"}])
    >>> streams = streams.watermark("homes", "2026-01-05").watermark("visits", "2026-01-05")
    >>> results = streams.run(lambda homes, visits: enrich(visits, table(homes, key="user"), on="user"))
    >>> [(row["zip"], row["version"]["valid_from"].day, row["version"]["valid_until"].day) for row in results.rows]
    [('53111', 1, 3)]
    """
    frame, source = _versions(rows, table, key_names(on), at)
    spec, columns = remember(
        "enrich", lambda: _plan(rows, frame, source, key_names(on), at, wait, corrections, lateness, how)
    )
    return select_columns(add_stage(rows, spec, frame, name=name), columns)


def _versions(
    rows: DataFrame, table: Any, on: Mapping[str, str], at: str | Latest | None
) -> tuple[DataFrame, TableSource | None]:
    """The frame of the table's versions: for the result of `table` its input rows, unless at=latest()."""
    if not hasattr(table, "isStreaming"):
        # A view; it may not exist yet if an earlier flow of the program creates it.
        if table.exists:
            _check_key(table.key, on)
        table = table.stream() if rows.isStreaming else table.read()
    source = table_source(table)
    if source is not None and not isinstance(at, Latest):
        return _facts_of(source), source
    return table, source


def _facts_of(source: TableSource) -> DataFrame:
    """The input rows of a table, in which a version is valid from a column on."""
    if source.rows is None:
        raise Invalid(
            "enrich cannot look up by time in a table of rows that are not from a topic, with delete_when=",
            detail="Without the column `record` its rows do not tell which of them are deletes.",
            hint="Keep `record` in what you select; or look up the latest row: at=latest().",
        )
    if len(source.order) > 1 or (source.order and source.order[0] not in source.rows.columns):
        raise Invalid(
            "enrich cannot look up by time in a table ordered by an expression or by several columns",
            detail=f"It is ordered by {source.order_by!r}; a row is valid from the time in one column on.",
            hint="Add the time to the rows as a column, and order the table by it; or look up the latest row: at=latest().",
        )
    return source.rows


def _plan(
    rows: DataFrame,
    frame: DataFrame,
    source: TableSource | None,
    on: Mapping[str, str],
    at: str | Latest | None,
    wait: Duration | None,
    corrections: str,
    lateness: Duration,
    how: Literal["left", "inner"],
) -> tuple[StageSpec, list[Shown]]:
    schemas = columns_of(rows), columns_of(frame)
    _check_choices(how, corrections, at, wait)
    _check_table(schemas[RIGHT], source, on, frame)
    keys = by_names(list(on), schemas[LEFT], "enrich"), by_names(list(on.values()), schemas[RIGHT], "enrich")
    for schema in schemas:
        check_record(schema, "enrich")
    check_lasting(rows, schemas[LEFT], "enrich")
    times = _fact_time(schemas[LEFT], at), _version_time(schemas[RIGHT], source, at)
    plain = [JoinSide(schemas[side], keys[side], times[side], side) for side in (LEFT, RIGHT)]
    facts, versions = (
        JoinSide(schemas[side], keys[side], times[side], side, plain[1 - side].row_type, dated=side == RIGHT)
        for side in (LEFT, RIGHT)
    )
    check_keys((facts, versions))
    shared = tuple(mine for mine, other in on.items() if mine == other)
    check_clashes((facts, versions), shared, "version", "when the row of the table is valid, and where it stands")
    results = EnrichResults(facts.row_type, versions.row_type, how)
    late = JoinLate(facts.on, versions.on, tuple(schemas[LEFT].field(key).type for key in facts.on))
    engine: LatestEngine | EnrichEngine
    if isinstance(at, Latest):
        engine, bound = LatestEngine(results, late), f"one row for each {', '.join(versions.on)}"
    else:
        _check_watermark(rows, facts)
        _note_table(rows, frame)
        span = duration_us(lateness, setting="lateness")
        limit = None if wait is None else duration_us(wait, setting="wait")
        # A table without a watermark never ends the wait: by default rows do not wait for it.
        limit = 0 if limit is None and rows.isStreaming and not versions.watermarked else limit
        engine = EnrichEngine(results, late, span, limit, corrections == "re-emit")
        past = show_duration(timedelta(microseconds=span))
        bound = f"the last version of each {', '.join(versions.on)}, and what is less than {past} behind the watermark"
    spec = StageSpec(
        "enrich",
        engine,
        facts.native,
        facts.arrow,
        bounded_by=bound,
        late_names={f"by_{place}": key for place, key in enumerate(facts.on)},
        definition={"on": dict(on), "how": how},
        parameters=_parameters(engine, on, how, times),
        others=(Preparation(versions.native, versions.arrow),),
        packed=engine.input_schema if facts.packable and versions.packable else None,
        lineage={
            "sides": [facts.lineage, versions.lineage],
            "how": how,
            "latest": isinstance(engine, LatestEngine),
            "lateness": getattr(engine, "lateness", 0),
            "corrected": getattr(engine, "corrected", False),
            "wait": getattr(engine, "wait", None),
        },
    )
    columns = [Shown(f"left.{field.name}", field) for field in facts.fields]
    columns += [Shown(f"right.{field.name}", _plain(field)) for field in versions.fields if field.name not in shared]
    record = _RECORD.with_metadata({**RECORD_MARK, **CORRECTED_MARK}) if corrections == "re-emit" else _RECORD
    return spec, [*columns, Shown("version", pa.field("version", VERSION)), Shown("record", record)]


def _parameters(
    engine: LatestEngine | EnrichEngine, on: Mapping[str, str], how: str, times: tuple[RowTime | None, RowTime | None]
) -> dict[str, Parameter]:
    """The effective parameters; for the table, from when its rows are valid."""
    facts, versions = times
    given: dict[str, Parameter] = {
        "table": "valid from its changes on" if versions is None else f"valid from {versions.title}",
        "on": dict(on),
        "how": how,
    }
    if isinstance(engine, LatestEngine):
        return given | {"at": "latest", "wait": None, "corrections": "ignore", "lateness": None}
    assert facts is not None
    corrections = "re-emit" if engine.corrected else "ignore"
    spans = {"wait": show_span(engine.wait), "lateness": show_span(engine.lateness)}
    return given | {"at": facts.title, "corrections": corrections} | spans


def _fact_time(schema: pa.Schema, at: str | Latest | None) -> RowTime | None:
    return None if isinstance(at, Latest) else time_of(schema, at, "enrich")


def _version_time(schema: pa.Schema, source: TableSource | None, at: str | Latest | None) -> RowTime | None:
    record = record_field(schema)
    appended = None if record is None else RowTime((record.name, "appended_at"))
    if source is None or isinstance(at, Latest):
        return appended
    named = source.order[0] if source.order else None
    if named is not None and not pa.types.is_timestamp(schema.field(named).type):
        raise Invalid(
            f'enrich cannot look up by time in a table ordered by "{named}"',
            detail=f"It is {schema.field(named).type}; the start of a row's validity must be a time.",
            hint="Order the table by a TIMESTAMP, or look up the latest row: at=latest().",
        )
    timed = named is not None or any(b"mainstem.event_time" in (field.metadata or {}) for field in schema)
    return time_of(schema, named, "enrich") if timed else appended


def _check_choices(how: str, corrections: str, at: str | Latest | None, wait: Duration | None) -> None:
    for given, known, what in ((how, ("left", "inner"), "how"), (corrections, ("ignore", "re-emit"), "corrections")):
        if given not in known:
            raise Invalid(
                f'enrich does not support {what}="{given}"',
                detail=f"It must be one of: {', '.join(known)}.",
                hint=f'For example: {what}="{known[0]}".',
            )
    if isinstance(at, Latest) and (wait is not None or corrections != "ignore"):
        raise Invalid(
            "enrich with at=latest() neither waits nor corrects",
            detail="A row gets the newest row of the table when it arrives.",
            hint='Look up the row valid at a time, at="...", or leave wait= and corrections= out.',
        )


def _check_table(schema: pa.Schema, source: TableSource | None, on: Mapping[str, str], frame: DataFrame) -> None:
    if source is None and not is_changing(schema) and frame.isStreaming:
        raise Invalid(
            "enrich needs a table, and was given a stream",
            detail="A stream has no key by which its rows replace each other.",
            hint='Make it a table: enrich(rows, table(..., key="..."), on=...); or join the two streams: join(..., within=...).',
        )
    if source is not None:
        _check_key(source.key, on)


def _check_key(key: Sequence[str], on: Mapping[str, str]) -> None:
    if set(key) != set(on.values()):
        raise Invalid(
            f"enrich looks up rows by {', '.join(on.values())}, but the key of the table is {', '.join(key)}",
            detail="A row matches at most one row of the table.",
            hint=f"Use the key: on={{...: {key[0]!r}}}; or make tables of both and join them.",
        )


def _check_watermark(rows: DataFrame, facts: JoinSide) -> None:
    if rows.isStreaming and not facts.watermarked:
        raise Invalid(
            "enrich by time needs a watermark, and the stream has none",
            detail="Without a watermark it cannot decide when all versions valid at a row's time have arrived.",
            hint='Read the topic with stream(watermark="10 minutes"), and keep `record` in what you select; or use at=latest().',
        )


def _note_table(rows: DataFrame, frame: DataFrame) -> None:
    """Note the streams that only the table is made of: rows do not wait for them while they are idle."""
    build = current_build()
    if build is not None and build.run is None and build.batch is None:
        build.tables |= _streams_of(frame, build) - _streams_of(rows, build)


def _streams_of(frame: DataFrame, build: Build) -> set[int]:
    found = set(leaves_in(frame))
    for number in stages_in(frame):
        found = found.union(*(_streams_of(given, build) for given in build.stages[number].inputs))
    return found


def _plain(field: pa.Field) -> pa.Field:
    return pa.field(field.name, field.type)
