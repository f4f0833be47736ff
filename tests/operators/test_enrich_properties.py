"""Look-ups in tables against the naive ones: any rows, any terms, any division into batches; and wrong ones, which are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.clock import as_us
from mainstem.log.watermark import NO_TIME
from mainstem.operators.joins import enrich_engine
from mainstem.operators.joins.enrich_engine import Versions, known_ends
from mainstem.testing import TestResults
from tests.operators.naive_enrich import LATENESS, SIDES, Asked, Found, found_version, naive_lookups, written
from tests.operators.two_streams import batches_so_far

SEEDS = st.integers(0, 2**32)
END = 2**60
Share = Callable[[int], int]
ASKED = st.builds(
    Asked, st.sampled_from(LATENESS), st.sampled_from(["ignore", "re-emit"]), st.sampled_from(["left", "inner"])
)


def looked_up(seed: int, asked: Asked, batches: str, keys: int, idle: str = "") -> TestResults:
    script = written(Random(seed), keys=keys, rows=2 * keys, idle=idle)
    return script.run(asked.looked_up, batches=batches)  # type: ignore[arg-type]


def told(row: dict[str, Any]) -> Found:
    assert (row["version"] is None) == (row["row"] is None)
    if row["version"] is None:
        return None
    until = row["version"]["valid_until"]
    return row["row"], None if until is None else as_us(until)


def check_every_batch(asked: Asked, seed: int, batches: str = "scripted", keys: int = 3, idle: str = "") -> None:
    results = looked_up(seed, asked, batches, keys, idle)
    script = written(Random(seed), keys=keys, rows=2 * keys, idle=idle)
    expected, late = naive_lookups(script, asked, batches)
    shown: dict[int, Found] = {}
    for number, (changes, wanted) in enumerate(zip(results.batches, expected, strict=True)):
        back = {row["fact"]: told(row) for change, row in changes if change == "delete"}
        for fact, row in back.items():
            assert shown.pop(fact) == row, f"batch {number} takes back what was not there"
        for change, row in changes:
            if change == "insert":
                assert row["fact"] not in shown, f"batch {number} shows {row['fact']} again"
                assert row["fact"] not in back or back[row["fact"]] != told(row), f"batch {number} changes nothing"
                shown[row["fact"]] = told(row)
        assert shown == wanted, f"batch {number}"
    assert len([row for row in results.late if row["side"] == "left"]) == len(late)
    versions = [row for row in batches_so_far(script, SIDES, batches)[-1][0] if row.side == "versions"]
    counted = [row for row in versions if row.key is not None and NO_TIME < row.time < row.own]
    assert results.counts.get("late", 0) == len(counted)
    if asked.corrections == "ignore":
        assert all(change == "insert" for change, _ in results.changes)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("batches", "keys", "scripts"), [("scripted", 15, 30), ("one", 15, 30), ("single rows", 3, 12)]
)
def test_every_batch_shows_what_the_naive_one_shows(batches: str, keys: int, scripts: int, share: Share) -> None:
    @settings(max_examples=share(scripts), deadline=None)
    @given(ASKED, SEEDS, st.sampled_from(["", "versions"]))
    def check(asked: Asked, seed: int, idle: str) -> None:
        check_every_batch(asked, seed, batches, keys, idle)

    check()


def test_versions_and_facts_that_are_over_are_forgotten() -> None:
    script = written(Random(3), keys=5, steps=40, rows=10)
    for stream in ("facts", "versions"):
        script = script.watermark(stream, "2027-01-01")
    for corrections in ("ignore", "re-emit"):
        asked = Asked(15, corrections)
        kept = script.run(asked.looked_up).state_rows["enrich-1"]
        # The last version of each key that is not gone.
        rows = [row for row in batches_so_far(script, SIDES, "one")[-1][0] if row.side == "versions"]
        lasts = [found_version(replace(rows[0], key=key, time=END), rows, asked) for key in range(5)]
        assert kept == len([last for last in lasts if last is not None]), corrections
        assert 0 < kept < 5


# Mutants


def late_versions_count_at_once(patch: pytest.MonkeyPatch) -> None:
    right = Versions.__init__

    def wrong(self: Any, keys: Any, valid: Any, counts: Any, *others: Any, **more: Any) -> None:
        right(self, keys, valid, valid, *others, **more)

    patch.setattr(Versions, "__init__", wrong)


def the_last_in_the_log_holds(patch: pytest.MonkeyPatch) -> None:
    right = Versions.__init__

    def wrong(self: Any, keys: Any, valid: Any, *others: Any, **more: Any) -> None:
        right(self, keys, np.zeros(len(valid), np.int64), *others, **more)

    patch.setattr(Versions, "__init__", wrong)


def deleted_rows_are_found(patch: pytest.MonkeyPatch) -> None:
    right = enrich_engine.flags
    patch.setattr(enrich_engine, "flags", lambda rows, name: right(rows, name) & (name != "taken_back"))


def versions_are_forgotten_at_once(patch: pytest.MonkeyPatch) -> None:
    right = enrich_engine._Batch.__init__

    def wrong(self: Any, engine: Any, state: Any, rows: Any, clock: Any) -> None:
        right(self, engine, state, rows, clock)
        self._over = np.where(self._over == enrich_engine.NEVER, enrich_engine.NEVER, enrich_engine.NO_TIME)

    patch.setattr(enrich_engine._Batch, "__init__", wrong)


def ends_are_told_that_were_not_known(patch: pytest.MonkeyPatch) -> None:
    right = known_ends
    patch.setattr(
        enrich_engine, "known_ends",
        lambda keys, valid, own, *asking: right(keys, valid, np.full(len(own), enrich_engine.NO_TIME), *asking),
    )  # fmt: skip


def the_end_that_was_told_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(enrich_engine._Batch, "_until", lambda self: np.full(len(self.until), enrich_engine.NEVER))


def nobody_waits(patch: pytest.MonkeyPatch) -> None:
    right = enrich_engine._Batch.__init__

    def wrong(self: Any, engine: Any, state: Any, rows: Any, clock: Any) -> None:
        right(self, engine, state, rows, clock)
        self.now_shown[self.facts] = ~self._was_shown[self.facts]

    patch.setattr(enrich_engine._Batch, "__init__", wrong)


MUTATIONS = [
    (late_versions_count_at_once, Asked(4, "ignore")),
    (the_last_in_the_log_holds, Asked(4, "ignore")),
    (deleted_rows_are_found, Asked(4, "ignore")),
    (versions_are_forgotten_at_once, Asked(15, "ignore")),
    (versions_are_forgotten_at_once, Asked(15, "re-emit")),
    (nobody_waits, Asked(4, "ignore")),
    (ends_are_told_that_were_not_known, Asked(15, "ignore")),
    (the_end_that_was_told_is_forgotten, Asked(15, "re-emit")),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("mutate", "asked"), MUTATIONS)
def test_a_wrong_look_up_is_found(mutate: Any, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    for seed in range(20):
        try:
            for keys in (4, 10):
                check_every_batch(asked, seed, keys=keys)
                # Here everything is known at once, and nothing was forgotten yet.
                check_every_batch(asked, seed, "one", keys)
        except (AssertionError, KeyError):
            return
    pytest.fail(f"{mutate.__name__} was not found")
