"""What a row costs a join, without Spark: `python -m benchmarks.join_speed [rows a batch] [batches]`.

Bids with the auctions they are in, as Nexmark's q20: of 50 rows 47 are bids, both with texts. Processor time of the steps
and of the state runs that they read and write, in microseconds a row.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import numpy as np
import pyarrow as pa

from mainstem.log.watermark import NO_TIME, TIME, WATERMARKED_RECORD
from mainstem.operators.joins.join_engine import JoinEngine
from mainstem.operators.joins.join_results import JoinLate, JoinResults
from mainstem.operators.joins.join_rows import JoinSide
from mainstem.operators.joins.join_terms import LEFT, RIGHT, JoinTerms
from mainstem.operators.stage.engine import BatchClock
from mainstem.operators.stage.state_run_file import RunEntry
from mainstem.operators.stage.state_runs import StateRuns

RECORD = pa.field("record", WATERMARKED_RECORD, metadata={b"mainstem.record": b"true"})
BID = pa.schema([("auction", pa.int64()), ("bidder", pa.int64()), ("price", pa.int64()), ("channel", pa.string()),
                 ("url", pa.string()), ("bid_at", TIME), ("bid_extra", pa.string()), RECORD])  # fmt: skip
AUCTION = pa.schema([("auction", pa.int64()), ("item", pa.string()), ("description", pa.string()),
                     ("first_price", pa.int64()), ("category", pa.int64()), ("extra", pa.string()), RECORD])  # fmt: skip


def _texts(chance: np.random.Generator, count: int, length: int) -> list[str]:
    return [f"{number:x}".ljust(length, "x") for number in chance.integers(0, 2**60, count).tolist()]


def _record(first: int, count: int, partition: int) -> pa.Array:
    known: dict[str, Any] = {
        "partition": pa.array(np.full(count, partition, np.int32)),
        "offset": pa.array(np.arange(first, first + count)),
        "change": pa.repeat("insert", count),
    }
    columns = [known.get(of.name, pa.nulls(count, of.type)) for of in WATERMARKED_RECORD]
    return pa.StructArray.from_arrays(columns, fields=list(WATERMARKED_RECORD))


def batch_of(sides: tuple[JoinSide, JoinSide], rows: int, number: int) -> pa.Table:
    chance = np.random.default_rng(number)
    bids, auctions = rows * 47 // 50, rows * 3 // 50
    known = auctions * (number + 1)
    bid = {
        "auction": chance.integers(max(0, known - 3 * auctions), known, bids),
        "bidder": chance.integers(0, 10_000, bids),
        "price": chance.integers(0, 10_000, bids),
        "channel": _texts(chance, bids, 12),
        "url": _texts(chance, bids, 60),
        "bid_at": pa.array(np.arange(bids)).view(TIME),
        "bid_extra": _texts(chance, bids, 40),
        "record": _record(number * bids, bids, 0),
    }
    auction = {
        "auction": np.arange(known - auctions, known),
        "item": _texts(chance, auctions, 20),
        "description": _texts(chance, auctions, 100),
        "first_price": chance.integers(0, 100, auctions),
        "category": chance.integers(0, 20, auctions),
        "extra": _texts(chance, auctions, 200),
        "record": _record(number * auctions, auctions, 1),
    }
    parts = zip(sides, (pa.table(bid, schema=BID), pa.table(auction, schema=AUCTION)), strict=True)
    return pa.concat_tables([side.arrow(table) for side, table in parts])


def engine_of() -> tuple[JoinEngine, tuple[JoinSide, JoinSide]]:
    plain = [JoinSide(schema, ("auction",), None, side) for schema, side in ((BID, LEFT), (AUCTION, RIGHT))]
    left, right = (
        JoinSide(one.schema, one.on, None, one.side, other.row_type)
        for one, other in zip(plain, plain[::-1], strict=True)
    )
    results = JoinResults(left.row_type, right.row_type, ("auction",))
    return JoinEngine(JoinTerms("inner", None, None), results, JoinLate(left.on, right.on, (pa.int64(),))), (
        left,
        right,
    )


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    batches = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    engine, sides = engine_of()
    seconds, given, runs, live = 0.0, 0, list[RunEntry](), 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(batches):
            came = batch_of(sides, rows, number)
            began = time.process_time()
            state = StateRuns(folder, runs, engine.state_schema, live)
            step = engine.step(state, came, BatchClock(NO_TIME, number))
            runs, live = state.after(step, number), state.live
            seconds += time.process_time() - began
            given += step.output.num_rows
    print(f"join  {seconds / rows / batches * 1e6:6.2f} us a row  ({rows * batches:,} rows in, {given:,} out)")


if __name__ == "__main__":
    main()
