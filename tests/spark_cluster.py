"""SparkCluster: a real standalone cluster on this machine, from PySpark's own package: a master and two workers.

Each is ended by its own process id, and with the test process, however that ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from mainstem.spark.java_patches import java_home
from tests.fast_run import refuse_in_fast_run
from tests.kafka_broker import END_WITH_PARENT, answers, free_ports
from tests.server_folder import server_folder
from tests.waiting import wait_until

__all__ = ["SparkCluster"]

SPARK = Path(pyspark.__file__).parent


class SparkCluster:
    """A master and its workers, running once it is made; `address` is what `spark=` takes."""

    def __init__(self, workers: int = 2) -> None:
        refuse_in_fast_run("Spark cluster")
        self.folder = server_folder("spark")
        self.port, pages, *worker_pages = free_ports(2 + workers)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = self._start(
            "master.Master", "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(pages)
        )
        self._until_it_answers(self.port)
        self._pages = worker_pages
        self.workers = [self._start_worker(number) for number in range(workers)]
        for page in worker_pages:
            self._until_it_answers(page)

    @property
    def address(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        return self._start(
            "worker.Worker", "--cores", "1", "--memory", "1g", "--host", "127.0.0.1", "--webui-port",
            str(self._pages[number]),
            "--work-dir", str(self.folder / f"worker-{number}"), self.address,
        )  # fmt: skip

    def _start(self, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        if (home := java_home(os.environ)) is not None:
            environment["JAVA_HOME"] = home
        with open(self.folder / "cluster.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", END_WITH_PARENT, str(SPARK / "bin" / "spark-class"),
                 f"org.apache.spark.deploy.{kind}", *arguments],
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def _until_it_answers(self, port: int) -> None:
        last = self._processes[-1]
        wait_until(lambda: answers(port) or last.poll() is not None)
        tail = (self.folder / "cluster.log").read_text(errors="replace")[-2000:]
        assert last.poll() is None, f"the cluster did not start:\n{tail}"

    def kill_worker(self, number: int) -> None:
        """End a worker as a crash does. Its executors end by themselves when they notice."""
        self.workers[number].kill()
        self.workers[number].wait()

    @contextmanager
    def without_worker(self, number: int) -> Iterator[None]:
        """A worker is killed, and comes back when this is left."""
        self.kill_worker(number)
        try:
            yield
        finally:
            self.workers[number] = self._start_worker(number)
            self._until_it_answers(self._pages[number])

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
