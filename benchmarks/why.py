"""How long `view.why` takes over a long log: a window of a minute, all records of a key, and a plain row.

    python -m benchmarks.why [RECORDS]      10,000,000 records by default

The log is made and sealed first. Each question is asked twice: the first also checks every byte of the files that it reads.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import mainstem
from mainstem.batch import Batch, FlowRun
from mainstem.durable_files import encode_checked
from mainstem.log.topic import Topic
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.stem import Mainstem
from mainstem.views.view import View

RECORDS = 10_000_000
APPENDED = 250_000
STORES = 1_000
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")
# Records in a second of event time: an hour for a million.
RATE = 277
WINDOW = pa.struct([("start", TIME), ("end", TIME)])
# Stores are customers in the third question: some ten records each.
CUSTOMERS_SHARE = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", nargs="?", type=int, default=RECORDS)
    count = parser.parse_args().records
    with tempfile.TemporaryDirectory(prefix="why-") as folder, mainstem.open(folder, upkeep="manual") as stem:
        began = time.perf_counter()
        orders = fill(stem, count)
        print(f"{count:,} records appended and sealed in {time.perf_counter() - began:.0f} s")
        for title, view, key in questions(stem, orders, count):
            took = [ask(view, key) for _ in range(2)]
            ms = ", then ".join(f"{seconds * 1000:,.0f} ms" for seconds, _ in took)
            print(f"{title}: {took[0][1]} records, {ms}")


def fill(stem: Mainstem, count: int) -> Topic:
    """Orders of stores at random, in the order of their times, with a little disorder."""
    chance = np.random.default_rng(7)
    orders = stem.create_topic(
        "orders", schema="order_id BIGINT, store STRING, customer BIGINT, amount DOUBLE, at TIMESTAMP", event_time="at"
    )
    names = pa.array([f"store-{number:04}" for number in range(STORES)])
    first = int(BEGIN.timestamp() * 1_000_000)
    for begin in range(0, count, APPENDED):
        ids = np.arange(begin, min(begin + APPENDED, count))
        times = first + (ids * 1_000_000) // RATE - chance.integers(0, 20_000_000, len(ids))
        orders.append(
            pa.table(
                {
                    "order_id": ids,
                    "store": names.take(pa.array(chance.integers(0, STORES, len(ids)))),
                    "customer": chance.integers(0, count // CUSTOMERS_SHARE, len(ids)),
                    "amount": chance.random(len(ids)),
                    "at": pa.array(times).view(TIME),
                }
            )
        )
    orders.backend.seal()
    return orders


def questions(stem: Mainstem, orders: Topic, count: int) -> list[tuple[str, View, Any]]:
    """Views of one row each, with the lineage that a run would have written."""
    middle = BEGIN + timedelta(minutes=count // RATE // 120)
    window = {"start": middle, "end": middle + timedelta(minutes=1)}
    read = {"is": "read", "source": "orders", "leaf": 0, "delay": 20_000_000}
    found = []
    stage = {
        "is": "stage", "operator": "windowed", "stage": "windowed-0", "of": [_rows(read, {
            "by_0": ["column", "store"], "time": ["as", "bigint", ["column", "at"]],
            "watermark": ["as", "bigint", ["column", "record", "watermark"]],
            "partition": ["column", "record", "partition"], "offset": ["column", "record", "offset"]})],
        "how": {"window": {"kind": "tumbling", "size": 60_000_000, "offset": 0}, "by": ["by_0"], "lateness": 0,
                "early": None, "late": None, "results": "accumulate"},
    }  # fmt: skip
    ends = [[side, ["as", "timestamp", ["column", f"window_{side}"]]] for side in ("start", "end")]
    tree = _rows(stage, {"store": ["column", "by_0"], "window": ["struct", *ends], "total": None})
    row = {"store": "store-0007", "window": window, "total": 1.0}
    schema = pa.schema([("store", pa.string()), ("window", WINDOW), ("total", pa.float64())])
    found.append(
        ("a window of a minute", _view(stem, "minutes", ["store", "window"], row, schema, tree), ("store-0007", window))
    )
    groups = {"is": "stage", "operator": "aggregate", "stage": "aggregate-0", "how": {"by": ["customer"]}, "of": [read]}
    tree = _rows(groups, {"customer": ["column", "by_0"], "total": None})
    schema = pa.schema([("customer", pa.int64()), ("total", pa.float64())])
    found.append(
        (
            "a customer, in all of it",
            _view(stem, "customers", ["customer"], {"customer": 77, "total": 1.0}, schema, tree),
            77,
        )
    )
    number = count // 2
    amount = orders.to_arrow(start={0: number}, stop={0: number + 1}).column("amount")[0].as_py()
    tree = _rows(read, {"order_id": ["column", "order_id"], "amount": ["column", "amount"]})
    schema = pa.schema([("order_id", pa.int64()), ("amount", pa.float64())])
    found.append(
        (
            "a plain row",
            _view(stem, "plain", ["order_id"], {"order_id": number, "amount": amount}, schema, tree),
            number,
        )
    )
    return found


def _rows(of: dict[str, Any], columns: dict[str, Any]) -> dict[str, Any]:
    return {"is": "rows", "of": of, "where": [], "columns": [[name, value] for name, value in columns.items()]}


def _view(
    stem: Mainstem, name: str, key: list[str], row: dict[str, Any], schema: pa.Schema, tree: dict[str, Any]
) -> View:
    run = FlowRun(name, 1)
    view = View(stem.home, name, key=key)
    view.writer(run, schema).apply(pa.Table.from_pylist([row], schema), Batch(0, run))
    view.close()
    path = Path(FlowStore(stem.home, name).lineage(1))
    path.parent.mkdir(parents=True, exist_ok=True)
    sink = {"kind": "view", "name": name, "key": key}
    path.write_bytes(
        encode_checked({"format": 1, "flow": name, "version": 1, "epoch": 1, "sink": sink, "rows": tree, "because": ""})
    )
    return stem.view(name)


def ask(view: View, key: Any) -> tuple[float, int]:
    """The seconds of an answer, and its number of records."""
    began = time.perf_counter()
    found = view.why(key)
    took = time.perf_counter() - began
    assert found.exact, found.because
    return took, found.total


if __name__ == "__main__":
    main()
