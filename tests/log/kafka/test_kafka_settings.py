"""Where the brokers are and how to talk to them: from an address, a file and the environment, and no secret shown."""

import logging
from pathlib import Path

import pytest

from mainstem.errors import BrokerUnavailable, Invalid, MainstemError
from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.log.kafka.kafka_settings import KafkaSettings
from mainstem.stem import Mainstem
from tests.kafka_broker import KafkaBroker, free_ports
from tests.log.kafka.kafka_stems import own_settings

SECRET = "canary-7c41"


def test_an_address_names_brokers_and_the_file_says_the_rest(tmp_path: Path) -> None:
    (tmp_path / "kafka.toml").write_text(
        'prefix = "shop."\nreplication_factor = 3\nmin_insync_replicas = 2\npatience = "5 seconds"\n'
        f'[client]\n"sasl.username" = "shop"\n"sasl.password" = "{SECRET}"\n"enable.ssl.certificate.verification" = true\n'
    )
    settings = KafkaSettings.of("kafka://one,two:19092", tmp_path)
    assert settings.brokers == ("one:9092", "two:19092")
    assert (settings.prefix, settings.replication_factor, settings.min_insync_replicas) == ("shop.", 3, 2)
    assert settings.patience_seconds == 5
    assert settings.client["sasl.password"] == SECRET
    assert settings.client["enable.ssl.certificate.verification"] == "true"
    assert SECRET not in repr(settings) + str(settings)


def test_the_environment_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kafka.toml").write_text('[client]\n"sasl.password" = "in the file"\n')
    monkeypatch.setenv("MAINSTEM_KAFKA_SASL_PASSWORD", SECRET)
    assert KafkaSettings.of("kafka://one", tmp_path).client == {"sasl.password": SECRET}


@pytest.mark.parametrize(
    ("address", "file", "says"),
    [
        ("kafka://", "", "no Kafka broker is named"),
        ("redis://one", "", "is not the address of a log"),
        (f"kafka://shop:{SECRET}@one:9092", "", "not a host and a port"),
        ("kafka://one", "prefx = 1", "did you mean"),
        ("kafka://one", "replication_factor = 0", "replication_factor"),
        ("kafka://one", 'prefix = "a/b"', "prefix"),
        ("kafka://one", f'[client]\n"sasl.password" = ["{SECRET}"]', "list"),
        ("kafka://one", f'[client\n"sasl.password" = "{SECRET}"', "is not TOML"),
        ("kafka://one", '[client]\nacks = "1"', "cannot be changed"),
    ],
)
def test_what_cannot_be_is_refused_and_shows_no_secret(tmp_path: Path, address: str, file: str, says: str) -> None:
    (tmp_path / "kafka.toml").write_text(file)
    with pytest.raises(Invalid) as refused:
        KafkaSettings.of(address, tmp_path)
    shown = f"{refused.value} {refused.value.detail} {refused.value.hint}"
    assert says in shown.replace("Did", "did")
    assert SECRET not in shown


def test_a_broker_that_is_not_there_is_named() -> None:
    [port] = free_ports(1)
    settings = KafkaSettings.of(f"kafka://127.0.0.1:{port}")
    with pytest.raises(BrokerUnavailable, match=f"no Kafka broker answers at 127.0.0.1:{port}") as refused:
        KafkaLog(KafkaSettings(settings.brokers, patience=settings.patience * 0))
    assert refused.value.address == f"127.0.0.1:{port}"
    assert isinstance(refused.value, OSError)


def test_who_gives_user_and_password_is_let_in_and_who_gives_wrong_ones_is_told_without_them(
    kafka_broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def secured(password: str) -> KafkaSettings:
        client = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": kafka_broker.user,
                  "sasl.password": password}  # fmt: skip
        own = own_settings(kafka_broker)
        return KafkaSettings(
            (kafka_broker.secured_address,), prefix=own.prefix, patience=own.patience / 10, client=client
        )

    with caplog.at_level(logging.DEBUG):
        with pytest.raises(MainstemError) as refused:
            KafkaLog(secured(SECRET))
        with Mainstem(KafkaLog(secured(kafka_broker.password))) as stem:
            stem.create_topic("orders", schema="n bigint").append([{"n": 1}])
            shown = [repr(stem), repr(stem.log), str(vars(stem.topic("orders").backend))]
    shown += [str(refused.value), refused.value.detail, refused.value.hint, caplog.text]
    shown.append(Path("/proc/self/cmdline").read_text())
    for secret in (SECRET, kafka_broker.password):
        assert not [text for text in shown if secret in text]
