"""A flow from one topic into another: `python -m benchmarks.kafka_latency_program PACE --home HOME [--log ADDRESS]`.

PACE is batches or real-time. Runs until it is interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import mainstem
from mainstem.flows.flow import Flow
from mainstem.stem import Mainstem


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka_latency_program", description=(__doc__ or ""))
    parser.add_argument("mode", choices=["batches", "real-time"])
    parser.add_argument("--home", required=True, help="the home")
    parser.add_argument("--log", default=None, help="the address of its log, if it is on Kafka")
    arguments = parser.parse_args()

    def flows(stem: Mainstem) -> Iterator[Flow]:
        rows = stem.topic("sent").stream(start="latest").where("n >= 0").select("n", "sent_us")
        yield Flow(rows, into=stem.topic("passed"), mode=arguments.mode)

    with mainstem.open(arguments.home, log=arguments.log, spark="local[2]") as stem:
        try:
            stem.run(flows)
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
