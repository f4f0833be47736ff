"""Tables, groups and kept rows (`table`, `aggregate`, `top`, `distinct`, `dedupe`, Spark's groupBy), with the records of each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from mainstem.flows.why.traced_rows import Inexact, TracedRows, follow, microseconds, record_column, structs
from mainstem.log.watermark import NO_TIME

__all__ = ["aggregate_step", "dedupe_step", "distinct_step", "groups_step", "table_step", "top_step"]

_ARRIVAL = "which of them arrived last"


def _row(names: Sequence[str], rows: TracedRows) -> pa.Array:
    """The rows as structs, with the columns that are known."""
    return structs({name: rows.table.column(name) for name in names if name in rows.table.column_names}, rows.count)


def _emitted(
    rows: TracedRows, names: Sequence[str], owns: Sequence[int] | None = None, assumed: str = ""
) -> TracedRows:
    table = pa.table({"row": _row(names, rows), "record": record_column(owns or [NO_TIME] * rows.count)})
    return TracedRows(table, rows.made_of, assumed or rows.assumed)


def _changes(rows: TracedRows, record: str | None) -> list[str | None]:
    if record is None or not rows.knows([record, "change"]):
        return [None] * rows.count
    found: list[str | None] = follow(rows.table, [record, "change"]).to_pylist()
    return found


def _places(rows: TracedRows, record: str | None) -> list[tuple[int, int]] | None:
    """Partition and offset of rows; None if they have none."""
    if record is None or not rows.knows([record, "offset"]):
        return None
    columns = [follow(rows.table, [record, name]).to_pylist() for name in ("partition", "offset")]
    return list(zip(*columns, strict=True))


def _grouped(keys: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], list[int]]:
    found: dict[tuple[Any, ...], list[int]] = {}
    for place, key in enumerate(keys):
        found.setdefault(key, []).append(place)
    return found


# Tables


def table_step(how: Mapping[str, Any], given: TracedRows) -> TracedRows:
    """The newest row of each key."""
    if given.repeated:
        raise Inexact("a table takes rows that were emitted more than once")
    keys = given.keys(how["key"], "a table has the key")
    deleted = [change == "delete" for change in _changes(given, how["record"])]
    in_log = list(deleted)
    if how["delete"] is not None:
        marks = given.values(how["delete"]) if given.knows([how["delete"]]) else None
        if marks is None:
            raise Inexact("delete_when of a table cannot be said")
        deleted = [one or bool(other) for one, other in zip(deleted, marks, strict=True)]
    orders = _orders(how["order"], given)
    places = _places(given, how["record"]) if how["placed"] else None
    chosen: list[int] = []
    assumed = given.assumed
    for rows in _grouped(keys).values():
        if places is None or (not how["order"] and len({places[at][0] for at in rows}) > 1):
            # Without an order it is the one that arrived last, and nothing says which did.
            chosen += [at for at in rows if not deleted[at]]
            assumed = assumed or (_ARRIVAL if len(rows) > 1 else "")
            continue
        newest = _newest(rows, places, orders, deleted, in_log)
        if newest is not None:
            chosen.append(newest)
    return _emitted(given.take(chosen), how["row"], assumed=assumed)


def _orders(names: Sequence[str], given: TracedRows) -> list[Any] | None:
    if not names:
        return None
    return given.keys(names, "a table is ordered by")


def _newest(
    rows: Sequence[int],
    places: Sequence[tuple[int, int]],
    orders: Sequence[Any] | None,
    deleted: Sequence[bool],
    in_log: Sequence[bool],
) -> int | None:
    """The newest row of a key; None if it is deleted."""
    arrived = sorted(rows, key=lambda at: places[at][::-1])
    if orders is None:
        return None if deleted[arrived[-1]] else arrived[-1]
    best: int | None = None
    gone = False
    for at in arrived:
        if in_log[at] and orders[at][0] is None:
            gone = True
        elif best is None or _rank(orders[at], places[at]) >= _rank(orders[best], places[best]):
            best, gone = at, deleted[at]
    return None if gone else best


def _rank(order: tuple[Any, ...], place: tuple[int, int]) -> tuple[Any, ...]:
    """Null is below every value; of several parts the first decides, also that all are null."""
    parts = order if order[0] is not None else (None,) * len(order)
    return (*((part is not None, 0 if part is None else part) for part in parts), *place)


def distinct_step(how: Mapping[str, Any], given: TracedRows) -> TracedRows:
    """Equal rows once."""
    keys = given.once("distinct").keys(how["row"], "distinct compares rows by")
    groups = _grouped(keys)
    rows = given.take([places[0] for places in groups.values()])
    made_of = [_together(given, places) for places in groups.values()]
    return _emitted(TracedRows(rows.table, made_of), how["row"])


def top_step(how: Mapping[str, Any], given: TracedRows) -> TracedRows:
    """All rows: those that are shown are among the first of their group."""
    return _emitted(given, how["row"], assumed="which of them are the first")


# Groups


def _together(given: TracedRows, places: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({number for at in places for number in given.made_of[at]}))


def aggregate_step(how: Mapping[str, Any], given: TracedRows) -> TracedRows:
    """A row for each group; its aggregates are not known."""
    keys = given.once("aggregate").keys(how["by"], "aggregates are by")
    groups = _grouped(keys)
    made_of = [_together(given, places) for places in groups.values()]
    firsts = [places[0] for places in groups.values()]
    table = _first_of(given, how["by"], [f"by_{place}" for place in range(len(how["by"]))], firsts)
    return TracedRows(table, made_of)


def _first_of(given: TracedRows, names: Sequence[str], called: Sequence[str], rows: Sequence[int]) -> pa.Table:
    """The key of groups, and `record`."""
    chosen = pa.array(rows, pa.int64())
    columns = {title: given.table.column(name).take(chosen) for name, title in zip(names, called, strict=True)}
    return pa.table({**columns, "record": record_column([NO_TIME] * len(rows))})


def groups_step(
    tree: Mapping[str, Any], given: TracedRows, watermark_at: Callable[[tuple[int, ...]], int]
) -> TracedRows:
    """Spark's groups. A row is dropped if the watermark of its batch, `watermark_at`, has passed its window or time."""
    keys = given.once("groupBy").keys(tree["by"], "groups are by")
    chosen = list(range(given.count))
    if tree["late"] is not None:
        of = given.table.schema.field(tree["late"]).type
        ends = microseconds(given.table, [tree["late"], "end"] if pa.types.is_struct(of) else [tree["late"]])
        chosen = [at for at in chosen if (end := ends[at]) is None or end > watermark_at(given.made_of[at])]
    groups = _grouped([keys[at] for at in chosen])
    made_of = [_together(given, [chosen[at] for at in places]) for places in groups.values()]
    firsts = [chosen[places[0]] for places in groups.values()]
    # Spark emits a group each time it changes.
    return TracedRows(_first_of(given, tree["by"], tree["by"], firsts), made_of, repeated=True)


# Rows that are kept


def dedupe_step(how: Mapping[str, Any], given: TracedRows) -> TracedRows:
    """The first of several rows of a key that are less than `within` apart."""
    keys = given.timed("dedupe").keys(how["by"], "duplicates have the same")
    times, within = microseconds(given.table, how["time"]), how["within"]
    record, owns = how["record"], [NO_TIME] * given.count
    if record is not None and given.knows([record, "watermark"]):
        owns = [NO_TIME if own is None else own for own in microseconds(given.table, [record, "watermark"])]
    places = _places(given, record)
    if places is None:
        raise Inexact("dedupe takes rows without a position in the log")
    kept: list[int] = []
    for rows in _grouped(keys).values():
        if len({places[at][0] for at in rows}) > 1:
            raise Inexact("dedupe takes a key of several partitions: it keeps the row that was read first")
        taken: list[int] = []
        for at in sorted(rows, key=lambda at: places[at]):
            time = times[at]
            if time is None or (owns[at] != NO_TIME and owns[at] - within >= time):
                continue
            if all(abs(time - other) >= within for other in taken):
                taken.append(time)
                kept.append(at)
    kept.sort()
    return _emitted(given.take(kept), how["row"], [owns[at] for at in kept])
