"""How Spark's own Kafka connector is told of brokers: the words of one client library in those of another."""

import sys
from pathlib import Path

import pytest

from mainstem.errors import Invalid, NotFound
from mainstem.log.kafka.kafka_settings import KafkaSettings
from mainstem.spark.real_time import kafka_connector
from mainstem.spark.real_time.kafka_connector import connector_jars, have_connector, java_options


def options(**client: str) -> dict[str, str]:
    given = {name.replace("_", "."): value for name, value in client.items()}
    found = java_options(KafkaSettings(("broker1:9092", "broker2:9092"), client=given))
    assert found.pop("kafka.bootstrap.servers") == "broker1:9092,broker2:9092"
    return {name.removeprefix("kafka."): value for name, value in found.items()}


def test_logins_and_certificates_are_translated(tmp_path: Path) -> None:
    certificate = tmp_path / "ca.pem"
    certificate.write_text("-----BEGIN CERTIFICATE-----")
    assert options() == {}
    # How its own buffers are is the business of each client.
    assert options(queue_buffering_max_ms="5") == {}
    login = {"sasl_username": "shop", "sasl_password": 'pass"\\word'}
    assert options(security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", **login) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="shop" password="pass\\"\\\\word";',
    }
    assert options(sasl_mechanisms="PLAIN", **login)["sasl.jaas.config"].startswith(
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
    )
    assert options(ssl_ca_location=str(certificate), ssl_endpoint_identification_algorithm="none") == {
        "ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----",
        "ssl.truststore.type": "PEM",
        "ssl.endpoint.identification.algorithm": "",
    }
    assert options(ssl_certificate_location=str(certificate), ssl_key_pem="KEY", ssl_key_password="geheim") == {
        "ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE-----",
        "ssl.keystore.key": "KEY",
        "ssl.keystore.type": "PEM",
        "ssl.key.password": "geheim",
    }


@pytest.mark.parametrize(
    "client",
    [
        {"sasl_mechanism": "GSSAPI"},
        {"ssl_keystore_location": "keys.p12"},
        {"enable_ssl_certificate_verification": "false"},
        {"ssl_ca_location": "/nowhere/ca.pem"},
    ],
    ids=lambda client: next(iter(client)),
)
def test_what_has_no_counterpart_is_refused_by_name_and_not_by_value(client: dict[str, str]) -> None:
    with pytest.raises(Invalid) as refused:
        options(**client, sasl_password="canary")
    assert next(iter(client)).replace("_", ".") in str(refused.value)
    assert "canary" not in f"{refused.value} {refused.value.detail} {refused.value.hint}"


def test_a_missing_connector_is_told_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Session:
        version = "4.2.0"

    assert [jar for jar in connector_jars() if "spark-sql-kafka" in jar]
    monkeypatch.setattr(sys, "prefix", "/nowhere")
    monkeypatch.setattr(kafka_connector, "_is_known", lambda spark: False)
    with pytest.raises(NotFound, match="connector is missing") as missing:
        have_connector(Session())  # type: ignore[arg-type]
    assert "spark.jars.packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0" in missing.value.hint
