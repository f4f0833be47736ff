"""OutboxRelay: messages of an outbox, read from the source's log, go into their topics.

Messages become records in the transaction of the log that also has the position of the capture: each once, and in each
topic in the order of commits. A message that its topic does not accept is put into the topic of rejected messages, with
the reason; those around it are not affected.

The row of a message is JSON; `json_reader` reads each value as a value of its column. Its key, if it has one:

    the topic has a key     columns of the key that the row lacks are set from it; those that the row has must be equal
    the topic has none      it is the header "key"
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from mainstem.capture.capture_log import CaptureLog
from mainstem.capture.outbox_table import OUTBOX_COLUMNS
from mainstem.capture.source import Changes
from mainstem.errors import Invalid, NotFound, summary_of
from mainstem.log.record import ORIGIN
from mainstem.log.rows.plain_values import NotAValue, Reader, has_decimals, json_reader, parse_json
from mainstem.log.rows.rows import check_rows
from mainstem.log.topic import Topic
from mainstem.log.topic_settings import TopicSettings
from mainstem.names import check_name

__all__ = ["OutboxRelay"]

# Rows of one append.
ROWS_MAX = 5_000
BYTES_MAX = 8 << 20


@dataclass(frozen=True)
class Message:
    """A message as its table had it."""

    id: str
    topic: str
    key: str | None
    payload: str
    headers: str | None
    position: str


class Refused(Exception):
    """Why a message is rejected."""


class OutboxRelay:
    """Appends messages as a part of the capture's transaction."""

    def __init__(self, log: CaptureLog) -> None:
        self._log = log
        self._captured = set(log.capture.topics.values())

    def append(self, changes: Changes) -> None:
        """Append the inserted messages; their deletion is a part of the outbox and no message. A header of the source says
        why a row is no message."""
        wanted = pc.equal(changes.change, "insert")
        columns = [changes.columns[name].filter(wanted).to_pylist() for name in OUTBOX_COLUMNS]
        positions = changes.origin.field("position").filter(wanted).to_pylist()
        said = [None] * len(positions) if changes.headers is None else changes.headers.filter(wanted).to_pylist()
        by_topic: dict[str, list[Message]] = {}
        refused: list[tuple[Message, str]] = []
        for message_id, topic, key, payload, headers, position, reason in zip(*columns, positions, said, strict=True):
            message = Message(message_id or "", topic or "", key, payload or "", headers, position)
            if reason:
                refused.append((message, reason[0]["value"].decode()))
            else:
                by_topic.setdefault(message.topic, []).append(message)
        self._reject(refused)
        for name, messages in by_topic.items():
            try:
                topic = self._open(name)
            except Refused as error:
                self._reject([(message, str(error)) for message in messages])
            else:
                for piece in _pieces(messages):
                    self._append_to(topic, piece)

    def _open(self, name: str) -> Topic:
        try:
            check_name(name)
            topic = self._log.outbox_topic(name)
        except (Invalid, NotFound) as error:
            raise Refused(summary_of(error)) from error
        schema = topic.settings.schema
        if name in self._captured or ("origin" in schema.names and schema.field("origin").type.equals(ORIGIN)):
            raise Refused(f'topic "{name}" has the rows of a captured table')
        return topic

    def _append_to(self, topic: Topic, messages: Sequence[Message]) -> None:
        parser = MessageParser(topic.settings)
        rejected: list[tuple[Message, str]] = []
        read: list[tuple[Message, dict[str, Any]]] = []
        for message in messages:
            try:
                read.append((message, parser.row(message)))
            except Refused as error:
                rejected.append((message, str(error)))
        fitting = _fitting(read, topic.settings, rejected)
        if fitting:
            try:
                self._log.append_rows(topic, [row for _, row in fitting])
            except (Invalid, NotFound) as error:
                # The topic was altered or dropped since it was opened. Nothing of the append was written.
                rejected += [(message, summary_of(error)) for message, _ in fitting]
        self._reject(rejected)

    def _reject(self, messages: Sequence[tuple[Message, str]]) -> None:
        if not messages:
            return
        topic = self._log.rejected()
        # Each of the six texts may have a share of the largest record; what is longer is cut, and the reason says so.
        limit = topic.settings.record_bytes_max // 7
        rows = []
        for message, reason in messages:
            fields = {**{name: getattr(message, name) for name in OUTBOX_COLUMNS}, "reason": reason}
            cut = ""
            for name, value in fields.items():
                size = 0 if value is None else len(data := value.encode("utf-8", "replace"))
                if size > limit:
                    fields[name] = data[:limit].decode("utf-8", "ignore")
                    cut += f"; {name} was cut from {size} to {limit} bytes"
            rows.append({**fields, "reason": fields["reason"] + cut, "position": message.position})
        for first in range(0, len(rows), ROWS_MAX):
            self._log.append_rows(topic, rows[first : first + ROWS_MAX])


