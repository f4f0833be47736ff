"""A program of one flow, as a user writes it: how many bids an auction gets in each window of ten seconds.

BENCHMARK_EVERY is how long its batches wait for each other; unless it is set, as long as a flow's do that says nothing.
"""

import os
from collections.abc import Iterator

from pyspark.sql import functions as F

from mainstem.flows.flow import Flow
from mainstem.stem import Mainstem

EVERY = os.environ.get("BENCHMARK_EVERY")


def flows(stem: Mainstem) -> Iterator[Flow]:
    bids = stem.topic("live_bids").stream(watermark="1 second")
    counts = bids.groupBy(F.window("at", "10 seconds"), "auction").agg(F.count("*").alias("bids"))
    yield Flow(counts, into=stem.view("bids_per_auction", key=["window", "auction"]), every=EVERY)
