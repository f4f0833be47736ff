"""The events as topics of a home, and what programs made in it taken away again."""

from __future__ import annotations

import shutil

import mainstem
from benchmarks.nexmark_events import KEYS, SCHEMAS, Kind, Nexmark
from mainstem.stem import Mainstem

FEW_ROWS = 10
# As many as there are cores: plain Spark reads as many files at a time.
PARTITIONS = 2
# What a producer that reads files or a socket gathers before it appends.
APPEND_ROWS = 10_000


def fill(stem: Mainstem, topic: str, market: Nexmark, kind: Kind = "bids", *, rows: int | None = None) -> None:
    """Make a topic of a market's events, or of the first of them."""
    made = stem.create_topic(topic, schema=SCHEMAS[kind], key=KEYS[kind], event_time="at", partitions=PARTITIONS)
    left = market.count(kind) if rows is None else min(rows, market.count(kind))
    for batch in market.batches(kind, rows_max=APPEND_ROWS):
        made.append(batch.slice(0, left))
        left -= min(left, batch.num_rows)
        if not left:
            return


def fill_home(home: str, market: Nexmark, *, sealed: bool) -> None:
    """A topic of each kind of event, and one of a few auctions."""
    with mainstem.open(home, upkeep="manual") as stem:
        for kind in SCHEMAS:
            fill(stem, kind, market, kind)
        fill(stem, "few", market, "auctions", rows=FEW_ROWS)
        if sealed:
            for topic in stem.topics():
                stem.topic(topic).seal()


def clear(stem: Mainstem) -> None:
    """Take away what programs made, so that the next run begins like this one: their topics are named q..."""
    for topic in stem.topics():
        if topic.startswith("q"):
            stem.delete_topic(topic)
    for folder in ("flows", "views"):
        shutil.rmtree(f"{stem.home}/{folder}", ignore_errors=True)
