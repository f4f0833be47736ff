"""What `make demo-kafka` runs on: a Kafka broker and a Spark cluster, of this machine and for as long as the demo.

The broker's jars come with `make demo-kafka`, the cluster with PySpark. Each process is ended by its id, also if the demo dies.
"""

import base64
import os
import socket
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pyspark

from mainstem.spark.java_patches import java_home

JARS = Path(sys.prefix, "kafka")
SPARK = Path(pyspark.__file__).parent
SECONDS_MAX = 120
# Becomes the program that follows, which is killed when its parent ends, however that ends (PR_SET_PDEATHSIG).
END_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"

# One node, so one copy of everything.
BROKER = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
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
"""


def start_kafka(home: str, ending: ExitStack) -> None:
    """A broker; the home says that its log is there."""
    if not Path(JARS, "broker").is_dir():
        sys.exit("there are no jars of Kafka: make demo-kafka fetches them")
    folder = Path(ending.enter_context(TemporaryDirectory(prefix="mainstem-demo-", ignore_cleanup_errors=True)))
    port, controller = free_ports(2)
    settings = folder / "server.properties"
    settings.write_text(BROKER.format(port=port, controller=controller, folder=folder))
    java = f"{java_home(os.environ) or os.environ.get('JAVA_HOME') or '/usr'}/bin/java"
    kafka = [java, "-Xmx400m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{JARS}/broker/*"]
    # In one word: an id may begin with a dash.
    cluster = f"--cluster-id={base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip('=')}"
    formatted = [*kafka, "kafka.tools.StorageTool", "format", cluster, "-c", str(settings)]
    subprocess.run(formatted, check=True, capture_output=True)
    start([*kafka, "kafka.Kafka", str(settings)], folder, port, ending)
    Path(home).mkdir(parents=True)
    Path(home, "kafka.toml").write_text(f'brokers = ["127.0.0.1:{port}"]\n')
    print(f"Kafka listens on 127.0.0.1:{port}.", flush=True)


def start_spark(ending: ExitStack) -> None:
    """A master and two workers; the environment of this process says that Spark runs there."""
    folder = Path(ending.enter_context(TemporaryDirectory(prefix="mainstem-demo-", ignore_cleanup_errors=True)))
    port, *pages = free_ports(4)
    if (java := java_home(os.environ)) is not None:
        os.environ["JAVA_HOME"] = java
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(folder)}
    master = f"spark://127.0.0.1:{port}"
    (folder / "spark-defaults.conf").write_text(f"spark.master {master}\nspark.sql.shuffle.partitions 2\n")
    java_class = [str(SPARK / "bin" / "spark-class"), "org.apache.spark.deploy."]
    here = ["--host", "127.0.0.1", "--webui-port"]
    start(
        [java_class[0], f"{java_class[1]}master.Master", "--port", str(port), *here, str(pages[0])],
        folder,
        port,
        ending,
    )
    for page in pages[1:]:
        work = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"worker-{page}"), master]
        start([java_class[0], f"{java_class[1]}worker.Worker", *here, str(page), *work], folder, page, ending)
    print(f"The master of the Spark cluster listens on {master}.", flush=True)


def start(command: list[str], folder: Path, port: int, ending: ExitStack) -> None:
    """A process, until it listens."""
    with open(folder / "said.txt", "ab") as said:
        environment = {
            **os.environ,
            "SPARK_HOME": str(SPARK),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        process = subprocess.Popen(
            [sys.executable, "-c", END_WITH_PARENT, *command], stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            cwd=folder, env=environment, start_new_session=True,
        )  # fmt: skip
    ending.callback(process.wait)
    ending.callback(process.kill)
    deadline = time.monotonic() + SECONDS_MAX
    while not answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"{command[-1]} did not start:\n{(folder / 'said.txt').read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    """Ports on which nobody listens now, all different."""
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
