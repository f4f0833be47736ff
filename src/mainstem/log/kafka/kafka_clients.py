"""KafkaClients: creates the client library's producers and consumers for the log, and reads offsets."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from mainstem import processes
from mainstem.clock import Clock
from mainstem.log import backoff as waiting
from mainstem.log.kafka.kafka_errors import LOGGER, MISSING, code_of, settings_error, translate_error, unavailable
from mainstem.log.kafka.kafka_settings import KafkaSettings
from mainstem.processes import Identity

__all__ = ["KafkaClients", "MachineProcesses", "known_dead", "this_process"]


# Which processes are dead, across several machines.
#
# The end of a process on this machine is detected at once. A process on another machine cannot be checked: its leases
# and sessions expire, as after a network partition. Containers count as machines of their own.


@lru_cache(maxsize=1)
def _machine() -> str:
    """Identifies the boot of this machine, and the container's process namespace."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{processes.boot_id()} {namespace}".strip()


def this_process() -> Identity:
    """The identity of this process, unique among machines."""
    return {**processes.this_process(), "boot": _machine()}


def known_dead(identity: Identity) -> bool:
    """Whether that process ran on this machine since its last boot, and has ended."""
    return identity["boot"] == _machine() and not processes.alive({**identity, "boot": processes.boot_id()})


class MachineProcesses:
    """The processes of this machine; those of others count as alive."""

    def this_process(self) -> Identity:
        return this_process()

    def alive(self, identity: Identity) -> bool:
        return not known_dead(identity)


# The timeout of the first attempt to reach a broker; it doubles with each attempt.
ATTEMPT_SECONDS, ATTEMPT_SECONDS_MAX = 1.0, 8.0
MESSAGE_BYTES_MAX = 16 << 20
PAUSE_SECONDS = 0.02

# Transient errors, usually for milliseconds. A missing topic is one too: topics we use are in the ledger of topics, but
# a broker that has just started accepts connections before it has loaded its topics.
_PASSING = MISSING | frozenset(
    [
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._WAIT_COORD,
        # A partition has no leader.
        KafkaError._NOENT,
    ]
)

# The client's metadata is stale: from another broker, or from before partitions were added.
_STALE = MISSING | {KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError._NOENT}

T = TypeVar("T")


