"""Joins, look-ups and tables through Spark against the naive ones: a fault at every step of a batch, and damaged state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mainstem import Mainstem
from mainstem.clock import as_us
from mainstem.flows.staged_batches import StagedBatches
from tests.flows.batch_faults import FAULTS, FaultyRun, RereadingSink, damaged_runs, refused_as_damaged
from tests.flows.joined_programs import (
    STAGES,
    TERMS,
    JoinedFlow,
    Shown,
    append,
    appends,
    changed,
    final,
    known,
    late_places,
    tables,
    too_late,
    topics_of_rows,
)
from tests.operators.naive_join import judged

SEED = 11
END = datetime(2027, 1, 1, tzinfo=UTC)
PROGRAMS = set(STAGES) - {"own"}
# Those of tasks and of the sink, and one where the flow is started again; all of them strike windows in every run
# (test_windowed_naive), and the others of a driver flows that are killed (test_exactly_once).
EVERY_RUN = ("twice", "stage_runs_written", "sink", "stage_manifest_written")

pytestmark = pytest.mark.usefixtures("one_bucket")


def ran(stem: Mainstem, folder: Path, faults: list[str], steps: int = 8) -> tuple[JoinedFlow, list[str]]:
    """Rows of both topics in so many parts, each with its fault, and then the end of time; which faults struck."""
    parts = appends(SEED, steps * len(faults))
    topics_of_rows(stem)
    flow = JoinedFlow(stem, RereadingSink("joined"))
    run = FaultyRun(stem, flow.flows, flow.sink, folder)
    try:
        for place, fault in enumerate(faults):
            part = parts[place * len(parts) // len(faults) : (place + 1) * len(parts) // len(faults)]
            run.step(lambda part=part: append(stem, part), fault)  # type: ignore[misc]
        for side in ("left", "right"):
            run.step(lambda side=side: stem.producer(f"end_{side}").declare_watermark(side, END))  # type: ignore[misc]
    finally:
        run.stop()
    return flow, run.struck


def differences(flow: JoinedFlow) -> dict[str, str]:
    """Where what was given is not what it should be, by program: after every batch, or in the end."""
    found: dict[str, str] = {}
    there: dict[str, Counter[Shown]] = {name: Counter() for name in PROGRAMS}
    so_far: list[Any] = []

    def compare(name: str, given: Counter[Any], wanted: Counter[Any], when: Any) -> None:
        if given != wanted:
            found.setdefault(name, f"{when}: {given - wanted} and not {wanted - given}")

    for numbers, batch in flow.batches():
        rows = [row for number in numbers for row in flow.sink.attempts[number][-1]]
        if len(numbers) == 1:
            compare("known", changed(rows, "known"), known(so_far, batch), numbers)
        so_far += batch
        for name in PROGRAMS:
            there[name].update(changed(rows, name))
            there[name] = Counter({row: count for row, count in there[name].items() if count})
        for name, wanted in tables(so_far).items():
            compare(name, there[name], wanted, numbers)
    for name, wanted in final(so_far, as_us(END)).items():
        compare(name, there[name], wanted, "end")
    late = flow.stem.topic("joined.late").to_arrow().to_pylist()
    compare("pairs", late_places(late, "pairs"), judged(so_far, TERMS, as_us(END))[1], "late")
    missed = Counter(row["offset"] for row in late if row["stage"] == "as_of" and row["reason"].startswith("too late"))
    compare("as_of", missed, Counter(offset for _, offset in too_late(so_far)), "late")
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(
    "faults", [pytest.param(EVERY_RUN, id="some"), pytest.param(FAULTS, marks=pytest.mark.long, id="all")]
)
def test_joins_look_ups_and_tables_give_what_the_naive_ones_give_whatever_fails(
    stem: Mainstem, tmp_path: Path, fault_report: Callable[..., None], faults: tuple[str, ...]
) -> None:
    flow, struck = ran(stem, tmp_path, list(faults))
    assert struck == list(faults)
    wrong = differences(flow)
    compared = sum(len(rows) for rows in final(flow.logged(), as_us(END)).values())
    fault_report(
        "S10 joins", points=len(PROGRAMS), compared=compared, violations=list(wrong.items()), seed=SEED,
        faults=len(struck),
    )  # fmt: skip
    # Whatever was done again was the same.
    for attempts in flow.sink.attempts.values():
        assert len({str(sorted(map(str, attempt))) for attempt in attempts}) == 1
    # Nothing is kept of pairs that are over, and of tables what is in them, and the last of each key.
    kept = flow.state_rows()
    assert kept["pairs"] == 0
    assert kept["both"] <= kept["newest"] + kept["own"]
    assert all(kept[name] > 0 for name in STAGES if name != "pairs")


def test_stages_that_forget_what_they_kept_when_they_are_started_again_are_found(
    stem: Mainstem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every one of them."""
    right = StagedBatches._before
    monkeypatch.setattr(
        StagedBatches, "_before", lambda self, number: {} if self._last is None else right(self, number)
    )
    flow, _ = ran(stem, tmp_path, ["", "batch_begun"])
    assert differences(flow).keys() == PROGRAMS


def rows_held(stem: Mainstem) -> dict[str, Counter[Shown]]:
    """What a view shows of each program."""
    found: dict[str, Counter[Shown]] = {}
    for row in stem.view("joined").to_arrow().to_pylist():
        found.setdefault(row["program"], Counter())[row["mine"], row["theirs"]] += 1
    return found


def test_damaged_state_is_refused_and_rebuilt_from_the_log(stem: Mainstem) -> None:
    parts = appends(SEED, 24)
    topics_of_rows(stem)
    flow = JoinedFlow(stem, stem.view("joined", key=["program", "mine", "theirs"]))
    append(stem, parts[:12])
    stem.run(flow.flows, until="idle")
    before = rows_held(stem)
    runs = damaged_runs(flow.manifests)
    append(stem, parts[12:])
    for side in ("left", "right"):
        stem.producer(f"end_{side}").declare_watermark(side, END)

    refused_as_damaged(stem, flow.flows, runs)
    assert rows_held(stem) == before
    assert {folder.rpartition("/")[2] for folder, _ in runs} == set(STAGES)

    with stem.rebuild("joined", flow.flows) as rebuild:
        rebuild.wait()
        rebuild.apply()
    found = rows_held(stem)
    # What was known when a row came depends on when it came.
    assert found.pop("known").total() == sum(row.side == "left" for row in flow.logged())
    assert found == final(flow.logged(), as_us(END))
