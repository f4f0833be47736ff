"""Spark's own Kafka connector: found, added to a session, and configured for the brokers.

Only real-time flows need it. Its jars are where the user put them (`spark.jars.packages`), or in the environment
that `make setup` created. `kafka.toml` has the settings of one client library (librdkafka), the connector has those of
another (the Java client): they are translated here, and a setting without a counterpart is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.errors import Invalid, NotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mainstem.log.kafka.kafka_settings import KafkaSettings

__all__ = ["PACKAGE", "connector_jars", "have_connector", "java_options"]

PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_2.13"
# Spark redacts the values of options with these in their names, in plans and logs.
REDACTED = "(?i)url|secret|password|token|jaas|keystore|truststore"

_LOGINS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_SAME = ("security.protocol", "client.id", "client.rack", "ssl.key.password")
_READ_FROM_FILE = {
    "ssl.certificate.location": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.key",
    "ssl.ca.location": "ssl.truststore.certificates",
}
_TEXTS = {
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "ssl.ca.pem": "ssl.truststore.certificates",
}
_SECURITY = ("ssl.", "sasl.", "enable.ssl.", "enable.sasl.", "https.")


def connector_jars() -> list[str]:
    """The jars of the connector in the environment of this Python; empty if there are none."""
    return sorted(str(path) for path in (Path(sys.prefix) / "kafka" / "connector").glob("*.jar"))


def have_connector(spark: SparkSession) -> None:
    """Add the connector to a session, also a running one; raises `NotFound` if there is none."""
    if not _is_known(spark):
        jars = connector_jars()
        if not jars or not _add_jars(spark, jars):
            raise NotFound(
                "Spark's Kafka connector is missing",
                detail="A real-time flow reads and writes through it; PySpark does not include it.",
                hint=f"Add it in spark-defaults.conf: spark.jars.packages {PACKAGE}:{spark.version}. In a copy of the "
                "source, `make setup` downloads it.",
            )
    spark.conf.set("spark.sql.redaction.options.regex", REDACTED)


def _loader(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return jvm.java.lang.Thread.currentThread().getContextClassLoader()


def _is_known(spark: SparkSession) -> bool:
    loader = _loader(spark)
    return loader is not None and loader.getResource(PROVIDER.replace(".", "/") + ".class") is not None


def _add_jars(spark: SparkSession, jars: Sequence[str]) -> bool:
    """Add the jars to a class loader of all threads of the session; whether that worked.

    `ADD JAR` would add them only for threads that start later, and results of tasks are read by earlier ones.
    """
    jvm: Any = spark._jvm
    loader, growing = _loader(spark), None
    while loader is not None:
        if loader.getClass().getName().endswith("MutableURLClassLoader"):
            growing = loader
        loader = loader.getParent()
    if growing is None:
        return False
    for jar in jars:
        growing.addURL(jvm.java.io.File(jar).toURI().toURL())
        if not str(spark.sparkContext.master).startswith("local"):
            spark.sparkContext._jsc.addJar(jar)
    return _is_known(spark)


def java_options(settings: KafkaSettings) -> dict[str, str]:
    """Options of Spark's source and sink for these brokers, secrets included: they are for Spark alone."""
    translated = _translate_settings(settings.client)
    return {"kafka.bootstrap.servers": settings.servers} | {f"kafka.{name}": it for name, it in translated.items()}


def _translate_settings(client: Mapping[str, str]) -> dict[str, str]:
    found = {name: client[name] for name in _SAME if name in client}
    found |= _login(client)
    found |= {theirs: client[ours] for ours, theirs in _TEXTS.items() if ours in client}
    for ours, theirs in _READ_FROM_FILE.items():
        if ours in client:
            # Its text, not its path: executors on other machines may not have the file.
            found[theirs] = _text_of(client[ours], ours)
    for kind in ("truststore", "keystore"):
        if any(name.startswith(f"ssl.{kind}.") for name in found):
            found[f"ssl.{kind}.type"] = "PEM"
    if (checked := client.get("ssl.endpoint.identification.algorithm")) is not None:
        found["ssl.endpoint.identification.algorithm"] = "" if checked == "none" else checked
    known = {
        *_SAME, *_TEXTS, *_READ_FROM_FILE, "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password",
        "ssl.endpoint.identification.algorithm",
    }  # fmt: skip
    for name in client:
        # Tuning of one client does not apply to the other; security settings must.
        if name not in known and name.startswith(_SECURITY):
            raise _untranslatable(name)
    return found


def _login(client: Mapping[str, str]) -> dict[str, str]:
    mechanism = client.get("sasl.mechanism") or client.get("sasl.mechanisms")
    if mechanism is None:
        return {}
    if mechanism not in _LOGINS:
        raise _untranslatable("sasl.mechanism")
    user, password = (_escape(client.get(f"sasl.{name}", "")) for name in ("username", "password"))
    login = f'{_LOGINS[mechanism]} required username="{user}" password="{password}";'
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": login}


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _text_of(path: str, name: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(
            f'the file for "{name}" of the Kafka client cannot be read',
            detail=f'It is "{path}": {type(error).__name__}. Spark\'s connector needs a PEM file.',
            hint="Correct it in [client] of kafka.toml, or in the environment.",
        ) from None


def _untranslatable(name: str) -> Invalid:
    return Invalid(
        f'"{name}" of the Kafka client has no counterpart in Spark\'s connector',
        detail="A real-time flow connects to the brokers through it. It supports PLAIN and SCRAM logins, and certificates "
        "in PEM files.",
        hint="Use one of these, or leave mode out: flows in batches use the client that has the setting.",
    )