class KafkaClients:
    """The connections of one opened log. Thread-safe."""

    def __init__(self, settings: KafkaSettings, clock: Clock) -> None:
        self.settings = settings
        self.patience = settings.patience_seconds
        self._clock = clock
        self._guard = threading.RLock()
        self._asking: Consumer | None = None
        try:
            self.admin = AdminClient(self._common_settings(), logger=LOGGER)
        except KafkaException as error:
            # Without its cause, which may quote secrets.
            raise settings_error(str(error), settings.client) from None

    def _common_settings(self) -> dict[str, Any]:
        return {
            **self.settings.client,
            "bootstrap.servers": self.settings.servers,
            # The default would notice a broker that came back only after ten seconds.
            "reconnect.backoff.max.ms": 1000,
            "socket.nagle.disable": True,
            "topic.metadata.refresh.interval.ms": 60_000,
        }

    # Reaching a broker

    def connect(self) -> str:
        """Wait until a broker answers, and return the id of its cluster; raises `BrokerUnavailable` after
        `patience`."""
        deadline = self._clock.monotonic() + int(self.patience * 1_000_000)
        seconds = ATTEMPT_SECONDS
        while True:
            try:
                return str(self.admin.list_topics(timeout=min(seconds, max(self.patience, 0.1))).cluster_id)
            except KafkaException as error:
                if self._clock.monotonic() >= deadline or code_of(error) == KafkaError._AUTHENTICATION:
                    raise translate_error(error, self.settings.servers) from error
                waiting.LOGGER.warning("no Kafka broker answers at %s yet; trying again", self.settings.servers)
                seconds = min(2 * seconds, ATTEMPT_SECONDS_MAX)

    # Making clients

    def producer(self, **more: Any) -> Producer:
        """A producer whose messages are on all in-sync replicas when they are acknowledged, in order and once."""
        producer = Producer(
            {
                **self._common_settings(),
                "acks": "all",
                "enable.idempotence": True,
                "compression.type": "lz4",
                "message.max.bytes": MESSAGE_BYTES_MAX,
                # Rows appended together are one batch: the appender flushes when it is complete.
                "linger.ms": 50,
                "message.timeout.ms": max(1000, int(self.patience * 1000)),
                **more,
            },
            logger=LOGGER,
        )
        # Otherwise a producer that is not connected yet gets its id half a second later.
        with suppress(KafkaException):
            producer.list_topics(timeout=ATTEMPT_SECONDS)
        return producer

    def consumer(self, isolation: str = "read_committed", wait_milliseconds: int = 500) -> Consumer:
        """A consumer with assigned partitions; it commits nothing by itself."""
        return Consumer(
            {
                **self._common_settings(),
                # Required by the library; never committed to.
                "group.id": "mainstem",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.message.max.bytes": MESSAGE_BYTES_MAX,
                "queued.max.messages.kbytes": 16 << 10,
                "fetch.wait.max.ms": wait_milliseconds,
                "check.crcs": True,
            },
            logger=LOGGER,
        )

    # Reading offsets

    def _for_asking(self) -> Consumer:
        with self._guard:
            if self._asking is None:
                self._asking = self.consumer()
            return self._asking

    def call_with_retries(self, topic: str, client: Any, ask: Callable[[], T]) -> T:
        """Retry while leaders are elected: after a topic was created or grew, or a broker stopped or started."""
        deadline = self._clock.monotonic() + int(self.patience * 1_000_000)
        pause = threading.Event()
        while True:
            try:
                return ask()
            except KafkaException as error:
                if code_of(error) not in _PASSING or self._clock.monotonic() > deadline:
                    raise translate_error(self._cause(error), self.settings.servers, topic) from error
                if code_of(error) in _STALE:
                    with suppress(KafkaException):
                        client.list_topics(timeout=1)
            pause.wait(PAUSE_SECONDS)

    def _cause(self, error: KafkaException) -> KafkaException:
        """A client that lost its brokers forgets their topics, and then says that there are none."""
        if code_of(error) in MISSING:
            try:
                self.admin.list_topics(timeout=ATTEMPT_SECONDS)
            except KafkaException as silence:
                return silence
        return error

    def range(self, topic: str, partition: int) -> tuple[int, int]:
        """The first existing offset, and the end of the committed records."""
        place, asking = TopicPartition(topic, partition), self._for_asking()
        found: tuple[int, int] = self.call_with_retries(
            topic, asking, lambda: asking.get_watermark_offsets(place, timeout=self.patience)
        )
        low, end = found
        if low < 0 or end < 0:
            raise unavailable(self.settings.servers, f"offsets of {topic} are not known")
        return int(low), int(end)

    def ends(
        self, topic: str, partitions: Iterable[int], isolation: int = IsolationLevel.READ_COMMITTED
    ) -> dict[int, int]:
        """The end of each partition in one request: of the committed records, or of all written ones."""
        wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}

        def ask() -> dict[int, int]:
            answers = self.admin.list_offsets(wanted, isolation_level=isolation, request_timeout=self.patience)
            found = {place.partition: int(answer.result().offset) for place, answer in answers.items()}
            if any(end < 0 for end in found.values()):
                # A broker that has just come back may answer without an offset and without an error.
                raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE))
            return found

        return self.call_with_retries(topic, self.admin, ask)

    def at_time(self, topic: str, partition: int, milliseconds: int, asking: Consumer | None = None) -> int | None:
        """The first offset whose message has that time or a later one, of those that `asking` may read; None if there
        is none."""
        consumer = asking or self._for_asking()

        def ask() -> TopicPartition:
            [found] = consumer.offsets_for_times(
                [TopicPartition(topic, partition, milliseconds)], timeout=self.patience
            )
            if found.error is not None:
                raise KafkaException(found.error)
            return found

        found = self.call_with_retries(topic, consumer, ask)
        return None if found.offset < 0 else int(found.offset)

    def close(self) -> None:
        with self._guard:
            asking, self._asking = self._asking, None
        if asking is not None:
            asking.close()
