"""Joins (`join` of streams and of tables, `enrich`, Spark's join of two streams), with the records of each pair. Times are in
microseconds.

Whether two rows are a pair depends on their times and on their own watermarks alone; see `join_terms` and `enrich_engine`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.flows.why.traced_rows import (
    Inexact,
    MadeOf,
    TracedRows,
    follow,
    microseconds,
    record_column,
    rows_step,
    structs,
)
from mainstem.log.watermark import NO_TIME
from mainstem.operators.joins.join_results import VERSION
from mainstem.operators.stage.engine import NEVER

__all__ = ["enrich_step", "join_step", "pairs_step", "table_join_step"]

_TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class _Row:
    number: int
    # None if a part of it is null: then it matches nothing.
    key: tuple[Any, ...] | None
    time: int
    own: int
    place: tuple[int, int]
    deleted: bool
    made_of: MadeOf


def _side(how: Mapping[str, Any], given: TracedRows, what: str) -> list[_Row]:
    keys = given.keys(how["on"], f"{what} is on")
    count, table, record = given.count, given.table, how["record"]
    times: Sequence[int | None] = [None] * count
    if how["time"] is not None:
        if not given.knows(how["time"]):
            raise Inexact(f"{what} is by a time whose values are not recomputed")
        times = [None if time is None else time - how["less"] for time in microseconds(table, how["time"])]
    owns: Sequence[int | None] = [None] * count
    if record is not None and given.knows([record, "watermark"]):
        owns = microseconds(table, [record, "watermark"])
    places = [(0, at) for at in range(count)]
    changes: Sequence[Any] = [None] * count
    if record is not None and given.knows([record, "offset"]):
        partitions, offsets, changes = (
            follow(table, [record, name]).to_pylist() for name in ("partition", "offset", "change")
        )
        places = list(zip(partitions, offsets, strict=True))
        if how["dated"]:
            # A deletion has no values but its key: it counts from its append on.
            appended = microseconds(table, [record, "appended_at"])
            times = [
                at if time is None and change == "delete" else time
                for time, at, change in zip(times, appended, changes, strict=True)
            ]
    return [
        _Row(
            at, None if None in keys[at] else keys[at], NO_TIME if (time := times[at]) is None else time,
            NO_TIME if (own := owns[at]) is None else own, places[at], changes[at] == "delete", given.made_of[at],
        )
        for at in range(count)
    ]  # fmt: skip


def _by_key(rows: Iterable[_Row]) -> dict[tuple[Any, ...], list[_Row]]:
    found: dict[tuple[Any, ...], list[_Row]] = {}
    for row in rows:
        if row.key is not None:
            found.setdefault(row.key, []).append(row)
    return found


Pair = tuple[_Row | None, _Row | None]


def _output(
    how: Mapping[str, Any], sides: Sequence[TracedRows], pairs: Sequence[Pair], extra: Sequence[_Row | None] = ()
) -> dict[str, Any]:
    """The columns left and right, and those of the key that both have."""
    columns: dict[str, Any] = {}
    for which, name in enumerate(("left", "right")):
        known = [it for it in how["sides"][which]["row"] if it in sides[which].table.column_names]
        numbers = pa.array([None if pair[which] is None else pair[which].number for pair in pairs], pa.int64())  # type: ignore[union-attr]
        taken = {it: sides[which].table.column(it).take(numbers) for it in known}
        columns[name] = structs(taken, len(pairs), [pair[which] is not None for pair in pairs])
    for place, name in enumerate(how.get("shared", ())):
        if all(pa.types.is_struct(columns[it].type) and columns[it].type.get_field_index(name) >= 0 for it in columns):
            columns[f"key_{place}"] = pc.coalesce(*(pc.struct_field(columns[it], [name]) for it in ("left", "right")))
    return columns


def _together(*rows: _Row | None) -> MadeOf:
    return tuple(sorted({number for row in rows if row is not None for number in row.made_of}))


# Streams


def join_step(
    how: Mapping[str, Any], left: TracedRows, right: TracedRows, *, emitted_by: int | None = None
) -> TracedRows:
    """The pairs of two streams, and the rows of a side that have none: those whose time was up by a watermark, if not all were
    emitted."""
    if "tables" in how:
        return table_join_step(how, left, right)
    lefts, rights = (
        [row for row in _side(how["sides"][which], rows.timed("join"), "join") if _takes_part(row, how)]
        for which, rows in enumerate((left, right))
    )
    others = _by_key(rights)
    pairs: list[Pair] = []
    for one in lefts:
        pairs += [
            (one, other) for other in others.get(one.key or (), ()) if one.key is not None and _meet(one, other, how)
        ]
    met = ({pair[0].number for pair in pairs if pair[0]}, {pair[1].number for pair in pairs if pair[1]})
    alone_left: list[Pair] = [(row, None) for row in lefts if row.number not in met[0]]
    alone_right: list[Pair] = [(None, row) for row in rights if row.number not in met[1]]
    if emitted_by is not None:
        if how["before"] is None:
            raise Inexact("it is not known which rows of a join without a time are alone")
        alone_left = [(row, None) for row, _ in alone_left if row and _up(row, how, left=True) < emitted_by]
        alone_right = [(None, row) for _, row in alone_right if row and _up(row, how, left=False) < emitted_by]
    kind = how["how"]
    if kind == "semi":
        # A row is shown once, when its first match comes.
        first: dict[int, Pair] = {}
        for pair in pairs:
            assert pair[0] is not None
            first.setdefault(pair[0].number, pair)
        pairs = list(first.values())
    elif kind == "anti":
        pairs = []
    shown = [
        *pairs,
        *(alone_left if kind in ("left", "full", "anti") else ()),
        *(alone_right if kind in ("right", "full") else ()),
    ]
    columns = _output(how, (left, right), shown)
    if kind in ("semi", "anti"):
        columns.pop("right")
    times = [max(row.time for row in pair if row is not None) for pair in shown]
    columns["time"] = pa.array([None if time == NO_TIME else time for time in times], pa.int64()).view(_TIME)
    behind = max(how["before"] or 0, how["after"] or 0)
    columns["record"] = record_column([_own(pair, how, behind) for pair in shown])
    return TracedRows(pa.table(columns), [_together(*pair) for pair in shown])


def _takes_part(row: _Row, how: Mapping[str, Any]) -> bool:
    if row.deleted:
        return False
    if how["before"] is None:
        return True
    return row.time != NO_TIME and row.own <= row.time + how["before"] + how["after"] + how["lateness"]


def _up(row: _Row, how: Mapping[str, Any], *, left: bool) -> int:
    """The end of the interval that a row matches."""
    return int(row.time + (how["after"] if left else how["before"]))


def _meet(one: _Row, other: _Row, how: Mapping[str, Any]) -> bool:
    if how["before"] is None:
        return True
    if not one.time - how["before"] <= other.time <= one.time + how["after"]:
        return False
    lateness = how["lateness"]
    return bool(other.own <= _up(one, how, left=True) + lateness and one.own <= _up(other, how, left=False) + lateness)


def _own(pair: Pair, how: Mapping[str, Any], behind: int) -> int:
    """The watermark of a result: that of the row that completed it, or the one that showed a row alone."""
    owns = [row.own for row in pair if row is not None]
    own = max(owns)
    if len(owns) == 1 and how["before"] is not None:
        row = pair[0] or pair[1]
        assert row is not None
        own = max(own, _up(row, how, left=pair[0] is not None) + 1)
    return own if own == NO_TIME else own - behind


# Tables


def table_join_step(how: Mapping[str, Any], left: TracedRows, right: TracedRows) -> TracedRows:
    """The pairs of two tables."""
    keys = [
        rows.once("join").keys(side["on"], "join is on") for rows, side in zip((left, right), how["sides"], strict=True)
    ]
    sides = [
        [
            _Row(at, None if None in key else key, NO_TIME, NO_TIME, (0, at), False, rows.made_of[at])
            for at, key in enumerate(of_side)
        ]
        for of_side, rows in zip(keys, (left, right), strict=True)
    ]
    others, kind = _by_key(sides[1]), how["how"]
    pairs: list[Pair] = [
        (one, other) for one in sides[0] if one.key is not None for other in others.get(one.key, ())
    ]  # fmt: skip
    met = ({pair[0].number for pair in pairs if pair[0]}, {pair[1].number for pair in pairs if pair[1]})
    alone: list[list[Pair]] = [
        [(row, None) for row in sides[0] if row.number not in met[0]],
        [(None, row) for row in sides[1] if row.number not in met[1]],
    ]
    if kind == "semi":
        first: dict[int, Pair] = {}
        for pair in pairs:
            first.setdefault(pair[0].number if pair[0] else -1, pair)
        pairs = list(first.values())
    shown = [
        *(() if kind == "anti" else pairs),
        *(alone[0] if kind in ("left", "full", "anti") else ()),
        *(alone[1] if kind in ("right", "full") else ()),
    ]
    columns = _output(how, (left, right), shown)
    columns["record"] = record_column([NO_TIME] * len(shown))
    return TracedRows(pa.table(columns), [_together(*pair) for pair in shown])


# Look-ups


def enrich_step(
    how: Mapping[str, Any], left: TracedRows, right: TracedRows, *, emitted_by: int | None = None
) -> TracedRows:
    """Facts, each with the version of the table's row that was valid at its time; those whose time a watermark has passed, if not
    all were emitted."""
    facts = _side(how["sides"][0], (left.certain if how["latest"] else left.timed)("enrich"), "enrich")
    if emitted_by is not None:
        facts = [fact for fact in facts if fact.time < emitted_by]
    # The latest row of a table is there from its arrival on, which nothing records.
    table = how["sides"][1] | ({"time": None} if how["latest"] else {})
    versions = _by_key(_side(table, (right.certain if how["latest"] else right.timed)("enrich"), "enrich"))
    # When a row came decides, not its time: any version may be the one.
    any_version = how["latest"] or how["wait"] is not None
    shown: list[tuple[_Row, _Row | None, _Row | None]] = []
    for fact in facts:
        if not how["latest"] and (fact.time == NO_TIME or fact.own > fact.time + how["lateness"]):
            continue
        known = versions.get(fact.key, []) if fact.key is not None else []
        if any_version:
            shown += [(fact, None, None), *((fact, version, None) for version in known if not version.deleted)]
        else:
            shown.append((fact, *_held(fact, [it for it in known if it.time != NO_TIME], how)))
    if how["how"] == "inner":
        shown = [it for it in shown if it[1] is not None]
    columns = _output(how, (left, right), [(fact, version) for fact, version, _ in shown])
    if not how["latest"]:
        columns["version"] = _versions(shown, known=not any_version)
    columns["record"] = record_column([fact.own for fact, _, _ in shown])
    assumed = "which version of the table they met when they arrived" if any_version else ""
    return TracedRows(pa.table(columns), [_together(*it) for it in shown], assumed, repeated=how["corrected"])


def _versions(shown: Sequence[tuple[_Row, _Row | None, _Row | None]], *, known: bool) -> pa.Array:
    rows = [
        None
        if version is None
        else {
            "valid_from": version.time if version.time != NO_TIME else None,
            "valid_until": None if until is None else until.time,
            "partition": version.place[0],
            "offset": version.place[1],
        }
        for _, version, until in shown
    ]
    numbers = pa.struct([("valid_from", pa.int64()), ("valid_until", pa.int64()), *list(VERSION)[2:]])
    made = pa.array(rows, numbers)
    fields = {name: made.field(name) for name in ("valid_from", "valid_until", "partition", "offset")}
    columns = {name: it.view(_TIME) if name.startswith("valid") else it for name, it in fields.items()}
    if not known:
        columns.pop("valid_until")
    return structs(columns, len(rows), [row is not None for row in rows])


def _held(fact: _Row, versions: Sequence[_Row], how: Mapping[str, Any]) -> tuple[_Row | None, _Row | None]:
    """The version that holds at a fact's time, and the one that ends it, if that was known then."""
    slack = how["lateness"] if how["corrected"] else 0
    held: _Row | None = None

    def counts(version: _Row) -> int:
        return max(version.time, version.own - slack if version.own != NO_TIME else NO_TIME)

    for version in sorted(versions, key=lambda it: (counts(it), it.time, it.place)):
        if counts(version) > fact.time:
            break
        if held is not None and held.deleted and counts(version) > min(counts(held) + how["lateness"], NEVER):
            held = None
        if held is None or (version.time, version.place) >= (held.time, held.place):
            held = version
    if held is None or held.deleted:
        return None, None
    ends = [it for it in versions if it.time > fact.time and it.own <= fact.time]
    return held, min(ends, key=lambda it: (it.time, it.place), default=None)


