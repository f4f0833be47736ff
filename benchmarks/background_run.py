"""A program that runs beside a benchmark for as long as it is needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# So long it has to end in order.
SECONDS_MAX = 60


@contextmanager
def running(*command: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Python with these arguments and environment variables, there for as long as `with` lasts; what it says goes to the file BENCHMARK_LOG."""
    with open(os.environ.get("BENCHMARK_LOG", os.devnull), "ab") as log:
        process = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log, env={**os.environ, **variables})
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
