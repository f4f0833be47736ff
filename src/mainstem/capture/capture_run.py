"""CaptureRun: reads the changes of a source and appends them to the log, until it is stopped.

    read events  ->  append to topics  ->  commit in the log (synced)  ->  confirm to the source

Whole transactions of the source, one or several, are one transaction of the log. The position is committed with them; the
source is told only afterwards, so it keeps everything that the log may not have. After a crash the source sends again what
it was not told of, and the run begins after the position in the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.capture.capture import Capture
from mainstem.capture.capture_activity import CaptureActivity
from mainstem.capture.capture_log import CaptureLog
from mainstem.capture.capture_status import CaptureStatus, StatusFile
from mainstem.capture.captured_table import changed_key
from mainstem.capture.outbox_relay import OutboxRelay
from mainstem.capture.row_store import RowStore, decoded, key_text
from mainstem.capture.snapshot_rate import SnapshotRate
from mainstem.capture.snapshots import Snapshots, aligned
from mainstem.capture.source import (
    Changes,
    Committed,
    Event,
    Reached,
    SourceConnection,
    SourceTable,
    TableChanged,
    TableMoved,
    Truncated,
    cause_of,
    check_renamed,
    is_refused,
    lost_position,
    of_another_home,
)
from mainstem.crash_points import reach
from mainstem.errors import PositionLost, Unavailable
from mainstem.log.log import Log

__all__ = ["CaptureRun"]

LOGGER = logging.getLogger("mainstem.capture")

WAIT_SECONDS = 0.5
# While a chunk waits for the stream.
SHORT_WAIT_SECONDS = 0.005
# A position without changes is noted after this much time, so that the source can forget what is not captured.
NOTE_SECONDS = 5.0
STATUS_SECONDS = 1.0
# How often the tables' definitions are compared: a rewritten table that nobody changes afterwards is noticed by this.
LOOK_SECONDS = 5.0
# A transaction of the log costs as much CPU time as some hundred changes. So if many transactions of the source were in the
# last one, those of the next tenth of a second are gathered.
GATHERED_MIN, GATHER_SECONDS = 64, 0.1
# The pauses before connecting again.
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.2, 10.0


class CaptureRun:
    """One run of a capture. Opening it fences every older run. One thread.

    `stopped` is asked often whether the run is to end. `tell` gets its status about once a second.
    """

    def __init__(
        self, log: Log, home: str, capture: Capture, *, stopped: Callable[[], bool] = lambda: False,
        tell: Callable[[CaptureStatus], None] = lambda status: None,
    ) -> None:  # fmt: skip
        self._home = home
        self._clock = log.clock
        self._capture = capture
        self._stopped = stopped
        self._tell = tell
        self._log = CaptureLog(log, capture)
        self._store = RowStore(Path(home, "captures", capture.name, "rows.sqlite"))
        self._files = StatusFile(home, capture.name)
        self._activity = CaptureActivity(log, capture.name, capture.source.shown)
        self._tables = {one.name: one for one in capture.source.tables}
        # Keys and changes of each table in the open transaction of the log, and the tables that it truncated before them.
        self._pending: dict[str, list[tuple[pa.RecordBatch, pa.Array]]] = {}
        self._emptied: set[str] = set()
        self._noted_at = self._told_at = self._looked_at = 0.0
        # When the next changes are to be read.
        self._next_at = 0.0
        self._changes = 0
        self._rate = SnapshotRate()
        self._error = ""
        # Whether this run has reached the source.
        self._opened = False
        # At its first start of this run a table is read again, if the capture says so; not after a reconnect.
        self._started = False

    # The run

    def run(self, until: Literal["stopped", "idle"] = "stopped") -> None:
        """Run until it is stopped, or until all changes made before its start are in the log."""
        pause = PAUSE_SECONDS_MIN
        self._activity.found(self._files.read())
        try:
            while not self._stopped():
                try:
                    if self._connected(until):
                        break
                except Unavailable as error:
                    if (until == "idle" and not self._started) or (is_refused(error) and not self._opened):
                        raise
                    self._forget()
                    self._error = cause_of(error)
                    LOGGER.warning('capture "%s" waits: %s', self._capture.name, self._error)
                    self._activity.waits(error)
                    self._report(None, None, "waiting")
                    self._sleep(pause)
                    pause = min(2 * pause, PAUSE_SECONDS_MAX)
                else:
                    pause = PAUSE_SECONDS_MIN
        except BaseException as error:
            self._error = "" if isinstance(error, KeyboardInterrupt) else cause_of(error)
            self._forget()
            self._report(None, None, "stopped" if isinstance(error, KeyboardInterrupt) else "failed")
            if isinstance(error, KeyboardInterrupt):
                self._activity.ended(self._log.position)
            else:
                self._activity.failed(error)
            raise
        else:
            self._report(None, None, "stopped")
            self._activity.ended(self._log.position)
        finally:
            self._store.close()

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._stopped() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    def _forget(self) -> None:
        self._log.abort()
        self._store.rollback()
        self._pending, self._emptied = {}, set()

    def _connected(self, until: str) -> bool:
        """Stream over one connection; True if the run is to end."""
        connection = self._capture.source.open(self._capture.name, self._home)
        self._opened = True
        try:
            known = self._log.position
            snapshots = self._begin(connection)
            self._activity.works(known)
            self._take_requests(connection, snapshots)
            target = connection.now() if until == "idle" else None
            while not self._stopped():
                busy = self._step(connection, snapshots)
                wait = (
                    0.0 if busy else SHORT_WAIT_SECONDS if snapshots.pending and not snapshots.paused else WAIT_SECONDS
                )
                if target is not None:
                    wait = min(wait, SHORT_WAIT_SECONDS)
                elif not busy:
                    self._sleep(self._next_at - time.monotonic())
                for event in connection.read(wait):
                    self._handle(event, connection, snapshots)
                self._error = ""
                self._take_requests(connection, snapshots)
                self._report(connection, snapshots, "running")
                # A paused snapshot is waited for by nobody.
                caught_up = (snapshots.paused or not snapshots.pending) and not self._log.is_open
                if target is not None and caught_up and connection.has_reached(target):
                    return True
            return True
        finally:
            connection.close()

    def _step(self, connection: SourceConnection, snapshots: Snapshots) -> bool:
        """Read tables, and look whether they changed; False if only the stream can go on."""
        if self._log.is_open:
            return False
        if time.monotonic() - self._looked_at > LOOK_SECONDS:
            self._look(connection, snapshots)
        try:
            busy = snapshots.step()
        except TableMoved:
            self._look(connection, snapshots)
            return True
        if busy:
            self._commit(None, ())
        return busy

    def _look(self, connection: SourceConnection, snapshots: Snapshots) -> None:
        """Some changes of a table are not in the stream, or only with its next row."""
        self._looked_at = time.monotonic()
        if tables := connection.changed_tables():
            for table in tables:
                self._table_changed(table, snapshots)
            self._commit(None, ())
            snapshots.note_committed(())

    def _begin(self, connection: SourceConnection) -> Snapshots:
        """Make topics, find the position, and start the stream there."""
        # Before anything is decided by a position that a newer run may have passed.
        self._log.producer.run.check()
        described = connection.tables()
        known = self._log.position
        source = self._log.state.get("source")
        lost = False
        if known is not None or source is not None:
            try:
                if known is None:
                    # It was noted with the source; a capture that did not run for so long has none to be compared.
                    raise lost_position(
                        self._capture.name, self._capture.source.shown, "its last position", "it is no longer kept"
                    )
                connection.check_position(known, source or {}, self._log.appended)
            except PositionLost as error:
                if not self._capture.snapshot_when_lost:
                    raise
                self._check_own(connection)
                LOGGER.warning('capture "%s" reads its tables again: %s', self._capture.name, error.summary)
                connection.drop()
                self._log.begin_history()
                lost = True
        else:
            self._check_own(connection)
        begins = connection.prepare()
        position = begins if known is None or lost else known
        self._log.note("source", dict(connection.identity))
        snapshots = Snapshots(
            self._log, connection, self._tables, paused=bool(self._log.state.get("paused")), apply=self._store.apply
        )
        for name in list(self._log.state):
            kind, _, table_name = name.partition(":")
            if kind in ("table", "snapshot") and table_name not in self._tables:
                # Not captured any more; if it is captured again, it is read again.
                if kind == "table":
                    self._log.note(f"read:{self._log.state[name]['settings']['topic']}", None)
                self._log.note(name, None)
        for table in described:
            if table.name in self._tables:
                self._begin_table(table, snapshots, lost=lost)
        self._started = True
        self._commit(position if position != known else None, ())
        snapshots.note_committed(())
        connection.start(position)
        return snapshots

    def _check_own(self, connection: SourceConnection) -> None:
        """What another home may read is neither read nor dropped."""
        if not connection.is_own(self._log.state.get("source") or {}):
            raise of_another_home(
                self._capture.name, self._capture.source.shown, connection.identity["slot"], self._home
            )

    def _begin_table(self, table: SourceTable, snapshots: Snapshots, *, lost: bool) -> None:
        captured = self._tables[table.name]
        before = self._log.state.get(f"table:{table.name}")
        reason = ""
        if before is None:
            reason = "" if self._capture.snapshot == "none" else "initial"
        elif lost:
            reason = "changes were lost"
        elif self._capture.snapshot == "again" and not self._started and snapshots.progress(table.name) is None:
            reason = "again"
        settings = self._settings(table.name)
        # Nothing that another topic holds can contradict the table.
        moved = before is not None and before["settings"]["topic"] != settings["topic"]
        changed = self._changed_reason(table, None if moved else before)
        if before is not None and before["settings"] != settings:
            changed = "its settings changed"
        topic = self._log.make_topic(captured, table)
        self._store.catch_up(table.name, topic)
        self._log.note(f"table:{table.name}", self._describe(table))
        if reason or changed:
            snapshots.request(table.name, reason or changed)

    def _changed_reason(self, table: SourceTable, before: Mapping[str, Any] | None) -> str:
        """Why a table must be read again after its columns changed; raises `Invalid` if it cannot go on."""
        if before is None:
            return ""
        if before["identity"] != table.identity:
            return "the table was made again"
        columns = {name: (number, data_type) for name, number, data_type, _ in before["columns"]}
        versions = {name: version for name, _, _, version in before["columns"]}
        check_renamed(table, {number: name for name, (number, _) in columns.items()})
        reason = "a column was renamed" if table.renamed else ""
        if any(one not in table.parts for one in before["parts"]):
            reason = "a partition was detached"
        elif any(not table.parts[one][0] for one in table.parts if one not in before["parts"]):
            reason = "a partition was attached"
        elif any(before["parts"].get(one, part)[1] != part[1] for one, part in table.parts.items()):
            reason = "a partition was written anew"
        for column in table.columns:
            if column.name not in columns:
                if column.filled or before["storage"] != table.storage:
                    reason = f'column "{column.name}" was added with a value'
                elif column.name in self._log.columns(self._tables[table.name]):
                    reason = f'column "{column.name}" was dropped and added again'
            elif columns[column.name] != (column.number, column.shown_type):
                reason = f'the type of column "{column.name}" changed'
            elif before["storage"] != table.storage and versions[column.name] != column.version:
                # A truncate moves the rows too, but leaves the columns as they are.
                reason = f'the values of column "{column.name}" changed'
        return reason

    def _describe(self, table: SourceTable) -> dict[str, Any]:
        """A table as the state has it."""
        return {
            "columns": [[column.name, column.number, column.shown_type, column.version] for column in table.columns],
            "key": list(table.key),
            "storage": table.storage,
            "identity": table.identity,
            "parts": {name: list(part) for name, part in table.parts.items()},
            "settings": self._settings(table.name),
        }

    def _settings(self, table: str) -> dict[str, Any]:
        """What decides which of a table's rows and values are in its topic."""
        captured = self._tables[table]
        shown = captured.to_json()
        return {
            "topic": captured.topic(self._capture.name),
            **{name: shown[name] for name in ("where", "before")},
            **{name: list(shown[name] or ()) for name in ("columns", "masked")},
        }

    # Events

    def _handle(self, event: Event, connection: SourceConnection, snapshots: Snapshots) -> None:
        match event:
            case Changes():
                if event.table == self._capture.source.outbox:
                    OutboxRelay(self._log).append(event)
                    return
                self._append(event, connection, snapshots)
            case Truncated():
                # Of the outbox: messages are inserts, and those before it are relayed.
                if event.table != self._capture.source.outbox:
                    self._truncate(event, snapshots)
            case TableChanged():
                self._table_changed(event.table, snapshots)
            case Committed():
                self._commit(event.position, event.transactions)
                snapshots.note_committed(event.transactions)
                connection.confirm(event.position)
            case Reached():
                # What is not captured, and positions alone, are noted now and then: each is a transaction of the log.
                if time.monotonic() - self._noted_at > NOTE_SECONDS and not self._log.is_open:
                    self._commit(event.position, ())
                    connection.confirm(event.position)

    def _commit(self, position: str | None, transactions: Any) -> None:
        if len(transactions) >= GATHERED_MIN:
            self._next_at = time.monotonic() + GATHER_SECONDS
        reach("capture_before_commit")
        self._log.commit(position, transactions)
        reach("capture_after_commit")
        self._store.commit(self._log.topic(table) for table in self._tables)
        self._changes += sum(sum(one.changes.values()) for one in transactions)
        self._pending, self._emptied = {}, set()
        if position is not None:
            self._noted_at = time.monotonic()

    def _append(self, changes: Changes, connection: SourceConnection, snapshots: Snapshots) -> None:
        topic = self._log.topic(changes.table)
        snapshots.note(changes)
        key = topic.settings.key
        columns = dict(changes.columns)
        kept = None
        if changes.unchanged:
            kept = self._fill(changes, columns, connection)
        self._store.apply(changes.table, key, columns, changes.change)
        columns["origin"] = changes.origin
        if changes.before is not None:
            columns["before"] = changes.before
        change, headers = changes.change, changes.headers
        if kept is not None and not kept.all():
            wanted = pa.array(kept)
            columns = {name: array.filter(wanted) for name, array in columns.items()}
            change, headers = change.filter(wanted), None if headers is None else headers.filter(wanted)
        self._log.append(topic, columns, change, headers)
        keys = pa.RecordBatch.from_arrays([columns[name] for name in key], names=list(key))
        self._pending.setdefault(changes.table, []).append((keys, change))

    def _fill(self, changes: Changes, columns: dict[str, pa.Array], connection: SourceConnection) -> Any:
        """Put in the values that the source did not send because they did not change: from an earlier row of this batch,
        from the store, or from the source. Returns which rows are kept: a row that is gone from the source is left out,
        its deletion follows in the stream."""
        key = self._log.topic(changes.table).settings.key
        keys = [key_text(one) for one in zip(*(columns[name].to_pylist() for name in key), strict=True)]
        lacking = np.logical_or.reduce(list(changes.unchanged.values()))
        kinds = changes.change.to_pylist()
        values = {name: columns[name].to_pylist() for name in changes.unchanged}
        last: dict[str, int] = {}
        kept = np.ones(len(keys), np.bool_)
        for number, one in enumerate(keys):
            if lacking[number]:
                # After a change of the key, the former row is that of the deletion before it.
                former = (
                    keys[number - 1] if kinds[number] == "insert" and number and kinds[number - 1] == "delete" else one
                )
                names = [name for name, mask in changes.unchanged.items() if mask[number]]
                found = self._former(changes, former, last, names, values, columns, connection, number)
                if found is None:
                    kept[number] = False
                    continue
                for name in names:
                    values[name][number] = found[name]
            if kinds[number] != "delete":
                last[one] = number
        for name in changes.unchanged:
            columns[name] = pa.array(values[name], columns[name].type)
        return kept

    def _former(
        self, changes: Changes, former: str, last: Mapping[str, int], names: list[str],
        values: Mapping[str, list[Any]], columns: Mapping[str, pa.Array], connection: SourceConnection, number: int,
    ) -> dict[str, Any] | None:  # fmt: skip
        if former in last:
            return {name: values[name][last[former]] for name in names}
        stored = self._store.find(changes.table, former)
        if stored is not None and all(name in stored for name in names):
            return {name: decoded(stored[name], columns[name].type) for name in names}
        own = self._log.topic(changes.table).settings.key
        row = pa.RecordBatch.from_arrays([columns[name].slice(number, 1) for name in own], names=list(own))
        found = connection.find_rows(changes.table, row, names).to_pylist()
        return found[0] if found else None

    def _truncate(self, event: Truncated, snapshots: Snapshots) -> None:
        """A deletion of each key that there is."""
        topic = self._log.topic(event.table)
        snapshots.note_truncated(event.table, event.origin["transaction"])
        key = list(topic.settings.key)
        stored = topic.settings.stored_schema
        parts = [_keys_and_changes(self._pending.get(event.table, []), stored, key)]
        if event.table not in self._emptied:
            known = topic.to_arrow(columns=key)
            change = pc.struct_field(known.column("record"), "change")
            parts.insert(0, pa.table([*(known.column(name) for name in key), change], names=[*key, "change"]))
        # Of another truncate in this transaction of the log, these are not read again.
        self._emptied.add(event.table)
        self._pending[event.table] = []
        live = _live(pa.concat_tables([part.cast(parts[-1].schema) for part in parts]), key)
        count = len(live)
        origin = pa.array([dict(event.origin)] * count, stored.field("origin").type)
        columns = {name: live.column(name).combine_chunks() for name in key}
        self._store.clear(event.table)
        self._log.append(topic, {**columns, "origin": origin}, pa.repeat(pa.scalar("delete"), count), None)

    def _table_changed(self, table: SourceTable, snapshots: Snapshots) -> None:
        before = self._log.get(f"table:{table.name}")
        if table.name not in self._tables or (self._describe(table) == before and not table.renamed):
            return
        reason = self._changed_reason(table, before)
        if before is not None and list(table.key) != before["key"]:
            raise changed_key(self._tables[table.name], before["key"], table.key)
        self._log.make_topic(self._tables[table.name], table)
        self._log.note(f"table:{table.name}", self._describe(table))
        if reason:
            snapshots.request(table.name, reason)

    # Requests and reports

    def _take_requests(self, connection: SourceConnection, snapshots: Snapshots) -> None:
        """What a user asked for: a snapshot of tables, a pause of it, or to go on with it; what a check asks for."""
        if self._log.is_open:
            return
        requests = self._files.requests()
        for request in requests.values():
            match request["kind"]:
                case "snapshot":
                    where = request.get("where")
                    for table in request["tables"] or self._tables:
                        if table not in self._tables:
                            continue
                        if where is not None and (said := snapshots.refusal(table, where)):
                            LOGGER.warning(
                                'capture "%s" reads no snapshot of "%s" where %s: %s',
                                self._capture.name,
                                table,
                                where,
                                said,
                            )
                            continue
                        snapshots.request(table, "asked for", where)
                case "repair":
                    if request["table"] in self._tables:
                        snapshots.request(request["table"], "repair", keys=request["keys"])
                case "position":
                    # The next one is noted at once; the server is asked for it.
                    self._noted_at = 0.0
                    connection.has_reached(connection.now())
                case "pause" | "resume":
                    snapshots.paused = request["kind"] == "pause"
                    self._log.note("paused", snapshots.paused or None)
        if requests:
            self._commit(None, ())
            snapshots.note_committed(())
        for path in requests:
            path.unlink(missing_ok=True)

    def _report(self, connection: SourceConnection | None, snapshots: Snapshots | None, state: str) -> None:
        now = time.monotonic()
        if connection is not None and now - self._told_at < STATUS_SECONDS:
            return
        self._told_at = now
        health = None if connection is None else connection.health()
        progress: dict[str, dict[str, Any]] = {}
        if snapshots is not None and connection is not None:
            for table in snapshots.pending:
                found = snapshots.progress(table)
                assert found is not None
                progress[table] = {"rows": found["rows"], "of": connection.count_rows(table), "reason": found["reason"]}
            self._rate.estimate(progress, now)
        status = CaptureStatus.of(
            self._capture, state, self._log.position, self._changes, health, progress, self._error,
            paused=bool(snapshots and snapshots.paused), now=self._clock.now(),
        )  # fmt: skip
        self._files.write(status)
        self._tell(status)


def _keys_and_changes(pending: list[tuple[pa.RecordBatch, pa.Array]], schema: pa.Schema, key: list[str]) -> pa.Table:
    empty = pa.schema([*(schema.field(name) for name in key), ("change", pa.string())]).empty_table()
    tables = [pa.table([*keys.columns, change], names=[*key, "change"]) for keys, change in pending]
    return pa.concat_tables([empty, *(table.cast(empty.schema) for table in tables)])


def _live(rows: pa.Table, key: list[str]) -> pa.Table:
    """The keys whose last row is no deletion."""
    last = aligned(rows).group_by(key, use_threads=False).aggregate([("change", "last")])
    return last.filter(pc.not_equal(last.column("change_last"), "delete")).select(key)
