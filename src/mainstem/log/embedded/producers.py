"""The producers of a home: who is the current run of each, and what they stated of time."""

from __future__ import annotations

from collections.abc import Callable

from mainstem.errors import Fenced
from mainstem.log.embedded.ledger import Ledger
from mainstem.log.processes import alive, this_process
from mainstem.log.producer_state import ProducersState
from mainstem.log.state_ledger import Entry
from mainstem.log.watermark import NO_TIME


class Producers:
    """The ledger of producers, with the current state looked at cheaply. Thread-safe."""

    def __init__(self, open_ledger: Callable[[], Ledger[ProducersState]]) -> None:
        self.ledger = open_ledger

    @property
    def _ledger(self) -> Ledger[ProducersState]:
        # The log keeps it open; a home that never needs it never makes it.
        return self.ledger()

    def open(self, name: str) -> tuple[int, int]:
        """Begin a run: its producer's number, and the epoch that fences all older runs."""

        def decision(state: ProducersState, now: int) -> tuple[list[Entry], None]:
            return [{"kind": "opened", "name": name, "process": this_process()}], None

        self._ledger.decide(decision)
        producer = self._ledger.current().producers[name]
        return producer.id, producer.epoch

    def share(self, name: str) -> tuple[int, int]:
        """A producer that several processes use at once: its first run, which is never fenced."""

        def decision(state: ProducersState, now: int) -> tuple[list[Entry], None]:
            known = name in state.producers
            return ([] if known else [{"kind": "opened", "name": name, "process": this_process()}]), None

        self._ledger.decide(decision)
        producer = self._ledger.current().producers[name]
        return producer.id, producer.epoch

    def check(self, name: str, epoch: int) -> None:
        """Raises if a newer run was opened."""
        current = self._ledger.current().producers[name].epoch
        if current != epoch:
            raise Fenced(
                f'a newer run of producer "{name}" was opened',
                detail=f"This run has epoch {epoch}, the newer one {current}.",
                hint="Only one run of a producer may append: stop this one, or open the producer again to fence "
                "the other.",
                epoch=epoch,
                current_epoch=current,
            )

    def state_watermark(self, name: str, epoch: int, topic: str, at: int) -> int:
        """Note what a producer stated, and give the lowest of all living ones that stated anything for this topic."""

        def decision(state: ProducersState, now: int) -> tuple[list[Entry], None]:
            return [{"kind": "stated", "name": name, "topic": topic, "at": at}], None

        self.check(name, epoch)
        self._ledger.decide(decision)
        stated = [
            producer.stated[topic]
            for producer in self._ledger.current().producers.values()
            if topic in producer.stated and alive(producer.process)
        ]
        return min(stated, default=NO_TIME)
