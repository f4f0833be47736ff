"""The rows of a flow that have some key, each with the records it was made of, from the flow's lineage and the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from mainstem.flows.why.limits import Equal, Limit, Range, limit_columns, limit_fields, substitute
from mainstem.flows.why.traced_joins import enrich_step, join_step, pairs_step
from mainstem.flows.why.traced_rows import Inexact, MadeOf, TracedRows, knows, rows_step, union_step
from mainstem.flows.why.traced_tables import (
    aggregate_step,
    dedupe_step,
    distinct_step,
    groups_step,
    table_step,
    top_step,
)
from mainstem.flows.why.traced_windows import END, FIXED, windowed_step
from mainstem.log.watermark import NO_TIME
from mainstem.spark.plan.plan_lineage import Tree

__all__ = ["FlowTrace", "Read"]

# The records of a source, with `record` as the last column: source, delay of its watermark, limits.
Read = Callable[[str, int | None, Sequence[Limit]], pa.Table]
# Values of a join's key that are looked up on the other side; more are not worth it.
VALUES_MAX = 1_000
# How far around a session its neighbours are read, in gaps.
GAPS_AROUND = 100
SECOND = 1_000_000
_HUGE = 2**62


@dataclass(frozen=True)
class _Source:
    name: str
    table: pa.Table
    first: int


class FlowTrace:
    """One look at a flow. `timing`: of the pane that was shown, and `watermark`: of the batch that showed it, if known. `watermark_at`: the watermark by which Spark dropped rows
    of the batch that had a record, by the number of the record's source, its partition and its offset."""

    def __init__(
        self,
        read: Read,
        *,
        timing: str | None = None,
        watermark: int | None = None,
        watermark_at: Callable[[str, int, int], int] = lambda source, partition, offset: NO_TIME,
    ) -> None:
        self._read = read
        self._timing = timing
        self._watermark = watermark
        self._watermark_at = watermark_at
        self._sources: list[_Source] = []

    def rows(self, tree: Tree, limits: Sequence[Limit]) -> TracedRows:
        """The rows of a tree within some limits, at least."""
        return self._rows(tree, list(limits), top=True)

    def records(self, made_of: MadeOf) -> list[tuple[str, pa.Table]]:
        """The records with these numbers, by source."""
        found: dict[str, list[pa.Table]] = {}
        for source in self._sources:
            places = [number - source.first for number in made_of if 0 <= number - source.first < source.table.num_rows]
            if places:
                found.setdefault(source.name, []).append(source.table.take(pa.array(places)))
        return [(name, pa.concat_tables(tables)) for name, tables in found.items()]

    def _rows(self, tree: Tree, limits: list[Limit], *, top: bool = False) -> TracedRows:
        # `top`: the rows are those of the view, each of which was shown; of others some may not be emitted yet.
        match tree["is"]:
            case "read":
                return self._records(tree, limits)
            case "rows":
                below = substitute(limits, dict(tree["columns"]))
                return rows_step(tree, self._rows(tree["of"], below, top=top))
            case "union":
                return union_step([self._rows(part, limits, top=top) for part in tree["of"]])
            case "some":
                given = self._rows(tree["of"], limits, top=top)
                return replace(given, assumed=given.assumed or tree["because"])
            case "groups":
                below = limit_columns(limits, {name: name for name in tree["by"]})
                return groups_step(tree, self._rows(tree["of"], below), self._batch_watermark)
            case "pairs":
                return self._pairs(tree, limits)
            case "stage":
                return self._stage(tree, limits, top=top)
        raise Inexact(f"its lineage has a step of a later version: {tree['is']}")

    def _records(self, tree: Tree, limits: Sequence[Limit]) -> TracedRows:
        table = self._read(tree["source"], tree["delay"], limits)
        first = self._sources[-1].first + self._sources[-1].table.num_rows if self._sources else 0
        self._sources.append(_Source(tree["source"], table, first))
        untimed = tree["delay"] is not None and not knows(table.schema, ["record", "watermark"])
        return TracedRows(table, [(first + place,) for place in range(table.num_rows)], untimed=untimed)

    def _batch_watermark(self, made_of: MadeOf) -> int:
        """The watermark with which Spark read a row: that of its latest record."""
        found = NO_TIME
        for number in made_of:
            source = next(it for it in reversed(self._sources) if it.first <= number)
            record = source.table.column("record")[number - source.first].as_py()
            found = max(found, self._watermark_at(source.name, record["partition"], record["offset"]))
        return found

    # Stages

    def _stage(self, tree: Tree, limits: list[Limit], *, top: bool) -> TracedRows:
        how, of = tree["how"], tree["of"]
        watermark = self._clock(tree)
        match tree["operator"]:
            case "windowed":
                given = self._rows(of[0], _window_limits(how, limits))
                if top:
                    return windowed_step(how, given, self._timing, watermark)
                return windowed_step(how, given, None, watermark, emitted_by=_known(watermark))
            case "table":
                return table_step(how, self._rows(of[0], limit_fields(limits, "row", how["key"])))
            case "aggregate":
                names = {f"by_{place}": name for place, name in enumerate(how["by"])}
                return aggregate_step(how, self._rows(of[0], limit_columns(limits, names)))
            case "top":
                return top_step(how, self._rows(of[0], limit_fields(limits, "row", how["row"])))
            case "distinct":
                return distinct_step(how, self._rows(of[0], limit_fields(limits, "row", how["row"])))
            case "dedupe":
                return dedupe_step(how, self._rows(of[0], limit_fields(limits, "row", how["by"])))
            case "join":
                alone = how["how"] in ("left", "right", "full", "anti") and "tables" not in how and not top
                return join_step(how, *self._sides(how, of, limits), emitted_by=_known(watermark) if alone else None)
            case "enrich":
                left, right = self._sides(how | {"how": "left", "shared": ()}, of, limits)
                return enrich_step(how, left, right, emitted_by=None if top or how["latest"] else _known(watermark))
        raise Inexact(f"it cannot be said what {tree['operator']} made of its rows")

    def _clock(self, tree: Tree) -> int | None:
        """The watermark of a stage in the batch: the flow's, less the delays of the stages before it; None if it is not known."""
        if self._watermark is None or self._watermark == NO_TIME:
            return self._watermark
        return self._watermark - max(map(_lag, tree["of"]), default=0)

    def _sides(self, how: Mapping[str, Any], of: Sequence[Tree], limits: list[Limit]) -> tuple[TracedRows, TracedRows]:
        """Both sides of a join; the values of the key that the left side has are looked up on the right one."""
        ons = [side["on"] for side in how["sides"]]
        pairs = list(zip(*ons, strict=True))
        both: list[Limit] = []
        for which, name in enumerate(("left", "right")):
            keyed = limit_fields(limits, name, ons[which])
            both += limit_columns(keyed, {pair[which]: pair[0] for pair in pairs})
        shared = {f"key_{place}": name for place, name in enumerate(how["shared"])}
        both += limit_columns(limits, dict(shared.items()))
        own = [
            limit_fields(limits, name, how["sides"][which]["row"]) if how["how"] in kinds else []
            for which, (name, kinds) in enumerate(
                (("left", ("inner", "left", "semi", "anti")), ("right", ("inner", "right")))
            )
        ]
        left = self._rows(of[0], [*both, *own[0]])
        others = limit_columns(both, dict(pairs))
        if how["how"] in ("inner", "left", "semi", "anti"):
            others += _looked_up(left, ons)
        return left, self._rows(of[1], [*others, *own[1]])

    def _pairs(self, tree: Tree, limits: list[Limit]) -> TracedRows:
        names = [[name for name, _ in side["columns"]] for side in tree["of"]]
        both = [limit_columns(limits, {name: name for name in of_side}) for of_side in names]
        for one, other in tree["on"]:
            both[0] += limit_columns(both[1], {other: one})
            both[1] += limit_columns(both[0], {one: other})
        if tree["how"] not in ("inner", "semi"):
            # A row without a match is known by all that it could have matched.
            keyed = [[pair[which] for pair in tree["on"]] for which in range(2)]
            both = [[it for it in of_side if it.of[1] in keyed[which]] for which, of_side in enumerate(both)]
        left = self._rows(tree["of"][0], both[0])
        found = _looked_up(left, [[pair[0] for pair in tree["on"]], [pair[1] for pair in tree["on"]]])
        return pairs_step(
            tree,
            left,
            self._rows(tree["of"][1], [*both[1], *(found if tree["how"] in ("inner", "left", "semi") else [])]),
        )


