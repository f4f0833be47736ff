"""The Nexmark events: the same for a seed however they are cut, in the declared mix, and at most a second out of order."""

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.nexmark_events import FIRST_ID, KEYS, SCHEMAS, Nexmark
from benchmarks.nexmark_files import NexmarkFiles
from benchmarks.nexmark_queries import QUERIES
from mainstem.log.rows.schema_ddl import schema_from_ddl

KINDS = list(SCHEMAS)
MARKET = Nexmark(events=20_030)


def events(kind: str, market: Nexmark = MARKET, rows_max: int = 100_000) -> pa.Table:
    return pa.Table.from_batches(market.batches(kind, rows_max=rows_max)).combine_chunks()


def numbers(table: pa.Table, column: str) -> np.ndarray:
    return table[column].to_numpy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows_max", [1_000, 7_777])
def test_the_rows_do_not_depend_on_how_they_are_cut(kind, rows_max):
    assert events(kind, rows_max=rows_max).equals(events(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_events_are_the_first_of_more(kind):
    fewer = events(kind, Nexmark(events=10_000))
    assert fewer.equals(events(kind).slice(0, fewer.num_rows).combine_chunks())


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_gives_other_rows(kind):
    assert not events(kind, Nexmark(events=20_030, seed=1)).equals(events(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_the_columns_are_as_stated(kind):
    declared = schema_from_ddl(SCHEMAS[kind])
    assert [(field.name, field.type) for field in events(kind).schema] == [(it.name, it.type) for it in declared]
    assert KEYS[kind] in declared.names
    assert "at" in declared.names


def test_of_fifty_events_one_is_a_person_three_are_auctions_the_rest_bids():
    assert [Nexmark(events=5_000_000).count(kind) for kind in KINDS] == [100_000, 300_000, 4_600_000]
    # Thirty more events: a person, three auctions, twenty-six bids.
    assert [events(kind).num_rows for kind in KINDS] == [401, 1_203, 18_426]


@pytest.mark.parametrize("kind", KINDS)
def test_no_event_is_more_than_a_second_behind_an_earlier_one(kind):
    at = events(kind)["at"].cast(pa.int64()).to_numpy()
    behind = np.maximum.accumulate(at) - at
    assert 0 < behind.max() <= 1_000_000


def test_bids_go_to_auctions_and_come_from_people_that_are_there():
    bids = events("bids")
    for column, kind in [("auction", "auctions"), ("bidder", "people")]:
        ids = numbers(bids, column)
        assert ids.min() >= FIRST_ID
        assert ids.max() < FIRST_ID + MARKET.count(kind)


def test_the_hot_auction_takes_half_of_the_bids_and_the_hot_bidder_makes_three_quarters():
    bids = events("bids")
    assert (numbers(bids, "auction") % 100 == 0).mean() == pytest.approx(0.5, abs=0.02)
    assert (numbers(bids, "bidder") % 100 == 0).mean() == pytest.approx(0.75, abs=0.02)


def test_an_answer_is_checked_row_by_row(tmp_path):
    files = NexmarkFiles(str(tmp_path), Nexmark(events=1_000), file_events=400)
    files.write()
    rows = events("bids", files.market).select(["auction", "bidder", "price", "at", "extra"])
    query = QUERIES["q0"]
    assert files.check(query, rows) == 920
    # Neither a row too few, nor one twice in another's place.
    with pytest.raises(AssertionError, match="q0"):
        files.check(query, rows.slice(1))
    with pytest.raises(AssertionError, match="q0"):
        files.check(query, pa.concat_tables([rows.slice(1), rows.slice(1, 1)]))
