"""The embedded log: a home on this machine's disk, used by any number of processes without a server."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import pyarrow as pa

from mainstem.clock import Clock, SystemClock
from mainstem.durable_files import REAL_FILES, Files, closed_error, unavailable
from mainstem.errors import Invalid, TopicNotFound
from mainstem.file_watch import Watch
from mainstem.log.embedded.embedded_topic import EmbeddedTopic
from mainstem.log.embedded.home import Home
from mainstem.log.embedded.ledger import Ledger, create_ledger
from mainstem.log.embedded.log_copy import EmbeddedLogCopy
from mainstem.log.embedded.numbered_appends import KnownAppends
from mainstem.log.embedded.take_over import take_over_ledger_if_stuck, take_over_lock_if_stuck
from mainstem.log.embedded.topic_store import TopicStore, create_topic
from mainstem.log.embedded.transaction_log import TransactionLog
from mainstem.log.embedded.upkeep.soundness import verify_ledger
from mainstem.log.embedded.upkeep.upkeep import Upkeep, UpkeepMode
from mainstem.log.embedded.write.block import ABORT, COMMIT
from mainstem.log.embedded.write.partition import Pending
from mainstem.log.first_reads import FirstReads
from mainstem.log.flow_cut import FlowCut
from mainstem.log.groups import group_state as group_decisions
from mainstem.log.log import Promise, check_same_settings, no_such_topic
from mainstem.log.producer import ProducerRun, ProducersState, check_epoch
from mainstem.log.query_limits import QueryLimits
from mainstem.log.state_ledger import Entry, MachineState
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.transaction import COMMITTED, Participant, TransactionState
from mainstem.log.upkeep_report import TakeOverReport, Verification
from mainstem.log.watermark import NO_TIME
from mainstem.names import check_own_name
from mainstem.processes import alive, this_process

__all__ = ["EmbeddedLog"]


# The producers of a home: the current run of each, and their declared watermarks.


class Producers:
    """The ledger of producers; reading the current state is cheap. Thread-safe."""

    def __init__(self, open_ledger: Callable[[], Ledger[ProducersState]]) -> None:
        self.ledger = open_ledger

    @property
    def _ledger(self) -> Ledger[ProducersState]:
        # The log keeps it open; it is created on first use.
        return self.ledger()

    def open(self, name: str) -> tuple[int, int]:
        """Begin a run: returns the producer's number, and the epoch that fences all older runs."""

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
        check_epoch(name, epoch, current)

    def declare_watermark(self, name: str, epoch: int, topic: str, at: int) -> int:
        """Record a producer's watermark; returns the lowest of all current producers that declared one for this
        topic."""

        def decision(state: ProducersState, now: int) -> tuple[list[Entry], None]:
            return [{"kind": "stated", "name": name, "topic": topic, "at": at}], None

        self.check(name, epoch)
        self._ledger.decide(decision)
        declared = [
            producer.declared[topic]
            for producer in self._ledger.current().producers.values()
            if topic in producer.declared and alive(producer.process)
        ]
        return min(declared, default=NO_TIME)


S = TypeVar("S", bound=MachineState)

# Threads that append to several partitions at once; they wait for the disk, not for the CPU.
APPEND_THREADS = 16

_all: weakref.WeakSet[EmbeddedLog] = weakref.WeakSet()


