"""S3: a checkpoint damaged in any way is refused or recovered from, and no row is skipped or counted twice.

Judged by a model of what Spark does (`checkpoint_model`); a few of the cases with Spark itself are in
test_checkpoint_damage.py.
"""

import random
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from mainstem.errors import CorruptHome
from mainstem.spark.checkpoint.checkpoint_check import check_checkpoint, checkpoint_id, note_rows
from tests.spark.checkpoint.checkpoint_model import SparkRefuses, damage, end_of, rows_after, write_checkpoint, wrong

SEED = 4_301
CASES = 400


def judge(folder: Path, seed: int, check: Callable[..., None]) -> tuple[str, str]:
    """What came of one damaged checkpoint, and what is wrong with the rows, if anything."""
    chance = random.Random(seed)
    committed = chance.randint(0, 11)
    planned = committed + chance.randint(0, 1)
    held = chance.randint(committed, planned)
    write_checkpoint(folder, planned, committed)
    done = damage(folder, chance)
    latest = end_of(planned) + 50
    title = f"seed {seed}: planned {planned}, committed {committed}, held {held}, {done}"
    try:
        check(str(folder), held, accounts="every batch")
        found = wrong(rows_after(folder, held, latest), latest)
    except CorruptHome:
        return "refused", ""
    except SparkRefuses:
        return "refused by Spark", ""
    return "recovered", f"{title}: {found}" if found else ""


def run(folder: Path, check: Callable[..., None]) -> tuple[Counter[str], list[str]]:
    outcomes: Counter[str] = Counter()
    violations = []
    for number in range(CASES):
        outcome, violation = judge(folder / str(number), SEED + number, check)
        outcomes[outcome] += 1
        violations += [violation] if violation else []
    return outcomes, violations


def test_a_damaged_checkpoint_is_refused_or_recovered_from(tmp_path: Path, fault_report: Callable[..., None]) -> None:
    outcomes, violations = run(tmp_path, check_checkpoint)
    fault_report("S3", points=CASES, compared=CASES, violations=violations, seed=SEED, outcomes=dict(outcomes))
    assert min(outcomes["refused"], outcomes["recovered"]) > CASES / 10


def test_without_the_check_rows_would_be_lost(tmp_path: Path) -> None:
    outcomes, violations = run(tmp_path, lambda *_, **__: None)
    assert len(violations) > CASES / 50, outcomes


def test_state_that_was_cut_where_a_chunk_of_checksums_ends_is_noticed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 3, 3)
    path = tmp_path / "state/0/0/2.changelog"
    path.write_bytes(path.read_bytes()[:512])
    with pytest.raises(CorruptHome, match=r"2\.changelog"):
        check_checkpoint(str(tmp_path), 3, accounts="every batch")


@pytest.mark.parametrize(("planned", "committed", "held"), [(5, 5, 5), (5, 4, 5), (5, 4, 4), (0, -1, -1), (0, -1, 0)])
def test_what_a_crash_leaves_passes(tmp_path: Path, planned: int, committed: int, held: int) -> None:
    write_checkpoint(tmp_path, planned, committed)
    check_checkpoint(str(tmp_path), held, accounts="every batch")
    assert wrong(rows_after(tmp_path, held, end_of(planned) + 1), end_of(planned) + 1) == ""


def test_a_checkpoint_that_is_not_there_passes_where_the_sink_is_empty(tmp_path: Path) -> None:
    check_checkpoint(str(tmp_path / "none"), -1, accounts="every batch")
    with pytest.raises(CorruptHome, match="is damaged") as refused:
        check_checkpoint(str(tmp_path / "none"), 4)
    assert "The sink has committed batch 4" in refused.value.detail


def test_a_sink_that_lost_what_it_held_is_noticed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 5, 5)
    with pytest.raises(CorruptHome) as refused:
        check_checkpoint(str(tmp_path), -1, accounts="every batch")
    assert "the sink has only batches up to -1" in refused.value.detail
    # A topic has nothing of a batch without rows for it.
    check_checkpoint(str(tmp_path), -1)


# Up to which batch the checkpoint is committed and planned, and how many batches the sink is set back by.
SET_BACK = [
    (committed, planned, back)
    for committed in (0, 1, 3)
    for planned in (committed, committed + 1)
    for back in (1, 2, planned + 1)
    if back <= planned + 1
]