class MessageParser:
    """Reads the messages for one topic."""

    def __init__(self, settings: TopicSettings) -> None:
        self._settings = settings
        self._readers: dict[str, Reader] = {
            field.name: json_reader(field.type, field.name) for field in settings.stored_schema
        }
        self._exact = any(has_decimals(field.type) for field in settings.stored_schema)

    def row(self, message: Message) -> dict[str, Any]:
        """The row of a message with its headers; raises `Refused`."""
        given = self._parse(message.payload, "payload")
        if not isinstance(given, dict):
            raise Refused("the payload is not a JSON object")
        if "record" in given:
            raise Refused('the row has a column "record", which is reserved')
        row = self._read(given)
        headers = [{"key": "id", "value": message.id.encode("utf-8", "replace")}]
        if message.key is not None:
            headers += self._key(message.key, row)
        self._check_there(row)
        if message.headers is not None:
            headers += list(_headers(self._parse(message.headers, "headers")))
        row["record"] = {"change": "insert", "headers": headers}
        return row

    def _check_there(self, row: Mapping[str, Any]) -> None:
        """As `check_rows` asks it of the rows of an append together: which messages are appended together must not
        matter."""
        times = (self._settings.event_time,) if self._settings.event_time else ()
        for role, names in (("key", self._settings.key), ("event time", times)):
            if names and not any(name in row for name in names):
                raise Refused(f'column "{names[0]}" is missing, the {role} of topic "{self._settings.name}"')

    def _parse(self, text: str, what: str) -> Any:
        try:
            return parse_json(text, exact=self._exact)
        except (ValueError, RecursionError) as error:
            raise Refused(f"the {what} is not JSON: {error}") from error

    def _read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        try:
            # An unknown column is passed on: the topic refuses it.
            return {
                name: self._readers[name](value) if name in self._readers else value for name, value in given.items()
            }
        except NotAValue as error:
            raise Refused(str(error)) from error

    def _key(self, text: str, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Put the key into the row; the headers that it becomes in a topic without a key."""
        value, names = self._parse(text, "key"), self._settings.key
        if not names:
            shown = value if isinstance(value, str) else text
            return [{"key": "key", "value": shown.encode("utf-8", "replace")}]
        given = value if isinstance(value, dict) else {names[0]: value} if len(names) == 1 else None
        if given is None or not given.keys() <= set(names):
            raise Refused(f"the key of the message is {text}, that of the topic has the columns {', '.join(names)}")
        for name, part in self._read(given).items():
            if row.get(name) is None:
                row[name] = part
            elif row[name] != part:
                raise Refused(f'column "{name}" of the row is {row[name]!r}, but {part!r} in the key of the message')
        return []


def _headers(given: Any) -> Iterator[dict[str, Any]]:
    pairs = given.items() if isinstance(given, dict) else given
    if not isinstance(given, dict | list):
        raise Refused("the headers are neither a list nor an object")
    for pair in pairs:
        name, value = pair if isinstance(pair, list | tuple) and len(pair) == 2 else (None, None)
        if isinstance(value, dict) and isinstance(value.get("base64"), str):
            try:
                data = base64.b64decode(value["base64"], validate=True)
            except binascii.Error as error:
                raise Refused(f'header "{name}" is not base64') from error
        elif isinstance(value, str):
            data = value.encode("utf-8", "replace")
        else:
            raise Refused("a header is not a pair of a name and a text")
        if not isinstance(name, str):
            raise Refused("the name of a header is not text")
        yield {"key": name, "value": data}


def _pieces(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Messages for one append each, at least one."""
    first = size = 0
    for number, message in enumerate(messages):
        if number > first and (number - first >= ROWS_MAX or size + len(message.payload) > BYTES_MAX):
            yield messages[first:number]
            first, size = number, 0
        size += len(message.payload)
    if messages:
        yield messages[first:]


def _fitting(
    read: Sequence[tuple[Message, dict[str, Any]]], settings: TopicSettings, rejected: list[tuple[Message, str]]
) -> list[tuple[Message, dict[str, Any]]]:
    """The messages whose rows fit the topic; the others are added to `rejected`. Halves of what does not fit are tried,
    so that one wrong message among thousands costs little."""
    if not read:
        return []
    try:
        check_rows([row for _, row in read], settings)
    except Invalid as error:
        if len(read) == 1:
            rejected.append((read[0][0], summary_of(error).removeprefix("row 0: ")))
            return []
        middle = len(read) // 2
        return [*_fitting(read[:middle], settings, rejected), *_fitting(read[middle:], settings, rejected)]
    return list(read)
