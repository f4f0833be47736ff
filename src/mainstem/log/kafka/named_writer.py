"""NamedWriter: one run of a named producer, whose appends carry a sequence and are idempotent.

Kafka's own idempotence ends with the producer's process. So each append is a transaction under a transactional id that
belongs to the name, and the sequence is stored in the same transaction. Opening a run takes the id over, which fences older
runs at the broker; the holder of the id is the only writer of these sequences, and need not read them again.
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

__all__ = ["Known", "Messages", "NamedWriter", "known_after", "number_of", "unnumbered"]

# What is known of the last append to a topic, and which sequences are there:
# {"sequence": 7, "offsets": {"0": [40, 42]}, "at": microseconds, "runs": [[0, 4], [6, 7]]}
# Written by an older release it has no runs: then every sequence up to the last one counts as there.
Known = dict[str, Any]
NOTHING: Known = {"sequence": NO_SEQUENCE, "offsets": {}, "at": 0, "runs": []}

Messages = Mapping[int, Sequence[Outgoing]]


def runs_of(known: Known) -> SequenceRuns:
    """The sequences that are there."""
    last = known["sequence"]
    return SequenceRuns(known.get("runs", [[0, last]] if last >= 0 else []))


def number_of(known: Known, sequence: int | None, topic: str, producer: str) -> tuple[int, bool]:
    """The sequence of an append, the next one if none is given, and whether it is a repeat; raises if it is out of order."""
    last: int = known["sequence"]
    if sequence is None or sequence > last:
        return last + 1 if sequence is None else sequence, False
    if sequence not in runs_of(known):
        raise out_of_order(topic, producer, sequence, last)
    return sequence, True


def unnumbered(offsets: Ranges, at: int) -> Known:
    """The result of an append without a sequence."""
    return NOTHING | {"offsets": _places(offsets), "at": at}


def _places(offsets: Ranges) -> dict[str, list[int]]:
    return {str(number): list(place) for number, place in offsets.items()}


def known_after(known: Known, sequence: int, offsets: Ranges, at: int) -> Known:
    """What is known once another append is there."""
    runs = runs_of(known)
    runs.add(sequence, sequence - runs.dense_below(sequence))
    return {"sequence": sequence, "offsets": _places(offsets), "at": at, "runs": runs.to_json()}


class NamedWriter:
    """Appends once each. A shared one takes its id back when another process had it meanwhile. Thread-safe."""

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
        self, topic: KafkaTopic, sequence: int | None, messages_of: Callable[[int], Messages], at: int
    ) -> tuple[Known, bool]:
        """Append `messages_of(sequence)`, under the next sequence if none is given; what is known then, and whether it was
        done now."""

        def make(known: Known) -> tuple[int, Messages] | None:
            if self._shared:
                # Its users agree on the order of the sequences.
                assert sequence is not None
                return (sequence, messages_of(sequence)) if sequence > known["sequence"] else None
            try:
                number, repeated = number_of(known, sequence, topic.name, self.name)
            except AppendConflict:
                # One that was fenced is told so.
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
                known = self.known(topic_id)
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
            known = known_after(self.known(topic_id), sequence, offsets, at)
            said = Outgoing(self.key(topic_id).encode(), json.dumps(known).encode(), None)
            spans = WrittenSpans()
            spans.add(topic_id, offsets, sum(map(len, messages.values())))
            # It has no number, and nobody can wait for it: it is decided at once.
            note = spans.note(0)
            notes = {} if note is None else {self._notes_topic: {0: [note]}}
            writer.send_all({self._commits.topic: {0: [said]}, **notes}, at // 1000, self._notes_topic)
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
