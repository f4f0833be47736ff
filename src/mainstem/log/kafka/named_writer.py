"""NamedWriter: one run of a named producer, whose appends carry a sequence and are idempotent.

Kafka's own idempotence ends with the producer's process. So each append is a transaction under a transactional id that
belongs to the name, and the sequence is stored in the same transaction. Opening a run takes the id over, which fences
older runs at the broker; the holder of the id is the only writer of these sequences, and need not read them again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mainstem.errors import AppendConflict, Fenced, Unavailable
from mainstem.log.kafka.kafka_messages import Outgoing
from mainstem.log.kafka.kafka_writer import Ranges, TransactionalWriter
from mainstem.log.kafka.state_topic import CommitsTopic
from mainstem.log.kafka.transaction_notes import WrittenSpans
from mainstem.log.sequence_runs import NO_SEQUENCE, SequenceRuns, out_of_order

if TYPE_CHECKING:
    from mainstem.log.kafka.kafka_topic import KafkaTopic

__all__ = ["Known", "Messages", "NamedWriter", "known_after", "number_of", "known_without_sequence"]

# The last append to a topic, and the existing sequences:
# {"sequence": 7, "offsets": {"0": [40, 42]}, "at": microseconds, "runs": [[0, 4], [6, 7]]}
# Older versions wrote no runs: then every sequence up to the last one counts as existing.
Known = dict[str, Any]
NOTHING: Known = {"sequence": NO_SEQUENCE, "offsets": {}, "at": 0, "runs": []}

Messages = Mapping[int, Sequence[Outgoing]]


def runs_of(known: Known) -> SequenceRuns:
    """The existing sequences."""
    last = known["sequence"]
    return SequenceRuns(known.get("runs", [[0, last]] if last >= 0 else []))


def number_of(known: Known, sequence: int | None, topic: str, producer: str) -> tuple[int, bool]:
    """The sequence of an append, by default the next one, and whether it is a repeat; raises if it is out of order."""
    last: int = known["sequence"]
    if sequence is None or sequence > last:
        return last + 1 if sequence is None else sequence, False
    if sequence not in runs_of(known):
        raise out_of_order(topic, producer, sequence, last)
    return sequence, True


def known_without_sequence(offsets: Ranges, at: int) -> Known:
    """The result of an append without a sequence."""
    return NOTHING | {"offsets": _ranges_json(offsets), "at": at}


def _ranges_json(offsets: Ranges) -> dict[str, list[int]]:
    return {str(number): list(place) for number, place in offsets.items()}


def known_after(known: Known, sequence: int, offsets: Ranges, at: int) -> Known:
    """The known state after another append."""
    runs = runs_of(known)
    runs.add(sequence, sequence - runs.dense_below(sequence))
    return {"sequence": sequence, "offsets": _ranges_json(offsets), "at": at, "runs": runs.to_json()}


class NamedWriter:
    """Appends each sequence once. A shared one takes its id back if another process had it meanwhile. Thread-safe."""

    def __init__(
        self,
        name: str,
        new_writer: Callable[[], TransactionalWriter],
        commits: CommitsTopic,
        notes_topic: str,
        *,
        shared: bool = False,
        run_check: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.run_check = run_check
        self._new_writer = new_writer
        self._commits = commits
        self._notes_topic = notes_topic
        self._shared = shared
        self.guard = threading.RLock()
        self._writer: TransactionalWriter | None = None
        self.sequences: dict[str, Known] = {}

    def writer(self) -> TransactionalWriter:
        """The holder of the id. After an unknown outcome it takes the id again, which makes the broker decide."""
        with self.guard:
            if self._writer is None or not self._writer.usable:
                if self._writer is not None and not self._shared:
                    # A newer run may have the id: it must not be taken back.
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

    def known_appends(self, topic_id: str) -> Known:
        return self.sequences.get(topic_id, NOTHING)

    def key(self, topic_id: str) -> str:
        return f"sequence|{self.name}|{topic_id}"

    def append(
        self, topic: KafkaTopic, sequence: int | None, messages_of: Callable[[int], Messages], at: int
    ) -> tuple[Known, bool]:
        """Append `messages_of(sequence)`, by default under the next sequence; returns the known state, and whether it
        was appended now."""

        def make(known: Known) -> tuple[int, Messages] | None:
            if self._shared:
                # The users of a shared producer agree on the order of the sequences.
                assert sequence is not None
                return (sequence, messages_of(sequence)) if sequence > known["sequence"] else None
            try:
                number, repeated = number_of(known, sequence, topic.name, self.name)
            except AppendConflict:
                # A fenced run raises.
                self.run_check()
                raise
            return None if repeated else (number, messages_of(number))

        known, appended = self.append_from(topic.kafka_name, topic.id, at, make)
        return (known if appended or sequence == known["sequence"] else {**known, "offsets": {}}), appended

    def append_from(
        self, topic: str, topic_id: str, at: int, make: Callable[[Known], tuple[int, Messages] | None]
    ) -> tuple[Known, bool]:
        """Append the messages that `make` returns for the known state, if any; no other append comes in between."""
        while True:
            with self.guard:
                writer = self.writer()
                known = self.known_appends(topic_id)
                made = make(known)
                if made is None:
                    return known, False
                try:
                    return self._append(writer, topic, topic_id, *made, at), True
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
        messages: Messages,
        at: int,
    ) -> Known:
        writer.begin()
        try:
            offsets: Ranges = writer.send(topic, messages, at // 1000) if messages else {}
            known = known_after(self.known_appends(topic_id), sequence, offsets, at)
            said = Outgoing(self.key(topic_id).encode(), json.dumps(known).encode(), None)
            spans = WrittenSpans()
            spans.add(topic_id, offsets, sum(map(len, messages.values())))
            # Number 0: no reader can wait for it, since it is decided at once.
            note = spans.note(0)
            notes = {} if note is None else {self._notes_topic: {0: [note]}}
            writer.send_all({self._commits.topic: {0: [said]}, **notes}, at // 1000, self._notes_topic)
        except BaseException:
            writer.abort()
            raise
        try:
            writer.commit()
        except Unavailable:
            # Only the broker knows whether it was committed: taking the id again decides it, before anything else.
            writer.give_up()
            raise
        self.sequences[topic_id] = known
        return known

    def close(self) -> None:
        with self.guard:
            if self._writer is not None:
                self._writer.close()
