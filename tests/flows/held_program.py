"""A program of one flow for a process of its own, which a test has killed: python -m tests.flows.held_program HOME"""

import sys
from collections.abc import Iterator

import mainstem
from mainstem.flows.flow import Flow
from mainstem.stem import Mainstem


def flows(stem: Mainstem) -> Iterator[Flow]:
    rows = stem.topic("profiles").stream().selectExpr("k", "n", "record.partition AS part", "record.offset AS place")
    yield Flow(rows, into=stem.topic("seen"))


if __name__ == "__main__":
    with mainstem.open(sys.argv[1], upkeep="manual", spark="local[2]") as stem:
        stem.run(flows, until="idle")
