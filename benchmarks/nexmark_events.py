"""Nexmark: people who open auctions and bid in them, as events made for this project.

Of fifty events one is a person, three are auctions and forty-six are bids. Event n happens at the n-th tick and reaches
the log in this order, but says that it happened up to a second earlier: so a reader whose watermark is a second behind
loses nothing. Half of the bids go to one hot auction, three quarters come from one hot bidder, and who is hot changes.

    event   0       1  2  3     4 ... 49      50      51 52 53    54 ...
            person  auctions    bids          person  auctions    bids
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.nexmark_chance import Chance

Kind = Literal["people", "auctions", "bids"]
Rows = npt.NDArray[np.int64]

# Columns as Spark DDL; the event time is `at`. An auction has ten.
SCHEMAS: dict[Kind, str] = {
    "people": "id BIGINT, name STRING, email STRING, card STRING, city STRING, state STRING, at TIMESTAMP, extra STRING",
    "auctions": (
        "id BIGINT, item STRING, description STRING, first_bid BIGINT, reserve BIGINT, at TIMESTAMP, "
        "closes_at TIMESTAMP, seller BIGINT, category BIGINT, extra STRING"
    ),
    "bids": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, at TIMESTAMP, extra STRING",
}
KEYS: dict[Kind, str] = {"people": "id", "auctions": "id", "bids": "auction"}

GROUP = 50
# Of each group of fifty: the first of its kind, and how many follow each other.
PLACES: dict[Kind, tuple[int, int]] = {"people": (0, 1), "auctions": (1, 3), "bids": (4, 46)}

FIRST_AT = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)
DISORDER_US = 1_000_000
FIRST_ID = 1_000
CATEGORIES = 5

# Bids go to auctions that are open, and come from people who are active: the latest so many.
OPEN_AUCTIONS = 100
ACTIVE_PEOPLE = 1_000
# The hot one is the latest whose number is a multiple of this.
HOT_EVERY = 100

CITIES = ["Berlin", "Lisbon", "Osaka", "Quito", "Tunis", "Oslo", "Lima", "Hanoi", "Accra", "Turin"]
STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
HOT_CHANNELS = 4
CHANNELS = 10_000


@dataclass(frozen=True)
class Nexmark:
    """So many events from one seed. The same rows come whatever `rows_max` is.

    >>> market = Nexmark(events=1_000)
    >>> [market.count(kind) for kind in ("people", "auctions", "bids")]
    [20, 60, 920]
    >>> next(market.batches("bids", rows_max=10)).num_rows
    10
    """

    events: int = 5_000_000
    seed: int = 0
    events_per_second: int = 10_000

    def count(self, kind: Kind) -> int:
        """How many of the events are of this kind."""
        first, together = PLACES[kind]
        groups, rest = divmod(self.events, GROUP)
        return groups * together + min(together, max(0, rest - first))

    def batches(self, kind: Kind, *, rows_max: int = 100_000) -> Iterator[pa.RecordBatch]:
        """All events of this kind, in the order in which they reach the log."""
        count = self.count(kind)
        for start in range(0, count, rows_max):
            yield self.rows(kind, start, min(start + rows_max, count))

    def rows(self, kind: Kind, start: int, stop: int) -> pa.RecordBatch:
        """The events of this kind with these numbers among their kind."""
        numbers = np.arange(start, stop, dtype=np.int64)
        first, together = PLACES[kind]
        events = numbers // together * GROUP + first + numbers % together
        columns = MAKERS[kind](self, numbers, events // GROUP, self._at(events))
        return pa.RecordBatch.from_pydict(columns)

    def chance(self, stream: str) -> Chance:
        """The random numbers of one column."""
        return Chance(self.seed, stream)

    def _at(self, events: Rows) -> Rows:
        ticks = events * 1_000_000 // self.events_per_second
        return FIRST_AT + ticks - self.chance("at").below(DISORDER_US + 1, events)


def _people(market: Nexmark, numbers: Rows, groups: Rows, at: Rows) -> dict[str, pa.Array]:
    return {
        "id": pa.array(FIRST_ID + numbers),
        "name": market.chance("name").letters(numbers, 16),
        "email": market.chance("email").letters(numbers, 16, before="mail@"),
        "card": market.chance("card").letters(numbers, 16),
        "city": pa.array(CITIES).take(pa.array(market.chance("city").below(len(CITIES), numbers))),
        "state": pa.array(STATES).take(pa.array(market.chance("state").below(len(STATES), numbers))),
        "at": _times(at),
        "extra": market.chance("person").letters(numbers, 64),
    }


def _auctions(market: Nexmark, numbers: Rows, groups: Rows, at: Rows) -> dict[str, pa.Array]:
    first_bid = _prices(market.chance("first_bid"), numbers)
    people = groups + 1
    return {
        "id": pa.array(FIRST_ID + numbers),
        "item": market.chance("item").letters(numbers, 16),
        "description": market.chance("description").letters(numbers, 64),
        "first_bid": pa.array(first_bid),
        "reserve": pa.array(first_bid + _prices(market.chance("reserve"), numbers)),
        "at": _times(at),
        "closes_at": _times(at + 1_000_000 + market.chance("closes_at").below(20_000_000, numbers)),
        "seller": pa.array(_one_of_the_latest(market.chance("seller"), numbers, people, ACTIVE_PEOPLE, hot_of=4)),
        "category": pa.array(10 + market.chance("category").below(CATEGORIES, numbers)),
        "extra": market.chance("auction").letters(numbers, 256),
    }


def _bids(market: Nexmark, numbers: Rows, groups: Rows, at: Rows) -> dict[str, pa.Array]:
    auctions, people = 3 * (groups + 1), groups + 1
    drawn = market.chance("channel").numbers(numbers)
    channels = np.where(drawn & np.uint64(1), drawn % np.uint64(HOT_CHANNELS), drawn % np.uint64(CHANNELS))
    return {
        "auction": pa.array(_one_of_the_latest(market.chance("to"), numbers, auctions, OPEN_AUCTIONS, hot_of=2)),
        "bidder": pa.array(_one_of_the_latest(market.chance("by"), numbers, people, ACTIVE_PEOPLE, hot_of=4)),
        "price": pa.array(_prices(market.chance("price"), numbers)),
        "channel": _channels().take(pa.array(channels)),
        "url": market.chance("url").letters(numbers, 16, before="https://auction.example/item/"),
        "at": _times(at),
        "extra": market.chance("bid").letters(numbers, 32),
    }


MAKERS: dict[Kind, Callable[[Nexmark, Rows, Rows, Rows], dict[str, pa.Array]]] = {
    "people": _people,
    "auctions": _auctions,
    "bids": _bids,
}


def _one_of_the_latest(chance: Chance, numbers: Rows, made: Rows, latest: int, *, hot_of: int) -> Rows:
    """The id of the hot one, but for one in `hot_of`: then of any of the latest that are there by then."""
    drawn = chance.numbers(numbers)
    hot = (made - 1) // HOT_EVERY * HOT_EVERY
    cold = made - 1 - ((drawn >> np.uint64(8)) % np.minimum(made, latest).astype(np.uint64)).astype(np.int64)
    chosen: Rows = FIRST_ID + np.where(drawn % np.uint64(hot_of) == 0, cold, hot)
    return chosen


def _prices(chance: Chance, numbers: Rows) -> Rows:
    """From 100 to a hundred million cents, as many of each magnitude."""
    prices: Rows = np.round(100 * 10 ** (6 * chance.shares(numbers))).astype(np.int64)
    return prices


def _times(at: Rows) -> pa.Array:
    return pa.array(at).cast(pa.timestamp("us", "UTC"))


@cache
def _channels() -> pa.Array:
    return pa.array([f"channel-{number}" for number in range(CHANNELS)])
