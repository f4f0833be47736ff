"""OpenTransaction: a Kafka transaction under way in this process, and what it is going to say when it is committed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mainstem.errors import Fenced
from mainstem.log.kafka.kafka_messages import TRANSACTION_HEADER, Outgoing
from mainstem.log.kafka.kafka_writer import Ranges, TransactionalWriter
from mainstem.log.kafka.transaction_notes import WrittenSpans

if TYPE_CHECKING:
    from mainstem.log.kafka.named_writer import NamedWriter

__all__ = ["OpenTransaction"]


@dataclass
class OpenTransaction:
    """For one thread, as `Transaction` is."""

    id: int
    writer: TransactionalWriter
    # By the log's monotonic clock; the broker has the same time by its own.
    deadline: int
    slot: int
    named: NamedWriter | None = None
    groups: list[tuple[str, str]] = field(default_factory=list)
    # By key in the commits topic: written at the very end, so that nobody waits for them for long.
    says: dict[str, dict[str, Any]] = field(default_factory=dict)
    said: bool = False
    spans: WrittenSpans = field(default_factory=WrittenSpans)
    asked: bool = False
    # What `named` is to know once this is committed.
    sequences: dict[str, dict[str, Any]] = field(default_factory=dict)
    over: bool = False

    def check(self, now: int) -> None:
        if self.over or now > self.deadline:
            raise self.fenced()

    def fenced(self) -> Fenced:
        return Fenced(
            f"transaction {self.id} is over",
            detail="It took longer than its timeout, or a newer run of its producer was opened; nothing of it is there.",
            hint="Begin another one, with a longer timeout if it needs one.",
        )

    def send(self, topic: str, topic_id: str, messages: Mapping[int, Sequence[Outgoing]], milliseconds: int) -> Ranges:
        try:
            offsets = self.writer.send(topic, self._named_first(topic_id, messages), milliseconds)
            self.spans.add(topic_id, offsets, sum(map(len, messages.values())))
            return offsets
        except Fenced as error:
            self.over = True
            if self.named is not None:
                self.named.run_check()
            raise self.fenced() from error

    def _named_first(self, topic_id: str, messages: Mapping[int, Sequence[Outgoing]]) -> dict[int, list[Outgoing]]:
        """The messages; the first one of the transaction in each partition says whose it is."""
        own = (TRANSACTION_HEADER, str(self.id).encode())
        found = {number: list(parts) for number, parts in messages.items()}
        for number, parts in found.items():
            if parts and not self.spans.has(topic_id, number):
                parts[0] = parts[0]._replace(headers=[*(parts[0].headers or ()), own])
        return found

    def says_messages(self) -> list[Outgoing]:
        return [Outgoing(key.encode(), json.dumps(value).encode(), None) for key, value in self.says.items()]
