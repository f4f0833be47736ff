"""One measured run of a program in a process of its own, and what it used.

The program is a module of benchmarks with `main(arguments)`. It calls `adopt_orphans` first, measures with `Stopwatch` and prints
its `Measured` as the last line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field

from benchmarks import process_tree

# Longer than any run takes, so that one that hangs ends.
SECONDS_MAX = 3_600


@dataclass(frozen=True)
class Measured:
    """What a run did and used, and apart from it what its warm-up had used, from the first instruction on.

    Java compiles what runs often; until then a row costs many times as much, whoever sends it. So the same is run
    twice in one session, and the second time is measured.
    """

    rows: int
    seconds: float
    cpu_seconds: float
    start_cpu_seconds: float
    bytes_peak: int
    bytes_read: int
    facts: dict[str, float] = field(default_factory=dict)
    # Of files, which `bytes_peak` does not count.
    bytes_mapped: int = 0
    # Of driver, Java and workers.
    cpu_by_kind: dict[str, float] = field(default_factory=dict)
    # Of the threads of Java and of the other processes, by what they do.
    cpu_by_part: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Rows per CPU-second of the work."""
        return self.rows / self.cpu_seconds

    @property
    def whole_rate(self) -> float:
        """Rows per CPU-second of the whole run, the start of Spark and the warm-up included."""
        return self.rows / (self.cpu_seconds + self.start_cpu_seconds)


class Stopwatch:
    """Measures this process and all below it while `with` lasts; then `measured(rows)`."""

    def __enter__(self) -> Stopwatch:
        self._memory = process_tree.PeakMemory()
        self._memory.__enter__()
        self._read = process_tree.read_bytes()
        self._kinds = process_tree.cpu_seconds_by_kind()
        self._parts = process_tree.cpu_by_part()
        self._begun = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._begun
        self._memory.__exit__()
        ended = process_tree.cpu_seconds_by_kind()
        self.cpu_by_kind = {kind: seconds - self._kinds[kind] for kind, seconds in ended.items()}
        self.cpu_by_kind["driver"] -= self._memory.cpu_seconds
        self.cpu_seconds = sum(self.cpu_by_kind.values())
        parts = process_tree.cpu_by_part() - self._parts
        self.cpu_by_part = {name: ticks / process_tree.TICKS_PER_SECOND for name, ticks in parts.most_common()}
        self._read = process_tree.read_bytes() - self._read

    def measured(self, rows: int, **facts: float) -> Measured:
        """What was used for these rows."""
        return Measured(
            rows=rows,
            seconds=self.seconds,
            cpu_seconds=self.cpu_seconds,
            start_cpu_seconds=sum(self._kinds.values()),
            bytes_peak=self._memory.bytes,
            bytes_read=self._read,
            facts=facts,
            bytes_mapped=self._memory.mapped_bytes,
            cpu_by_kind=self.cpu_by_kind,
            cpu_by_part=self.cpu_by_part,
        )


def tell(measured: Measured) -> None:
    """Print it for the process that waits for it."""
    print(json.dumps(asdict(measured)), flush=True)


def run_measured(module: str, *arguments: str) -> Measured:
    """Run the module in a process of its own and return what it told."""
    log = os.environ.get("BENCHMARK_LOG")
    with open(log, "a", encoding="utf-8") if log else open(os.devnull, "w", encoding="utf-8") as errors:
        run = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            check=False,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=SECONDS_MAX,
        )
    lines = run.stdout.splitlines()
    if run.returncode or not lines:
        raise RuntimeError(
            f"{module} {' '.join(arguments)} ended with {run.returncode}; BENCHMARK_LOG=file keeps what it said"
        )
    return Measured(**json.loads(lines[-1]))
