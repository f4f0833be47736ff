"""The law of `view.why`: the flow over just the records that it names gives that row, and without any of them it does not."""

from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from mainstem.flows.why import traced_windows
from mainstem.flows.why.traced_rows import Inexact
from tests.flows.why_flows import Ran, any_flow, key_of, values_of, written

Records = list[tuple[str, pa.Table]]


def without(records: Records, number: int) -> Records:
    """All records but one."""
    left = []
    for source, table in records:
        if 0 <= number < table.num_rows:
            left.append((source, pa.concat_tables([table.slice(0, number), table.slice(number + 1)])))
        else:
            left.append((source, table))
        number -= table.num_rows
    return left


def check_flow(seed: int) -> int:
    """Check every row that a random flow shows in the end, and after some batch; returns how many."""
    random = Random(seed)
    flow = any_flow(random)
    ran = Ran.of(flow, written(random, flow.streams))
    asked: list[tuple[dict[str, Any], Records, bool]] = []
    for moment in sorted({random.randrange(len(ran.shown)), len(ran.shown) - 1}):
        for row, batch in ran.shown[moment].values():
            try:
                records = ran.made_of(row, batch)
            except Inexact as reason:
                if flow.ambiguous and "whose values are not recomputed" in str(reason):
                    continue
                raise AssertionError(f"seed {seed}, {flow.text}, row {row} of batch {batch}: {reason}") from reason
            asked.append((row, records, True))
            count = sum(table.num_rows for _, table in records)
            if count > 1 and flow.minimal:
                asked.append((row, without(records, random.randrange(count)), False))
    for (row, records, whole), given in zip(asked, ran.again([records for _, records, _ in asked]), strict=True):
        found = values_of(given.get(key_of(row, flow.key)))
        about = f"seed {seed}, {flow.text}, row {row}, records {[table.to_pylist() for _, table in records]}"
        assert (found == values_of(row)) is whole, (
            f"{about}: {'they give' if whole else 'one is missing, and still'} {found}"
        )
    return len(asked)


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_the_records_of_every_row_give_that_row(first: int) -> None:
    assert sum(check_flow(seed) for seed in range(first, first + 25)) > 100


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 1_100, 50))
def test_the_records_of_every_row_of_a_thousand_flows_give_that_row(first: int) -> None:
    assert sum(check_flow(seed) for seed in range(first, first + 50)) > 200


# Mutants


def late_rows_stay(rows: Any) -> Any:
    """The watermark is left out: what was dropped as too late is among the records."""
    return [
        None if row is None else traced_windows.WindowRow(row.time, traced_windows.NO_TIME, *row[2:]) for row in rows
    ]


def rows_at_the_end_belong_to_it(rows: Any) -> Any:
    """A row at the end of a window is in it."""
    return [None if row is None else row._replace(time=row.time - 1_000_000) for row in rows]


@pytest.mark.parametrize("mutant", [late_rows_stay, rows_at_the_end_belong_to_it])
def test_the_law_finds_mistakes(mutant: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    real = traced_windows.window_rows
    monkeypatch.setattr(traced_windows, "window_rows", lambda given: mutant(real(given)))
    with pytest.raises(AssertionError):
        list(map(check_flow, range(40)))
