"""One run of the benchmarks of flows: its sizes, and the homes that its subjects share, made when first used."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Literal

from benchmarks.nexmark_events import Nexmark
from benchmarks.nexmark_topics import fill_home

Where = Literal["tail", "sealed"]


@dataclass(frozen=True)
class FlowsRun:
    """Everything lies below `folder`; what is there from an earlier run of the same size is used again."""

    folder: str
    events: int = 5_000_000
    rounds: int = 1
    latency_samples: int = 100
    rebuild_rows: int = 2_000_000

    def home(self, where: Where) -> str:
        """A home whose topics lie in its active segments, or in sealed ones."""
        home = f"{self.folder}/{where}-{self.events}"
        if not os.path.exists(f"{home}.filled"):
            say(f"filling topics ({where})")
            fill_home(home, Nexmark(events=self.events), sealed=where == "sealed")
            with open(f"{home}.filled", "x", encoding="ascii"):
                pass
        return home


def say(text: str) -> None:
    """What is under way, for the person who waits."""
    print(f"{text} ...", file=sys.stderr, flush=True)
