"""Case A13: a feed of changes applied to a table, of the newest rows and of all versions, as Spark's own pipelines do it.

The runs of the case are batches. Of rows that Spark's documentation puts into the target, `op` is left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from mainstem.operators import table, versions
from tests.acceptance.case_files import case
from tests.operators.scripted_tables import Change, changes, held, scripted_table

CASE = case("A13")
SCD1, SCD2 = CASE["scd1"], CASE["scd2"]["cases"]
# The case writes the condition without quotes.
DELETED = "op = 'DELETE'"
SCHEMA = pa.schema([("id", pa.int32()), ("name", pa.string()), ("version", pa.int32()), ("op", pa.string())])

Row = dict[str, Any]


def rows_of(given: Iterable[Sequence[Any]]) -> list[Row]:
    """Rows as the case writes them; without an `op` it is an upsert."""
    return [dict(zip(SCHEMA.names, [*row, "UPSERT"][:4], strict=True)) for row in given]


def newest(batches: Sequence[Sequence[Row]], killed: bool = False) -> list[list[Change]]:
    rows = scripted_table(SCHEMA, [[("+", row) for row in batch] for batch in batches], killed=killed)
    return changes(table(rows, key=SCD1["keys"], order_by=SCD1["sequence"], delete_when=DELETED))


def every_version(batches: Sequence[Sequence[Row]], killed: bool = False) -> list[list[Change]]:
    rows = scripted_table(SCHEMA, [[("+", row) for row in batch] for batch in batches], killed=killed)
    return changes(versions(rows, key="id", order_by="version", delete_when=DELETED))


def told(batches: Sequence[Sequence[Change]]) -> list[list[Any]]:
    """The target after these batches, as the case writes it."""
    return sorted([value for name, value in row.items() if name != "op"] for row in held(batches))


def in_other_batches(batches: Sequence[Sequence[Row]]) -> Iterable[list[list[Row]]]:
    """All at once, one by one, and in other orders."""
    rows = [row for batch in batches for row in batch]
    yield [rows]
    yield [[row] for row in rows]
    for seed in range(2):
        mixed = random.Random(seed).sample(rows, len(rows))
        yield [[row] for row in mixed]
        yield [mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]]


def test_the_newest_rows_in_one_batch() -> None:
    given = rows_of(SCD1["one_batch"]["input [id,name,version,op]"])

    assert SCD1["delete_when"] == DELETED.replace("'", "")
    assert told(newest([given])) == SCD1["one_batch"]["target"]
    for batches in in_other_batches([given]):
        assert told(newest(batches)) == SCD1["one_batch"]["target"]


@pytest.mark.parametrize("killed", [False, True])
def test_the_newest_rows_run_by_run(killed: bool) -> None:
    runs = SCD1["three_runs"]
    batches = [rows_of(run["input"]) for run in runs]

    found = newest(batches, killed)

    for number, run in enumerate(runs):
        assert told(found[: number + 1]) == run["target"], number
    # The row of the last run is stale: it changes nothing.
    assert found[-1] == []
    for others in in_other_batches(batches) if not killed else ():
        assert told(newest(others)) == runs[-1]["target"]


def test_an_older_row_of_a_deleted_key_does_not_bring_it_back() -> None:
    """The case says so in a note."""
    batches = [rows_of(run["input"]) for run in SCD1["three_runs"]]
    stale = rows_of([[2, "bob", 1, "UPSERT"]])

    found = newest([*batches, stale])

    assert found[-1] == []
    assert told(found) == SCD1["three_runs"][-1]["target"]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("one", SCD2, ids=lambda one: one["name"])
def test_every_version_run_by_run(one: dict[str, Any], killed: bool) -> None:
    """A version that is there from the start, and closed, comes of its row and a delete."""
    before = [
        rows_of([[key, name, version], [key, None, end, "DELETE"]])
        for key, name, version, _, end in one.get("preloaded", [])
    ]
    batches = [*before, *(rows_of(run["input"]) for run in one["runs"])]

    found = every_version(batches, killed)

    assert told(found[: len(before)]) == sorted(one.get("preloaded", []))
    for number, run in enumerate(one["runs"], start=len(before)):
        assert told(found[: number + 1]) == sorted(run["target"]), number
    for others in in_other_batches(batches) if not killed else ():
        assert told(every_version(others)) == sorted(one["runs"][-1]["target"])
