"""check_capture: whether the topics of a capture have the rows of its tables, while both are written.

A chunk of a table is read as one moment of the source had it. For each key of it, the topic's record at that moment is the
last one whose transaction the chunk shows. So both are compared at one position, however far the capture is:

    source    chunk: sees T1, not T2                   a = 1
    topic     T1: a = 1 | T2: a = 2                    without T2: a = 1

The checksum of the chunk's rows is compared with that of the topic's records. Only where they differ are rows compared, and
a row that differs is not named yet: the capture may be behind. Those rows are read again, until the capture has passed the
position at which they were read. A difference is named when two rounds found the same record and the same row: a change
between them would have written the record anew. A key of the topic that no chunk had goes through the same rounds.

A key whose older records were compacted away while its last transaction is not visible yet cannot be compared: it is
undecided after the last round, and not named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from mainstem.capture.capture import Capture
from mainstem.capture.capture_log import RECENT, as_type, last_position, read_state
from mainstem.capture.capture_run import CaptureRun
from mainstem.capture.capture_status import StatusFile
from mainstem.capture.snapshots import CHUNK_KEYS
from mainstem.capture.source import Chunk, SourceConnection
from mainstem.capture.topic_history import HistoryRecord, TopicHistory, chunk_checksum, row_checksums
from mainstem.errors import Invalid, NotFound, TopicNotFound, Unavailable, did_you_mean
from mainstem.log.log import Log
from mainstem.log.topic import Topic

__all__ = ["CaptureCheck", "Difference", "TableCheck", "check_capture"]

CHUNK_ROWS = 20_000
# A key is read again so often until it is decided.
ROUNDS_MAX = 20
# More are repaired by a snapshot of the whole table: keys are a part of the capture's state until they are read.
REPAIRED_KEYS_MAX = 10_000
# A capture that runs and does not get further in this time is not waited for.
STUCK_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.02

MISSING, SURPLUS, DIFFERS = "missing in topic", "not in source", "differs"

_KeyText = tuple[str, ...]


@dataclass(frozen=True)
class Difference:
    """A row that the topic does not have as the source has it. `kind`: "missing in topic", "not in source" or "differs",
    then in these `columns`."""

    table: str
    key: Mapping[str, Any]
    kind: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableCheck:
    """What a check found in one table. `position`: up to which the source was read. `undecided`: keys that could not be
    compared. `repaired`: how many of the differences are repaired."""

    table: str
    topic: str
    rows: int
    chunks: int
    position: str
    differences: tuple[Difference, ...] = ()
    undecided: tuple[Mapping[str, Any], ...] = ()
    repaired: int = 0


@dataclass(frozen=True)
class CaptureCheck:
    """What a check of a capture found."""

    capture: str
    tables: tuple[TableCheck, ...]

    @property
    def differences(self) -> tuple[Difference, ...]:
        """The differences of all tables."""
        return tuple(one for table in self.tables for one in table.differences)

    @property
    def equal(self) -> bool:
        """Whether source and topics are equal now: nothing differs, or all of it is repaired."""
        return all(len(one.differences) == one.repaired and not one.undecided for one in self.tables)


def check_capture(
    log: Log, home: str, capture: Capture, *, tables: Sequence[str] | None = None, repair: bool = False
) -> CaptureCheck:
    """Compare the rows of captured tables with their topics, while the capture runs or by running it until it is idle.

    With `repair`, rows that differ are read again by the capture, and keys that the source does not have are deleted.
    Raises `Unavailable` for a table whose snapshot is not complete.
    """
    names = [one.name for one in capture.source.tables]
    for table in tables or ():
        if table not in names:
            raise Invalid(
                f'capture "{capture.name}" has no table "{table}"',
                detail=f"Its tables are: {', '.join(names)}.",
                hint=did_you_mean(table, names) or "Choose from these.",
            )
    progress = _Progress(log, home, capture)
    connection = capture.source.open(capture.name, home)
    try:
        progress.require_run()
        progress.pass_position(connection, connection.now())
        connection.tables()
        checks = []
        for table in tables or names:
            _refuse_unreadable(progress, capture, table)
            with _open_check(log, capture, table, connection, progress) as one:
                checks.append(one.run(repair=repair))
    finally:
        connection.close()
    return CaptureCheck(capture.name, tuple(checks))


def _refuse_unreadable(progress: _Progress, capture: Capture, table: str) -> None:
    if progress.is_read(table):
        raise Unavailable(
            f'the snapshot of table "{table}" is not complete',
            detail="Its topic does not have all rows yet, so they cannot be compared.",
            hint=f"Wait until it is, see: mainstem capture describe {capture.name}; a paused one is resumed by: mainstem capture "
            f"snapshot {capture.name} --resume",
        )
    captured = next(one for one in capture.source.tables if one.name == table)
    key = progress.key(table)
    if masked := next((one for one in captured.masked if one in key), None):
        raise Invalid(
            f'table "{table}" cannot be checked',
            detail=f'Column "{masked}" of its key is masked: rows of the topic cannot be looked up in the source.',
            hint="Check the other tables; a new snapshot repairs this one.",
        )


class _Progress:
    """How far the capture is: that of another process, or one of our own that runs until it is idle."""

    def __init__(self, log: Log, home: str, capture: Capture) -> None:
        self._log = log
        self._home = home
        self._capture = capture
        self.files = StatusFile(home, capture.name)
        self._next = 0
        self._known: set[int] = set()

    def require_run(self) -> None:
        """Raise `NotFound` if the capture has never run."""
        self._own("transactions")

    @property
    def runs(self) -> bool:
        """Whether a process runs the capture."""
        status = self.files.read()
        return status is not None and status.running

    def pass_position(self, connection: SourceConnection, position: str) -> None:
        """Wait until the capture has passed a position of the source."""
        last, asked, deadline = None, None, time.monotonic() + STUCK_SECONDS_MAX
        while self.runs:
            reached = last_position(self._own("transactions"))
            if reached is not None and not connection.precedes(reached, position):
                return
            now = time.monotonic()
            if reached != last:
                last, deadline = reached, now + STUCK_SECONDS_MAX
            if now > deadline:
                raise Unavailable(
                    f'capture "{self._capture.name}" does not get further',
                    detail=f"It is at {reached or 'no position'} since {STUCK_SECONDS_MAX:.0f} seconds; the source is at {position}.",
                    hint=f"See what it waits for: mainstem capture describe {self._capture.name}",
                )
            if asked is None or not asked.exists():
                asked = self.files.request("position")
            time.sleep(LOOK_SECONDS)
        CaptureRun(self._log, self._home, self._capture).run(until="idle")

    def shown_by(self, chunk: Chunk) -> Callable[[int], bool]:
        """Whether a record of a transaction counts: the chunk shows it, or the capture does not know it, since somebody
        else wrote the record."""
        self._read_transactions()
        found: dict[int, bool] = {}

        def shows(transaction: int) -> bool:
            if transaction not in found:
                found[transaction] = chunk.sees(transaction) or transaction not in self._known
            return found[transaction]

        return shows

    def _read_transactions(self) -> None:
        topic = self._own("transactions")
        start = max(self._next, topic.backend.earliest(0), topic.backend.latest(0) - RECENT)
        for batch in topic.batches(start={0: start}, columns=["transaction"]):
            self._known.update(one for one in batch.column("transaction").to_pylist() if one is not None)
            if len(batch):
                self._next = batch.column("record").field("offset")[-1].as_py() + 1

    def is_read(self, table: str) -> bool:
        """Whether a snapshot of a table is not complete."""
        return f"snapshot:{table}" in self._state()

    def key(self, table: str) -> Sequence[str]:
        """The key of a table."""
        found: Sequence[str] = self._state()[f"table:{table}"]["key"]
        return found

    def _state(self) -> dict[str, Any]:
        return read_state(self._own("state"))

    def _own(self, kind: str) -> Topic:
        try:
            return Topic(self._log, self._log.open_topic(self._capture.own_topic(kind)))
        except TopicNotFound as error:
            raise NotFound(
                f'capture "{self._capture.name}" has not run in this home',
                detail=f'Topic "{error.topic}" does not exist.',
                hint="Run it first; then its topics can be compared with the source.",
            ) from error


@contextmanager
def _open_check(
    log: Log, capture: Capture, table: str, connection: SourceConnection, progress: _Progress
) -> Iterator[_OneTable]:
    topic = Topic(log, log.open_topic(capture.topics[table]))
    described = next(one for one in connection.tables() if one.name == table)
    names = [column.name for column in described.columns if column.name in topic.settings.schema.names]
    history = TopicHistory(topic, names)
    try:
        yield _OneTable(table, topic, names, connection, progress, history)
    finally:
        history.close()


@dataclass
class _Disputed:
    """A key that is read again. `found`: the record of the topic and the row of the source in the last round."""

    text: _KeyText
    key: dict[str, Any]
    found: tuple[HistoryRecord | None, bytes | None] | None = None
    difference: Difference | None = None


@dataclass
class _Rows:
    """Rows of the source: checksums of keys and rows, and the rows themselves as columns."""

    keys: list[bytes]
    rows: list[bytes]
    columns: dict[str, pa.Array]

    def values(self, place: int, names: Sequence[str]) -> dict[str, Any]:
        return {name: self.columns[name][place].as_py() for name in names}


@dataclass
class _OneTable:
    """The check of one table."""

    table: str
    topic: Topic
    names: list[str]
    connection: SourceConnection
    progress: _Progress
    history: TopicHistory
    rows: int = 0
    chunks: int = 0
    position: str = ""
    disputed: dict[bytes, _Disputed] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(self.topic.settings.key)

    def run(self, *, repair: bool) -> TableCheck:
        self._compare_chunks()
        self._dispute_unlisted()
        named, undecided = self._decide(self.disputed)
        repaired = 0
        if named and repair:
            self._repair(named)
            left, unclear = self._decide({
                key: _Disputed(one.text, one.key) for key, one in named.items()
            })  # fmt: skip
            repaired = len(named) - len(left) - len(unclear)
        differences = [one.difference for one in named.values() if one.difference is not None]
        differences.sort(key=lambda one: tuple(map(str, one.key.values())))
        return TableCheck(
            self.table, self.topic.name, self.rows, self.chunks, self.position, tuple(differences),
            tuple(one.key for one in undecided.values()), repaired,
        )  # fmt: skip

    # The first pass

    def _compare_chunks(self) -> None:
        after: _KeyText | None = None
        while True:
            chunk = self.connection.read_chunk(self.table, after, CHUNK_ROWS)
            self.history.catch_up()
            self._compare_chunk(chunk)
            self.rows += chunk.rows
            self.chunks += 1
            self.position = chunk.position
            after = chunk.last
            if after is None:
                return

    def _compare_chunk(self, chunk: Chunk) -> None:
        there = self._checksums(chunk)
        self.history.list_keys(there.keys)
        shows = self.progress.shown_by(chunk)
        here = [self.history.record(key, shows)[0] for key in there.keys]
        checksums = [None if one is None else one.checksum for one in here]
        if chunk_checksum(checksums) == chunk_checksum(there.rows):
            return
        places = [place for place, row in enumerate(there.rows) if checksums[place] != row]
        keys = pa.RecordBatch.from_arrays([there.columns[name].take(pa.array(places)) for name in self.key], self.key)
        for place, text in zip(places, self.connection.key_texts(self.table, keys), strict=True):
            self.disputed[there.keys[place]] = _Disputed(text, there.values(place, self.key))

    def _checksums(self, chunk: Chunk) -> _Rows:
        schema = self.topic.settings.stored_schema
        columns = {name: as_type(chunk.columns[name], schema.field(name).type) for name in self.names}
        return _Rows(
            row_checksums([columns[name] for name in self.key]),
            row_checksums([columns[name] for name in self.names]),
            columns,
        )

    def _dispute_unlisted(self) -> None:
        """Keys of the topic that no chunk had."""
        schema = self.topic.settings.stored_schema
        for record in list(self.history.unlisted()):
            row = self.history.read(record, self.key)
            if row is None:
                # Compacted: a newer record of the key is in flight, or deletes it.
                continue
            key = {name: row[name] for name in self.key}
            arrays = [pa.array([key[name]], schema.field(name).type) for name in self.key]
            [text] = self.connection.key_texts(self.table, pa.RecordBatch.from_arrays(arrays, self.key))
            self.disputed[row_checksums(arrays)[0]] = _Disputed(text, key)

    # The rounds

    def _decide(self, disputed: Mapping[bytes, _Disputed]) -> tuple[dict[bytes, _Disputed], dict[bytes, _Disputed]]:
        """The keys that differ, and those that could not be decided."""
        named: dict[bytes, _Disputed] = {}
        left = dict(disputed)
        for _ in range(ROUNDS_MAX):
            keys = list(left)
            for start in range(0, len(keys), CHUNK_KEYS):
                for key in self._decide_some({key: left[key] for key in keys[start : start + CHUNK_KEYS]}):
                    if left[key].difference is not None:
                        named[key] = left[key]
                    del left[key]
            if not left:
                break
        return named, left

    def _decide_some(self, disputed: Mapping[bytes, _Disputed]) -> list[bytes]:
        """Read keys again; those that are decided now."""
        chunk, _ = self.connection.read_keys(self.table, [one.text for one in disputed.values()])
        self.progress.pass_position(self.connection, chunk.position)
        self.history.catch_up()
        self.position = chunk.position
        shows = self.progress.shown_by(chunk)
        there = self._checksums(chunk)
        places = {key: place for place, key in enumerate(there.keys)}
        decided = []
        for key, one in disputed.items():
            record, passed = self.history.record(key, shows)
            row = there.rows[places[key]] if key in places else None
            if (None if record is None else record.checksum) == row:
                decided.append(key)
            elif record is None and passed:
                # What it was before the transactions passed over may have been compacted.
                one.found = None
            elif one.found == (record, row):
                one.difference = self._name(one, record, there, places.get(key))
                decided.append(key)
            else:
                one.found = record, row
        return decided

    def _name(self, one: _Disputed, record: HistoryRecord | None, there: _Rows, place: int | None) -> Difference:
        if place is None:
            return Difference(self.table, one.key, SURPLUS)
        if record is None or record.checksum is None:
            return Difference(self.table, one.key, MISSING)
        here = self.history.read(record, self.names)
        row = there.values(place, self.names)
        columns = () if here is None else tuple(name for name in self.names if repr(here[name]) != repr(row[name]))
        return Difference(self.table, one.key, DIFFERS, columns)

    # Repairing

    def _repair(self, named: Mapping[bytes, _Disputed]) -> None:
        """Let the capture read the keys again, and wait until it has."""
        if len(named) <= REPAIRED_KEYS_MAX:
            request = self.progress.files.request("repair", table=self.table, keys=[one.text for one in named.values()])
        else:
            request = self.progress.files.request("snapshot", tables=[self.table])
        while self.progress.runs and (request.exists() or self.progress.is_read(self.table)):
            time.sleep(LOOK_SECONDS)
        # If nothing runs the capture, this does, and follows the request.
        self.progress.pass_position(self.connection, self.connection.now())