@pytest.mark.parametrize(("committed", "planned", "back"), SET_BACK)
def test_a_sink_older_than_the_checkpoint_is_refused(tmp_path: Path, committed: int, planned: int, back: int) -> None:
    write_checkpoint(tmp_path, planned, committed)
    held = planned - back
    latest = end_of(planned) + 1
    if held >= committed:
        # The batch that is planned is done again.
        check_checkpoint(str(tmp_path), held, accounts="every batch")
        assert wrong(rows_after(tmp_path, held, latest), latest) == ""
        return
    assert wrong(rows_after(tmp_path, held, latest), latest) != ""
    with pytest.raises(CorruptHome, match="the sink is older than the checkpoint") as refused:
        check_checkpoint(str(tmp_path), held, accounts="every batch", otherwise="Or rebuild it.")
    assert f"Batch {committed} is committed, but the sink has only batches up to {held}" in refused.value.detail
    assert refused.value.hint.endswith("Or rebuild it.")


def noted(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in (folder / "sink_rows").glob("*"))


@pytest.mark.parametrize("with_rows", list(product([False, True], repeat=4)))
@pytest.mark.parametrize("planned", [2, 3])
@pytest.mark.parametrize("killed", ["before the sink's commit", "before the note", "after the note"])
def test_a_topic_is_judged_by_the_batches_that_had_rows(
    tmp_path: Path, with_rows: tuple[bool, ...], planned: int, killed: str
) -> None:
    """Batches 0 to 2 are committed, and a run was killed in batch 3 where that is planned; then the topic is set back."""
    write_checkpoint(tmp_path, planned, 2)
    batches = [number for number in range(planned + 1) if with_rows[number]]
    for number in batches:
        if number <= 2 or killed == "after the note":
            note_rows(str(tmp_path), number)
    lately = noted(tmp_path)
    done = [number for number in batches if number <= 2]
    for held in [-1, *batches]:
        if held == 3 and killed == "before the sink's commit":
            continue
        if held < max(done, default=-1):
            with pytest.raises(CorruptHome, match="the sink is older than the checkpoint"):
                check_checkpoint(str(tmp_path), held)
        else:
            check_checkpoint(str(tmp_path), held)
    assert noted(tmp_path) == lately, "a look changes nothing"
    # The next run begins by noting what the sink holds, and what it does not hold any more is forgotten.
    for held in [*done[-1:], *batches[-1:]]:
        note_rows(str(tmp_path), held)
        assert noted(tmp_path)[-1] == held
        assert len(noted(tmp_path)) <= 2


def test_the_entry_of_a_batch_that_was_never_begun_is_removed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 5, 4)
    (tmp_path / "offsets" / "5").write_bytes(b"")
    check_checkpoint(str(tmp_path), 4, accounts="every batch")
    assert sorted(path.name for path in (tmp_path / "offsets").glob("*5*")) == []
    assert checkpoint_id(str(tmp_path)) == "0000-1111"


def test_what_a_killed_task_left_of_its_state_is_passed_over(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 3, 2)
    part = tmp_path / "state/0/0"
    (part / ".4.changelog.0000.TID15.tmp").touch()
    (part / "..4.changelog.0000.TID15.tmp.crc").write_bytes(b"crc\0\0\0\2\0\0\0\0\0")
    # Renamed already, while its checksums still are those of an earlier attempt.
    (part / "4.changelog").write_bytes(b"x" * 2000)
    (part / ".4.changelog.crc").write_bytes(b"crc\0\0\0\2\0\0\0\0\0")
    check_checkpoint(str(tmp_path), 2, accounts="every batch")


def test_entries_that_a_killed_run_did_not_finish_are_removed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1, 0)
    unfinished = "7d3f0a1e-5d2c-4a55-9d0a-0123456789ab.tmp"
    left = [tmp_path / "offsets" / f".2.{unfinished}", tmp_path / "offsets" / f"..2.{unfinished}.crc"]
    left += [tmp_path / "commits" / f".1.{unfinished}"]
    for path in left:
        path.write_bytes(b"")
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    check_checkpoint(str(tmp_path), 0)
    assert before - {path for path in tmp_path.rglob("*") if path.is_file()} == set(left)
