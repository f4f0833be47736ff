"""Rows for the contract of a view, and what a view shows and tells of them."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from mainstem.batch import FlowRun
from mainstem.views.view import View

OpenView = Callable[..., View]

SCHEMA = pa.schema({"store": pa.string(), "amount": pa.int64()})
RUN = FlowRun("revenue", epoch=1)
WINDOW = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])


def rows(**amounts: int | None) -> pa.Table:
    """A row for each store."""
    return pa.table({"store": list(amounts), "amount": pa.array(amounts.values(), pa.int64())}, schema=SCHEMA)


def recorded(*given: tuple[str | None, int | None, int, int, str]) -> pa.Table:
    """Rows with a record: store, amount, partition, offset, change."""
    record = [{"partition": row[2], "offset": row[3], "change": row[4]} for row in given]
    kind = pa.struct([("partition", pa.int32()), ("offset", pa.int64()), ("change", pa.string())])
    return pa.table(
        {
            "store": pa.array([row[0] for row in given], pa.string()),
            "amount": pa.array([row[1] for row in given], pa.int64()),
            "record": pa.array(record, kind),
        }
    )


def shown(view: View) -> dict[Any, Any]:
    """All rows, amount by store."""
    return dict(zip(*view.to_arrow().to_pydict().values(), strict=True))


def told(table: pa.Table) -> list[tuple[str, str, int]]:
    """Changes as (change, store, amount)."""
    return [(row["record"]["change"], row["store"], row["amount"]) for row in table.to_pylist()]


def replayed(start: dict[str, int], table: pa.Table) -> dict[str, int]:
    """What changes make of rows; each delete must find the row that it deletes."""
    found = dict(start)
    for change, store, amount in told(table):
        if change == "delete":
            assert found.pop(store) == amount
        else:
            assert store not in found
            found[store] = amount
    return found
