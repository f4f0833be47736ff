"""A flow that reads sealed files first and then goes live gives the same as one that never did, wherever it dies."""

import os
import threading
from pathlib import Path

import pytest

from mainstem.errors import CorruptHome, FlowFailed
from mainstem.flows import native_catch_up
from mainstem.log.keep_rule import Keep
from mainstem.spark.checkpoint import native_history as native_links
from mainstem.spark.checkpoint.checkpoint_offsets import batch_offsets, file_offset, last_batch
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.checkpoint.native_history import NativeHistory
from tests.flows.native_runs import checkpoint_of, history_of, run, run_plain, run_until_dead
from tests.flows.native_shop import Shop, differences, flows
from tests.waiting import SECONDS_MAX, wait_until

# Where a run dies, and in which batch; each goes on from what the one before left. The first four are of files.
POINTS = [
    ("history_linked", None),
    ("history_noted", None),
    ("batch_begun", 0),
    ("batch_written", 0),
    ("history_placed", 0),
    ("batch_begun", 2),
    ("history_placed", 2),
    ("batch_written", 3),
    ("history_over", None),
    ("batch_begun", 4),
    ("batch_written", 4),
    ("batch_begun", 5),
]
# Before and after the note, in the first portion, between two, at the switch, and behind it.
EVERY_RUN = [
    ("history_linked", None),
    ("history_noted", None),
    ("batch_written", 0),
    ("history_placed", 2),
    ("history_over", None),
    ("batch_written", 4),
]

pytestmark = pytest.mark.usefixtures("few_rows_are_worth_it", "one_bucket")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "points", [pytest.param(EVERY_RUN, id="some"), pytest.param(POINTS, marks=pytest.mark.long, id="all")]
)
def test_a_run_that_dies_anywhere_on_its_way_through_the_files_gives_the_same(
    stem, tmp_path, monkeypatch, die_at, fault_report, points
):
    sinks = ["last", "counted", "copied"]
    shop = Shop(stem, seed := 20260301)
    shop.fill(segments=4)
    files = str(tmp_path / "out")
    deaths = 0
    for point, batch in points:
        die_at(point, batch)
        died = run_until_dead(stem, files, sinks)
        assert died == {f"{sink}_native" for sink in sinks}, f"{point} {batch}: {died}"
        # What is in the log changes meanwhile; what was linked does not.
        shop.append(20)
        deaths += len(died)
    shop.topic.seal()
    die_at("")
    run(stem, "native", files, sinks)
    run_plain(stem, files, monkeypatch, sinks)
    compared, found = differences(stem, files, sinks)
    fault_report("S1", points=deaths, compared=compared, violations=found, seed=seed, way="through sealed files")
    for sink in sinks:
        history = history_of(stem, f"{sink}_native")
        assert [len(portion.files) for portion in history.portions] == [3] * 4
        assert os.listdir(os.path.dirname(history.folder)) == ["note"]


def test_what_was_linked_is_read_whatever_becomes_of_the_log(stem, tmp_path, monkeypatch, die_at):
    """In more batches than Spark's file source lets lie before it gathers its notes."""
    monkeypatch.setattr("mainstem.flows.program.LIGHT_ROWS_MAX", 100)
    # Files between which a transaction would be cut are together: so many that several of a partition are in a portion.
    monkeypatch.setattr("mainstem.flows.native_catch_up.BYTES_MAX", 1 << 30)
    sinks = ["last", "current", "kept"]
    shop = Shop(stem, 7)
    shop.fill(segments=11, rows=30)
    files = str(tmp_path / "out")
    run_plain(stem, files, monkeypatch, sinks)
    die_at("history_placed")
    assert run_until_dead(stem, files, sinks) == {"last_native", "current_native", "kept_native"}
    # The view that is given `record` sorts by it: of one partition several files may be in a portion.
    assert len(history_of(stem, "current_native").portions) < len(history_of(stem, "last_native").portions)
    die_at("")
    shop.topic.alter(keep=Keep(size=1))
    assert shop.topic.drop_expired().records > 250
    run(stem, "native", files, sinks)
    compared, found = differences(stem, files, sinks)
    assert found == []
    assert compared > 150
    assert Path(checkpoint_of(stem, "last_native"), "sources/0/9.compact").exists()

    # What a batch of files is in the log is what its sink was told.
    checkpoint, history = checkpoint_of(stem, "last_native"), history_of(stem, "last_native")
    last = last_batch(checkpoint)
    assert last is not None
    assert [file_offset(checkpoint, number) for number in range(last + 1)] == [*range(history.last + 1), None]
    assert batch_offsets(checkpoint, 5) == {"orders": dict(history.portions[5].ends)}
    assert stem.view("last_native").offsets() == batch_offsets(checkpoint, last)
    token = shop.topic.append(shop.rows(10)).token
    run(stem, "native", files, ["last"])
    assert stem.view("last_native").get("o-0", after=token) is not None
    told = stem.query(
        """SELECT batch, lag_records FROM "mainstem.progress" WHERE flow = 'last_native' ORDER BY batch"""
    )
    lags = [row["lag_records"] for row in told.to_pylist()]
    assert lags == sorted(lags, reverse=True)
    assert lags[1] > lags[-1] == 0