class EmbeddedLog:
    """A log in a directory. Thread-safe."""

    address = ""
    promises = frozenset(Promise)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        synced: Callable[[], None] | None = None,
        upkeep: UpkeepMode = "manual",
    ) -> None:
        self.files: Files = files or REAL_FILES
        self.clock: Clock = clock or SystemClock()
        self.home = Home(self.files, os.path.abspath(os.fspath(path)))
        self.title = f'the log in "{os.fspath(path)}"'
        # A directory copied with `cp` has the same id.
        self.identity = f"{self.home.id} {os.path.realpath(self.home.path)}"
        self._synced = synced
        self._guard = threading.RLock()
        self._topics: dict[str, EmbeddedTopic] = {}
        self._ledgers: dict[str, Ledger[Any]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False
        home = self.home.path
        self.producers = Producers(
            lambda: self.ledger(f"{home}/ledgers/producers", ProducersState, ProducersState.restore, "producers")
        )
        self.transactions = TransactionLog(
            lambda: self.ledger(
                f"{home}/ledgers/transactions", TransactionState, TransactionState.restore, "transactions"
            ),
            self._mark,
        )
        self.upkeep = Upkeep(self, lambda: list(self._topics), upkeep)
        self.upkeep.start()
        _all.add(self)

    def renew_in_child(self) -> None:
        """Reset in a forked child: it has no pool threads, and another thread may have held the guard."""
        self._guard = threading.RLock()
        self._pool = None

    def close(self) -> None:
        self.upkeep.stop()
        with self._guard:
            if self._closed:
                return
            self._closed = True
            for topic in self._topics.values():
                topic.store.close()
            for ledger in self._ledgers.values():
                ledger.close()
            self._topics, self._ledgers = {}, {}
            if self._pool is not None:
                self._pool.shutdown()
                self._pool = None
            self.home.close()

    def _check_open(self) -> None:
        if self._closed:
            raise closed_error(self.title)

    def _executor(self) -> Executor:
        with self._guard:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(APPEND_THREADS, thread_name_prefix="mainstem-append")
            return self._pool

    # Topics

    def topic_names(self) -> list[str]:
        return self.home.topic_names()

    def create_topic(self, settings: TopicSettings) -> EmbeddedTopic:
        """Create a topic, or open it if it exists with the same settings."""
        self._check_open()
        if settings.codec is not None:
            raise Invalid(
                f'topic "{settings.name}" cannot have a codec',
                detail="In an embedded log rows lie as Arrow columns; codecs are for messages on Kafka.",
                hint="Leave codec= out.",
            )
        if settings.archive is not None:
            settings = settings.alter(archive=os.path.abspath(settings.archive))
        folder = self.home.topic_folder(settings.name)
        if not self.files.exists(folder):
            self.home.make_folder(folder, lambda beside: create_topic(self.files, beside, settings, self.clock))
        topic = self.open_topic(settings.name)
        check_same_settings(topic.settings, settings)
        return topic

    def adopt_topic(self, settings: TopicSettings) -> EmbeddedTopic:
        raise Invalid(
            f'topic "{settings.name}" cannot be adopted',
            detail="An embedded log has only topics that Mainstem created.",
            hint='Open the home with log="kafka://...", or create the topic.',
        )

    def open_topic(self, name: str) -> EmbeddedTopic:
        check_own_name(name, "topic")
        with self._guard, unavailable(self.home.path):
            self._check_open()
            topic = self._topics.get(name)
            if topic is not None and topic.store.is_current():
                return topic
            if topic is not None:
                self._forget(name)
            folder = self.home.topic_folder(name)
            if not self.files.exists(folder):
                raise self._no_topic(name)
            store = TopicStore(self.files, folder, name, self.clock, self._executor, self._synced)
            topic = self._topics[name] = EmbeddedTopic(self, store)
            return topic

    def watch_appends(self, topics: Iterable[str], bell: str = "") -> Watch:
        return Watch([*(self.open_topic(name).store.heads_path for name in topics), *([bell] if bell else [])])

    def flow_cut(self) -> FlowCut:
        return FlowCut(FirstReads(self))

    def _no_topic(self, name: str) -> TopicNotFound:
        return no_such_topic(name, self.title, self.topic_names())

    def _forget(self, name: str) -> None:
        """Drop a deleted topic and its ledgers from the cache."""
        store = self._topics.pop(name).store
        for folder in [folder for folder in self._ledgers if folder.startswith(store.folder + "/")]:
            self._ledgers.pop(folder).close()
        store.close()

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its groups and queues; unfinished appends of other processes are fenced."""
        topic = self.open_topic(name)
        with self.home.lock_topics(), self._guard:
            for partition in topic.store.partitions:
                partition.mark_deleted()
            folder = topic.store.folder
            self._forget(name)
            self.home.remove_folder(folder)

    # Ledgers

    def ledger(
        self, folder: str, new_state: Callable[[], S], restore: Callable[[dict[str, Any]], S], title: str
    ) -> Ledger[S]:
        """The ledger in a folder; created if it does not exist."""
        with self._guard:
            self._check_open()
            ledger = self._ledgers.get(folder)
            if ledger is None:
                if not self.files.exists(folder):
                    self.home.make_folder(folder, lambda beside: create_ledger(self.files, beside, self.clock))
                ledger = self._ledgers[folder] = Ledger(self.files, folder, self.clock, new_state, restore, title=title)
            return ledger

    def drop_ledger(self, folder: str) -> None:
        with self._guard:
            ledger = self._ledgers.pop(folder, None)
            if ledger is not None:
                ledger.close()
            if self.files.exists(folder):
                self.home.remove_folder(folder)

    def take_over(self) -> TakeOverReport:
        """Kill every stopped process that holds a lock of the home, its topics or ledgers; fence its unfinished
        writes."""
        parts = [self.open_topic(name).take_over_if_stuck() for name in self.topic_names()]
        return sum(parts, self.take_over_home())

    def take_over_home(self) -> TakeOverReport:
        """The same for the home's own lock, and for the ledgers of producers and transactions."""
        report = take_over_lock_if_stuck(self.home.lock, "the home")
        for name, ledger in (("producers", self.producers.ledger), ("transactions", self.transactions.ledger)):
            if self.files.exists(f"{self.home.path}/ledgers/{name}/heads"):
                report += take_over_ledger_if_stuck(ledger())
        return report

    def copy_to(self, home: str) -> EmbeddedLogCopy:
        """A copy of it in another home."""
        return EmbeddedLogCopy(self, home)

    def verify_ledgers(self, step: Callable[[str], None]) -> Iterator[Verification]:
        """Check all ledgers; `step` is called with the name of each."""
        for title, folder in self._ledger_folders():
            step(title)
            report = verify_ledger(self.files, folder, self.clock, title)
            if self.files.exists(folder):  # else deleted meanwhile
                yield report

    def _ledger_folders(self) -> Iterator[tuple[str, str]]:
        home = self.home.path
        for name in self._names(f"{home}/ledgers"):
            yield f"ledger {name}", f"{home}/ledgers/{name}"
        for topic in self.topic_names():
            for kind, noun in (("groups", "group"), ("queues", "queue")):
                for name in self._names(f"{home}/topics/{topic}/{kind}"):
                    yield f"{noun} {name} of {topic}", f"{home}/topics/{topic}/{kind}/{name}"

    def _names(self, folder: str) -> list[str]:
        return (
            [name for name in self.files.list(folder) if not name.startswith(".")] if self.files.exists(folder) else []
        )

    # Producers and transactions

    def open_producer(self, name: str) -> ProducerRun:
        """Begin a run of a producer: older runs are fenced, and their open transactions are aborted."""
        number, epoch = self.producers.open(name)
        self.transactions.abort_transactions_of(number)
        return self._run(name, number, epoch)

    def shared_producer(self, name: str) -> ProducerRun:
        """An internal producer that several processes use at once."""
        return self._run(name, *self.producers.share(name), shared=True)

    def _run(self, name: str, number: int, epoch: int, *, shared: bool = False) -> ProducerRun:
        def known_appends(topic: str) -> KnownAppends:
            return self.open_topic(topic).numbered.known_appends(number, epoch)

        def state(topic: str, at: int) -> None:
            lowest = self.producers.declare_watermark(name, epoch, topic, at)
            self.open_topic(topic).declare_watermark(lowest)

        return ProducerRun(
            name,
            number,
            epoch,
            check=lambda: self.producers.check(name, epoch),
            state=state,
            last_sequence=lambda topic: known_appends(topic).runs.last,
            # Without the sequences of aborted transactions in both cases.
            kept_sequence=lambda topic: known_appends(topic).runs.last,
            incomplete_sequence=lambda topic: known_appends(topic).incomplete,
            shared=shared,
        )

    def begin_transaction(self, timeout: int, producer: ProducerRun | None = None) -> int:
        return self.transactions.begin(timeout, 0 if producer is None else producer.id)

    def join_group_offsets(self, transaction: int, topic: str, group: str) -> None:
        self.transactions.join(transaction, [("group", topic, group)])

    def end_transaction(self, transaction: int, outcome: str) -> None:
        self.transactions.decide(transaction, outcome)

    def outcome(self, transaction: str) -> Literal["open", "committed", "aborted"]:
        """The outcome of a transaction; one whose owner died or that timed out is aborted first."""
        self.transactions.settle()
        return self.transactions.outcome(int(transaction))

    def _mark(self, participant: Participant, number: int, decision: int, outcome: str) -> None:
        """Write a transaction's marker to a partition or group; one that was deleted meanwhile needs none."""
        kind, name, place = participant
        try:
            topic = self.open_topic(str(name))
        except TopicNotFound:
            return
        if kind == "topic":
            marker = Pending(
                b"", 1, kind=COMMIT if outcome == COMMITTED else ABORT, transaction=number, sequence=decision
            )
            topic.store.append({int(place): marker})
        elif str(place) in topic.groups():
            topic.group_ledger(str(place)).decide(
                lambda state, now: (group_decisions.settle(state, str(number), outcome), None)
            )

    # SQL

    def query(
        self,
        sql: str,
        parameters: Sequence[object],
        tables: Mapping[str, Callable[[], pa.Table]] | None = None,
        limits: QueryLimits | None = None,
    ) -> pa.Table:
        from mainstem.log.embedded.read.sql import query  # loads DuckDB on the first query

        return query(self, sql, parameters, tables or {}, limits or QueryLimits())


def _renew_in_child() -> None:
    for log in list(_all):
        log.renew_in_child()


os.register_at_fork(after_in_child=_renew_in_child)