# Spark's own


def pairs_step(tree: Mapping[str, Any], left: TracedRows, right: TracedRows) -> TracedRows:
    """Spark's join of two streams. Which rows its state no longer had is not known."""
    on = [(one, other) for one, other in tree["on"] if left.knows([one]) and right.knows([other])]
    if not on:
        raise Inexact("Spark's join has no columns that are equal on both sides")
    keys = left.keys([one for one, _ in on], "join is on"), right.keys([other for _, other in on], "join is on")
    others: dict[tuple[Any, ...], list[int]] = {}
    for at, key in enumerate(keys[1]):
        if None not in key:
            others.setdefault(key, []).append(at)
    matches = [(at, other) for at, key in enumerate(keys[0]) if None not in key for other in others.get(key, ())]
    paired = _side_by_side(left, right, matches)
    columns = [[name, ["column", name]] for name in paired.table.column_names]
    numbered = TracedRows(paired.table, [(at,) for at in range(len(matches))])
    kept = rows_step({"where": tree["where"], "columns": columns}, numbered)
    chosen: list[tuple[int | None, int | None]] = [matches[number] for (number,) in kept.made_of]
    kind = tree["how"]
    met = {at for at, _ in chosen}, {at for _, at in chosen}
    if kind == "semi":
        chosen = [(at, other) for at, other in dict(reversed(chosen)).items()]
    if kind in ("left", "full"):
        chosen += [(at, None) for at in range(left.count) if at not in met[0]]
    if kind in ("right", "full"):
        chosen += [(None, at) for at in range(right.count) if at not in met[1]]
    found = _side_by_side(left, right, chosen)
    return TracedRows(found.table, found.made_of, kept.assumed or "which rows the join had evicted")


def _side_by_side(left: TracedRows, right: TracedRows, pairs: Sequence[tuple[int | None, int | None]]) -> TracedRows:
    columns: dict[str, Any] = {}
    for which, rows in enumerate((left, right)):
        numbers = pa.array([pair[which] for pair in pairs], pa.int64())
        columns |= {name: rows.table.column(name).take(numbers) for name in rows.table.column_names}
    made_of = [
        tuple(
            sorted(
                {*(left.made_of[one] if one is not None else ()), *(right.made_of[other] if other is not None else ())}
            )
        )
        for one, other in pairs
    ]
    return TracedRows(pa.table(columns), made_of)
