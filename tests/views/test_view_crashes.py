"""A writer killed anywhere leaves whole batches, and the next run ends where an undisturbed one would."""

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from mainstem import crash_points
from mainstem.batch import Batch, FlowRun
from mainstem.errors import DiskFull
from mainstem.views.view import View
from tests.contracts.other_process import Line, OtherProcess
from tests.contracts.view_rows import SCHEMA, replayed, rows, shown
from tests.views.killed_writer import STATES, check_whole, open_revenue, run_until_killed, write_from

pytestmark = pytest.mark.forks

POINTS = ["view_rows_written", "view_batch_written", "view_checked", "view_committed"]


@pytest.mark.parametrize("times", [1, 2, 3, 4])
@pytest.mark.parametrize("point", POINTS)
def test_a_writer_killed_at_any_point_leaves_whole_batches_and_is_gone_on_from(
    tmp_path: Path, point: str, times: int
) -> None:
    run_until_killed(tmp_path, f"{point}:{times}", epoch=1)
    view = open_revenue(tmp_path)
    assert check_whole(view) == (times - 1 if point == "view_committed" else times - 2)
    write_from(view, epoch=2)
    assert check_whole(view) == 3


def test_a_writer_killed_at_every_point_in_turn_ends_where_it_should(tmp_path: Path) -> None:
    view = open_revenue(tmp_path)
    for epoch, point in enumerate([f"{point}:1" for point in POINTS] * 3, start=1):
        if check_whole(view) < 2:
            run_until_killed(tmp_path, point, epoch)
    write_from(view, epoch=99)
    assert check_whole(view) == 3
    assert shown(view) == STATES[3]


@pytest.mark.parametrize("point", ["view_version_ready", "view_version_used"])
def test_a_flip_that_is_killed_has_happened_or_not_and_can_be_done_again(tmp_path: Path, point: str) -> None:
    view = open_revenue(tmp_path)
    write_from(view, epoch=1)
    before = next(view.subscribe())
    second = FlowRun("revenue", epoch=1, version=2)
    writer = view.writer(second, SCHEMA)
    writer.apply(rows(Berlin=70, Tunis=1), Batch(0, second))
    other = OtherProcess(lambda: nullcontext(open_revenue(tmp_path)), _flip_to_death, point)
    other._process.join(300)
    assert other._process.exitcode == -9
    other.close()
    assert shown(view) == ({"Berlin": 70, "Tunis": 1} if point == "view_version_used" else STATES[3])
    # Both are written on meanwhile, by flows that know nothing of it.
    writer.apply(rows(Tunis=2), Batch(1, second))
    first = FlowRun("revenue", epoch=2)
    view.writer(first, SCHEMA).apply(rows(Berlin=71), Batch(4, first))
    view.use(2)
    assert shown(view) == {"Berlin": 70, "Tunis": 2}
    state = STATES[3]
    for update in view.subscribe(before.cursor, wait="0 seconds"):
        state = replayed(state, update.rows)
    assert state == {"Berlin": 70, "Tunis": 2}


def _flip_to_death(view: View, line: Line, point: str) -> None:
    os.environ[crash_points.VARIABLE] = point
    view.use(2)


def test_what_a_crash_left_of_a_version_or_a_view_is_in_nobody_s_way(tmp_path: Path) -> None:
    for left in (".new-4194305-abc-revenue", ".deleted-abc-revenue", f".new-{os.getpid()}-abc-other"):
        (tmp_path / "views" / left).mkdir(parents=True)
    view = open_revenue(tmp_path)
    write_from(view, epoch=1)
    # What another process is making just now stays.
    assert sorted(os.listdir(tmp_path / "views")) == [f".new-{os.getpid()}-abc-other", "revenue"]
    (tmp_path / "views" / "revenue" / "v2.sqlite").write_bytes(b"half made")
    second = FlowRun("revenue", epoch=1, version=2)
    view.writer(second, SCHEMA).apply(rows(Berlin=1), Batch(0, second))
    view.use(2)
    assert shown(view) == {"Berlin": 1}


def test_commits_are_synced(tmp_path: Path) -> None:
    # FULL: a kill does not lose what a power cut would, so no other test here would notice.
    view = open_revenue(tmp_path)
    writer = view.writer(FlowRun("revenue", epoch=1), SCHEMA)
    assert writer._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert writer._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_batch_for_which_there_is_no_space_is_not_there_and_can_be_written_later(tmp_path: Path) -> None:
    view = open_revenue(tmp_path)
    run = FlowRun("revenue", epoch=1)
    writer = view.writer(run, SCHEMA)
    writer.apply(rows(Berlin=1), Batch(0, run))
    (pages,) = writer._connection.execute("PRAGMA page_count").fetchone()
    writer._connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    many = rows(**{f"store-{number}": number for number in range(5_000)})
    with pytest.raises(DiskFull, match='no space left for view "revenue"'):
        writer.apply(many, Batch(1, run))
    assert (shown(view), view.last_position(), writer.committed_batch) == ({"Berlin": 1}, 1, 0)
    writer._connection.execute("PRAGMA max_page_count = 1000000")
    assert writer.apply(many, Batch(1, run)).changes == 5_000
    assert replayed({}, view.changes().rows) == shown(view)
