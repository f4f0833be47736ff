"""KafkaWriter: sends messages to the brokers, with or without a transaction, and waits until they are acknowledged."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, Producer, TopicPartition

from mainstem.errors import Fenced, IncompleteAppend, MainstemError, Unavailable
from mainstem.log.kafka.kafka_clients import KafkaClients
from mainstem.log.kafka.kafka_errors import is_fenced, kafka_errors, translated, unavailable
from mainstem.log.kafka.kafka_messages import Outgoing

__all__ = ["KafkaWriter", "Ranges", "TransactionalWriter", "place_of"]


# Where messages lie whose place the broker did not tell.
#
# A broker that comes back after it was killed may have written messages and never said so. The client sends them again, the
# broker knows them by their numbers and writes nothing; but it does not always know any more where it put them. They are
# looked up among what is there since they were sent.


def place_of(
    clients: KafkaClients, topic: str, partition: int, sent: Sequence[Outgoing], milliseconds: int
) -> tuple[int, int]:
    """The offset of the first of some messages that were sent in this order, and the one after the last."""
    with kafka_errors(clients.settings.servers, topic):
        there = _since(clients, topic, partition, milliseconds)
    places: list[int] = []
    left = list(sent)
    # From the end: the same may have been sent before.
    for message in reversed(there):
        if left and (message.key(), message.value()) == (left[-1].key, left[-1].value):
            left.pop()
            places.append(message.offset())
    if left:
        raise Unavailable(
            f'"{topic}" was appended to, but the offsets are not known',
            detail=f"The brokers at {clients.settings.servers} acknowledged it without offsets, and the records were not found.",
            hint="Check for the records before you append them again; retries of a producer, stem.producer(name), are idempotent.",
        )
    return places[-1], places[0] + 1


def _since(clients: KafkaClients, topic: str, partition: int, milliseconds: int) -> list[Message]:
    end = clients.ends(topic, [partition], IsolationLevel.READ_UNCOMMITTED)[partition]
    found: list[Message] = []
    # Also what a transaction under way has written: it may be ours.
    consumer = clients.consumer("read_uncommitted", 10)
    try:
        first = clients.at_time(topic, partition, milliseconds, consumer)
        if first is None or first >= end:
            return found
        consumer.assign([TopicPartition(topic, partition, first)])
        while True:
            message = consumer.poll(clients.patience)
            if message is None:
                raise unavailable(clients.settings.servers, f"nothing came from {topic}")
            if (error := message.error()) is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                return found
            found.append(message)
            if message.offset() + 1 >= end:
                return found
    finally:
        consumer.close()


# Beyond what the messages themselves may take: the answer to the last of them.
GRACE_SECONDS = 5.0
# How often, and how long apart, it is looked whether what was committed can be seen.
SHOWN_LOOKS, SHOWN_SECONDS = 50, 0.01

Ranges = dict[int, tuple[int, int]]
# By topic and partition.
Messages = Mapping[str, Mapping[int, Sequence[Outgoing]]]


class KafkaWriter:
    """Appends without a transaction: each message once and in order, on all in-sync replicas. Thread-safe."""

    def __init__(self, clients: KafkaClients, **settings: Any) -> None:
        self._clients = clients
        self._settings = settings
        self._guard = threading.RLock()
        self._producer: Producer | None = None

    def send(self, topic: str, messages: Mapping[int, Sequence[Outgoing]], milliseconds: int) -> Ranges:
        """The offsets of the messages of each partition: the first, and the one after the last."""
        with self._guard:
            return self._send(topic, messages, milliseconds)

    def _send(self, topic: str, messages: Mapping[int, Sequence[Outgoing]], milliseconds: int) -> Ranges:
        return self._send_all({topic: messages}, milliseconds)[topic]

    def _send_all(self, wanted: Messages, milliseconds: int) -> dict[str, Ranges]:
        """The messages of several topics, waited for together."""
        producer = self._opened()
        offsets: dict[str, Ranges] = {topic: {} for topic in wanted}
        failures: dict[str, dict[int, KafkaError]] = {topic: {} for topic in wanted}
        unplaced: dict[str, set[int]] = {topic: set() for topic in wanted}

        def delivered(topic: str, number: int, error: KafkaError | None, message: Message) -> None:
            # Of a message that failed the client may not say where it was to go.
            if error is not None:
                failures[topic].setdefault(number, error)
            elif message.offset() < 0:
                unplaced[topic].add(number)
            else:
                first, end = offsets[topic].get(number, (message.offset(), 0))
                offsets[topic][number] = first, max(end, message.offset() + 1)

        for topic, messages in wanted.items():
            with kafka_errors(self._clients.settings.servers, topic):
                for number, parts in messages.items():
                    told = partial(delivered, topic, number)
                    for part in parts:
                        self._produce(producer, topic, number, part, milliseconds, told)
        with kafka_errors(self._clients.settings.servers):
            left = producer.flush(self._clients.patience + GRACE_SECONDS)
        failed = next((topic for topic, found in failures.items() if found), next(iter(wanted)) if left else None)
        if failed is not None:
            # What the client may still hold is not to come after what its owner does next.
            self.close()
            written = (set(offsets[failed]) | unplaced[failed]) - set(failures[failed])
            raise self._failed(failed, sorted(written), sorted(wanted[failed]), failures[failed])
        for topic, numbers in unplaced.items():
            for number in numbers:
                place = place_of(self._clients, topic, number, wanted[topic][number], milliseconds)
                offsets[topic][number] = place
        return offsets

    def _produce(
        self, producer: Producer, topic: str, number: int, part: Outgoing, milliseconds: int, delivered: Any
    ) -> None:
        def enqueue() -> None:
            producer.produce(
                topic,
                value=part.value,
                key=part.key,
                partition=number,
                on_delivery=delivered,
                timestamp=milliseconds,
                headers=part.headers or [],
            )

        while True:
            try:
                enqueue()
            except BufferError:
                # The client holds as many as it may: let some be acknowledged first.
                producer.poll(0.1)
            except KafkaException:
                # Not enqueued, since the client has not heard of the partition yet, or never will.
                self._clients.patiently(topic, producer, enqueue)
                return
            else:
                return

    def _failed(
        self, topic: str, written: list[int], wanted: list[int], failures: dict[int, KafkaError]
    ) -> MainstemError:
        servers = self._clients.settings.servers
        error = next(iter(failures.values()), None)
        found = unavailable(servers, "not acknowledged in time") if error is None else translated(error, servers, topic)
        missing = tuple(number for number in wanted if number not in written)
        if not written or not isinstance(found, OSError):
            return found
        return IncompleteAppend(
            f'an append to "{topic}" reached {len(written)} of {len(wanted)} partitions',
            detail=f"{found} Partitions {', '.join(map(str, missing))} did not acknowledge it.",
            hint="Append in a transaction, or through a producer, stem.producer(name), whose retries are idempotent.",
            topic=topic,
            written=tuple(written),
            not_written=missing,
        )

    def send_one(self, topic: str, partition: int, key: str, value: bytes | None, milliseconds: int) -> int:
        """Send one message; its offset."""
        return self.send(topic, {partition: [Outgoing(key.encode(), value, None)]}, milliseconds)[partition][0]

    def _opened(self) -> Producer:
        if self._producer is None:
            self._producer = self._clients.producer(**self._settings)
        return self._producer

    def close(self) -> None:
        with self._guard:
            producer, self._producer = self._producer, None
            if producer is not None:
                # One that was fenced refuses even to be put away.
                with suppress(KafkaException):
                    producer.purge()
                    producer.flush(1.0)


class TransactionalWriter(KafkaWriter):
    """Sends within transactions, one after the other, under a transactional id. A newer user of the id fences this one."""

    def __init__(self, clients: KafkaClients, transactional_id: str, timeout: int) -> None:
        milliseconds = max(1, timeout // 1000)
        super().__init__(clients, **{"transactional.id": transactional_id, "transaction.timeout.ms": milliseconds})
        # Within the transaction's time, or not at all: the client refuses more.
        self._settings["message.timeout.ms"] = max(1, min(int(clients.patience * 1000), milliseconds))
        self.usable = True
        # The ends of what was sent in the transaction under way.
        self._sent: dict[str, dict[int, int]] = {}

    def open(self) -> None:
        """Take the id over: open transactions of an older user are aborted, and the older user is fenced."""
        with self._guard, kafka_errors(self._clients.settings.servers):
            try:
                self._opened().init_transactions(self._clients.patience + GRACE_SECONDS)
            except KafkaException:
                self.give_up()
                raise

    def begin(self) -> None:
        with self._guard, kafka_errors(self._clients.settings.servers):
            self._sent = {}
            self._opened().begin_transaction()

    def send(self, topic: str, messages: Mapping[int, Sequence[Outgoing]], milliseconds: int) -> Ranges:
        return self.send_all({topic: messages}, milliseconds)[topic]

    def send_all(self, messages: Messages, milliseconds: int, unread: str = "") -> dict[str, Ranges]:
        """The messages of several topics, in one round. Nobody reads `unread` as committed: it is not waited for after a commit."""
        with self._guard:
            try:
                found = self._send_all(messages, milliseconds)
                for topic, offsets in found.items():
                    if topic != unread:
                        self._sent.setdefault(topic, {}).update({number: end for number, (_, end) in offsets.items()})
                return found
            except MainstemError:
                self.usable = False
                raise

    def commit(self) -> None:
        """Commit it. Raises `Fenced` if it was fenced; after any other error the outcome is unknown."""
        with self._guard:
            try:
                self._opened().commit_transaction(self._clients.patience + GRACE_SECONDS)
            except KafkaException as error:
                self.usable = False
                if is_fenced(error) or error.args[0].txn_requires_abort():
                    self.give_up()
                    raise Fenced(
                        "another process ended the transaction",
                        detail=f"The broker says: {error.args[0].str()}.",
                        hint="None of its writes are visible. Begin another one.",
                    ) from error
                raise translated(error, self._clients.settings.servers) from error
        self._wait_until_shown()

    def _wait_until_shown(self) -> None:
        """Who commits or aborts and then reads is to find what can be read: brokers write their markers a moment after they have decided.

        Not for long: somebody else's open transaction may stand before it.
        """
        pause = threading.Event()
        # It is decided: a broker that does not answer now changes nothing about it.
        with suppress(Unavailable):
            for _ in range(SHOWN_LOOKS):
                ends = {topic: self._clients.ends(topic, parts) for topic, parts in self._sent.items()}
                if all(ends[topic][number] >= end for topic, of in self._sent.items() for number, end in of.items()):
                    return
                pause.wait(SHOWN_SECONDS)

    def abort(self) -> None:
        """Abort it; if the broker cannot be reached, it aborts the transaction itself after its timeout."""
        with self._guard:
            if self._producer is None:
                return
            try:
                self._producer.abort_transaction(self._clients.patience + GRACE_SECONDS)
            except KafkaException:
                self.give_up()
                return
        # What others wrote behind it was held up by it.
        self._wait_until_shown()

    def give_up(self) -> None:
        """Close this connection."""
        self.usable = False
        self.close()
