"""The columns of a join: those it joins on, those of its result, and its event time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from mainstem.errors import Invalid
from mainstem.log.record import CORRECTED_MARK, EVENT_TIME_MARK, RECORD_MARK
from mainstem.log.watermark import WATERMARKED_RECORD
from mainstem.operators.joins.join_rows import JoinSide
from mainstem.operators.joins.join_terms import LEFT, RIGHT, JoinTerms
from mainstem.operators.stage.frame_columns import Shown, by_names, check_column, check_record, event_time_of
from mainstem.operators.windows.window_time import RowTime, row_time

__all__ = ["EVENT_TIME", "check_clashes", "check_keys", "join_columns", "key_names", "sides_of", "time_of"]

EVENT_TIME = pa.field("event_time", pa.timestamp("us", "UTC"), metadata=EVENT_TIME_MARK)
_RECORD = pa.field("record", WATERMARKED_RECORD, metadata=RECORD_MARK)


def key_names(on: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """The columns of the left side, each with the one of the right side that it must be equal to.

    >>> key_names("ad"), key_names({"author": "followee"})
    ({'ad': 'ad'}, {'author': 'followee'})
    """
    if isinstance(on, Mapping):
        found = dict(on)
    else:
        names = [on] if isinstance(on, str) else list(on)
        found = dict(zip(names, names, strict=True))
    if not found:
        raise Invalid(
            "join has no columns to join on",
            detail="Every row would match every other.",
            hint='For example: on="customer", on=["store", "day"], or on={"author": "followee"}.',
        )
    return found


def sides_of(
    schemas: tuple[pa.Schema, pa.Schema], on: Mapping[str, str], at: str | tuple[str, str] | None, terms: JoinTerms
) -> tuple[JoinSide, JoinSide]:
    """The two sides, each with the type of the other's rows."""
    times = _times(schemas, at, terms)
    keys = by_names(list(on), schemas[LEFT], "join"), by_names(list(on.values()), schemas[RIGHT], "join")
    for schema in schemas:
        check_record(schema, "join")
    plain = [JoinSide(schemas[side], keys[side], times[side], side) for side in (LEFT, RIGHT)]
    left, right = (
        JoinSide(schemas[side], keys[side], times[side], side, plain[1 - side].row_type) for side in (LEFT, RIGHT)
    )
    return left, right


def _times(
    schemas: tuple[pa.Schema, pa.Schema], at: str | tuple[str, str] | None, terms: JoinTerms
) -> tuple[RowTime | None, RowTime | None]:
    named = (at, at) if at is None or isinstance(at, str) else at
    if at is None and not terms.bounded and not all(_has_time(schema) for schema in schemas):
        return None, None
    left, right = (time_of(schema, name, "join") for schema, name in zip(schemas, named, strict=True))
    return left, right


def time_of(schema: pa.Schema, at: str | None, operator: str) -> RowTime:
    """The named time, else the marked event time, else the last moment of the row's window."""
    if at is not None:
        check_column(at, schema, operator)
    elif "window" not in schema.names:
        at = event_time_of(schema, operator, named="at")
    return row_time(schema, at)


def _has_time(schema: pa.Schema) -> bool:
    return any(_is_time(field) for field in schema)


def check_keys(sides: tuple[JoinSide, JoinSide]) -> None:
    """Raise if columns that are compared have different types."""
    for mine, other in zip(sides[LEFT].on, sides[RIGHT].on, strict=True):
        types = [side.schema.field(name).type for side, name in zip(sides, (mine, other), strict=True)]
        if not types[0].equals(types[1]):
            raise Invalid(
                f'join cannot compare "{mine}" with "{other}"',
                detail=f'"{mine}" on the left is {types[0]}, "{other}" on the right {types[1]}.',
                hint=f'Cast one of them first: rows.withColumn("{other}", F.col("{other}").cast(...)).',
            )


def join_columns(sides: tuple[JoinSide, JoinSide], terms: JoinTerms) -> tuple[list[Shown], tuple[str, ...]]:
    """The columns of the result, and the key columns with the same name on both sides, which it has once."""
    left, right = sides
    # An emitted unmatched row is retracted by a late match.
    corrected = terms.lateness > 0 and (terms.shows_alone(LEFT) or terms.shows_alone(RIGHT))
    record = Shown("record", _RECORD.with_metadata({**RECORD_MARK, **CORRECTED_MARK}) if corrected else _RECORD)
    if terms.how in ("semi", "anti"):
        return [*(Shown(f"left.{field.name}", field) for field in left.fields), record], ()
    shared = tuple(mine for mine, other in zip(left.on, right.on, strict=True) if mine == other)
    timed = left.time is not None
    check_clashes(sides, shared, EVENT_TIME.name if timed else None, "the later of the two event times")
    keys = {name: f"key_{place}" for place, name in enumerate(shared)}
    columns = [Shown(keys.get(field.name, f"left.{field.name}"), _remove_mark(field)) for field in left.fields]
    columns += [Shown(f"right.{field.name}", _remove_mark(field)) for field in right.fields if field.name not in shared]
    return [*columns, *([Shown("time", EVENT_TIME)] if timed else []), record], shared


def check_clashes(sides: tuple[JoinSide, JoinSide], shared: Sequence[str], own: str | None, meaning: str) -> None:
    """Raise if two columns of the result would have the same name; `own`: the added column, `meaning`: its content."""
    left, right = ([field.name for field in side.fields] for side in sides)
    clashing = [name for name in left if name in right and name not in shared]
    if clashing:
        first = clashing[0]
        raise Invalid(
            f'both sides of the join have a column "{first}"',
            detail=f"The result would have these columns twice: {', '.join(clashing)}.",
            hint=f'Give one another name: right.withColumnRenamed("{first}", "right_{first}"); or leave it out: '
            f'right.drop("{first}"); or join on it too.',
        )
    if own in (*left, *right):
        raise Invalid(
            f'a side of the join has a column "{own}"',
            detail=f"The result uses that name for {meaning}.",
            hint=f'Give it another name: rows.withColumnRenamed("{own}", "own_{own}").',
        )


def _is_time(field: pa.Field) -> bool:
    return any(name in (field.metadata or {}) for name in EVENT_TIME_MARK)


def _remove_mark(field: pa.Field) -> pa.Field:
    """The sides' own event times are plain columns of the result."""
    return pa.field(field.name, field.type) if _is_time(field) else field
