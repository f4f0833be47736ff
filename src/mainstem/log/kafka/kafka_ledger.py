"""KafkaLedger: a ledger whose entries lie in the log's state topic; see there how two authors come to agree."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from mainstem.clock import Clock
from mainstem.errors import Invalid
from mainstem.log.kafka.state_topic import StateTopic
from mainstem.log.state_ledger import Entry, MachineState

__all__ = ["KafkaLedger"]

S = TypeVar("S", bound=MachineState)
T = TypeVar("T")

# After so many entries the state is written down, so that opening a ledger reads little.
ENTRIES_MAX = 500


class KafkaLedger(Generic[S]):
    """One ledger, as this process knows it. Thread-safe."""

    def __init__(
        self,
        topic: StateTopic,
        name: str,
        clock: Clock,
        new_state: Callable[[], S],
        restore: Callable[[dict[str, Any]], S],
    ) -> None:
        self.name = name
        self._topic = topic
        self._clock = clock
        self._new_state = new_state
        self._restore = restore
        self._guard = threading.RLock()
        self._state = new_state()
        self._count = 0

    def current(self) -> S:
        """The state after everything any process has appended so far. Not to be changed by the caller."""
        with self._guard:
            return self._catch_up()

    def seen(self) -> S:
        """The state as it was when this process last looked. Not to be changed by the caller."""
        with self._guard:
            return self._state

    def _catch_up(self) -> S:
        records = self._topic.records(self.name)
        if self._count < records.begins:
            self._state = self._new_state() if records.state is None else self._restore(records.state)
            self._count = records.begins
        for at, entries in records.entries[self._count - records.begins :]:
            for entry in entries:
                self._state.apply(entry, at)
        self._count = records.count
        return self._state

    def decide(self, decision: Callable[[S, int], tuple[list[Entry], T]]) -> T:
        """Append what `decision(state, now)` wants appended, durably, and only if nobody appended meanwhile.

        On a conflict the decision is asked again with the newer state, so it may run several times and must change
        nothing. No entries: nothing is written. What it raises is raised here, and nothing is written.
        """
        with self._guard:
            while True:
                state = self._catch_up()
                entries, result = decision(state, max(self._clock.now(), self._topic.records_at(self.name)))
                if not entries:
                    return result
                if self._topic.append(self.name, self._count, {"entries": entries}):
                    self._write_state_if_due()
                    return result

    def _write_state_if_due(self) -> None:
        state = self._catch_up()
        if self._count - self._topic.records(self.name).begins >= ENTRIES_MAX:
            self._topic.write_state(self.name, self._count, state.snapshot())

    def drop(self) -> None:
        """Let it be as if nothing had ever been appended."""
        with self._guard:
            while self._topic.records(self.name).there:
                self._catch_up()
                self._topic.append(self.name, self._count, {"drop": True})
            self._catch_up()

    def state_at(self, at: int) -> S:
        """Refused: what was superseded is compacted away on Kafka."""
        raise Invalid(
            "a log on Kafka cannot look back in time at a queue",
            detail="The entries of its state are compacted once a later state is written down.",
            hint="Rewind to a position instead: queue.rewind({partition: offset}), or an append's token.",
        )
