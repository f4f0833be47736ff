"""`view.why`: the records a row of a view was made of, the values it had, and whether that is exact. Needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa

from mainstem.errors import Invalid, MainstemError, NotFound
from mainstem.flows.why.batch_reports import BatchReports
from mainstem.flows.why.limits import Equal, Limit
from mainstem.flows.why.lineage_file import read_lineage
from mainstem.flows.why.log_records import LogRecords
from mainstem.flows.why.traced_flow import FlowTrace
from mainstem.flows.why.traced_rows import Inexact, MadeOf, TracedRows, follow, freeze
from mainstem.log.log import Log
from mainstem.log.rows.key_values import key_values
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.views.row_explanation import RowExplanation, ShownRow
from mainstem.views.view import View
from mainstem.views.view_facts import Segment
from mainstem.views.view_history import AsOf, position_as_of
from mainstem.views.view_store import KeyChange, VersionSnapshot

__all__ = ["NoSuchRow", "explain_row", "find_records"]

# Without a history the changes of a view have no index by key: only the last ones are looked through.
CHANGES_LOOKED = 200_000
SHOWN_MAX = 100


@dataclass(frozen=True)
class _Shown:
    """The row at some position of a view, and how it came to be."""

    view: str
    version: int
    flow: str | None
    schema: pa.Schema
    key: dict[str, Any]
    row: dict[str, Any] | None
    # The last one first.
    changes: Sequence[KeyChange]
    offsets: Mapping[str, Mapping[int, int]]
    # The last batch of the view, and whether an earlier state of it is asked for.
    last_batch: int
    past: bool
    # The position after which the version was live, and whether another one is live now.
    live_after: int = -1
    replaced: bool = False

    @property
    def batch(self) -> int | None:
        """The batch of this version that gave the row its values."""
        last = self.changes[0] if self.changes else None
        return last.batch if last is not None and last.batch >= 0 and last.position > self.live_after else None


def explain_row(
    log: Log,
    home: str,
    view: View,
    key: Any,
    *,
    as_of: AsOf | None = None,
    limit: int = 1_000,
    after: str | None = None,
) -> RowExplanation:
    """Why a row of a view is as it is, now or as of a time."""
    shown = _look(view, key, as_of, log.clock.now())
    begin = None if after is None else _parse_after(after)
    lineage = None if shown.flow is None else read_lineage(FlowStore(home, shown.flow), shown.version)
    reports = BatchReports([])
    if shown.flow is not None:
        reports = BatchReports.read(log, shown.flow, shown.version, (lineage or {}).get("starts"))
    if shown.row is None:
        return _answer(shown, exact=False, because=_absent(shown), ranges=reports.ranges(shown.batch))
    try:
        found, trace = _trace(log, shown, lineage, reports)
    except Inexact as reason:
        return _answer(
            shown, exact=False, because=_sentence(str(reason)), ranges=reports.ranges(shown.batch)
        )  # fmt: skip
    records, total, following = _page(trace.records(found), begin, limit)
    return _answer(shown, exact=True, because="", records=records, total=total, after=following)


def _answer(shown: _Shown, **facts: Any) -> RowExplanation:
    over_time = [
        ShownRow(it.change, it.after, it.at, None if it.batch < 0 else it.batch) for it in reversed(shown.changes)
    ]
    return RowExplanation(shown.view, shown.flow, shown.key, shown.row, shown=over_time, **facts)


def _absent(shown: _Shown) -> str:
    if shown.changes:
        return "The row was deleted."
    return "The view has no row with this key."


def _sentence(reason: str) -> str:
    return f"These are the offsets of the batch that changed the row, not its records alone: {reason}."


# The row


def _look(view: View, key: Any, as_of: AsOf | None, now: int) -> _Shown:
    with view.snapshot() as snapshot:
        position = None if as_of is None else position_as_of(snapshot, as_of, view=view.name, now=now)
        flow, _, last_batch, _ = snapshot.progress()
        names, history = snapshot.facts.key, snapshot.facts.history
        given = dict(zip(names, key_values(key, names, of=f'view "{view.name}"'), strict=True))
        row = snapshot.get(key, position)
        # The version that was live then.
        served = [it for it in history if position is None or it.after < position] or list(history[:1])
        live = served[-1] if served else Segment(snapshot.version, -1)
        shown = _Shown(
            view.name, live.version, flow, snapshot.schema, given, row, _changes(snapshot, key, position), snapshot.offsets(),
            last_batch, past=position is not None, live_after=live.after, replaced=live.version != snapshot.version,
        )  # fmt: skip
    if shown.replaced:
        try:
            with view.snapshot(live.version) as then:
                flow, _, last_batch, _ = then.progress()
                return replace(shown, flow=flow, offsets=then.offsets(), last_batch=last_batch)
        except NotFound:
            return replace(shown, offsets={}, last_batch=-1)
    return shown


def _changes(snapshot: VersionSnapshot, key: Any, position: int | None) -> list[KeyChange]:
    first, last = snapshot.positions()
    until = last if position is None else position
    after = first - 1 if snapshot.kept_since() is not None else max(first - 1, until - CHANGES_LOOKED)
    return snapshot.key_changes(key, after, until, SHOWN_MAX)


# Its records


def _trace(
    log: Log, shown: _Shown, lineage: Mapping[str, Any] | None, reports: BatchReports
) -> tuple[MadeOf, FlowTrace]:
    if shown.flow is None:
        raise Inexact("no flow has written this view")
    if shown.replaced and lineage is None:
        raise Inexact(f"version {shown.version} of the view was live then, and its lineage is no longer known")
    if lineage is None:
        raise Inexact("its flow has not recorded its lineage; it does so when it runs again")
    if lineage["rows"] is None:
        raise Inexact(f"it cannot be said which rows {lineage['because']} gives")
    if not _is_bounded(shown, reports) and (shown.past or _waits(lineage["rows"])):
        raise Inexact("it is no longer known how far its sources were read when it was shown")
    records = LogRecords(log, reports.spans(shown.batch, shown.offsets))
    assert shown.row is not None
    pane = shown.row.get("pane")
    timing = pane.get("timing") if isinstance(pane, dict) else None
    # A row that no batch changed is looked at as of now.
    watermark = reports.watermark(shown.last_batch if shown.batch is None else shown.batch)
    trace = FlowTrace(records.read, timing=timing, watermark=watermark, watermark_at=reports.watermark_at)
    try:
        found = find_records(trace, lineage["rows"], shown.schema, list(shown.key), shown.row)
        _check_changed(lineage, shown, records, trace.records(found.made_of))
        _check_compacted(log, lineage["rows"], records, trace.records(found.made_of))
    except NoSuchRow as error:
        raise Inexact(_lost(records) or str(error)) from error
    except MainstemError as error:
        raise Inexact(f"a topic cannot be read: {error}") from error
    if records.lost and not (len(found.made_of) == 1 and found.compared):
        # Records that are lost may have been part of it.
        raise Inexact(_lost(records))
    return found.made_of, trace


def _positions(records: Sequence[tuple[str, pa.Table]]) -> list[tuple[str, int, int]]:
    """Topic, partition and offset of records."""
    found = []
    for topic, table in records:
        record = table.column("record").combine_chunks()
        columns = record.field("partition").to_pylist(), record.field("offset").to_pylist()
        found += [(topic, partition, offset) for partition, offset in zip(*columns, strict=True)]
    return found


def _check_changed(
    lineage: Mapping[str, Any], shown: _Shown, records: LogRecords, found: Sequence[tuple[str, pa.Table]]
) -> None:
    """Raise `Inexact` if the row may be made of rows that the flow computed before its program changed."""
    changed = lineage["changed"]
    if changed is None:
        return
    reason = f"its program changed after batch {changed['batch']}"
    if shown.batch is None or shown.batch <= changed["batch"]:
        raise Inexact(reason)
    if _is_stateless(lineage["rows"]):
        read = _positions(found)
    elif changed["filters"]:
        # The same records were looked for before, and some filter took others of them.
        read = [(topic, number, first) for topic, of in records.first_read.items() for number, first in of.items()]
    else:
        raise Inexact(reason)
    if any(offset < changed["offsets"].get(topic, {}).get(str(number), 0) for topic, number, offset in read):
        raise Inexact(reason)


def _is_stateless(tree: Mapping[str, Any]) -> bool:
    """Whether each row is made of one record."""
    below = tree["of"] if tree["is"] == "union" else [tree["of"]] if tree["is"] in ("rows", "some") else []
    return tree["is"] == "read" or (bool(below) and all(map(_is_stateless, below)))


def _check_compacted(
    log: Log, tree: Mapping[str, Any], records: LogRecords, found: Sequence[tuple[str, pa.Table]]
) -> None:
    """Raise `Inexact` if records that compaction removed may have been part of the row."""
    if not records.compacted:
        return
    kept = all(offset >= records.compacted.get(topic, {}).get(number, 0) for topic, number, offset in _positions(found))
    if _is_stateless(tree) and kept:
        return
    for topic in records.compacted:
        # A row of a table is the last record of its key, which stays.
        if _table_key(tree) != log.open_topic(topic).settings.key:
            raise Inexact(f"{topic} is compacted: it no longer has all records that the flow has read")


def _table_key(tree: Mapping[str, Any]) -> Sequence[str] | None:
    """The key of a table of a topic's records, if these are its rows."""
    while tree["is"] == "rows" or (tree["is"] == "stage" and tree["operator"] == "top"):
        tree = tree["of"] if tree["is"] == "rows" else tree["of"][0]
    if tree["is"] != "stage" or tree["operator"] != "table" or tree["how"]["order"]:
        return None
    of, key = tree["of"][0], tree["how"]["key"]
    while of["is"] == "rows" and not of["where"] and all(dict(of["columns"]).get(it) == ["column", it] for it in key):
        of = of["of"]
    return tuple(key) if of["is"] == "read" else None


