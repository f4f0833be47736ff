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
from mainstem.log.kafka.kafka_errors import is_fenced, kafka_errors, translate_error, unavailable
from mainstem.log.kafka.kafka_messages import Outgoing

__all__ = ["KafkaWriter", "Ranges", "TransactionalWriter", "locate_messages"]


# Finds messages whose offsets the broker did not return.
#
# A broker that comes back after a crash may have written messages without acknowledging them. The client sends them
# again, and the broker detects the duplicates by their sequence numbers; but it does not always know their offsets any
# more. They are searched for among the messages since they were sent.


def locate_messages(
    clients: KafkaClients, topic: str, partition: int, sent: Sequence[Outgoing], milliseconds: int
) -> tuple[int, int]:
    """The offset of the first of these messages, sent in this order, and the one after the last."""
    with kafka_errors(clients.settings.servers, topic):
        there = _since(clients, topic, partition, milliseconds)
    places: list[int] = []
    left = list(sent)
    # From the end: equal messages may have been sent before.
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
    # Includes uncommitted messages: they may be ours.
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


# Added to the timeout of the messages, for the last acknowledgement.
GRACE_SECONDS = 5.0
# How often, and at what interval, to check whether a commit is visible.
VISIBLE_LOOKS, VISIBLE_SECONDS = 50, 0.01

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
        """Send messages to several topics, and wait for all of them."""
        producer = self._open_producer()
        offsets: dict[str, Ranges] = {topic: {} for topic in wanted}
        failures: dict[str, dict[int, KafkaError]] = {topic: {} for topic in wanted}
        unplaced: dict[str, set[int]] = {topic: set() for topic in wanted}

        def on_delivery(topic: str, number: int, error: KafkaError | None, message: Message) -> None:
            # A failed message may not have its partition.
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
                    told = partial(on_delivery, topic, number)
                    for part in parts:
                        self._produce(producer, topic, number, part, milliseconds, told)
        with kafka_errors(self._clients.settings.servers):
            left = producer.flush(self._clients.patience + GRACE_SECONDS)
        failed = next((topic for topic, found in failures.items() if found), next(iter(wanted)) if left else None)
        if failed is not None:
            # Otherwise messages in the client's buffer could follow the caller's next append.
            self.close()
            written = (set(offsets[failed]) | unplaced[failed]) - set(failures[failed])
            raise self._delivery_error(failed, sorted(written), sorted(wanted[failed]), failures[failed])
        for topic, numbers in unplaced.items():
            for number in numbers:
                place = locate_messages(self._clients, topic, number, wanted[topic][number], milliseconds)
                offsets[topic][number] = place
        return offsets

    def _produce(
        self, producer: Producer, topic: str, number: int, part: Outgoing, milliseconds: int, on_delivery: Any
    ) -> None:
        def enqueue() -> None:
            producer.produce(
                topic,
                value=part.value,
                key=part.key,
                partition=number,
                on_delivery=on_delivery,
                timestamp=milliseconds,
                headers=part.headers or [],
            )

        while True:
            try:
                enqueue()
            except BufferError:
                # The client's buffer is full: wait for some acknowledgements.
                producer.poll(0.1)
            except KafkaException:
                # Not enqueued, because the client does not know the partition yet, or it does not exist.
                self._clients.call_with_retries(topic, producer, enqueue)
                return
            else:
                return

    def _delivery_error(
        self, topic: str, written: list[int], wanted: list[int], failures: dict[int, KafkaError]
    ) -> MainstemError:
        servers = self._clients.settings.servers
        error = next(iter(failures.values()), None)
        found = (
            unavailable(servers, "not acknowledged in time")
            if error is None
            else translate_error(error, servers, topic)
        )
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
        """Send one message; returns its offset."""
        return self.send(topic, {partition: [Outgoing(key.encode(), value, None)]}, milliseconds)[partition][0]

    def _open_producer(self) -> Producer:
        if self._producer is None:
            self._producer = self._clients.producer(**self._settings)
        return self._producer

    def close(self) -> None:
        with self._guard:
            producer, self._producer = self._producer, None
            if producer is not None:
                # Closing a fenced one raises too.
                with suppress(KafkaException):
                    producer.purge()
                    producer.flush(1.0)


class TransactionalWriter(KafkaWriter):
    """Sends within transactions, one after the other, under a transactional id. A newer user of the id fences this
    one."""

    def __init__(self, clients: KafkaClients, transactional_id: str, timeout: int) -> None:
        milliseconds = max(1, timeout // 1000)
        super().__init__(clients, **{"transactional.id": transactional_id, "transaction.timeout.ms": milliseconds})
        # At most the transaction's timeout: the client refuses more.
        self._settings["message.timeout.ms"] = max(1, min(int(clients.patience * 1000), milliseconds))
        self.usable = True
        # The ends of the messages sent in the transaction in progress.
        self._sent: dict[str, dict[int, int]] = {}

    def open(self) -> None:
        """Take the id over: open transactions of an older user are aborted, and the older user is fenced."""
        with self._guard, kafka_errors(self._clients.settings.servers):
            try:
                self._open_producer().init_transactions(self._clients.patience + GRACE_SECONDS)
            except KafkaException:
                self.give_up()
                raise

    def begin(self) -> None:
        with self._guard, kafka_errors(self._clients.settings.servers):
            self._sent = {}
            self._open_producer().begin_transaction()

    def send(self, topic: str, messages: Mapping[int, Sequence[Outgoing]], milliseconds: int) -> Ranges:
        return self.send_all({topic: messages}, milliseconds)[topic]

    def send_all(self, messages: Messages, milliseconds: int, unread: str = "") -> dict[str, Ranges]:
        """The messages of several topics, in one round. After a commit it does not wait until `unread` is visible."""
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
                self._open_producer().commit_transaction(self._clients.patience + GRACE_SECONDS)
            except KafkaException as error:
                self.usable = False
                if is_fenced(error) or error.args[0].txn_requires_abort():
                    self.give_up()
                    raise Fenced(
                        "another process ended the transaction",
                        detail=f"The broker says: {error.args[0].str()}.",
                        hint="None of its writes are visible. Begin another one.",
                    ) from error
                raise translate_error(error, self._clients.settings.servers) from error
        self._wait_until_visible()

    def _wait_until_visible(self) -> None:
        """Wait until the result is visible, for callers that read next: brokers write markers shortly after the
        decision.

        For a limited time: another open transaction may come before it.
        """
        pause = threading.Event()
        # The outcome is decided, even if a broker does not answer now.
        with suppress(Unavailable):
            for _ in range(VISIBLE_LOOKS):
                ends = {topic: self._clients.ends(topic, parts) for topic, parts in self._sent.items()}
                if all(ends[topic][number] >= end for topic, of in self._sent.items() for number, end in of.items()):
                    return
                pause.wait(VISIBLE_SECONDS)

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
        # It blocked the records that others wrote after it.
        self._wait_until_visible()

    def give_up(self) -> None:
        """Close this connection."""
        self.usable = False
        self.close()
