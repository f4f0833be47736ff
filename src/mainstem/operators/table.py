"""table: the newest row of each key, as a changing table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mainstem.errors import Invalid
from mainstem.operators.stage.frame_columns import Shown, by_names, check_record, columns_of, record_field
from mainstem.operators.stage.stage import StageSpec, add_stage, remember
from mainstem.operators.tables.changing import TableSource, check_hashable, row_columns, show_changes
from mainstem.operators.tables.feed_rows import FeedColumns, FeedRows, compute_feed, mark_deletes, read_feed
from mainstem.operators.tables.table_engine import TableEngine

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["table"]


def table(
    rows: DataFrame,
    *,
    key: str | Sequence[str],
    order_by: Column | str | Sequence[Column | str] | None = None,
    delete_when: Column | str | None = None,
    name: str | None = None,
) -> DataFrame:
    """The newest row of each key: a changing table, built from facts ("this customer's address is now ...").

    The newest row is the last in the log; `key` should then be the key of the topic, since there is no order between
    partitions. With `order_by` it is the row with the highest value, and of those the last in the log: the one with the
    highest partition, then the highest offset. A row that arrives out of order changes nothing. `order_by` is a column, an
    expression (SQL text or a Spark column), or several, of which the first decides; null is below every value.

    A delete removes its key: a deletion in the log (`topic.delete(...)`), or a row for which the condition `delete_when` is
    true. A deletion in the log without a value of `order_by` removes the current row when it arrives. With `order_by`
    the order of a deleted key is kept for good, since an older row may still arrive. A row equal to the current one
    changes nothing.

    When a row replaces another, the result has a delete of the old row, then an insert of the new one.

    >>> from mainstem.testing import TestStream
    >>> customers = TestStream("id INT, city STRING").rows([{"id": 1, "city": "Bonn"}]).rows([{"id": 1, "city": "Ulm"}])
    >>> customers.run(lambda rows: table(rows, key="id")).changes[1:]
    [('delete', {'id': 1, 'city': 'Bonn'}), ('insert', {'id': 1, 'city': 'Ulm'})]

    >>> feed = TestStream("id INT, city STRING, version INT, op STRING")
    >>> for city, version, op in (("Bonn", 2, "UPSERT"), ("Ulm", 1, "UPSERT"), ("Bonn", 3, "DELETE")):
    ...     feed = feed.rows([{"id": 1, "city": city, "version": version, "op": op}])
    >>> customers = feed.run(lambda rows: table(rows, key="id", order_by="version", delete_when="op = 'DELETE'"))
    >>> [(change, row["city"]) for change, row in customers.changes]
    [('insert', 'Bonn'), ('delete', 'Bonn')]
    """
    feed = read_feed(rows, order_by, delete_when, "table")
    given = compute_feed(rows, feed, "table")
    spec, columns, names = remember("table", lambda: _plan(rows, given, key, feed))
    shown = show_changes(add_stage(given, spec, name=name), columns)
    # For `enrich`, which also needs older versions.
    shown.__dict__["_mainstem_table"] = TableSource(_facts(rows, given, feed), names, feed.order, feed.order_by)
    return shown


def _facts(rows: DataFrame, given: DataFrame, feed: FeedColumns) -> DataFrame | None:
    """The rows with deletes as the log has them; None if they have no `record` to say so."""
    if feed.delete_when is None:
        return rows
    return None if record_field(columns_of(rows)) is None else mark_deletes(given, rows.columns)


def _plan(
    rows: DataFrame, given: DataFrame, key: str | Sequence[str], feed: FeedColumns
) -> tuple[StageSpec, list[Shown], tuple[str, ...]]:
    schema = columns_of(rows)
    names = by_names(key, schema, "table")
    if not names:
        raise Invalid("table has no key", detail="It keeps the newest row of each key.", hint='For example: key="id".')
    check_record(schema, "table")
    fields = row_columns(schema)
    check_hashable(fields, "table")
    plan = FeedRows(columns_of(given), names, tuple(field.name for field in fields), feed.order)
    plan.check("table")
    by = "" if feed.order_by is None else f" by {_listed(feed.order_by)}"
    definition = {"key": list(names), "newest": f"the last in the log{by}"}
    if feed.delete_when is not None:
        definition["delete_when"] = feed.delete_when
    spec = StageSpec(
        "table",
        TableEngine(plan.row_type, plan.order_type, plan.placed),
        plan.native,
        plan.arrow,
        bounded_by=f"one row for each {', '.join(names)}{', deleted ones included' if feed.order else ''}",
        definition=definition,
        parameters={"key": list(names), "order_by": feed.order_by, "delete_when": feed.delete_when},
        packed=plan.input_schema if plan.packable else None,
        lineage=plan.lineage,
    )
    return spec, [Shown(f"row.{field.name}", field) for field in fields], names


def _listed(order_by: str | list[str]) -> str:
    return order_by if isinstance(order_by, str) else ", ".join(order_by)