def _lag(tree: Tree) -> int:
    """How far the watermark of these rows is behind the flow's."""
    match tree["is"]:
        case "read":
            return 0
        case "union" | "pairs":
            return max(map(_lag, tree["of"]))
        case "stage":
            return int(tree["behind"]) + max(map(_lag, tree["of"]), default=0)
    return _lag(tree["of"])


def _known(watermark: int | None) -> int:
    if watermark is None:
        raise Inexact("some results of its first operators may not have been emitted then: its batch is not known")
    return watermark


def _looked_up(left: TracedRows, ons: Sequence[Sequence[str]]) -> list[Limit]:
    """The keys of some rows as limits of the other side."""
    found: list[Limit] = []
    for mine, other in zip(*ons, strict=True):
        if left.knows([mine]):
            values = {value for value in left.values(mine) if not isinstance(value, dict | list)}
            if len(values) <= VALUES_MAX:
                found.append(Equal(["column", other], tuple(values)))
    return found


def _window_limits(how: Mapping[str, Any], limits: Sequence[Limit]) -> list[Limit]:
    """The key, and the times that a window can have rows of."""
    found = limit_columns(limits, {name: name for name in how["by"]})
    bounds: dict[str, list[int]] = {"window_start": [], "window_end": []}
    for limit in limits:
        if limit.of[1] in bounds and isinstance(limit, Equal) and None not in limit.values:
            bounds[limit.of[1]] += limit.values
    kind = how["window"]["kind"]
    if kind == "everything" or not bounds["window_start"]:
        return found
    start = min(bounds["window_start"])
    end = max(bounds["window_end"], default=END)
    if kind in FIXED:
        return [*found, Range(["column", "time"], start, end - 1)]
    if kind == "sessions":
        around = GAPS_AROUND * ((how["window"]["gap"] or 3600 * SECOND) + how["lateness"] + SECOND)
        return [*found, Range(["column", "time"], start - around, min(end + around, _HUGE))]
    # Sliding windows are made by rows just before them, and the end of a validity is the next row.
    return [*found, Range(["column", "time"], start - 1, min(end, _HUGE))]
