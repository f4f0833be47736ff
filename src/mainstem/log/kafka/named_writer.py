"""NamedWriter: one run of a named producer. What it appends carries a sequence and is there once.

Kafka's own idempotence ends with the producer's process. So each append is a transaction under a transactional id that
belongs to the name, and the sequence is stored in the same transaction. Opening a run takes the id over, which fences older
runs at the broker; whoever holds the id is the only one who writes these sequences, and need not look at them again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mainstem.errors import Fenced, Unavailable
from mainstem.log.kafka.commits_topic import CommitsTopic
from mainstem.log.kafka.kafka_messages import Outgoing
from mainstem.log.kafka.kafka_writer import Ranges, TransactionalWriter

__all__ = ["Known", "NamedWriter"]

# What is known of the last append to a topic: {"sequence": 7, "offsets": {"0": [40, 42]}, "at": microseconds}
Known = dict[str, Any]
NOTHING: Known = {"sequence": -1, "offsets": {}, "at": 0}


class NamedWriter:
    """Appends once each. A shared one takes its id back when another process had it meanwhile. Thread-safe."""

    def __init__(
        self,
        name: str,
        new_writer: Callable[[], TransactionalWriter],
        commits: CommitsTopic,
        *,
        shared: bool = False,
        run_check: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.run_check = run_check
        self._new_writer = new_writer
        self._commits = commits
        self._shared = shared
        self.guard = threading.RLock()
        self._writer: TransactionalWriter | None = None
        self.sequences: dict[str, Known] = {}

    def writer(self) -> TransactionalWriter:
        """The holder of the id. After an end that is not known it takes the id anew: then the broker knows it."""
        with self.guard:
            if self._writer is None or not self._writer.usable:
                if self._writer is not None and not self._shared:
                    # Somebody newer may have the id: it is not ours to take back.
                    self.run_check()
                self._open()
            assert self._writer is not None
            return self._writer

    def _open(self) -> None:
        writer = self._new_writer()
        writer.open()
        self._writer = writer
        prefix = f"sequence|{self.name}|"
        values = self._commits.values()
        self.sequences = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}

    def known(self, topic_id: str) -> Known:
        return self.sequences.get(topic_id, NOTHING)

    def key(self, topic_id: str) -> str:
        return f"sequence|{self.name}|{topic_id}"

    def append(
        self, topic: str, topic_id: str, sequence: int, messages: Mapping[int, Sequence[Outgoing]], at: int
    ) -> tuple[Known, bool]:
        """Append messages under a sequence; what is known then, and whether it was done now."""
        return self.append_from(topic, topic_id, at, lambda last: (sequence, messages))

    def append_from(
        self,
        topic: str,
        topic_id: str,
        at: int,
        make: Callable[[int], tuple[int, Mapping[int, Sequence[Outgoing]]]],
    ) -> tuple[Known, bool]:
        """As `append`, of what `make(last sequence)` makes; of a shared one nobody else appends in between."""
        while True:
            with self.guard:
                writer = self.writer()
                known = self.known(topic_id)
                sequence, messages = make(known["sequence"])
                if sequence <= known["sequence"]:
                    return (known if sequence == known["sequence"] else NOTHING), False
                try:
                    return self._append(writer, topic, topic_id, sequence, messages, at), True
                except Fenced:
                    if not self._shared:
                        self.run_check()
                        raise

    def _append(
        self,
        writer: TransactionalWriter,
        topic: str,
        topic_id: str,
        sequence: int,
        messages: Mapping[int, Sequence[Outgoing]],
        at: int,
    ) -> Known:
        writer.begin()
        try:
            offsets: Ranges = writer.send(topic, messages, at // 1000) if messages else {}
            known = {"sequence": sequence, "offsets": {str(n): list(ends) for n, ends in offsets.items()}, "at": at}
            said = Outgoing(self.key(topic_id).encode(), json.dumps(known).encode(), None)
            writer.send(self._commits.topic, {0: [said]}, at // 1000)
        except BaseException:
            writer.abort()
            raise
        try:
            writer.commit()
        except Unavailable:
            # Whether it is committed only the broker knows: taking the id anew settles it, before anything else is done.
            writer.give_up()
            raise
        self.sequences[topic_id] = known
        return known

    def close(self) -> None:
        with self.guard:
            if self._writer is not None:
                self._writer.close()
