"""How much a run does: enough for steady figures, or just enough to see that all of it works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunSize:
    """The sizes of one run of the benchmarks."""

    gigabytes: float
    appends: int = 200
    read_batches: int = 150
    read_rounds: int = 15
    sealed_batches: int = 400
    query_rows: int = 20_000_000
    query_rounds: int = 15
    followed: int = 500
    idle_seconds: int = 10
    few_segments: int = 10
    many_segments: int = 1_000

    @classmethod
    def quick(cls) -> RunSize:
        """A few seconds in all: the figures mean nothing then."""
        return cls(
            gigabytes=0.004,
            appends=4,
            read_batches=3,
            read_rounds=2,
            sealed_batches=4,
            query_rows=40_000,
            query_rounds=2,
            followed=5,
            idle_seconds=1,
            few_segments=2,
            many_segments=8,
        )
