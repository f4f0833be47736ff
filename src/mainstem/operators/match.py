"""match: finds sequences of rows of a key that follow a pattern (complex event processing)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import sqlglot
from sqlglot import expressions as nodes
from sqlglot.errors import SqlglotError

from mainstem.arguments import check_choice, whole_number
from mainstem.durations import Duration, duration_us, show_span
from mainstem.errors import Invalid, did_you_mean
from mainstem.log.record import EVENT_TIME_MARK, RECORD_MARK
from mainstem.log.watermark import WATERMARKED_RECORD
from mainstem.operators.patterns.after_match import AfterMatch, read_after_match
from mainstem.operators.patterns.automaton import Automaton
from mainstem.operators.patterns.conditions import DividedCondition, divide_condition
from mainstem.operators.patterns.expression import Expression, parse, read_expression
from mainstem.operators.patterns.match_engine import STEPS, TIME, MatchEngine, condition_column
from mainstem.operators.patterns.matcher import CANDIDATES_MAX
from mainstem.operators.patterns.pattern import Condition, Pattern, Step
from mainstem.operators.stage.frame_columns import (
    Shown,
    Value,
    add_columns,
    by_names,
    check_column,
    check_lasting,
    check_record,
    columns_of,
    event_time_of,
    record_field,
    select_columns,
    transform_with,
)
from mainstem.operators.stage.keyed_rows import KeyedRows
from mainstem.operators.stage.stage import Parameter, StageSpec, add_stage, remember
from mainstem.operators.tables.feed_rows import read_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["match"]

_TAKEN = ("match", "started_at", "ended_at", "steps", "outcome", "reached", "record")


def match(
    rows: DataFrame,
    pattern: Pattern,
    *,
    by: str | Sequence[str],
    within: Duration | None = None,
    gap: Duration | None = None,
    measures: Sequence[str] = (),
    after_match: str | Sequence[str] = "no skip",
    timeouts: Literal["hide", "show"] = "hide",
    state: Literal["bounded", "unbounded"] = "bounded",
    candidates_max: int = CANDIDATES_MAX,
    on: str | None = None,
    name: str | None = None,
) -> DataFrame:
    """A row for each sequence of rows of one key that follows the pattern; see `step`.

    Rows of a key are taken in the order of their event times once the watermark has passed them, rows of one time in the order
    of the log. A row that is later than that goes to `<flow>.late`.

    `within`: the last row of a match is less than this after its first; `gap`: each row is less than this after the one
    before. Without either, state is never evicted: `state="unbounded"` allows it. `after_match`: where the search goes on: "no
    skip" (every match), "next" (at most one for each first row), "past last" (matches do not overlap), ("first", step) or
    ("last", step). A key with more than `candidates_max` sequences that may become matches stops the flow.

    The result has the key, `match` (an id, the same on replay), `started_at`, `ended_at`, the measures (SQL over the rows of
    steps), and `steps`: step, position and time of every row. `timeouts="show"` adds `outcome` ("matched" or "timed out") and
    the step that was `reached`, and a row for each sequence that ended unfinished.

    >>> from mainstem.operators import step
    >>> from mainstem.testing import TestStream
    >>> paid = TestStream("card STRING, amount DOUBLE, at TIMESTAMP", event_time="at")
    >>> for second, amount in enumerate([1.0, 1.5, 0.5, 800.0]):
    ...     paid = paid.rows([{"card": "A", "amount": amount, "at": f"2026-01-01 12:00:0{second}"}])
    >>> small, large = step("small", "amount < 2"), step("large", "amount > 9 * avg(small.amount)")
    >>> drained = ["sum(small.amount) AS probed", "large.amount AS drained"]
    >>> results = paid.watermark("2026-01-02").run(
    ...     lambda rows: match(rows, small.times(3).then(large), by="card", within="10 minutes", measures=drained)
    ... )
    >>> [(row["card"], row["probed"], row["drained"]) for row in results.rows]
    [('A', 3.0, 800.0)]
    """
    check_choice(timeouts, "timeouts", ["hide", "show"])
    check_choice(state, "state", ["bounded", "unbounded"])
    whole_number(candidates_max, "candidates_max", least=1)
    spans = {"within": _span(within, "within"), "gap": _span(gap, "gap")}
    plan = remember(
        "match",
        lambda: _plan(rows, pattern, by, spans, measures, after_match, timeouts, state, candidates_max, on),
    )
    spec, columns, values = plan
    given = transform_with(rows, values, lambda frame, found: frame.withColumns(dict(found)), add_columns)
    return select_columns(add_stage(given, spec, name=name), columns)


def _plan(
    rows: DataFrame,
    pattern: Pattern,
    by: str | Sequence[str],
    spans: Mapping[str, int | None],
    measures: Sequence[str],
    after_match: str | Sequence[str],
    timeouts: str,
    state: str,
    candidates_max: int,
    on: str | None,
) -> tuple[StageSpec, list[Shown], Mapping[str, Value]]:
    schema = columns_of(rows)
    names = by_names(by, schema, "match")
    check_record(schema, "match")
    check_lasting(rows, schema, "match")
    if on is not None:
        check_column(on, schema, "match")
    time = on or event_time_of(schema, "match")
    record = record_field(schema)
    if rows.isStreaming and (record is None or record.type.get_field_index("watermark") < 0):
        raise Invalid(
            "match needs a watermark, and the stream has none",
            detail="Rows wait for the watermark, so that they are taken in the order of their times.",
            hint='Read the topic with stream(watermark="10 minutes"), and keep `record` in what you select.',
        )
    automaton = Automaton(pattern)
    _check_bounds(automaton, spans, state)
    plain = pa.schema([field for field in schema if record is None or field.name != record.name])
    steps = automaton.step_names
    divided = [divide_condition(condition, steps, plain) for condition in automaton.conditions]
    read = read_measures(measures, steps, plain, names)
    after = read_after_match(after_match, steps, first=_begins(pattern, after_match))
    values = _native(rows, divided, plain)
    asked = tuple((number, part.asked) for number, part in enumerate(divided) if part.asked is not None)
    needed = set().union(*(expression.needed for _, expression in (*asked, *read)))
    numbered = {id(condition): str(number) for number, condition in enumerate(automaton.conditions)}
    texts = {condition: number for number, condition in enumerate(automaton.conditions) if isinstance(condition, str)}

    def number(condition: Condition) -> Condition:
        return str(texts[condition]) if isinstance(condition, str) else numbered[id(condition)]

    chosen = {time, *names, *needed, *((record.name,) if record is not None else ())}
    narrow = pa.schema(
        [*(field for field in schema if field.name in chosen), *(pa.field(column, pa.bool_()) for column in values)]
    )
    keyed = KeyedRows(narrow, names, time)
    engine = MatchEngine(
        tuple(keyed.by_fields),
        pattern.with_conditions(number),
        tuple(pa.field(field.name, field.type) for field in plain if field.name in needed),
        asked,
        tuple(place for place, part in enumerate(divided) if part.native is None),
        read,
        spans["within"],
        spans["gap"],
        after,
        timeouts == "show",
        candidates_max,
    )
    within, gap = show_span(spans["within"]), show_span(spans["gap"])
    bounds = [f"{span} after its {place} row" for span, place in ((within, "first"), (gap, "last")) if span]
    parameters: dict[str, Parameter] = {
        "pattern": pattern.show(),
        "by": list(names),
        "within": within,
        "gap": gap,
        "on": time,
        "after_match": after_match if isinstance(after_match, str) else list(after_match),
        "measures": [measures] if isinstance(measures, str) else list(measures),
        "timeouts": timeouts,
        "state": state,
        "candidates_max": candidates_max,
    }
    spec = StageSpec(
        "match",
        engine,
        keyed.native,
        keyed.arrow,
        bounded_by=f"a candidate is evicted {' or '.join(bounds)}" if bounds else "",
        late_names={f"by_{place}": key for place, key in enumerate(names)},
        definition={"by": list(names), "steps": list(steps)},
        parameters=parameters,
        changeable=frozenset(["timeouts", "state", "candidates_max"]),
        behind=_behind(automaton, after, spans),
        packed=keyed.input_schema if keyed.packable else None,
    )
    return spec, _shown(engine, names, schema, timed=_timed(automaton, after, spans)), values


def _shown(engine: MatchEngine, names: Sequence[str], schema: pa.Schema, *, timed: bool) -> list[Shown]:
    mark = EVENT_TIME_MARK if timed else None
    columns = [Shown(f"by_{place}", pa.field(key, schema.field(key).type)) for place, key in enumerate(names)]
    columns += [Shown("match", pa.field("match", pa.string())), Shown("started_at", pa.field("started_at", TIME))]
    columns += [Shown("ended_at", pa.field("ended_at", TIME, metadata=mark))]
    columns += [Shown(f"m_{place}", pa.field(name, of.type)) for place, (name, of) in enumerate(engine.measures)]
    columns += [Shown("steps", pa.field("steps", STEPS))]
    if engine.timeouts:
        columns += [Shown(added, pa.field(added, pa.string())) for added in ("outcome", "reached")]
    return [*columns, Shown("record", pa.field("record", WATERMARKED_RECORD, metadata=RECORD_MARK))]


def _span(given: Duration | None, setting: str) -> int | None:
    if given is None:
        return None
    span = duration_us(given, setting=setting)
    if span <= 0:
        raise Invalid(
            f'{setting} "{given}" is not a positive duration',
            detail="Rows of a match are less than this apart.",
            hint=f'For example: {setting}="10 minutes".',
        )
    return span


def _check_bounds(automaton: Automaton, spans: Mapping[str, int | None], state: str) -> None:
    if any(span is not None for span in spans.values()):
        return
    if "not_then" in automaton.endings:
        raise Invalid(
            "a pattern that ends with not_then needs within",
            detail="Without it, a row that must not follow could come at any later time.",
            hint='For example: within="10 minutes".',
        )
    if state != "unbounded":
        raise Invalid(
            "match has neither within nor gap",
            detail="A sequence that is not complete would be kept for ever, and with it its rows.",
            hint='For example: within="10 minutes"; or allow it: state="unbounded".',
        )


def _held_back(automaton: Automaton, after: AfterMatch) -> bool:
    """Whether a match may be known later than its last row's time is past."""
    return after.kind != "no skip" or "not_next" in automaton.endings


