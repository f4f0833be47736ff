"""Copies a topic from one log to another, embedded or on Kafka, and compares both afterwards.

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

# The number of rows of one append.
ROWS = 5_000


@dataclass(frozen=True, slots=True)
class CopiedPartition:
    """A partition and its copy: the number of records, their checksum, and whether their offsets are equal."""

    partition: int
    records: int
    checksum: str
    same_offsets: bool


@dataclass
class _Sum:
    """A checksum over rows that does not depend on their batches."""

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
    # No headers and an empty list of headers are equal.
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
        copied = _count_copied(source, target, number, stop)
        for batch in _batches(source, number, stop):
            before.add(batch)
            # Rows that the copy has already are skipped.
            rest = batch.slice(min(copied, batch.num_rows))
            copied -= batch.num_rows - rest.num_rows
            if rest.num_rows:
                try:
                    checked = check_rows(rest, target.settings)
                except InvalidRows as error:
                    raise _copy_error(error, rest, source.name, number) from error
                target.backend.append(checked, partition=number)
            done += batch.num_rows
            progress(done)
        after = _Sum()
        for batch in _batches(target, number, None):
            after.add(batch)
        if (before.records, before.digest) != (after.records, after.digest):
            raise _difference_error(source, number, before, after)
        found.append(CopiedPartition(number, after.records, after.digest, before.offsets == after.offsets))
    return found


def _copy_error(error: InvalidRows, batch: pa.RecordBatch, topic: str, partition: int) -> InvalidRows:
    """The error with the record instead of the row of a batch."""
    row = error.row or 0
    return refused_record(
        batch, row, f'"{topic}" partition {partition}', "copied", error.summary.removeprefix(f"row {row}: "),
        column=error.column, detail=f"The copy has the records before it. {error.detail}",
        hint="Copy the topic by a program that leaves this record out or corrects it: topic.batches(), then append.",
    )  # fmt: skip


def _count_copied(source: Topic, target: Topic, number: int, stop: int) -> int:
    """The number of records in the copy; raises if they are not a prefix of the original, before more are appended."""
    there, here = _Sum(), _Sum()
    for batch in _batches(target, number, None):
        there.add(batch)
    for batch in _batches(source, number, stop):
        here.add(batch.slice(0, there.records - here.records))
        if here.records == there.records:
            break
    if (here.records, here.digest) != (there.records, there.digest):
        raise _difference_error(source, number, here, there)
    return there.records


def _difference_error(source: Topic, number: int, original: _Sum, copy: _Sum) -> Conflict:
    """The error that explains why they differ."""
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
    """The settings in another log: an embedded log has no codec, a log on Kafka no archive."""
    there = settings.to_json() | {"codec": codec, "archive": None}
    return TopicSettings.from_json(there)


def _batches(topic: Topic, partition: int, stop: int | None) -> Iterator[pa.RecordBatch]:
    moment = topic.backend.moment()
    first, end = moment.earliest(partition), moment.latest(partition)
    for batch in moment.read(partition, first, end if stop is None else min(stop, end), None):
        for start in range(0, batch.num_rows, ROWS):
            yield batch.slice(start, ROWS)
