"""Windows of every kind against the naive ones, and against DuckDB: any rows, any triggers, any division into batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.operators.windows.triggers import after_rows, each_row, every, first_of
from tests.operators.checked_kinds import KINDS, Answer, CheckedKind
from tests.operators.naive_windows import FUNCTIONS, Asked, Pane, Row
from tests.operators.window_scripts import ORIGIN, Run, divided, written

SEEDS = st.integers(0, 2**32)
TICK = "microseconds"
TRIGGERS = [
    None,
    each_row(),
    after_rows(3),
    every(f"7 {TICK}"),
    every(f"5 {TICK}", since="first row"),
    first_of(every(f"6 {TICK}"), after_rows(2)),
]
ASKED = st.builds(
    Asked,
    early=st.sampled_from(TRIGGERS),
    late=st.sampled_from(TRIGGERS),
    lateness=st.sampled_from([0, 4, 15]),
    results=st.sampled_from(["discard", "accumulate", "retract"]),
    on_time=st.sampled_from(["always", "always", "if changed"]),
    # The largest value often stays as it is when a row comes.
    functions=st.sampled_from([FUNCTIONS, ("max",)]),
)
WHOLE = ASKED.map(lambda asked: replace(asked, functions=FUNCTIONS))
CORRECTED = ASKED.filter(lambda asked: asked.results != "discard")

Check = Callable[[str, Asked, int], None]
Share = Callable[[int], int]


def tried(check: Check, kind: str, asked: st.SearchStrategy[Asked], scripts: int) -> None:
    """Check a kind with so many scripts."""

    @settings(max_examples=scripts, deadline=None)
    @given(asked, SEEDS)
    def once(asked: Asked, seed: int) -> None:
        check(kind, asked, seed)

    once()


def log_of(kind: CheckedKind, random: Random) -> list[Row]:
    return written(random, keys=kind.keys, rows=kind.rows)


def unclosed(log: list[Row]) -> list[Row]:
    """Rows that nothing closes before they have come: then windows are what the rows alone make them."""
    return [replace(row, watermark=min(row.watermark, ORIGIN)) for row in log]


# Against the naive engine


def check_panes(name: str, asked: Asked, seed: int) -> None:
    kind, random = KINDS[name], Random(seed)
    script = divided(random, log_of(kind, random), random.randint(1, 8))
    naive = kind.naive(asked)
    expected = [kind.expected(naive, rows, clock) for rows, clock in script]
    done = kind.ran(asked, script, twice=True)
    for shown, wanted in zip(done.panes, expected, strict=True):
        assert kind.ordered(shown) == kind.ordered(wanted)
    late = Counter((row["partition"], row["offset"], row["window_start"], row["window_end"]) for row in done.late)
    assert late == Counter((*row.position, *window) for row, window in naive.too_late)
    assert done.state_rows[-1] == 0


@pytest.mark.parametrize("name", KINDS)
def test_panes_are_those_of_the_naive_engine(name: str, share: Share) -> None:
    tried(check_panes, name, ASKED, share(KINDS[name].scripts))


# The law


def status(shown: list[Pane], before: Answer) -> Answer:
    """What stands after a batch."""
    held = dict(before)
    for pane in shown:
        if pane.change == "delete":
            assert held.pop(pane.cell) == pane.values
        else:
            held[pane.cell] = pane.values
    return held


def in_the_end(done: Run) -> Answer:
    held: Answer = {}
    for shown in done.panes:
        held = status(shown, held)
    return held


def on_time(done: Run) -> list[tuple[object, ...]]:
    panes = [pane for shown in done.panes for pane in shown if pane.change != "delete"]
    return sorted((pane.cell, pane.values) for pane in panes if pane.timing == "on_time")


def check_division(name: str, asked: Asked, seed: int) -> None:
    kind, random = KINDS[name], Random(seed)
    log = log_of(kind, random)
    one, other = (kind.ran(asked, divided(random, log, batches)) for batches in (random.randint(1, 3), 9))
    assert sorted(map(str, one.late)) == sorted(map(str, other.late))
    if asked.results != "discard":
        assert in_the_end(one) == in_the_end(other)
        if asked.on_time == "always":
            assert on_time(one) == on_time(other)
    elif asked.early is None and not kind.moves:
        assert on_time(one) == on_time(other)


@pytest.mark.parametrize("name", KINDS)
def test_no_division_into_batches_changes_what_is_on_time_final_or_too_late(name: str, share: Share) -> None:
    tried(check_division, name, ASKED, share(6))


def indices(done: Run) -> list[tuple[object, ...]]:
    panes = [pane for shown in done.panes for pane in shown if pane.change != "delete"]
    return sorted((pane.cell, pane.index) for pane in panes if pane.timing == "on_time")


def check_indices(name: str, asked: Asked, seed: int) -> None:
    kind, random = KINDS[name], Random(seed)
    log = log_of(kind, random)
    one, other = (kind.ran(asked, divided(random, log, batches)) for batches in (random.randint(1, 3), 9))
    assert indices(one) == indices(other)


COUNTING = WHOLE.filter(lambda asked: asked.early is not None and not asked.early.periods and asked.on_time == "always")


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if not kind.moves])
def test_no_division_into_batches_changes_the_index_of_what_is_on_time(name: str, share: Share) -> None:
    tried(check_indices, name, COUNTING, share(4))


def check_single_panes(name: str, asked: Asked, seed: int) -> None:
    kind, random = KINDS[name], Random(seed)
    for shown in kind.ran(asked, divided(random, log_of(kind, random), 3)).panes:
        counts = Counter((pane.cell, pane.timing) for pane in shown if pane.change != "delete")
        assert set(counts.values()) <= {1}


# Where the lateness ends in a batch, what a count of rows has left over is shown after the last that it gave.
SINGLE = ASKED.filter(lambda asked: asked.late is None or asked.late.rows == 1)


def test_a_sliding_window_has_one_early_and_one_late_pane_in_a_batch_at_most(share: Share) -> None:
    tried(check_single_panes, "sliding", SINGLE, share(6))


# Against DuckDB


def check_last_state(name: str, asked: Asked, seed: int) -> None:
    kind, random = KINDS[name], Random(seed)
    log = log_of(kind, random)
    log = unclosed(log) if kind.windows is None else log
    assert in_the_end(kind.ran(asked, divided(random, log, 6))) == kind.answer(log, asked)


@pytest.mark.parametrize("name", KINDS)
def test_the_last_state_of_every_window_is_the_answer_of_duckdb(name: str, share: Share) -> None:
    tried(check_last_state, name, WHOLE.filter(lambda asked: asked.results != "discard"), share(6))


def check_on_time_rows(name: str, asked: Asked, seed: int) -> None:
    """Wherever the watermark stands between them."""
    kind, random = KINDS[name], Random(seed)
    log = [replace(row, watermark=min(row.watermark, row.time)) for row in log_of(kind, random)]
    done = kind.ran(asked, divided(random, log, 6))
    assert in_the_end(done) == kind.answer(log)
    assert all(row["window_end"] is None for row in done.late)


@pytest.mark.parametrize("name", KINDS)
def test_of_rows_that_are_not_late_the_stream_makes_what_all_rows_at_once_are(name: str, share: Share) -> None:
    tried(check_on_time_rows, name, WHOLE.filter(lambda asked: asked.results != "discard"), share(6))


# With retractions


class SignedSum:
    """Sum and count of what was put out, each row with its sign."""

    def __init__(self) -> None:
        self.totals: dict[object, list[int]] = {}

    def add(self, shown: list[Pane]) -> None:
        for pane in shown:
            sign = -1 if pane.change == "delete" else 1
            total = self.totals.setdefault(pane.cell, [0, 0])
            total[0] += sign * pane.values[0]
            total[1] += sign * pane.values[1]

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, dict)
        left = {cell: total for cell, total in self.totals.items() if total != [0, 0]}
        return left == {cell: list(values[:2]) for cell, values in other.items()}

    __hash__ = None  # type: ignore[assignment]


def check_signed(name: str, asked: Asked, seed: int) -> None:
    """After every batch the sum is what stands by the naive engine."""
    kind, random = KINDS[name], Random(seed)
    script = divided(random, log_of(kind, random), 6)
    naive, signed, held = kind.naive(asked), SignedSum(), Answer()
    for (rows, clock), shown in zip(script, kind.ran(asked, script).panes, strict=True):
        signed.add(shown)
        held = status(kind.expected(naive, rows, clock), held)
        assert signed == held


def check_signed_answer(name: str, asked: Asked, seed: int) -> None:
    """Where each row is shown at once, the sum is the answer for all rows so far."""
    kind, random = KINDS[name], Random(seed)
    script = divided(random, unclosed(log_of(kind, random)), 6)
    signed, came = SignedSum(), list[Row]()
    for (rows, clock), shown in zip(script, kind.ran(asked, script).panes, strict=True):
        signed.add(shown)
        came += rows
        assert signed == kind.answer([row for row in came if kind.counts(row, clock)])


@pytest.mark.thorough
@pytest.mark.parametrize("name", KINDS)
def test_with_retractions_the_signed_sum_is_the_current_answer_after_every_batch(name: str, share: Share) -> None:
    retracting = WHOLE.map(lambda asked: replace(asked, results="retract"))
    tried(check_signed, name, retracting, share(5))
    tried(check_signed_answer, name, retracting.map(lambda asked: replace(asked, early=each_row())), share(4))
