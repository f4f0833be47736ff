"""KafkaBroker: a real Apache Kafka of one node, on free ports of this machine, for as long as a test process needs it.

Its jars come with `make setup` (scripts/fetch_jars). It is stopped, continued, killed and started again by its own process
id; what it wrote stays over a restart and goes with the broker.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

from mainstem.spark.java_patches import java_home
from tests.certificate import make_certificate
from tests.fast_run import refuse_in_fast_run
from tests.server_folder import server_folder
from tests.waiting import wait_until

__all__ = ["KafkaBroker"]

JARS = Path(__file__).parent.parent / ".venv" / "kafka" / "broker"
# A cold start on a busy machine; nothing waits this long unless it hangs.
SECONDS_MAX = 300

# Becomes the program that follows, which is killed when its parent ends, however that ends (PR_SET_PDEATHSIG).
END_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"

# One node, so one copy of everything. What is not about that makes time pass faster than in production.
SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={listeners},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={listeners}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=1000
broker.heartbeat.interval.ms=200
transaction.max.timeout.ms=7200000
transaction.abort.timed.out.transaction.cleanup.interval.ms=200
log.message.timestamp.after.max.ms=9223372036854775807
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=16777216
log.cleaner.threads=1
num.network.threads=1
num.io.threads=2
num.recovery.threads.per.data.dir=1
"""


# Of a listener that shows a certificate and wants user and password.
ENCRYPTED = """
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
listener.name.sasl_ssl.ssl.keystore.type=PEM
listener.name.sasl_ssl.ssl.keystore.location={keys}
"""


class KafkaBroker:
    """A broker, running once it is made. `address` is for anyone, `secured_address` for who gives user and password.

    So is `encrypted_address`, which shows `certificate`; that is None, and nobody listens there, where there is no openssl.
    """

    user = "shop"

    def __init__(self) -> None:
        refuse_in_fast_run("Kafka broker")
        self.folder = server_folder("kafka")
        self.password = uuid.uuid4().hex
        self.port, self.secured_port, self.controller_port, self._encrypted_port = free_ports(4)
        found = make_certificate(self.folder)
        self.certificate = None if found is None else found[0]
        listeners = [f"PLAINTEXT://{self.address}", f"SASL_PLAINTEXT://{self.secured_address}"]
        login = {"user": self.user, "password": self.password}
        self._settings = self.folder / "server.properties"
        self._settings.write_text(
            SETTINGS.format(
                listeners=",".join([*listeners, *([] if found is None else [f"SASL_SSL://{self.encrypted_address}"])]),
                controller=self.controller_port,
                folder=self.folder,
                **login,
            )
            + ("" if found is None else ENCRYPTED.format(keys=found[1], **login))
        )
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        subprocess.run(
            # In one word: an id may begin with a dash.
            [
                *self._java(128),
                "kafka.tools.StorageTool",
                "format",
                f"--cluster-id={cluster}",
                "-c",
                str(self._settings),
            ],
            check=True,
            capture_output=True,
            timeout=SECONDS_MAX,
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def secured_address(self) -> str:
        return f"127.0.0.1:{self.secured_port}"

    @property
    def encrypted_address(self) -> str:
        return f"127.0.0.1:{self._encrypted_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it lets somebody in."""
        with open(self.folder / "broker.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", END_WITH_PARENT, *self._java(400), "kafka.Kafka", str(self._settings)],
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        process = self._process
        wait_until(lambda: answers(self.port) or process.poll() is not None)
        assert process.poll() is None, f"the broker did not start:\n{self.log_tail()}"

    def kill(self) -> None:
        """End it as a power cut does, with nothing tidied up."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def stop(self) -> None:
        """Let it stand still; whoever talks to it hears nothing."""
        self._signal(signal.SIGSTOP)

    def cont(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kill it and start it again on what it wrote."""
        self.kill()
        self.start()

    def close(self) -> None:
        """End it, and remove all it wrote."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log_tail(self) -> str:
        return "\n".join((self.folder / "broker.log").read_text(errors="replace").splitlines()[-20:])

    def _signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def _java(self, megabytes: int) -> list[str]:
        home = java_home(os.environ) or os.environ.get("JAVA_HOME")
        java = f"{home}/bin/java" if home else "java"
        # The client compiler alone: a broker of a few seconds never earns back what the other one costs.
        return [java, f"-Xmx{megabytes}m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto",
                "-cp", f"{JARS}/*"]  # fmt: skip


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
