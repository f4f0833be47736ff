"""Case A07, tables with tables: by primary key and by foreign key, as Kafka Streams documents them.

One row a batch, and with a kill after each, the changes are compared step by step; all at once and shuffled, what is
there in the end. (Shuffled, a column says which row is newer.)
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from mainstem.operators.table import table
from mainstem.operators.tables.table_join import table_join
from mainstem.testing.scripted_rows import ScriptedRows, ScriptedRun
from tests.acceptance.case_files import case
from tests.operators.scripted_tables import Change, changes, held, scripted_table

CASE = case("A07")
HOWS = {"inner": "inner", "left": "left", "outer": "full"}
STEPS = CASE["foreign_key"]["steps"]
# The case's name of a join, and ours.
FOREIGN = {"inner": "inner", "left_join": "left"}

Step = tuple[int, str, dict[str, Any]]


def keyed_steps() -> list[Step]:
    """When, which side, and the row; all have one key."""
    return [(at, side, {"key": "k", "value": value, "moment": at}) for at, side, value in CASE["input"]]


def foreign_steps() -> list[Step]:
    """The key of the right side is what the value of the left one points to."""
    found = []
    for step in STEPS:
        for side, key in (("R", "right"), ("L", "left")):
            if key in step:
                found.append((step["n"], side, {"key": step[key][0], "value": step[key][1], "moment": step["n"]}))
    return found


def schemas(foreign: bool) -> dict[str, pa.Schema]:
    text, number, moment = pa.string(), pa.int64(), ("moment", pa.int64())
    left = pa.schema([("key", text), ("value", number if foreign else text), moment])
    return {"L": left, "R": pa.schema([("key", number if foreign else text), ("value", text), moment])}


def run(
    steps: list[Step], how: str, batches: list[list[int]], *, foreign: bool, killed: bool = False, ordered: bool = False
) -> list[list[Change]]:
    """The changes of a join, for steps in these batches (their places)."""
    shared, sides = ScriptedRun(), {}
    for side, schema in schemas(foreign).items():
        # On a stream of facts a null is a delete; of a row that points to nothing it is not.
        script = [
            [(_sign(steps[at], foreign), steps[at][2]) for at in batch if steps[at][1] == side] for batch in batches
        ]
        rows = scripted_table(schema, script, run=shared, killed=killed)
        mine = table(rows, key="key", order_by="moment" if ordered else None)
        sides[side] = _plain(mine, side)
    on = {"l_value": "r_key"} if foreign else {"l_key": "r_key"}
    return changes(table_join(sides["L"], sides["R"], on=on, how=how))


def _sign(step: Step, foreign: bool) -> str:
    return "-" if step[2]["value"] is None and not (foreign and step[1] == "L") else "~"


def _plain(rows: ScriptedRows, side: str) -> ScriptedRows:
    """Without the time, under names of its own, as a select of Spark's would have it."""
    names = {"key": f"{side.lower()}_key", "value": f"{side.lower()}_value", "record": "record"}
    schema = pa.schema([rows.schema.field(name).with_name(to) for name, to in names.items()])
    return rows.mapped(lambda batch: batch.select(list(names)).rename_columns(list(names.values())), schema)


def told(batch: list[Change], foreign: bool) -> list[Any]:
    """A batch's changes as the case writes them: the new rows, and null for a key that has none any more."""
    names = ("l_key", "l_value", "r_value") if foreign else ("l_value", "r_value")
    new = [[row[name] for name in names] for sign, row in batch if sign == "+"]
    keys = {row["l_key"] for sign, row in batch if sign == "+"}
    gone = [row["l_key"] for sign, row in batch if sign == "-" and row["l_key"] not in keys]
    if not foreign:
        return new or ([None] if gone or any(sign == "-" for sign, _ in batch) else [])
    return [*new, *([key, None] for key in gone)]


def single(steps: list[Step]) -> list[list[int]]:
    return [[place] for place in range(len(steps))]


def by_step(steps: list[Step]) -> list[list[int]]:
    moments = sorted({step[0] for step in steps})
    return [[place for place, step in enumerate(steps) if step[0] == moment] for moment in moments]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("name", HOWS)
def test_tables_by_primary_key_one_row_a_batch_and_killed(name: str, killed: bool) -> None:
    steps = keyed_steps()

    found = run(steps, HOWS[name], single(steps), foreign=False, killed=killed)

    shown = {str(step[0]): told(batch, False) for step, batch in zip(steps, found, strict=True) if batch}
    assert shown == {at: [row] for at, row in CASE["table_table"][name].items()}


@pytest.mark.parametrize("name", HOWS)
def test_tables_by_primary_key_at_once_and_shuffled(name: str) -> None:
    steps = keyed_steps()
    one_by_one = held(run(steps, HOWS[name], single(steps), foreign=False))
    assert [[row["l_value"], row["r_value"]] for row in one_by_one] == [CASE["table_table"][name]["15"]]

    assert held(run(steps, HOWS[name], [list(range(len(steps)))], foreign=False)) == one_by_one
    for seed in range(6):
        shuffled = list(range(len(steps)))
        random.Random(seed).shuffle(shuffled)
        batches = [shuffled[:4], shuffled[4:11], shuffled[11:]]
        assert held(run(steps, HOWS[name], batches, foreign=False, ordered=True)) == one_by_one, seed


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("name", FOREIGN)
def test_tables_by_foreign_key_step_by_step_and_killed(name: str, killed: bool) -> None:
    steps = foreign_steps()

    found = run(steps, FOREIGN[name], by_step(steps), foreign=True, killed=killed)

    # "At n=3 the inner tombstone is redundant, and a better engine may omit it."
    expected = [[] if (name, step["n"]) == ("inner", 3) else step[name] for step in STEPS]
    assert [sorted(told(batch, True)) for batch in found] == [sorted(rows) for rows in expected]


@pytest.mark.parametrize("name", FOREIGN)
def test_tables_by_foreign_key_one_row_a_batch_at_once_and_shuffled(name: str) -> None:
    steps = foreign_steps()
    one_by_one = held(run(steps, FOREIGN[name], single(steps), foreign=True))
    last = {"k": ["k", 1, "foo"], "q": ["q", 10, "baz"], "r": ["r", 10, "baz"]}
    assert [list(row.values()) for row in one_by_one] == [[key, at, at, value] for key, at, value in last.values()]

    assert held(run(steps, FOREIGN[name], [list(range(len(steps)))], foreign=True)) == one_by_one
    for seed in range(6):
        shuffled = list(range(len(steps)))
        random.Random(seed).shuffle(shuffled)
        assert held(run(steps, FOREIGN[name], single_of(shuffled), foreign=True, ordered=True)) == one_by_one, seed


def single_of(places: list[int]) -> list[list[int]]:
    return [[place] for place in places]