@pytest.mark.parametrize("mutant", ["forgets where the files end", "takes files as they come"])
def test_what_a_broken_catch_up_would_do_is_found(stem, tmp_path, monkeypatch, mutant):
    Shop(stem, 11, partitions=2).fill(segments=3)
    files = str(tmp_path / "out")
    if mutant == "forgets where the files end":
        ends = {"topic": "orders", "id": "", "offsets": {"0": 5, "1": 5}}
        monkeypatch.setattr(NativeHistory, "end", property(lambda self: ends))
    else:
        portions = native_links.portions_of
        monkeypatch.setattr(native_links, "portions_of", lambda *facts: tuple(reversed(portions(*facts))))
    run(stem, "native", files, ["last", "counted"])
    run_plain(stem, files, monkeypatch, ["last", "counted"])
    assert differences(stem, files, ["last", "counted"])[1]


def test_a_damaged_note_or_source_log_is_refused_and_a_lost_plan_is_made_again(stem, tmp_path, monkeypatch, die_at):
    shop = Shop(stem, 13, partitions=2)
    shop.fill(segments=4)
    files = str(tmp_path / "out")
    die_at("batch_begun", 1)
    run_until_dead(stem, files, ["counted"])
    checkpoint, history = Path(checkpoint_of(stem, "counted_native")), history_of(stem, "counted_native")
    assert (last_batch(str(checkpoint), "offsets"), last_batch(str(checkpoint))) == (1, 0)
    die_at("")

    def refused() -> str:
        with pytest.raises(FlowFailed) as raised:
            run(stem, "native", files, ["counted"])
        assert isinstance(raised.value.__cause__, CorruptHome)
        return str(raised.value)

    noted = checkpoint / "sources/0/1"
    for path, damage, said in [
        (checkpoint / "history/note", lambda text: text.replace('"rows": ', '"rows": 1'), "note"),
        # Spark takes both for a batch without rows.
        (noted, lambda text: text.splitlines()[0], "portion 1"),
        (noted, lambda text: text[: len(text) // 2], "sources/0"),
    ]:
        whole = path.read_bytes()
        path.write_text(damage(whole.decode()))
        assert said in refused(), path
        path.write_bytes(whole)
    link = Path(history.read, history.portions[1].files[0])
    link.rename(tmp_path / "elsewhere")
    assert "are missing" in refused()
    (tmp_path / "elsewhere").rename(link)

    # Killed after the file source noted what it found, and before that was planned: what a power cut leaves is empty.
    (checkpoint / "offsets/.1.crc").unlink(missing_ok=True)
    (checkpoint / "offsets/1").write_text("")
    # And the last commit is gone with it: its batch is done again, from its files.
    (checkpoint / "commits/.0.crc").unlink(missing_ok=True)
    (checkpoint / "commits/0").write_text("")
    run(stem, "native", files, ["counted"])
    run_plain(stem, files, monkeypatch, ["counted"])
    assert differences(stem, files, ["counted"])[1] == []


def test_a_later_run_takes_over_in_the_middle_of_the_files(stem, tmp_path, monkeypatch):
    shop = Shop(stem, 17, partitions=2)
    shop.fill(segments=5)
    files = str(tmp_path / "out")
    program = lambda stem: flows(stem, "native", files, ["counted"])  # noqa: E731
    here, store = threading.Event(), FlowStore(stem.home, "counted_native")

    def reach(name: str, batch: int | None = None) -> None:
        """The older run stays among its files until the later one has begun."""
        if (name, batch) == ("history_placed", 1) and not here.is_set():
            here.set()
            wait_until(lambda: store.read()["epoch"] == 2)

    with monkeypatch.context() as patched:
        patched.setattr(native_catch_up, "reach", reach)
        older = stem.start(program)
        assert here.wait(SECONDS_MAX)
        [handle] = older
        assert handle.state == "catching up"
        with stem.start(program) as newer:
            newer.wait_until_idle()
            assert newer["counted_native"].state == "running"
        with pytest.raises(FlowFailed) as failed:
            handle.wait_until_idle()
        older.stop()
    assert type(failed.value.__cause__).__name__ == "Fenced"
    run_plain(stem, files, monkeypatch, ["counted"])
    assert differences(stem, files, ["counted"])[1] == []

    # A view is made again by the same way, and one that is stopped goes on.
    with stem.rebuild("counted_native", program) as rebuild:
        rebuild.wait()
        assert (rebuild.difference().changed, rebuild.difference().removed) == (0, 0)
        assert history_of(stem, "counted_native", 2).rows > 200
