"""Appends the rows of a file to a topic, batch by batch; `mainstem topic append` shows how far it is."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, TextIO

import pyarrow as pa

from mainstem.errors import IncompleteAppend, InvalidRows, MainstemError, SchemaMismatch
from mainstem.log.rows.plain_values import column_values, plain_writer
from mainstem.log.rows.row_errors import NOTHING_WRITTEN
from mainstem.log.rows.rows import check_rows
from mainstem.workbench.cli.error_text import with_facts
from mainstem.workbench.cli.row_files import RowBatch, RowFile, Rows
from mainstem.workbench.cli.terminal_table import show_count

if TYPE_CHECKING:
    from mainstem.log.append_result import AppendResult
    from mainstem.log.producer import Producer
    from mainstem.log.topic import Topic

__all__ = ["RejectedFile", "RowAppend", "interrupt_afterwards"]


# Delays Ctrl-C to the end of an append.


@contextmanager
def interrupt_afterwards() -> Iterator[None]:
    """Delays a Ctrl-C to the end of the block, so that the result is known; a second one takes effect at once."""
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread gets signals.
        yield
        return
    wanted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal wanted
        if wanted:
            raise KeyboardInterrupt
        wanted = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if wanted:
        raise KeyboardInterrupt


# Appends a file to a topic, batch by batch, each durable before the next.
#
# An invalid line stops the append: earlier batches are appended, nothing of its own batch is, and the error says how to
# continue. With a file for rejected lines, such lines go there, each with its reason, and the rest is appended:
#
#     {"line": 17, "reason": "line 17 is not JSON", "text": "{\"order_id\": "}
#
# With a producer, the number of a batch's last line is its sequence. A batch also ends with the last appended line, and
# with the last line of an interrupted batch: appending the same file again, or one that has grown since, completes that
# batch and appends each line once.


_ROW = re.compile(r"^row \d+")
# Rewrites parts of the topic's error messages, which are for Python programs.
_DECIMAL = re.compile(r"Decimal\('([^']*)'\)")
_IN_WORDS = (
    ("it, or None.", "it, or null."),
    (": see Topic.delete.", ': {"record": {"change": "delete"}}.'),
)


class RejectedFile(AbstractContextManager["RejectedFile"]):
    """The file for rejected lines; created with the first one, or appended to."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: TextIO | None = None

    def write(self, entries: list[dict[str, Any]]) -> None:
        """Add entries, synced when this returns: the rest of their batch is appended next."""
        if self._file is None:
            self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 - closed by __exit__
        # Escaped, so that bytes that are not text survive.
        self._file.writelines(json.dumps(entry) + "\n" for entry in entries)
        self._file.flush()
        os.fsync(self._file.fileno())

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


