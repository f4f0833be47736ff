"""OpenTransaction: a Kafka transaction under way in this process, and what it is going to say when it is committed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mainstem.errors import Fenced
from mainstem.log.kafka.kafka_messages import Outgoing
from mainstem.log.kafka.kafka_writer import Ranges, TransactionalWriter

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

    def send(self, topic: str, messages: Mapping[int, Sequence[Outgoing]], milliseconds: int) -> Ranges:
        try:
            return self.writer.send(topic, messages, milliseconds)
        except Fenced as error:
            self.over = True
            if self.named is not None:
                self.named.run_check()
            raise self.fenced() from error

    def says_messages(self) -> list[Outgoing]:
        return [Outgoing(key.encode(), json.dumps(value).encode(), None) for key, value in self.says.items()]
