"""versions: every version of each key, with the time from which and until which it is valid, as a changing table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from mainstem.errors import Invalid
from mainstem.operators.stage.frame_columns import Shown, by_names, check_record, columns_of
from mainstem.operators.stage.stage import Parameter, StageSpec, add_stage, remember
from mainstem.operators.tables.changing import check_hashable, row_columns, show_changes
from mainstem.operators.tables.feed_rows import FeedColumns, FeedRows, compute_feed, read_feed
from mainstem.operators.tables.versions_engine import VersionsEngine

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["versions"]


def versions(
    rows: DataFrame,
    *,
    key: str | Sequence[str],
    order_by: Column | str | Sequence[Column | str],
    delete_when: Column | str | None = None,
    track: str | Sequence[str] | None = None,
    name: str | None = None,
) -> DataFrame:
    """Every version of each key, with `valid_from` and `valid_until`: a changing table (a slowly changing dimension of type 2).

    `order_by` is the time from which a row is valid: a column or an expression of any type that has an order. A version
    ends where the next one of its key begins, or with a delete: a deletion in the log (`topic.delete(...)`), or a row for which
    the condition `delete_when` is true. The current version has no `valid_until`. The key of the result is `key`
    and `valid_from`. With several parts of `order_by` the first is the time, and the others decide between rows of one time;
    of rows that are equal in all parts the last in the log counts: the one with the highest partition, then the highest offset.

    A row may arrive in any order: it is put in its place, and the version that it splits or shortens is deleted and inserted
    again. `track`: the columns whose change begins a version, by default all; a row that differs from the one before only in
    others replaces the values of its version. A row without a value of `order_by` goes to `<flow>.late`.

    The state has a row for each key and time, deletes included: as many as the result has versions, or more with `track`. It is
    never evicted.

    >>> from mainstem.testing import TestStream
    >>> feed = TestStream("id INT, city STRING, since INT")
    >>> for city, since in (("Bonn", 5), ("Jena", 20), ("Ulm", 10)):
    ...     feed = feed.rows([{"id": 1, "city": city, "since": since}])
    >>> results = feed.run(lambda rows: versions(rows, key="id", order_by="since"))
    >>> sorted((row["valid_from"], row["valid_until"], row["city"]) for row in results.latest(["id", "valid_from"]))
    [(5, 10, 'Bonn'), (10, 20, 'Ulm'), (20, None, 'Jena')]
    """
    feed = read_feed(rows, order_by, delete_when, "versions")
    given = compute_feed(rows, feed, "versions")
    spec, columns = remember("versions", lambda: _plan(rows, given, key, feed, track))
    return show_changes(add_stage(given, spec, name=name), columns)


def _plan(
    rows: DataFrame, given: DataFrame, key: str | Sequence[str], feed: FeedColumns, track: str | Sequence[str] | None
) -> tuple[StageSpec, list[Shown]]:
    schema = columns_of(rows)
    names = by_names(key, schema, "versions")
    if not names:
        raise Invalid(
            "versions has no key",
            detail="A version ends where the next one of its key begins.",
            hint='For example: key="id".',
        )
    if not feed.order:
        raise Invalid(
            "versions has no order_by",
            detail="It is the time from which a row is valid.",
            hint='For example: order_by="updated_at".',
        )
    check_record(schema, "versions")
    fields = row_columns(schema)
    check_hashable(fields, "versions")
    for taken in ("valid_from", "valid_until"):
        if taken in schema.names:
            raise Invalid(
                f'the rows of versions already have a column "{taken}"',
                detail="versions adds it: the time from which, or until which, a row is valid.",
                hint=f'Rename yours: rows.withColumnRenamed("{taken}", ...).',
            )
    tracked = tuple(field.name for field in fields) if track is None else by_names(track, schema, "versions")
    if not tracked:
        raise Invalid(
            "track of versions is empty",
            detail="It names the columns whose change begins a version.",
            hint="Name one, or leave it out: then every column does.",
        )
    plan = FeedRows(columns_of(given), names, tuple(field.name for field in fields), feed.order)
    plan.check("versions")
    if not plan.placed and rows.isStreaming:
        raise Invalid(
            "versions cannot take a changing table",
            detail="When a row changes, the old row is deleted and the new one inserted; the delete would end the version at "
            "the time at which it began.",
            hint="Give it the rows that the table is built from.",
        )
    order = plan.order_type
    assert order is not None
    engine = VersionsEngine(plan.row_type, order, names, tracked)
    parameters: dict[str, Parameter] = {
        "key": list(names),
        "order_by": feed.order_by,
        "delete_when": feed.delete_when,
        "track": None if track is None else list(tracked),
    }
    spec = StageSpec(
        "versions",
        engine,
        plan.native,
        plan.arrow,
        bounded_by=f"one row for each {', '.join(names)} and time of its versions, deletes included",
        late_names={f"by_{place}": key for place, key in enumerate(names)},
        definition={name: value for name, value in parameters.items() if name != "track"},
        parameters=parameters,
        packed=plan.input_schema if plan.packable else None,
    )
    times = [Shown(name, pa.field(name, engine.time_type)) for name in ("valid_from", "valid_until")]
    return spec, [*(Shown(f"row.{field.name}", field) for field in fields), *times]
