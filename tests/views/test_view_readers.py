"""Readers in other processes, while batches are committed and versions flip: before or after, never between, never a gap."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count, islice
from pathlib import Path

import pyarrow as pa

from mainstem.batch import Batch, FlowRun
from mainstem.views.view import View
from tests.contracts.other_process import Line, OtherProcess

SCHEMA = pa.schema({"number": pa.int64(), "batch": pa.int64()})
ROWS, LOOKS = 300, 100


def open_counted(home: Path) -> View:
    return View(home, "counted", key="number")


def all_rows(batch: int) -> pa.Table:
    return pa.table([list(range(ROWS)), [batch] * ROWS], schema=SCHEMA)


def look_at_all(view: View, line: Line) -> None:
    """Look at all of it in every way, again and again; say each time what was wrong."""
    cursor, state, last = None, {}, -1
    for _ in range(LOOKS):
        wrong: list[str] = []
        table = view.to_arrow()
        batches = set(table.column("batch").to_pylist())
        if len(batches) != 1 or table.num_rows != ROWS:
            wrong.append(f"{table.num_rows} rows of batches {batches}")
        seen = min(batches)
        if seen < last:
            wrong.append(f"batch {seen} after {last}")
        # What is applied is known with the row, in one look.
        row = view.get(7, after=f"orders@0:{seen}", wait="0 seconds")
        if row is None or row["batch"] < seen:
            wrong.append(f"{row} after batch {seen}")
        # Not to its end: as long as somebody writes without a pause it has none.
        for update in islice(view.subscribe(cursor, wait="0 seconds"), 2):
            cursor = update.cursor
            changes = (
                update.rows.column("record").combine_chunks().field("change") if update.kind == "changes" else None
            )
            numbers, written = update.rows.column("number").to_pylist(), update.rows.column("batch").to_pylist()
            kinds = ["insert"] * len(numbers) if changes is None else changes.to_pylist()
            for kind, number, batch in zip(kinds, numbers, written, strict=True):
                if kind == "insert":
                    state[number] = batch
                elif state.pop(number, None) != batch:
                    wrong.append(f"deleted {number} of batch {batch} was not there")
            if len(state) != ROWS or len(set(state.values())) != 1:
                wrong.append(f"changes end in the middle of a batch: {set(state.values())}")
        last = seen
        line.say(wrong)


def look_at_rows(view: View, line: Line) -> None:
    for _ in range(LOOKS // 4):
        table = view.to_arrow()
        whole = table.num_rows == ROWS and len(set(table.column("batch").to_pylist())) == 1
        line.say([] if whole else [str(table.to_pydict())])


def write_while_looking(
    home: Path, look: Callable[[View, Line], None], write: Callable[[int], None], *, batches: int, looks: int = 0
) -> None:
    """Some batches for each look of the other process: they are written while it looks."""
    reader = OtherProcess(lambda: nullcontext(open_counted(home)), look)
    try:
        numbers = count(1)
        for _ in range(looks or LOOKS):
            for number in islice(numbers, batches):
                write(number)
            assert reader.hear() == []
        reader.end()
    finally:
        reader.close()


def test_a_reader_in_another_process_sees_before_or_after_a_batch(tmp_path: Path) -> None:
    run = FlowRun("counted", epoch=1)
    writer = open_counted(tmp_path).writer(run, SCHEMA)

    def write(number: int) -> None:
        writer.apply(all_rows(number), Batch(number, run, {"orders": {0: number}}))

    write(0)
    write_while_looking(tmp_path, look_at_all, write, batches=3)


def test_a_reader_in_another_process_sees_one_version_or_the_other(tmp_path: Path) -> None:
    view = open_counted(tmp_path)
    runs = {number: FlowRun("counted", epoch=1, version=number) for number in (1, 2)}
    writers = {number: view.writer(run, SCHEMA) for number, run in runs.items()}

    def write(number: int) -> None:
        version = 1 + number % 2
        writers[version].apply(all_rows(number), Batch(number, runs[version], {"orders": {0: number}}))
        view.use(version)

    write(0)
    write_while_looking(tmp_path, look_at_all, write, batches=2)


def test_versions_come_and_go_under_a_reader(tmp_path: Path) -> None:
    view = open_counted(tmp_path)

    def write(number: int) -> None:
        run = FlowRun("counted", epoch=1, version=number + 1)
        writer = view.writer(run, SCHEMA)
        writer.apply(all_rows(number), Batch(0, run))
        writer.close()
        view.use(number + 1)
        if number:
            view.drop_version(number)

    write(0)
    write_while_looking(tmp_path, look_at_rows, write, batches=2, looks=LOOKS // 4)


def test_threads_and_forked_processes_share_a_view(tmp_path: Path) -> None:
    # A path that means something else to a shell, in an address and to SQLite.
    view = open_counted(tmp_path / "a b%20?#x=1'")
    run = FlowRun("counted", epoch=1)
    writer = view.writer(run, SCHEMA)
    writer.apply(all_rows(0), Batch(0, run))
    wrong: list[object] = []

    def look() -> None:
        for _ in range(LOOKS // 4):
            batches = set(view.to_arrow().column("batch").to_pylist())
            if len(batches) != 1 or view.get(7)["batch"] < min(batches):
                wrong.append(batches)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(1, 20):
        writer.apply(all_rows(number), Batch(number, run))
    # It has connections of its parent, which it must leave alone.
    child = OtherProcess(lambda: nullcontext(view), tell_of_a_row)
    try:
        assert child.hear() == {"number": 7, "batch": 19}
        child.end()
    finally:
        child.close()
    for thread in threads:
        thread.join()
    assert wrong == []
    writer.apply(all_rows(20), Batch(20, run))
    assert view.get(7) == {"number": 7, "batch": 20}


def tell_of_a_row(view: View, line: Line) -> None:
    line.say(view.get(7))
    view.close()
