"""One run of the benchmarks of flows: its sizes, and the files and homes that its subjects share, made when first used."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from benchmarks.flows_program import fill_home
from benchmarks.measured_run import Measured, run_measured
from benchmarks.nexmark import Nexmark
from benchmarks.nexmark_files import NexmarkFiles

Where = Literal["tail", "sealed"]


@dataclass(frozen=True)
class FlowsRun:
    """Everything lies below `folder`; what is there from an earlier run of the same size is used again."""

    folder: str
    events: int = 5_000_000
    rounds: int = 1
    latency_samples: int = 100
    rebuild_rows: int = 2_000_000

    @cached_property
    def files(self) -> NexmarkFiles:
        """The bids as files, and all of them as JSON lines too."""
        files = NexmarkFiles(f"{self.folder}/files-{self.events}", Nexmark(events=self.events))
        if not os.path.exists(files.side):
            say(f"writing {files.rows:,} bids as files")
            files.write_json_and_parquet()
        return files

    def home(self, where: Where) -> str:
        """A home whose topics lie in its active segments, or in sealed ones."""
        home = f"{self.folder}/{where}-{self.events}"
        if not os.path.exists(f"{home}.filled"):
            say(f"filling topics ({where})")
            fill_home(home, Nexmark(events=self.events), sealed=where == "sealed")
            with open(f"{home}.filled", "x", encoding="ascii"):
                pass
        return home

    def plain(self, query: str, *more: str) -> Measured:
        """The query in plain Spark."""
        say(f"{query}: plain Spark {' '.join(more)}")
        where = ("--folder", self.files.folder, "--events", str(self.events))
        return run_measured("benchmarks.spark_baseline", query, *where, *more)

    def ours(self, query: str, where: Where) -> Measured:
        """The query in Mainstem."""
        say(f"{query}: Mainstem, {where}")
        place = ("--home", self.home(where), "--folder", self.files.folder, "--events", str(self.events))
        return run_measured("benchmarks.flows_program", query, *place)


def say(text: str) -> None:
    """What is under way, for the person who waits."""
    print(f"{text} ...", file=sys.stderr, flush=True)
