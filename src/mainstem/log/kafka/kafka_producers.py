"""KafkaProducers: the named producers of a log: which run of each is the current one, and its way to the brokers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from mainstem.errors import Fenced
from mainstem.log.kafka.kafka_ledger import KafkaLedger
from mainstem.log.kafka.kafka_processes import known_dead, this_process
from mainstem.log.kafka.kafka_writer import TransactionalWriter
from mainstem.log.kafka.named_writer import NamedWriter
from mainstem.log.producer_run import ProducerRun
from mainstem.log.producer_state import ProducersState
from mainstem.log.state_ledger import Entry

if TYPE_CHECKING:
    from mainstem.log.kafka.kafka_log import KafkaLog

__all__ = ["KafkaProducers"]

# How long one transaction of a named producer may take before the broker aborts it: its own appends take milliseconds.
TIMEOUT = 60_000_000


class KafkaProducers:
    """All runs that were opened by this process. Thread-safe."""

    def __init__(self, log: KafkaLog) -> None:
        self._log = log
        self._guard = threading.RLock()
        self._writers: dict[tuple[str, int], NamedWriter] = {}
        self._shared: dict[str, ProducerRun] = {}

    def _ledger(self) -> KafkaLedger[ProducersState]:
        return self._log.ledger("producers", ProducersState, ProducersState.restore)

    def open(self, name: str) -> ProducerRun:
        """Begin a run. The broker refuses older ones from then on."""
        run = self._run(name, self._opened(name))
        with self._guard:
            writer = self._writers[name, run.epoch] = self._writer(name, run, shared=False)
        writer.writer()
        return run

    def share(self, name: str) -> ProducerRun:
        """A producer that several processes use in turn; none of them is ever refused."""
        with self._guard:
            run = self._shared.get(name)
            if run is None:
                run = self._shared[name] = self._run(name, 0)
                self._writers[name, 0] = self._writer(name, run, shared=True)
            return run

    def writer(self, run: ProducerRun) -> NamedWriter:
        return self._writers[run.name, run.epoch]

    def _opened(self, name: str) -> int:
        def decision(state: ProducersState, now: int) -> tuple[list[Entry], int]:
            known = state.producers.get(name)
            entry = {"kind": "opened", "name": name, "process": this_process()}
            return [entry], 1 if known is None else known.epoch + 1

        return self._ledger().decide(decision)

    def _run(self, name: str, epoch: int) -> ProducerRun:
        def kept(topic: str) -> int:
            known = self._writers[name, epoch].known(self._log.open_topic(topic).id)
            return int(known["sequence"])

        def last(topic: str) -> int:
            writer, topic_id = self._writers[name, epoch], self._log.open_topic(topic).id
            return max(kept(topic), self._log.transactions.open_sequence(writer, topic_id))

        def state(topic: str, at: int) -> None:
            self._state_watermark(name, epoch, topic, at)

        return ProducerRun(
            name, 0, epoch, check=lambda: self.check(name, epoch), state=state, last_sequence=last,
            kept_sequence=kept,
            # An append is a transaction of the broker's: it is never there in part.
            incomplete_sequence=lambda topic: None, shared=epoch == 0,
        )  # fmt: skip

    def _state_watermark(self, name: str, epoch: int, topic: str, at: int) -> None:
        """Note what a producer stated, and what follows for the topic: the lowest of all that are not known to be dead."""
        backend = self._log.open_topic(topic)

        def decision(state: ProducersState, now: int) -> tuple[list[Entry], None]:
            return [{"kind": "stated", "name": name, "topic": backend.id, "at": at}], None

        self.check(name, epoch)
        self._ledger().decide(decision)
        stated = [
            producer.stated[backend.id]
            for producer in self._ledger().current().producers.values()
            if backend.id in producer.stated and not known_dead(producer.process)
        ]
        backend.state_watermark(min(stated))

    def _writer(self, name: str, run: ProducerRun, *, shared: bool) -> NamedWriter:
        transactional_id = f"{self._log.kafka_settings.prefix}mainstem.producer.{name}"
        return NamedWriter(
            name,
            lambda: TransactionalWriter(self._log.clients, transactional_id, TIMEOUT),
            self._log.commits,
            self._log.notes_topic,
            shared=shared,
            run_check=run.check if not shared else lambda: None,
        )

    def check(self, name: str, epoch: int) -> None:
        """Raises if a newer run was opened."""
        current = self._ledger().current().producers[name].epoch
        if current != epoch:
            raise Fenced(
                f'a newer run of producer "{name}" was opened',
                detail=f"This run has epoch {epoch}, the newer one {current}.",
                hint="Only one run of a producer may append: stop this one, or open the producer again to fence "
                "the other.",
                epoch=epoch,
                current_epoch=current,
            )

    def close(self) -> None:
        with self._guard:
            writers, self._writers = list(self._writers.values()), {}
        for writer in writers:
            writer.close()
