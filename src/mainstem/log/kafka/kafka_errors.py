"""Translates errors of Kafka's client into Mainstem's: the one module that knows its error codes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from mainstem.errors import BrokerUnavailable, Fenced, Invalid, MainstemError, TopicNotFound, Unavailable

__all__ = [
    "LOGGER",
    "MISSING",
    "code_of",
    "is_fenced",
    "kafka_errors",
    "not_on_kafka",
    "settings_error",
    "translate_error",
    "unavailable",
]


# Operations that a log on Kafka does not support; docs/guides/kafka.md lists them.


def not_on_kafka(what: str, why: str) -> Invalid:
    """The error for an operation that only the embedded log supports."""
    return Invalid(
        f"a log on Kafka cannot {what}",
        detail=why,
        hint='Leave it out, or keep the topic in an embedded log; the guide "A log on Kafka" (docs/guides/kafka.md) lists '
        "the differences.",
    )


# Otherwise the client library writes to the terminal.
LOGGER = logging.getLogger("mainstem.kafka")
LOGGER.addHandler(logging.NullHandler())

_FENCED = frozenset(
    [
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_TXN_STATE,
    ]
)
MISSING = frozenset([KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION])
_REFUSED_ENTRY = frozenset([KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL])
_SILENT = frozenset(
    [
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    ]
)


def code_of(error: KafkaException) -> int:
    return int(error.args[0].code())


def is_fenced(error: KafkaException) -> bool:
    """Whether a newer user of the transactional id has fenced this one."""
    return code_of(error) in _FENCED


def unavailable(servers: str, said: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"no Kafka broker answers at {servers}",
        detail=f"The client says: {said}.",
        hint="Start the broker, or correct the address; appends that were not acknowledged can be retried.",
        address=servers,
    )


def settings_error(said: str, client: Iterable[str]) -> Invalid:
    """The error for settings that the client library refuses. Shows only names of its message: values may be
    secrets."""
    names = sorted({*client, "sasl.username", "sasl.password"}, key=len, reverse=True)
    concerned = [name for name in names if name in said]
    return Invalid(
        "the Kafka client library rejects its settings",
        detail=f"It names: {', '.join(concerned)}." if concerned else "It does not say which of them.",
        hint="Look at [client] in kafka.toml and at MAINSTEM_KAFKA_... in the environment: a name may be wrong or missing, or "
        "a value invalid.",
    )


def translate_error(error: KafkaException | KafkaError, servers: str, topic: str = "") -> MainstemError:
    """The error of Mainstem for an error of the client."""
    inner: KafkaError = error.args[0] if isinstance(error, KafkaException) else error
    code, said = inner.code(), inner.str().rstrip(".")
    if code in _FENCED:
        return Fenced(
            "this transaction was fenced on Kafka",
            detail=f"The broker says: {said}.",
            hint="Begin another one: nothing of this one was committed.",
        )
    if code in MISSING:
        return TopicNotFound(
            f'topic "{topic}" does not exist',
            detail=f"The brokers at {servers} do not have it.",
            hint=f'Create it: mainstem topic create {topic or "NAME"} --schema "..."',
            topic=topic,
        )
    if code in _REFUSED_ENTRY:
        return BrokerUnavailable(
            f"the Kafka brokers at {servers} rejected the login",
            detail="The user, password or certificate is wrong.",
            hint="Look at [client] in kafka.toml and at MAINSTEM_KAFKA_... in the environment.",
            address=servers,
        )
    if code in _SILENT or inner.retriable():
        return unavailable(servers, said)
    if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):
        return Invalid(
            f'a record is larger than topic "{topic}" takes on Kafka',
            detail=f"The broker says: {said}.",
            hint="Raise max.message.bytes of the topic on the brokers, or store large values elsewhere.",
        )
    if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED,
                KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):  # fmt: skip
        return Invalid(
            "the Kafka brokers do not authorize this user",
            detail=f"The broker says: {said}.",
            hint="Ask the administrator of the brokers for the permission.",
        )
    return Unavailable(
        f"a Kafka request failed: {said}", detail=f"The error is {inner.name()}, of {servers}.", hint="Try again."
    )


@contextmanager
def kafka_errors(servers: str, topic: str = "") -> Iterator[None]:
    """Raises errors of the client as errors of Mainstem."""
    try:
        yield
    except KafkaException as error:
        raise translate_error(error, servers, topic) from error
    except SystemError as error:
        # Raised in a callback while the client raised its own exception; Python chains the two.
        cause = error.__cause__ or error.__context__
        if not isinstance(cause, KafkaException):
            raise
        raise translate_error(cause, servers, topic) from cause
