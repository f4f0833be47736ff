"""A program that keeps the total of a captured table of accounts; run in a process of its own, to be killed."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pyspark.sql import functions as F

import mainstem
from mainstem import Capture, Flow
from mainstem.capture import postgres
from mainstem.operators import aggregate, table


def flows(stem: mainstem.Mainstem) -> Iterator[Flow]:
    accounts = table(stem.topic("bank.accounts").stream(), key="id")
    totals = [F.sum("balance").alias("total"), F.sum("transfers").alias("transfers")]
    yield Flow(aggregate(accounts, by="bank", aggregates=totals), into=stem.view("totals", key="bank"))


def main(home: str, slot: str) -> None:
    url = sys.stdin.readline().strip()

    def captures(stem: mainstem.Mainstem) -> Iterator[Capture]:
        yield Capture("bank", postgres(url, tables=["accounts"], slot=slot))

    mainstem.open(home).run(flows, captures=captures)


if __name__ == "__main__":
    main(*sys.argv[1:])
