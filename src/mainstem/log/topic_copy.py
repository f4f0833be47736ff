"""Copies a topic from one log to another, and compares them when it is done: embedded to Kafka, back, or alike.

Rows are appended in order, partition by partition, in plain appends: so at any time the copy has the first rows of the
original, and an interrupted copy continues where it ended. Offsets are the same where the original has no gaps
(dropped, compacted, or taken by markers) and neither side's codec has offsets of its own. Append times are new ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from mainstem.errors import Conflict, InvalidRows
from mainstem.log.rows.plain_values import column_values, json_line, plain_writer
from mainstem.log.rows.row_errors import refused_record
from mainstem.log.rows.rows import check_rows
from mainstem.log.topic import Topic
from mainstem.log.topic_settings import TopicSettings

if TYPE_CHECKING:
    from mainstem.log.log import Log

__all__ = ["CopiedPartition", "copy_topic"]

# Rows that are appended at once.
ROWS = 5_000


@dataclass(frozen=True, slots=True)
class CopiedPartition:
    """What a partition and its copy hold: how many records, the checksum over them, and whether their offsets are the same."""

    partition: int
    records: int
    checksum: str
    same_offsets: bool


@dataclass
class _Sum:
    """A checksum over rows that does not depend on how they are cut into batches."""

    records: int = 0

    def __post_init__(self) -> None:
        self._hash = hashlib.sha256()
        self._offsets = hashlib.sha256()

    def add(self, batch: pa.RecordBatch) -> None:
        record = batch.column("record")
        names = batch.schema.names[:-1]
        columns = [_values(batch.column(name)) for name in names]
        for values in zip(*columns, _values(record.field("change")), _values(record.field("headers")), strict=True):
            self._hash.update(json_line(values).encode() + b"\n")
        self._offsets.update(record.field("offset").to_numpy().tobytes())
        self.records += batch.num_rows

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:16]

    @property
    def offsets(self) -> str:
        return self._offsets.hexdigest()


def _values(column: pa.Array) -> list[object]:
    # A record without headers and one with an empty list of them are the same.
    return [value or None if value == [] else value for value in column_values(column, plain_writer(column.type))]


def copy_topic(
    source: Topic, log: Log, *, codec: str | None = None, progress: Callable[[int], None] = lambda _: None
) -> list[CopiedPartition]:
    """Copy a topic's records into the topic of the same name in another log, which is created if it does not exist.

    Raises `Conflict` if the two differ at the end: another program has appended to the copy, or it is another topic.
    """
    settings = source.settings
    target = Topic(log, log.create_topic(_settings_for(settings, log, codec)))
    stops = {number: source.backend.latest(number) for number in range(settings.partitions)}
    done = 0
    found = []
    for number, stop in stops.items():
        before = _Sum()
        copied = _copied_before(source, target, number, stop)
        for batch in _batches(source, number, stop):
            before.add(batch)
            # What the copy has already is passed over.
            rest = batch.slice(min(copied, batch.num_rows))
            copied -= batch.num_rows - rest.num_rows
            if rest.num_rows:
                try:
                    checked = check_rows(rest, target.settings)
                except InvalidRows as error:
                    raise _not_copied(error, rest, source.name, number) from error
                target.backend.append(checked, partition=number)
            done += batch.num_rows
            progress(done)
        after = _Sum()
        for batch in _batches(target, number, None):
            after.add(batch)
        if (before.records, before.digest) != (after.records, after.digest):
            raise _differ(source, number, before, after)
        found.append(CopiedPartition(number, after.records, after.digest, before.offsets == after.offsets))
    return found


def _not_copied(error: InvalidRows, batch: pa.RecordBatch, topic: str, partition: int) -> InvalidRows:
    """The error with the record instead of the row of a batch."""
    row = error.row or 0
    return refused_record(
        batch, row, f'"{topic}" partition {partition}', "copied", error.summary.removeprefix(f"row {row}: "),
        column=error.column, detail=f"The copy has the records before it. {error.detail}",
        hint="Copy the topic by a program that leaves this record out or corrects it: topic.batches(), then append.",
    )  # fmt: skip


def _copied_before(source: Topic, target: Topic, number: int, stop: int) -> int:
    """How many records the copy has; raises if they are not the first ones of the original, before more are appended."""
    there, here = _Sum(), _Sum()
    for batch in _batches(target, number, None):
        there.add(batch)
    for batch in _batches(source, number, stop):
        here.add(batch.slice(0, there.records - here.records))
        if here.records == there.records:
            break
    if (here.records, here.digest) != (there.records, there.digest):
        raise _differ(source, number, here, there)
    return there.records


def _differ(source: Topic, number: int, original: _Sum, copy: _Sum) -> Conflict:
    """Why they do: what is known of the original says it."""
    facts = f"The original has {original.records} records with checksum {original.digest}, the copy {copy.records} with {copy.digest}."
    if source.settings.keep.compacted:
        reason = "The topic keeps the latest record per key: one of the two was compacted since the copy was begun."
        hint = "Delete the copy, and copy again."
    elif source.backend.earliest(number):
        reason = f"The original begins with offset {source.backend.earliest(number)}: records were dropped since the copy was begun."
        hint = "Delete the copy and copy again; or keep it as it is, with the older records."
    else:
        reason, hint = "", "Another program has written to the copy. Delete it, and copy again while none writes to it."
    return Conflict(
        f'partition {number} of topic "{source.name}" and its copy differ',
        detail=f"{facts} {reason}".strip(),
        hint=hint,
    )


def _settings_for(settings: TopicSettings, log: Log, codec: str | None) -> TopicSettings:
    """The same topic in another log: an embedded log has no codec, a log on Kafka no archive."""
    there = settings.to_json() | {"codec": codec, "archive": None}
    return TopicSettings.from_json(there)


def _batches(topic: Topic, partition: int, stop: int | None) -> Iterator[pa.RecordBatch]:
    moment = topic.backend.moment()
    first, end = moment.earliest(partition), moment.latest(partition)
    for batch in moment.read(partition, first, end if stop is None else min(stop, end), None):
        for start in range(0, batch.num_rows, ROWS):
            yield batch.slice(start, ROWS)