def _timed(automaton: Automaton, after: AfterMatch, spans: Mapping[str, int | None]) -> bool:
    """Whether `ended_at` can be an event time: it is bounded how far it may be behind the watermark."""
    return not _held_back(automaton, after) or spans["within"] is not None


def _behind(automaton: Automaton, after: AfterMatch, spans: Mapping[str, int | None]) -> int:
    return (spans["within"] or 0) if _held_back(automaton, after) else 0


def _begins(pattern: Pattern, after_match: str | Sequence[str]) -> list[str]:
    """The step that the first row of every match has, if `after_match` would always continue there."""
    first = pattern.links[0].part
    if isinstance(after_match, str) or not isinstance(first.body, Step) or first.optional:
        return []
    return [] if after_match and after_match[0] == "last" and first.loops else [first.body.name]


def _native(rows: DataFrame, divided: Sequence[DividedCondition], columns: pa.Schema) -> Mapping[str, Value]:
    """The Boolean columns of conditions."""
    folded = {name.casefold() for name in columns.names}
    texts: dict[str, Any] = {}
    for number, part in enumerate(divided):
        if part.native is None:
            continue
        texts[condition_column(number)] = part.native
        if isinstance(part.native, str):
            for column in parse(part.native).find_all(nodes.Column):
                missing = column.parts[0].name
                if missing.casefold() not in folded:
                    raise Invalid(
                        f'the condition "{part.native}" uses "{missing}", which is neither a column nor a step',
                        detail=f"The columns are: {', '.join(columns.names)}.",
                        hint=did_you_mean(missing, columns.names) or "Name one of these.",
                    )
    try:
        return read_values(rows, texts, "match")
    except Invalid as error:
        raise Invalid(
            "a condition of match cannot be computed",
            detail=error.detail,
            hint="Conditions are SQL in Spark's dialect, or columns.",
        ) from error


def read_measures(
    texts: Sequence[str], steps: Sequence[str], columns: pa.Schema, by: Sequence[str]
) -> tuple[tuple[str, Expression], ...]:
    """Parse measures: "sum(small.amount) AS probed"."""
    found: dict[str, Expression] = {}
    for text in [texts] if isinstance(texts, str) else texts:
        try:
            projection = sqlglot.parse_one(f"SELECT {text}", dialect="spark").expressions[0]
        except SqlglotError as error:
            raise Invalid(
                f'the measure "{text}" cannot be parsed',
                detail=str(error).splitlines()[0],
                hint='For example: "sum(small.amount) AS probed".',
            ) from error
        name = projection.alias
        if not name or name in (*_TAKEN, *by, *found):
            raise Invalid(
                f'the measure "{text}" has no name' if not name else f'the name of the measure "{text}" is taken',
                detail=f"The result also has: {', '.join([*by, *_TAKEN, *found])}.",
                hint='For example: "sum(small.amount) AS probed".',
            )
        # The text before AS: sqlglot would drop the second argument of last.
        written = text[: text.lower().rindex(" as ")]
        found[name] = read_expression(written, steps, columns)
    return tuple(found.items())
