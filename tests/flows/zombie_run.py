"""`mainstem run` that stands still when each of its flows is about to commit: python -m tests.flows.zombie_run HOME [FLOW ...]

Each flow waits at its point in its first batch; when all of them do, the process stops itself (SIGSTOP). What it has started
is for the test to stop. When it is continued, all of them go on to commit.

With MAINSTEM_TEST_MUTANT it is a broken build: its epoch is never looked at, and its transactions are its own.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from types import ModuleType

from mainstem.log.kafka import kafka_log as kafka_producers
from mainstem.sinks import file_sink as file_writer
from mainstem.spark.sources import topic_writer
from mainstem.views.sql import sql_writer
from mainstem.workbench.cli.main import main

PROGRAM = Path(__file__).parent / "zombie_program.py"
# Of each flow who writes for it, and the last point at which nothing of the batch can be seen and no lock is held that its
# successor would wait for.
POINTS: dict[str, tuple[ModuleType, str]] = {
    "shipped": (topic_writer, "before_sink_commit"),
    "amounts": (sql_writer, "view_batch_written"),
    "kept": (file_writer, "sink_rows_computed"),
}


def stand_still_at(module: ModuleType, point: str, together: threading.Barrier) -> None:
    waited = threading.Event()

    def reach(name: str, batch: int | None = None) -> None:
        if name == point and not waited.is_set():
            waited.set()
            together.wait()

    module.reach = reach  # type: ignore[attr-defined]


def never_fenced() -> None:
    file_writer.check_epoch = lambda *_: None  # type: ignore[attr-defined]
    # Nobody takes this id over, so the broker refuses nothing.
    right = kafka_producers.TransactionalWriter
    kafka_producers.TransactionalWriter = (  # type: ignore[assignment, misc]
        lambda clients, name, timeout: right(clients, f"{name}.{os.getpid()}", timeout)
    )


def run(home: str, *only: str) -> None:
    flows = only or tuple(POINTS)
    together = threading.Barrier(len(flows), action=lambda: os.kill(os.getpid(), signal.SIGSTOP))
    for flow in flows:
        stand_still_at(*POINTS[flow], together)
    if os.environ.get("MAINSTEM_TEST_MUTANT"):
        never_fenced()
    chosen = [word for flow in only for word in ("--flow", flow)]
    sys.argv = ["mainstem", "run", str(PROGRAM), "--home", home, "--spark", "local[2]", *chosen]
    main()


if __name__ == "__main__":
    run(*sys.argv[1:])
