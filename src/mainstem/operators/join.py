"""join: rows of two streams that match within a duration of event time; or two changing tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias

from mainstem.durations import Duration, duration_us, show_duration, show_span
from mainstem.errors import Invalid, did_you_mean
from mainstem.operators.joins.join_columns import check_keys, join_columns, key_names, sides_of
from mainstem.operators.joins.join_engine import JoinEngine
from mainstem.operators.joins.join_results import JoinLate, JoinResults
from mainstem.operators.joins.join_rows import JoinSide
from mainstem.operators.joins.join_terms import HOW, LEFT, RIGHT, How, JoinTerms
from mainstem.operators.stage.frame_columns import Shown, check_lasting, columns_of, select_columns
from mainstem.operators.stage.stage import Parameter, Preparation, StageSpec, add_stage, remember
from mainstem.operators.tables.changing import is_changing
from mainstem.operators.tables.table_join import table_join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["join"]

Within: TypeAlias = Duration | tuple[Duration, Duration]
# The default maximum number of matches of a new row.
LIMIT = 10_000


def join(
    left: DataFrame,
    right: DataFrame,
    *,
    on: str | Sequence[str] | Mapping[str, str],
    within: Within | None = None,
    how: How = "inner",
    lateness: Duration = "0 seconds",
    state: Literal["bounded", "unbounded"] = "bounded",
    limit: int | None = None,
    at: str | tuple[str, str] | None = None,
    name: str | None = None,
) -> DataFrame:
    """The pairs of rows of two streams that have the same `on` and are at most `within` apart in event time, emitted at once.

    `on`: a column of both, several, or a dict for different names: {"left": "right"}. Null equals nothing. `within`: the
    maximum distance, or two: before the left row, and after it. `how`: "inner", "left", "right", "full", "semi"
    (matched left rows, once) or "anti" (unmatched left rows). An unmatched row is emitted when the watermark has passed every
    row that could match it. A match that arrives later, but within `lateness`, retracts it and emits the pair; after
    that it goes to `<flow>.late`, with the row that it would have matched.

    The result has the columns of both and `event_time`, the later of the two; a column that both have must be renamed on one
    side. `at`: the event times, if they are not the marked columns. A new row is joined with at most `limit` others (10,000);
    the rest is counted. Without `within` its state is never evicted: this needs state="unbounded".

    The join of two changing tables (`table`, a view's stream) is a changing table: inner, left or full, without `within`.

    >>> from mainstem.testing import TestStream, TestStreams
    >>> streams = TestStreams(
    ...     shown=TestStream("ad STRING, shown_at TIMESTAMP", event_time="shown_at"),
    ...     clicks=TestStream("ad STRING, clicked_at TIMESTAMP", event_time="clicked_at"),
    ... )
    >>> streams = streams.rows("shown", [{"ad": name, "shown_at": "2026-01-01 12:00"} for name in ("a", "b")])
    >>> streams = streams.rows("clicks", [{"ad": "a", "clicked_at": "2026-01-01 12:03"}])
    >>> streams = streams.watermark("shown", "2026-01-01 12:11").watermark("clicks", "2026-01-01 12:11")
    >>> results = streams.run(lambda shown, clicks: join(shown, clicks, on="ad", within="10 minutes", how="left"))
    >>> [(row["ad"], row["clicked_at"] and row["clicked_at"].minute) for row in results.rows]
    [('a', 3), ('b', None)]
    """
    schemas = columns_of(left), columns_of(right)
    changing = [is_changing(schema) for schema in schemas]
    if any(changing):
        _check_tables(changing, within)
        return table_join(left, right, on=key_names(on), how=how, limit=limit, name=name)
    spec, columns = remember(
        "join", lambda: _plan(left, right, key_names(on), _terms(within, how, lateness, state, limit), at)
    )
    return select_columns(add_stage(left, spec, right, name=name), columns)


def _plan(
    left: DataFrame, right: DataFrame, on: Mapping[str, str], terms: JoinTerms, at: str | tuple[str, str] | None
) -> tuple[StageSpec, list[Shown]]:
    for rows in (left, right):
        check_lasting(rows, columns_of(rows), "join")
    sides = sides_of((columns_of(left), columns_of(right)), on, at, terms)
    check_keys(sides)
    for rows, side in zip((left, right), sides, strict=True):
        if rows.isStreaming:
            _check_stream(side, terms)
    columns, shared = join_columns(sides, terms)
    both = terms.how not in ("semi", "anti")
    types = tuple(sides[LEFT].schema.field(key).type for key in sides[LEFT].on)
    engine = JoinEngine(
        terms,
        JoinResults(sides[LEFT].row_type, sides[RIGHT].row_type, shared, both),
        JoinLate(sides[LEFT].on, sides[RIGHT].on, types),
    )
    spec = StageSpec(
        "join",
        engine,
        sides[LEFT].native,
        sides[LEFT].arrow,
        bounded_by=_bound(terms),
        late_names={f"by_{place}": key for place, key in enumerate(sides[LEFT].on)},
        definition={"on": dict(on), "how": terms.how},
        parameters=_parameters(on, terms, sides),
        # It applies when a row arrives; the state does not depend on it.
        changeable=frozenset({"limit"}),
        others=(Preparation(sides[RIGHT].native, sides[RIGHT].arrow),),
        behind=terms.behind,
        packed=engine.input_schema if all(side.packable for side in sides) else None,
        lineage={
            "sides": [side.lineage for side in sides],
            "how": terms.how,
            "before": terms.before,
            "after": terms.after,
            "lateness": terms.lateness,
            "limit": terms.limit,
            "shared": list(shared),
        },
    )
    return spec, columns


def _parameters(on: Mapping[str, str], terms: JoinTerms, sides: tuple[JoinSide, JoinSide]) -> dict[str, Parameter]:
    """The effective parameters."""
    return {
        "on": dict(on),
        "within": None
        if not terms.bounded
        else [f"{show_span(terms.before)} before", f"{show_span(terms.after)} after"],
        "how": terms.how,
        "lateness": show_span(terms.lateness),
        "state": "bounded" if terms.bounded else "unbounded",
        "limit": terms.limit,
        "at": [side.time.title for side in sides if side.time is not None],
    }


def _terms(
    within: Within | None, how: How, lateness: Duration, state: Literal["bounded", "unbounded"], limit: int | None
) -> JoinTerms:
    if how not in HOW:
        raise Invalid(
            f'join does not support how="{how}"',
            detail=f"It must be one of: {', '.join(HOW)}.",
            hint=did_you_mean(how, HOW) or 'For example: how="left".',
        )
    if limit is not None and limit < 1:
        raise Invalid(
            f"limit is {limit}",
            detail="It is the maximum number of rows that a new row may join with, and must be positive.",
            hint="For example: limit=1000.",
        )
    if within is None:
        _check_unbounded(how, state)
        return JoinTerms(how, None, None, 0, limit or LIMIT)
    before, after = within if isinstance(within, tuple) else (within, within)
    spans = [duration_us(span, setting="within") for span in (before, after)]
    late = duration_us(lateness, setting="lateness")
    return JoinTerms(how, spans[0], spans[1], late, limit or LIMIT)


def _check_unbounded(how: How, state: str) -> None:
    if state != "unbounded":
        raise Invalid(
            "the join of two streams has no time bound",
            detail="Join state could never be evicted: a matching row may still arrive.",
            hint='Bound the distance in time: within="1 hour"; or, if the streams stay small, state="unbounded". For tables '
            'whose rows replace each other: join(table(..., key="..."), table(..., key="..."), on=...).',
        )
    if how not in ("inner", "semi"):
        raise Invalid(
            f'a join without a time bound does not support how="{how}"',
            detail="An unmatched row could never be emitted: a match may still arrive.",
            hint='Bound the distance in time: within="1 hour".',
        )


def _check_stream(side: JoinSide, terms: JoinTerms) -> None:
    which = "left" if side.side == LEFT else "right"
    if terms.bounded and not side.watermarked:
        raise Invalid(
            f"join needs a watermark, and the {which} stream has none",
            detail="Without a watermark, join state cannot be evicted.",
            hint='Read the topic with stream(watermark="10 minutes"), and keep `record` in what you select.',
        )
    if not side.placed:
        raise Invalid(
            f"join needs the column `record`, which the {which} stream lacks",
            detail=f"Its columns are: {', '.join(side.schema.names)}. `record` has the position of a row in the log.",
            hint="Keep `record` in what you select.",
        )


def _check_tables(changing: list[bool], within: Within | None) -> None:
    if not all(changing):
        which = "right" if changing[RIGHT] else "left"
        raise Invalid(
            f"join cannot join a stream with a changing table on the {which}",
            detail="A row of the stream belongs to one moment, and the table has one state at that moment.",
            hint='Look the rows up: enrich(rows, table, on="...", at=...); or make a table of the stream too: '
            'table(rows, key="...").',
        )
    if within is not None:
        raise Invalid(
            "a join of tables has no `within`",
            detail="Rows of a table stay until they are replaced or deleted.",
            hint="Leave it out, or join the streams that the tables are built from.",
        )


def _bound(terms: JoinTerms) -> str:
    if terms.before is None or terms.after is None:
        return ""
    kept = [terms.after + terms.lateness + terms.span, terms.before + terms.lateness + terms.span]
    left, right = (show_duration(timedelta(microseconds=span)) for span in kept)
    if left == right:
        return f"rows are evicted when the watermark is {left} past them"
    return f"rows are evicted when the watermark is past them by {left} on the left, {right} on the right"
