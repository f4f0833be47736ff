"""What may come between a flow and the sealed files it reads first: a stop, another version of its view, compaction."""

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

import mainstem
from mainstem import Mainstem
from mainstem.flows import native_catch_up
from mainstem.flows.flow import Flow
from mainstem.flows.flow_handle import FlowHandle
from mainstem.flows.runner import RunningFlows
from mainstem.log.keep_rule import Keep
from mainstem.spark.checkpoint.batch_gate import BatchGate
from mainstem.spark.checkpoint.checkpoint_offsets import HistoryStatus, history_status
from mainstem.spark.checkpoint.flow_store import FlowStore
from tests.flows.native_runs import checkpoint_of, history_of, run, run_plain, run_until_dead
from tests.flows.native_shop import SINKS, Shop, differences, flows
from tests.waiting import SECONDS_MAX

pytestmark = pytest.mark.usefixtures("few_rows_are_worth_it", "one_bucket")


def counted(stem: Mainstem) -> Iterator[Flow]:
    return flows(stem, "native", "", ["counted"])


@contextmanager
def held_among_files(
    stem: Mainstem, monkeypatch: pytest.MonkeyPatch, portion: int
) -> Iterator[tuple[RunningFlows, FlowHandle]]:
    """A run that stands still when a portion is written, until it is asked to stop or this is left."""
    here, go_on = threading.Event(), threading.Event()

    def reach(name: str, batch: int | None = None) -> None:
        if name == "history_placed" and batch == portion:
            here.set()
            go_on.wait(SECONDS_MAX)

    with monkeypatch.context() as patched:
        patched.setattr(native_catch_up, "reach", reach)
        with stem.start(counted) as running:
            [handle] = running
            assert here.wait(SECONDS_MAX)
            assert handle.state == "catching up"
            threading.Thread(target=lambda: (handle.stopping.wait(SECONDS_MAX), go_on.set()), daemon=True).start()
            yield running, handle
            go_on.set()
            running.wait_until_idle()


def status(stem: Mainstem, version: int = 1) -> HistoryStatus:
    found = history_status(checkpoint_of(stem, "counted_native", version))
    assert found is not None
    return found


def test_a_flow_stopped_among_the_files_goes_on_there_and_with_the_version_that_is_live(stem, monkeypatch):
    shop = Shop(stem, 41, partitions=2)
    shop.fill(segments=6)
    # Ctrl-C, then the wish of another process.
    with held_among_files(stem, monkeypatch, portion=1) as (running, handle):
        running.stop()
        assert handle.state == "stopped"
    portions = history_of(stem, "counted_native").portions
    first = status(stem)
    assert first.rows_in in [sum(portion.rows for portion in portions[:count]) for count in (1, 2)]
    with held_among_files(stem, monkeypatch, portion=3) as (_, handle):
        FlowStore(stem.home, "counted_native").ask_to_stop(1)
        assert handle.stopping.wait(SECONDS_MAX)
    assert (handle.state, handle.error) == ("stopped", None)
    assert first.rows_in < status(stem).rows_in < status(stem).rows

    # Another version is put to use in the middle of the first one's files: the flow goes on with that one's checkpoint.
    with stem.rebuild("counted_native", counted) as rebuild:
        rebuild.wait()
        rebuild.keep_both()
    assert status(stem, 2).over
    with held_among_files(stem, monkeypatch, portion=4):
        shop.append(20)
        stem.view("counted_native").use(2)
    run_plain(stem, "", monkeypatch, ["counted"])
    compared, found = differences(stem, "", ["counted"])
    assert (compared, found) == (3, [])
    assert not status(stem).over

    # And back: the first one has its last files still to read.
    stem.view("counted_native").use(1)
    assert differences(stem, "", ["counted"])[1] != []
    run(stem, "native", "", ["counted"])
    assert differences(stem, "", ["counted"])[1] == []
    assert status(stem).over


def test_a_compacted_topic_gives_the_same_by_both_ways(stem, tmp_path, monkeypatch, die_at):
    shop = Shop(stem, 43)
    shop.topic.alter(keep=Keep.latest_per_key())
    files = str(tmp_path / "out")
    shop.fill(segments=4)
    before = shop.topic.to_arrow().num_rows
    assert shop.topic.compact().removed > 100
    shop.fill(segments=2)
    assert shop.topic.to_arrow().num_rows < before
    die_at("history_placed", None)
    assert run_until_dead(stem, files, SINKS) == {f"{sink}_native" for sink in SINKS}
    run_plain(stem, files, monkeypatch)
    # Compacted once more in the middle of the files: they stay as they were linked.
    shop.topic.compact()
    die_at("")
    run(stem, "native", files)
    compared, found = differences(stem, files)
    assert found == []
    assert compared > 200
    assert history_of(stem, "current_native").rows > 100

    # What comes later is compacted before the one way sees it, and after the other has: a view of keys does not care.
    sinks = ["current"]
    shop.append(60)
    run(stem, "native", files, sinks)
    shop.append(60)
    shop.topic.seal()
    shop.topic.compact()
    run(stem, "native", files, sinks)
    run_plain(stem, files, monkeypatch, sinks)
    assert differences(stem, files, sinks)[1] == []


def test_a_copy_made_in_the_middle_of_the_files_goes_on_by_itself(stem, spark, tmp_path, monkeypatch):
    shop = Shop(stem, 47, partitions=2)
    shop.fill(segments=4)
    closed, batch = threading.Event(), BatchGate.batch
    copying = threading.Thread(
        target=lambda: stem.copy_to(
            tmp_path / "copy", step=lambda what: closed.set() if what == "flow counted_native" else None
        )
    )

    def batch_after_the_copy(gate: BatchGate, number: int) -> AbstractContextManager[None]:
        # Spark has planned it, and nothing of it is done.
        if number == 2:
            copying.start()
            assert closed.wait(SECONDS_MAX)
        return batch(gate, number)

    with monkeypatch.context() as patched:
        patched.setattr(BatchGate, "batch", batch_after_the_copy)
        run(stem, "native", "", ["counted"])
    copying.join(SECONDS_MAX)
    run_plain(stem, "", monkeypatch, ["counted"])
    assert differences(stem, "", ["counted"])[1] == []
    expected = stem.view("counted_native").to_arrow()
    # Whatever becomes of the home that was copied.
    os.rename(f"{stem.home}/flows", f"{stem.home}/gone")
    with mainstem.open(tmp_path / "copy", upkeep="manual", spark=spark) as copy:
        checkpoint = checkpoint_of(copy, "counted_native")
        assert sorted(name for name in os.listdir(f"{checkpoint}/offsets") if name.isdigit()) == ["0", "1"]
        before = history_status(checkpoint)
        assert before is not None
        assert 0 < before.rows_in < before.rows
        run(copy, "native", "", ["counted"])
        assert copy.view("counted_native").to_arrow() == expected
    os.rename(f"{stem.home}/gone", f"{stem.home}/flows")
