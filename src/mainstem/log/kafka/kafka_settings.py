"""KafkaSettings: the brokers, and the client's settings. From an address, `kafka.toml` in the home, and the
environment.

    # kafka.toml
    brokers = ["broker1:9092", "broker2:9092"]    # then the home needs no log="kafka://..." to be opened
    prefix = "shop."                              # precedes the names of all topics on the brokers
    replication_factor = 3                        # of new topics; default: that of the brokers
    min_insync_replicas = 2
    patience = "30 seconds"                       # how long to wait for a broker that does not answer
    [client]                                      # settings of the client library (librdkafka), with its names
    "security.protocol" = "SASL_SSL"
    "sasl.mechanism" = "SCRAM-SHA-512"
    "sasl.username" = "shop"

The environment takes precedence: MAINSTEM_KAFKA_SASL_PASSWORD is "sasl.password" of the client. Values of `client` are
never shown: they may be passwords or private keys.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from mainstem.durations import parse_duration
from mainstem.errors import Invalid, did_you_mean
from mainstem.names import check_own_name
from mainstem.settings import environment_with

__all__ = ["SCHEME", "KafkaSettings", "names_brokers"]

SCHEME = "kafka://"
FILE = "kafka.toml"
ENVIRONMENT = "MAINSTEM_KAFKA_"
PORT = 9092

# Settings that the guarantees of the log depend on cannot be changed.
_OURS = (
    "acks", "auto.offset.reset", "bootstrap.servers", "enable.auto.commit", "enable.auto.offset.store",
    "enable.idempotence", "enable.partition.eof", "group.id", "isolation.level", "transactional.id",
    "transaction.timeout.ms",
)  # fmt: skip


@dataclass(frozen=True)
class KafkaSettings:
    """The brokers of a log, and the settings of its topics there.

    >>> KafkaSettings.of("kafka://broker1:9092,broker2").brokers
    ('broker1:9092', 'broker2:9092')
    """

    brokers: tuple[str, ...]
    prefix: str = ""
    replication_factor: int | None = None
    min_insync_replicas: int | None = None
    patience: timedelta = timedelta(seconds=30)
    client: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, address: str, home: str | os.PathLike[str] | None = None) -> KafkaSettings:
        """The settings for an address, with those of the home's `kafka.toml` and the environment."""
        if not address.startswith(SCHEME):
            raise Invalid(
                f'"{address[:100]}" is not the address of a log',
                detail='A log on Kafka has an address such as "kafka://broker1:9092,broker2:9092".',
                hint="Leave log= out for the log in the home itself.",
            )
        given = {} if home is None else _file(os.path.join(home, FILE))
        client = {name: _client_text(name, value) for name, value in given.pop("client", {}).items()}
        client |= {name.replace("_", "."): value for name, value in environment_with(ENVIRONMENT).items()}
        for name in client:
            if name in _OURS:
                raise Invalid(
                    f'setting "{name}" of the Kafka client cannot be changed',
                    detail="Mainstem sets it itself: the log's guarantees depend on it.",
                    hint=f"Remove it from {FILE}, and {ENVIRONMENT}{name.upper().replace('.', '_')} from the environment.",
                )
        named = [part for part in address.removeprefix(SCHEME).split(",") if part] or given.pop("brokers", [])
        given.pop("brokers", None)
        return cls._from_values(tuple(_broker(part) for part in named), given, client)

    @classmethod
    def _from_values(cls, brokers: tuple[str, ...], given: dict[str, Any], client: dict[str, str]) -> KafkaSettings:
        if not brokers:
            raise Invalid(
                "no Kafka broker is named",
                detail=f'The address is "{SCHEME}" alone, and {FILE} in the home has no brokers.',
                hint='Give log="kafka://broker1:9092", or brokers = ["broker1:9092"] in the file.',
            )
        known = ("prefix", "replication_factor", "min_insync_replicas", "patience")
        for name, value in given.items():
            if name not in known:
                raise Invalid(
                    f'{FILE} has no setting "{name}"',
                    detail=f"Its settings are: brokers, {', '.join(known)}, and [client].",
                    hint=did_you_mean(name, known) or "Settings of the client library belong under [client].",
                )
            if name.endswith(("factor", "replicas")) and (not isinstance(value, int) or value < 1):
                raise Invalid(
                    f"{name} in {FILE} is {value!r}",
                    detail="It must be a whole number of at least 1.",
                    hint="3 is usual.",
                )
        if "patience" in given:
            given["patience"] = parse_duration(given["patience"], setting="patience")
        if prefix := given.get("prefix"):
            check_own_name(f"{prefix}x", "prefix")
        return cls(brokers, client=client, **given)

    @property
    def address(self) -> str:
        """The address for `open`; it has no secrets."""
        return SCHEME + ",".join(self.brokers)

    @property
    def servers(self) -> str:
        return ",".join(self.brokers)

    @property
    def patience_seconds(self) -> float:
        return self.patience.total_seconds()


def names_brokers(home: str | os.PathLike[str]) -> bool:
    """Whether the home's `kafka.toml` names brokers."""
    return bool(_file(os.path.join(home, FILE)).get("brokers"))


def _broker(text: str) -> str:
    host, _, port = text.strip().rpartition(":") if ":" in text else (text.strip(), "", str(PORT))
    if not host or not port.isdigit() or "@" in text or "/" in text:
        # Not shown: it may be a password in the wrong line.
        raise Invalid(
            "a broker's address is not a host and a port",
            detail='Brokers are named as in "kafka://broker1:9092,broker2:9092".',
            hint=f"User and password belong in [client] of {FILE}, or in the environment.",
        )
    return f"{host}:{port}"


def _client_text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise Invalid(
        f'"{name}" under [client] in {FILE} is {type(value).__name__}',
        detail="The client library takes text and numbers.",
        hint=f"Write {name!r} in quotes, since it holds dots, and a plain value behind it.",
    )


def _file(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        # Without Python's message, which may quote the line.
        raise Invalid(
            f'"{path}" is not TOML',
            detail=f"{type(error).__name__} in it; what it says is not shown, since the file may hold a password.",
            hint='Write it as in: prefix = "shop."',
        ) from None