@dataclass
class RowAppend:
    """The append of one file: its progress and its messages."""

    topic: Topic
    source: RowFile
    producer: Producer | None = None
    rejected: RejectedFile | None = None
    start: int = 1

    rows: int = 0
    repeated: int = 0
    turned_away: int = 0
    # The line (or row) to continue with.
    next: int = field(default=1, init=False)
    token: str = field(default="", init=False)

    def steps(self) -> Iterator[RowBatch]:
        """Append the batches; yields each one after it is appended, for a display of the progress."""
        self.next = self.start
        # The last appended line, and the last line of an interrupted batch.
        done, incomplete = 0, None
        if self.producer is not None:
            done, incomplete = self.producer.last_sequence(self.topic), self.producer.incomplete_sequence(self.topic)
        for batch in self._batches({done, incomplete or 0}):
            with interrupt_afterwards():
                # The last one is repeated: one written by an older version may be incomplete.
                if batch.last < done:
                    self.repeated += len(batch.numbers)
                else:
                    try:
                        self._append(batch)
                    except MainstemError as error:
                        raise self._explain(error, batch) from error
                self.next = batch.last + 1
            yield batch

    def _batches(self, cuts: set[int]) -> Iterator[RowBatch]:
        # Pauses of a pipe differ from run to run, but with a producer the batches must not.
        pauses: Literal["cut", "ignore"] = "cut" if self.producer is None else "ignore"
        try:
            yield from self.source.batches(start=self.start, cuts=cuts, pauses=pauses)
        except MainstemError as error:
            raise self._explain(error) from error

    def _append(self, batch: RowBatch) -> None:
        if batch.bad:
            if self.rejected is None:
                raise batch.bad[0][2]
            self._reject([_entry(*bad) for bad in batch.bad])
        rows = batch.rows
        try:
            placed = self._place(rows, batch)
        except (InvalidRows, SchemaMismatch) as error:
            if self.rejected is None or _row_of(error) is None:
                raise
            rows = self._reject_invalid(batch)
            placed = self._place(rows, batch)
        if placed is not None:
            self.token = placed.token
            if placed.appended:
                self.rows += len(rows)
            else:
                self.repeated += len(rows)

    def _place(self, rows: Rows, batch: RowBatch) -> AppendResult | None:
        if not len(rows):
            return None
        if self.producer is not None:
            return self.producer.append(self.topic, rows, sequence=batch.last)
        return self.topic.append(rows)

    def _reject(self, entries: list[dict[str, Any]]) -> None:
        """Called before the rest of the batch is appended: after a crash a line may be there twice, but none is
        missing."""
        assert self.rejected is not None
        self.rejected.write(entries)
        self.turned_away += len(entries)

    def _reject_invalid(self, batch: RowBatch) -> Rows:
        """The valid rows; the others are rejected. Bisects the batch: a few invalid rows cost little."""
        settings = self.topic.settings
        entries: dict[int, dict[str, Any]] = {}

        def look(first: int, end: int) -> None:
            part = batch.rows[first:end]
            try:
                check_rows(part, settings)
            except (InvalidRows, SchemaMismatch) as error:
                if end - first == 1:
                    number = batch.numbers[first]
                    data = batch.texts[first] if batch.texts else part
                    entries[first] = _entry(number, data, self._name_line(error, number))
                    return
                middle = (first + end) // 2
                look(first, middle)
                look(middle, end)

        look(0, len(batch.numbers))
        self._reject(list(entries.values()))
        fitting = [index for index in range(len(batch.numbers)) if index not in entries]
        return [batch.rows[index] for index in fitting] if isinstance(batch.rows, list) else batch.rows.take(fitting)

    # Messages

    def _name_line(self, error: MainstemError, number: int) -> MainstemError:
        """The error with the line of the file instead of the row of the batch."""
        message = _DECIMAL.sub(r"\1", _ROW.sub(f"{self.source.unit} {number}", error.summary))
        detail, hint = error.detail, error.hint
        for python, words in _IN_WORDS:
            detail, hint = detail.replace(python, words), hint.replace(python, words)
        column = getattr(error, "column", "")
        renamed = type(error)(message, detail=detail, hint=hint, column=column, line=number)
        renamed.__cause__ = error.__cause__
        return renamed

    def _explain(self, error: MainstemError, batch: RowBatch | None = None) -> MainstemError:
        """The error with the line number, what was appended so far, and how to append the rest."""
        row = _row_of(error)
        if row is not None and batch is not None:
            error = self._name_line(error, batch.numbers[row])
        facts = error.detail.replace(NOTHING_WRITTEN, "").strip()
        if isinstance(error, IncompleteAppend) and batch is not None:
            facts += (
                f" The append was of {self.source.unit}s {batch.first} to {batch.last}; all earlier ones are appended."
            )
            way = "With --producer NAME the command can be repeated, and no line is appended twice."
            if self.producer is not None:
                way = "When the cause is fixed, repeat the command: no line is appended twice."
            return with_facts(error, detail=facts, hint=way)
        ways = [error.hint]
        if getattr(error, "line", None) is not None and self.rejected is None:
            ways.append("With --rejected FILE such lines go there and the rest is appended.")
        ways.append(self.resume_hint())
        return with_facts(error, detail=f"{facts} {self.progress_text()}".strip(), hint=" ".join(filter(None, ways)))

    def progress_text(self) -> str:
        """What was appended so far."""
        unit = self.source.unit
        if self.next == self.start:
            return NOTHING_WRITTEN if self.start == 1 else f"Nothing from {unit} {self.start} on was written."
        rows = show_count(self.rows + self.repeated, "row")
        return f'{unit.capitalize()}s {self.start} to {self.next - 1} are in topic "{self.topic.name}" ({rows}), none after.'

    def resume_hint(self) -> str:
        """The options to add to the same command to append the rest; empty if nothing was appended."""
        if self.next == self.start:
            return ""
        return f"Continue with: --from-line {self.next}"


def _row_of(error: MainstemError) -> int | None:
    row = getattr(error, "row", None)
    return row if isinstance(row, int) else None


def _entry(number: int, data: bytes | pa.RecordBatch, error: MainstemError) -> dict[str, Any]:
    reason = f"{error.summary}. {error.detail.replace(NOTHING_WRITTEN, '')}".strip()
    if isinstance(data, bytes):
        return {"line": number, "reason": reason, "text": data.decode("utf-8", "surrogateescape")}
    values = {
        name: column_values(column, plain_writer(column.type))[0]
        for name, column in zip(data.schema.names, data.columns, strict=True)
    }
    return {"row": number, "reason": reason, "values": values}
