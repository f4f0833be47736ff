"""A snapshot is of one moment and of the version that was live at it, whatever happens between two of its steps."""

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from mainstem.batch import Batch, FlowRun
from mainstem.durable_files import decode_checked, encode_checked
from mainstem.errors import CorruptView, LockHeld, NewerFormat, Unavailable, ViewNotFound
from mainstem.views.sqlite.view_folder import ViewFolder, view_names
from mainstem.views.view import View
from tests.contracts.view_rows import SCHEMA, rows, shown

RUNS = {number: FlowRun("revenue", epoch=1, version=number) for number in (1, 2)}


def two_versions(home: Path) -> View:
    view = View(home, "revenue", key="store")
    for number, run in RUNS.items():
        view.writer(run, SCHEMA).apply(rows(Berlin=number), Batch(0, run))
    return view


def in_between(happens: Callable[[], None]) -> mock._patch:
    """It happens, once, after the live version was looked up and before its file is opened."""
    path_of, todo = ViewFolder.version_path, [happens]

    def version_path(self: ViewFolder, number: int) -> str:
        while todo:
            todo.pop()()
        return path_of(self, number)

    return mock.patch.object(ViewFolder, "version_path", version_path)


def test_what_is_committed_while_it_is_looked_at_is_not_seen(tmp_path: Path) -> None:
    view = two_versions(tmp_path)
    writer = view.writer(RUNS[1], SCHEMA)
    with view.snapshot() as snapshot:
        writer.apply(rows(Berlin=7, Lisbon=8), Batch(1, RUNS[1], {"orders": {0: 1}}))
        assert snapshot.to_arrow().equals(rows(Berlin=1))
        assert snapshot.get("Lisbon") is None
        assert (snapshot.count(), snapshot.offsets(), snapshot.positions()[1]) == (1, {}, 1)
    assert shown(view) == {"Berlin": 7, "Lisbon": 8}


def test_a_version_dropped_between_the_look_and_the_opening_is_not_missed(tmp_path: Path) -> None:
    view, other = two_versions(tmp_path), View(tmp_path, "revenue")

    def flip_and_drop() -> None:
        other.use(2)
        other.drop_version(1)

    with in_between(flip_and_drop):
        assert view.get("Berlin") == {"store": "Berlin", "amount": 2}


def test_a_version_flipped_away_between_the_look_and_the_opening_is_not_shown(tmp_path: Path) -> None:
    view, other = two_versions(tmp_path), View(tmp_path, "revenue")

    def flip_and_write() -> None:
        other.use(2)
        # It is not live any more, so nobody was ever to see this.
        other.writer(RUNS[1], SCHEMA).apply(rows(Berlin=-1), Batch(1, RUNS[1]))

    with in_between(flip_and_write):
        update = next(view.subscribe())
    assert update.rows.equals(rows(Berlin=2))
    assert list(view.subscribe(update.cursor, wait="0 seconds")) == []


def test_a_view_that_is_flipped_without_end_says_so(tmp_path: Path) -> None:
    view, other = two_versions(tmp_path), View(tmp_path, "revenue")
    path_of = ViewFolder.version_path
    flipping = [False]

    def version_path(self: ViewFolder, number: int) -> str:
        if not flipping[0]:
            flipping[0] = True
            other.use(3 - number)
            flipping[0] = False
        return path_of(self, number)

    with (
        mock.patch.object(ViewFolder, "version_path", version_path),
        pytest.raises(Unavailable, match="times in a row"),
    ):
        view.to_arrow()
    assert shown(view)


def test_errors_of_the_one_who_asks_are_his_own(tmp_path: Path) -> None:
    view = two_versions(tmp_path)
    with pytest.raises(ViewNotFound, match="mine"), view.snapshot():
        raise ViewNotFound("mine")
    assert shown(view) == {"Berlin": 1}


def test_files_that_are_damaged_or_newer_are_named(tmp_path: Path) -> None:
    view = two_versions(tmp_path)
    view.close()
    path = tmp_path / "views" / "revenue" / "view.json"
    sound = path.read_text()
    path.write_text("{")
    with pytest.raises(CorruptView, match="description") as damaged:
        View(tmp_path, "revenue").to_arrow()
    assert damaged.value.path == str(path)
    path.write_bytes(encode_checked(decode_checked(sound.encode()) | {"format": 3}))
    with pytest.raises(NewerFormat):
        View(tmp_path, "revenue").to_arrow()
    path.write_text(sound)
    file = tmp_path / "views" / "revenue" / "v1.sqlite"
    for suffix in ("-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    file.write_bytes(b"not a database at all" * 500)
    with pytest.raises(CorruptView, match="cannot be read") as damaged:
        View(tmp_path, "revenue").to_arrow()
    assert damaged.value.path == str(file)
    assert "rebuilt from the log" in damaged.value.hint


def test_a_flip_waits_for_a_batch_that_is_being_committed(tmp_path: Path) -> None:
    view = two_versions(tmp_path)
    writer = view.writer(RUNS[1], SCHEMA)
    writer._connection.execute("BEGIN IMMEDIATE")
    with mock.patch("mainstem.views.sqlite.view_file.LOCK_SECONDS_MAX", 0.0), pytest.raises(LockHeld):
        view.use(2)
    assert shown(view) == {"Berlin": 1}
    writer._connection.execute("ROLLBACK")
    view.use(2)
    assert shown(view) == {"Berlin": 2}


def test_the_views_of_a_home_are_listed(tmp_path: Path) -> None:
    assert view_names(str(tmp_path)) == []
    two_versions(tmp_path)
    (tmp_path / "views" / ".deleted-1-old").mkdir()
    assert view_names(str(tmp_path)) == ["revenue"]
