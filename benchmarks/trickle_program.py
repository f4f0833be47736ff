"""The program of `benchmarks.trickle`: `python -m benchmarks.trickle_program HOME FLOWS [EVERY]`, until it is interrupted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import functions as F

import mainstem
from benchmarks.process_tree import adopt_orphans
from mainstem import Flow, Mainstem


def program(kinds: list[str], every: str | None) -> Any:
    pace: dict[str, Any] = {} if every is None else {"every": every}

    def flows(stem: Mainstem) -> Iterator[Flow]:
        for number, kind in enumerate(kinds):
            bids = stem.topic("live_bids").stream(watermark="1 second")
            if kind == "filter":
                rows = bids.where("price % 2 = 0").select("auction", "bidder", "price", "record")
                yield Flow(rows, into=stem.view(f"{kind}_{number}", key=["auction", "bidder"]), **pace)
            else:
                rows = bids.groupBy(F.window("at", "10 seconds"), "auction").agg(F.count("*").alias("bids"))
                yield Flow(rows, into=stem.view(f"{kind}_{number}", key=["window", "auction"]), **pace)

    return flows


if __name__ == "__main__":
    adopt_orphans()
    with mainstem.open(sys.argv[1], upkeep="manual") as stem:
        stem.run(program(sys.argv[2].split(","), sys.argv[3] if len(sys.argv) > 3 else None))
