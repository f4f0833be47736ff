"""A broker that wants TLS and a login, reached by what `kafka.toml` and the environment say; and secrets that stay secret."""

import logging
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from mainstem.errors import BrokerUnavailable, MainstemError
from mainstem.log.kafka.kafka_settings import KafkaSettings
from mainstem.stem import open as open_stem
from tests.kafka_broker import KafkaBroker
from tests.needs import needs

MAINSTEM = str(Path(sys.executable).with_name("mainstem"))


def write_settings(home: Path, broker: KafkaBroker, **client: str) -> None:
    home.mkdir(exist_ok=True)
    settings = {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": broker.user,
        "ssl.ca.location": str(broker.certificate), **client,
    }  # fmt: skip
    lines = [
        f'brokers = ["{broker.encrypted_address}"]',
        f'prefix = "t{uuid.uuid4().hex[:8]}."',
        'patience = "1 second"',
    ]
    lines += ["[client]", *(f'"{name}" = "{value}"' for name, value in settings.items())]
    (home / "kafka.toml").write_text("\n".join(lines) + "\n")


@needs("openssl", command="openssl")
def test_a_home_reaches_a_broker_with_a_certificate_and_a_login(
    kafka_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "shop"
    write_settings(home, kafka_broker)
    monkeypatch.setenv("MAINSTEM_KAFKA_SASL_PASSWORD", kafka_broker.password)
    with open_stem(home) as stem:
        stem.create_topic("orders", schema="n bigint").append([{"n": 1}, {"n": 2}])
        with stem.producer("till").transaction() as transaction:
            transaction.append("orders", [{"n": 3}], sequence=1)
        assert [row["n"] for row in stem.topic("orders").to_arrow().to_pylist()] == [1, 2, 3]
    said = subprocess.run([MAINSTEM, "topic", "list", "--home", home], capture_output=True, text=True, timeout=300)
    assert "orders" in said.stdout, said.stderr

    # Whoever does not know its certificate does not talk to it.
    write_settings(home, kafka_broker, **{"ssl.ca.location": "/etc/ssl/certs/ca-certificates.crt"})
    with pytest.raises(BrokerUnavailable):
        open_stem(home)


@needs("openssl", command="openssl")
def test_a_secret_is_in_no_error_no_log_no_file_and_no_process_list(
    kafka_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str], fault_report: Callable[..., None],
) -> None:  # fmt: skip
    """G14: through every setting that holds one, from the file and from the environment, with connections that fail."""
    # The last one: a password that stands in the wrong line.
    names = ["sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem", "sasl.oauthbearer.config",
             "sasl.username", "security.protocol"]  # fmt: skip
    canaries, seen = [], []
    with caplog.at_level(logging.DEBUG):
        for number in range(28):
            name, canary = names[number % len(names)], f"canary{uuid.uuid4().hex}"
            canaries.append(canary)
            home = tmp_path / f"home{number}"
            if number % 2:
                write_settings(home, kafka_broker, **{name: canary})
                monkeypatch.delenv("MAINSTEM_KAFKA_SASL_PASSWORD", raising=False)
            else:
                write_settings(home, kafka_broker)
                monkeypatch.setenv(f"MAINSTEM_KAFKA_{name.upper().replace('.', '_')}", canary)
            seen.append(repr(KafkaSettings.of("kafka://", home)))
            try:
                with open_stem(home) as stem:
                    seen.append(repr(stem))
            except MainstemError as error:
                seen += [str(error), error.detail, error.hint, repr(error)]
            if number % 2 == 0:
                monkeypatch.delenv(f"MAINSTEM_KAFKA_{name.upper().replace('.', '_')}")
            else:
                (home / "kafka.toml").unlink()
            seen += [path.read_text(errors="replace") for path in home.rglob("*") if path.is_file()]
        # As a person meets it: a command that is not let in.
        home, canary = tmp_path / "shop", f"canary{uuid.uuid4().hex}"
        canaries.append(canary)
        write_settings(home, kafka_broker)
        environment = {**os.environ, "MAINSTEM_KAFKA_SASL_PASSWORD": canary}
        command = subprocess.Popen(
            [MAINSTEM, "topic", "list", "--home", home], env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        seen += processes()
        said, _ = command.communicate(timeout=300)
        assert "rejected the login" in said or "answers" in said, said
        seen.append(said)
    seen += [caplog.text, *capfd.readouterr(), *processes()]

    sightings = [canary for canary in canaries if any(canary in text for text in seen)]
    fault_report("G14", points=len(canaries), compared=len(seen), violations=sightings)


def processes() -> list[str]:
    """The command lines of all processes."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "cmdline").read_text(errors="replace"))
            except OSError:
                continue
    return found
