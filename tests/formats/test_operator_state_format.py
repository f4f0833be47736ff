"""State of joins, look-ups and tables as earlier versions wrote it: read by this one, which goes on with it.

The files in `operators_v1/` and `operators_v2/` were written once, by `python -m tests.formats.test_operator_state_format` of their
time, and stay as they are: for each operator what it kept after the first half of a script, and what it put out in the second
half. In `operators_v2/` are those that keep something else since: a table with an order keeps positions, and there are versions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from mainstem.operators import aggregate, distinct, enrich, join, latest, table, top, versions
from mainstem.operators.stage import keyed_rows
from mainstem.operators.stage.engine import Step
from mainstem.operators.stage.hashes import key_hashes
from mainstem.operators.stage.spark_hashes import hashable
from mainstem.operators.stage.state_run_file import RunEntry, open_run
from mainstem.operators.stage.state_runs import MemoryState, StateRuns
from mainstem.operators.tables import changed_rows, feed_rows
from mainstem.testing import TestStream, TestStreams, scripted_rows
from mainstem.testing.scripted_rows import ScriptedRows

FOLDERS = Path(__file__).parent


@pytest.fixture(autouse=True)
def hashes_of_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hashes with which scripts without Spark wrote these files. Flows, which prepare rows with Spark, always had Spark's."""

    def hashable_then(kind: pa.DataType) -> bool:
        return not (pa.types.is_floating(kind) or pa.types.is_decimal(kind)) and hashable(kind)

    monkeypatch.setattr(keyed_rows, "hashable", hashable_then)
    monkeypatch.setattr(feed_rows, "hashable", hashable_then)
    monkeypatch.setattr(changed_rows, "hashable", lambda kind: False)
    monkeypatch.setattr(
        changed_rows,
        "arrow_hashes",
        lambda keys, count: tuple(key_hashes(list(keys), count, salt) for salt in ("group", "check")),
    )


# Those of each version that keep something else than before.
WRITTEN = {
    "operators_v1": ["join", "enrich", "latest", "table", "aggregate", "top", "distinct", "tables"],
    "operators_v2": ["table", "versions"],
}
NEWEST = list(WRITTEN)[-1]


def at(minute: int) -> str:
    return f"2026-01-01 12:{minute:02d}"


def script() -> TestStreams:
    """Both halves have rows that belong together."""
    made = TestStreams(
        orders=TestStream("order INT, item STRING, cents DECIMAL(12, 2), at TIMESTAMP", event_time="at"),
        prices=TestStream("item STRING, price DOUBLE, since TIMESTAMP", event_time="since"),
    )
    for half in range(2):
        for number in range(6):
            place = 6 * half + number
            item = ["pear", "fig", None, "Köln"][place % 4]
            cents = None if number == 4 else Decimal(f"{place}.50")
            made = made.rows("orders", [{"order": place % 9, "item": item, "cents": cents, "at": at(2 * place)}])
            price = {
                "item": ["fig", "pear", "Köln"][place % 3],
                "price": place / 2,
                "since": at(2 * place - 2 * (place % 2)),
            }
            made = made.rows("prices", [price])
    return made.watermark("orders", at(55)).watermark("prices", at(55))


def own(rows: Any) -> Any:
    return table(rows, key="order", order_by="at")


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "join": lambda orders, prices: join(
        orders, prices, on="item", within="6 minutes", how="full", lateness="4 minutes"
    ),
    "enrich": lambda orders, prices: enrich(
        orders, table(prices, key="item"), on="item", lateness="20 minutes", corrections="re-emit"
    ),
    "latest": lambda orders, prices: enrich(orders, table(prices, key="item"), on="item", at=latest()),
    "table": lambda orders, prices: own(orders),
    "aggregate": lambda orders, prices: aggregate(
        own(orders), by="item", aggregates=["sum(cents) AS cents", "max(order) AS most", "count(*) AS orders"]
    ),
    "top": lambda orders, prices: top(own(orders), 2, by="item", order="cents DESC"),
    "distinct": lambda orders, prices: distinct(own(orders)),
    "versions": lambda orders, prices: versions(
        orders, key="item", order_by=["at", "order"], delete_when="cents IS NULL", track="cents"
    ),
    "tables": lambda orders, prices: join(own(orders), table(prices, key="item"), on="item", how="left"),
}


def given(name: str, half: str, kept: list[pa.Table]) -> tuple[list[str], list[pa.Table]]:
    """What an operator puts out in a half of the script, and what its stages keep, beginning with what they kept before."""
    found: list[str] = []
    states: list[MemoryState] = []

    def state(schema: pa.Schema) -> MemoryState:
        made = MemoryState(schema)
        if kept:
            made.rows = complete(kept[len(states)], schema)
        states.append(made)
        return made

    def part(orders: ScriptedRows, prices: ScriptedRows) -> Any:
        middle = len(orders.batches) // 2
        places = slice(None, middle) if half == "first" else slice(middle, None)
        cut = [ScriptedRows(rows.schema, rows.batches[places], rows.run) for rows in (orders, prices)]
        for batch in OPERATORS[name](*cut).batches:
            found.extend(str(row) for row in batch.rows.to_pylist())
        return orders

    with patch.object(scripted_rows, "MemoryState", state):
        script().run(part)
    return found, [made.rows for made in states]


def complete(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """With nulls where an engine got a column since, as `StateRuns` reads them."""
    columns = [
        rows.column(at.name) if at.name in rows.column_names else pa.nulls(rows.num_rows, at.type) for at in schema
    ]
    return pa.Table.from_arrays(columns, names=schema.names).cast(schema)


def contents(rows: list[str]) -> list[str]:
    """Without the watermark of each row: that of the batch in an earlier version, that of the rows that made it now."""
    return [re.sub(r", 'watermark': (None|datetime\.datetime\(.*?\)\))\}\}$", "}}", row) for row in rows]


def write() -> None:
    expected = {}
    for name in WRITTEN[NEWEST]:
        _, kept = given(name, "first", [])
        runs = []
        for place, rows in enumerate(kept):
            folder = FOLDERS / NEWEST / f"{name}-{place}"
            folder.mkdir(parents=True)
            state = StateRuns(str(folder), (), rows.schema, 0)
            [run] = state.after(Step(rows.schema.empty_table(), rows), 0)
            runs.append(run.to_json())
        shown, _ = given(name, "second", kept)
        expected[name] = {"runs": runs, "kept": [list(map(str, rows.to_pylist())) for rows in kept], "shown": shown}
    (FOLDERS / NEWEST / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


@pytest.mark.parametrize(("version", "name"), [(version, name) for version in WRITTEN for name in WRITTEN[version]])
def test_an_operator_goes_on_with_state_of_an_earlier_version(version: str, name: str) -> None:
    expected = json.loads((FOLDERS / version / "expected.json").read_text())[name]
    kept = []
    for place, entry in enumerate(expected["runs"]):
        run = open_run(str(FOLDERS / version / f"{name}-{place}"), RunEntry(**entry))
        kept.append(pa.Table.from_batches([run.take(np.arange(run.table.num_rows))]))
    assert [list(map(str, rows.to_pylist())) for rows in kept] == expected["kept"]
    shown = contents(expected["shown"])
    assert contents(given(name, "second", kept)[0]) == shown
    # Without that state it would have given something else.
    assert contents(given(name, "second", [])[0]) != shown


if __name__ == "__main__":
    write()