def _is_bounded(shown: _Shown, reports: BatchReports) -> bool:
    """Whether it is known which records had been read when the row was shown."""
    return shown.batch is not None and (shown.batch == shown.last_batch or reports.knows_end(shown.batch))


def _top_windows(tree: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The parameters of the windows whose panes a view shows; None if it shows something else."""
    while tree["is"] == "rows":
        tree = tree["of"]
    found: Mapping[str, Any] | None = tree["how"] if tree.get("operator") == "windowed" else None
    return found


def _waits(tree: Mapping[str, Any]) -> bool:
    """Whether records may have come that the row does not show yet."""
    how = _top_windows(tree)
    return how is not None and (how["early"] is not None or how["late"] is not None)


class NoSuchRow(Inexact):
    """From the records that are there another row follows."""


class FoundRecords(NamedTuple):
    """The numbers of the records of a row; `compared`: whether all values of the row were computed from them."""

    made_of: MadeOf
    compared: bool


def find_records(
    trace: FlowTrace, tree: Mapping[str, Any], schema: pa.Schema, key: Sequence[str], row: Mapping[str, Any]
) -> FoundRecords:
    """The numbers of the records that a row of a flow was made of; raises `Inexact` if that cannot be said."""
    if _shows_parts(tree):
        raise Inexact('with results="discard" a row has only what came since the pane before it')
    limits: list[Limit] = [Equal(["column", name], (row[name],)) for name in key]
    rows = trace.rows(dict(tree), limits)
    found = _matching(rows, schema, key, row)
    if not found:
        raise NoSuchRow("from what the log has now, another row follows")
    other = _not_compared(rows, schema)
    if len({rows.made_of[at] for at in found}) > 1:
        if other is not None:
            raise Inexact(f'several rows follow that differ in "{other}", whose values are not recomputed')
        if rows.assumed:
            raise Inexact(f"several rows follow of which it is not known {rows.assumed}")
    # Of several that are equal the last: it replaced the others.
    return FoundRecords(rows.made_of[found[-1]], other is None)


def _not_compared(rows: TracedRows, schema: pa.Schema) -> str | None:
    """The first column of which a part is not computed."""
    columns = {it.name: it.type for it in rows.table.schema}
    left = (it for it in schema if it.name != "pane")
    return next((it.name for it in left if not (it.name in columns and _covers(columns[it.name], it.type))), None)


def _covers(computed: pa.DataType, shown: pa.DataType) -> bool:
    if not pa.types.is_struct(shown):
        return True
    return pa.types.is_struct(computed) and all(
        computed.get_field_index(it.name) >= 0 and _covers(computed.field(it.name).type, it.type) for it in shown
    )


def _shows_parts(tree: Mapping[str, Any]) -> bool:
    how = _top_windows(tree)
    return how is not None and how["results"] == "discard" and (how["early"] is not None or bool(how["lateness"]))


def _lost(records: LogRecords) -> str:
    if not records.lost:
        return ""
    return ", ".join(f"{topic} {what}" for topic, what in records.lost.items())


def _matching(rows: TracedRows, schema: pa.Schema, key: Sequence[str], row: Mapping[str, Any]) -> list[int]:
    """The rows that have the values that were shown, as far as they are computed."""
    found = list(range(rows.count))
    if rows.knows(["record", "change"]):
        changes = follow(rows.table, ["record", "change"]).to_pylist()
        found = [at for at in found if changes[at] != "delete"]
    for name in schema.names:
        if name == "pane" or not rows.knows([name]):
            if name in key:
                raise Inexact(f'the value of "{name}", a part of the key, is not recomputed')
            continue
        values = _as_shown(rows, name, schema.field(name).type)
        found = [at for at in found if _fits(values[at], row[name])]
    return found


def _as_shown(rows: TracedRows, name: str, data_type: pa.DataType) -> list[Any]:
    column = rows.table.column(name)
    if not pa.types.is_nested(data_type) and column.type != data_type:
        column = column.cast(data_type)
    found: list[Any] = column.to_pylist()
    return found


def _fits(computed: Any, shown: Any) -> bool:
    """Whether they are equal, in the fields that are computed."""
    if isinstance(computed, dict) and isinstance(shown, dict):
        return all(_fits(value, shown.get(name)) for name, value in computed.items())
    return bool(freeze(computed) == freeze(shown))


# Pages


def _position(topic: str, record: Mapping[str, Any]) -> tuple[str, int, int]:
    return topic, record["partition"], record["offset"]


def _page(
    found: Sequence[tuple[str, pa.Table]], after: tuple[str, int, int] | None, limit: int
) -> tuple[dict[str, pa.Table], int, str | None]:
    """Up to `limit` records after a position, each once; the number of all, and the position of the last one if others follow."""
    places: dict[tuple[str, int, int], tuple[int, int]] = {}
    for number, (topic, table) in enumerate(found):
        record = table.column("record").combine_chunks()
        columns = record.field("partition").to_pylist(), record.field("offset").to_pylist()
        for row, (partition, offset) in enumerate(zip(*columns, strict=True)):
            places.setdefault((topic, partition, offset), (number, row))
    ordered = sorted(places)
    left = [position for position in ordered if after is None or position > after]
    chosen = left[:limit]
    tables: dict[str, pa.Table] = {}
    for number, (topic, table) in enumerate(found):
        rows = [places[position][1] for position in chosen if places[position][0] == number]
        if rows:
            part = table.take(pa.array(rows))
            tables[topic] = pa.concat_tables([tables[topic], part]) if topic in tables else part
    following = "/".join(map(str, chosen[-1])) if len(left) > limit else None
    return tables, len(ordered), following


def _parse_after(after: str) -> tuple[str, int, int]:
    topic, _, rest = after.partition("/")
    partition, _, offset = rest.partition("/")
    if not topic or not partition.isdigit() or not offset.isdigit() or len(partition + offset) > 25:
        raise Invalid(
            f'after "{after[:60]}" is not the end of a page',
            detail="It is `after` of the page before: topic/partition/offset.",
            hint="Leave it out for the first page.",
        )
    return topic, int(partition), int(offset)
