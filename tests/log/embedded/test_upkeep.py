"""Upkeep in the background: what is due gets done, once, by whoever comes first, and errors are seen and survived."""

import errno
import gc
import logging
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem.clock import ManualClock
from mainstem.errors import CorruptSegment, DiskFull, Invalid
from mainstem.file_locks import UPKEEP
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.embedded.upkeep import upkeep, upkeep_pass
from mainstem.log.embedded.upkeep import upkeep as topic_upkeep
from mainstem.log.embedded.upkeep.upkeep import TopicUpkeep, Upkeep
from mainstem.log.keep_rule import Keep
from mainstem.log.upkeep_report import CompactionReport, RetentionReport
from mainstem.stem import Mainstem
from mainstem.stem import open as open_home
from tests.log.embedded.memory_files import MemoryFiles
from tests.log.embedded.upkeep_home import HOME, SCHEMA, fill, manifest_of, opened, partition_of, sealed, shown
from tests.waiting import wait_until

SECONDS_MAX = 300.0


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def stem(files: MemoryFiles, clock: ManualClock) -> Iterator[Mainstem]:
    with opened(files, clock) as stem:
        yield stem


def upkeep_of(stem: Mainstem) -> Upkeep:
    return stem.log.upkeep  # type: ignore[attr-defined, no-any-return]


def background(path: Path | str, **settings: object) -> Mainstem:
    return Mainstem(EmbeddedLog(path, upkeep="background", **settings))  # type: ignore[arg-type]


# What a pass does


def test_a_pass_seals_drops_and_compacts_what_is_due(stem: Mainstem, clock: ManualClock) -> None:
    plain = stem.create_topic("plain", schema=SCHEMA, key="k", segment_age_max="1 hour")
    aged = stem.create_topic("aged", schema=SCHEMA, key="k", keep="3 hours")
    compacted = stem.create_topic("compacted", schema=SCHEMA, key="k", keep=Keep.latest_per_key())
    for topic in (plain, aged, compacted):
        fill(topic, [("a", 0), ("a", 1)])
    assert upkeep_of(stem).run() == []
    assert [manifest_of(topic).end for topic in (plain, aged, compacted)] == [0, 0, 0]
    clock.advance("1 hour")
    [report] = upkeep_of(stem).run()
    # Closed for their age and sealed; the compacted one is all new, so it was compacted too.
    assert [manifest_of(topic).end for topic in (plain, aged, compacted)] == [2, 2, 2]
    assert isinstance(report, CompactionReport)
    assert shown(compacted) == [(1, "a", 1)]
    clock.advance("2 hours")
    [report] = upkeep_of(stem).run()
    assert isinstance(report, RetentionReport)
    assert (shown(plain), shown(aged)) == ([(0, "a", 0), (1, "a", 1)], [])
    assert upkeep_of(stem).errors == {}


def test_a_pass_with_nothing_to_do_writes_nothing_and_takes_no_lock(
    files: MemoryFiles, stem: Mainstem, clock: ManualClock
) -> None:
    for name, keep in (("plain", Keep.forever()), ("aged", Keep(age="1 day")), ("latest", Keep.latest_per_key())):
        topic = stem.create_topic(name, schema=SCHEMA, key="k", keep=keep)
        sealed(topic, [("a", 0)])
        fill(topic, [("a", 1)])
    upkeep_of(stem).run()
    before = files.counts.copy()
    upkeep_of(stem).run()
    spent = files.counts - before
    assert not {name for name in spent if name in ("pwrite", "pwritev", "sync", "rename", "create", "try_lock")}
    assert sum(spent.values()) < 200


def test_compaction_waits_until_most_of_it_is_new(stem: Mainstem, clock: ManualClock) -> None:
    topic = stem.create_topic("latest", schema=SCHEMA, key="k", keep=Keep.latest_per_key(tombstones="1 day"))
    sealed(topic, [(f"key-{number}", number) for number in range(2000)])
    upkeep_of(stem).run()
    cleaned = manifest_of(topic).cleaned
    assert cleaned == 2000
    sealed(topic, [("key-1", 1)])
    upkeep_of(stem).run()
    assert manifest_of(topic).cleaned == cleaned
    sealed(topic, [(f"key-{number}", -number) for number in range(2500)])
    upkeep_of(stem).run()
    assert manifest_of(topic).cleaned == 4501
    # And when a tombstone's time is over.
    topic.delete(["key-7"])
    topic.seal()
    topic.compact()
    clock.advance("1 day")
    upkeep_of(stem).run()
    assert "key-7" not in [key for _, key, _ in shown(topic)]


def test_a_record_older_than_lag_max_makes_it_due(stem: Mainstem, clock: ManualClock) -> None:
    topic = stem.create_topic(
        "latest", schema=SCHEMA, key="k", keep=Keep.latest_per_key(lag_max="10 minutes"), segment_age_max="1 day"
    )
    sealed(topic, [(f"key-{number}", number) for number in range(2000)])
    upkeep_of(stem).run()
    fill(topic, [("key-1", -1)])
    clock.advance("9 minutes")
    upkeep_of(stem).run()
    assert len(shown(topic)) == 2001
    clock.advance("1 minute")
    upkeep_of(stem).run()
    assert len(shown(topic)) == 2000


def test_a_segment_whose_records_lie_in_the_future_is_closed_all_the_same(stem: Mainstem, clock: ManualClock) -> None:
    topic = stem.create_topic("plain", schema=SCHEMA, key="k", segment_age_max="1 hour")
    clock.advance("3650 days")
    fill(topic, [("a", 0)])
    upkeep_of(stem).run()
    clock._now -= 3600 * 24 * 3650 * 1_000_000
    for _ in range(3):
        clock.advance("30 minutes")
        upkeep_of(stem).run()
    assert manifest_of(topic).end == 1


def test_transactions_that_nobody_will_end_hold_nothing_up(stem: Mainstem, clock: ManualClock) -> None:
    topic = stem.create_topic("plain", schema=SCHEMA, key="k")
    forgotten = stem.transaction(timeout="1 minute")
    forgotten.append(topic, [{"k": "a", "n": 0}])
    partition_of(topic).roll()
    upkeep_of(stem).run()
    assert manifest_of(topic).end == 0
    clock.advance("2 minutes")
    upkeep_of(stem).run()
    assert manifest_of(topic).end == 1


def test_topics_nobody_has_opened_are_looked_after_too(files: MemoryFiles, clock: ManualClock) -> None:
    with opened(files, clock) as stem:
        fill(stem.create_topic("aged", schema=SCHEMA, key="k", keep="1 hour"), [("a", 0)])
    clock.advance("2 hours")
    with opened(files, clock) as stem:
        [report] = upkeep_of(stem).run()
        assert report.segments == 1  # type: ignore[union-attr]
        # Not at every pass: each time it must be opened.
        calls = files.calls
        upkeep_of(stem).run()
        assert files.calls - calls < 30


def test_a_topic_made_anew_under_its_name_is_another_one(stem: Mainstem, clock: ManualClock) -> None:
    for number in range(3):
        topic = stem.create_topic("orders", schema=SCHEMA, key="k")
        fill(topic, [("a", number)])
        partition_of(topic).roll()
        upkeep_of(stem).run()
        assert (manifest_of(topic).end, shown(topic)) == (1, [(0, "a", number)])
        stem.delete_topic("orders")
        upkeep_of(stem).run()
    assert upkeep_of(stem).errors == {}


def test_a_deleted_topic_s_files_are_not_touched_by_who_still_has_it_open(
    files: MemoryFiles, stem: Mainstem, clock: ManualClock
) -> None:
    topic = stem.create_topic("orders", schema=SCHEMA, key="k")
    fill(topic, [("a", 0)])
    partition_of(topic).roll()
    upkeep_of(stem).run()
    mine = upkeep_of(stem)._topics["orders"]
    with opened(files.process(), clock) as other:
        other.delete_topic("orders")
        again = other.create_topic("orders", schema=SCHEMA, key="k")
        fill(again, [("b", 1)])
        partition_of(again).roll()
        assert not mine.current()
        with pytest.raises(Exception, match="was deleted"), upkeep_pass.upkeep_of(mine.store.partitions[0]):
            pass
        assert manifest_of(again).end == 0


# Several at once


def test_who_finds_another_process_at_it_leaves_it_alone(
    files: MemoryFiles, stem: Mainstem, clock: ManualClock
) -> None:
    topic = stem.create_topic("orders", schema=SCHEMA, key="k")
    fill(topic, [("a", 0)])
    partition_of(topic).roll()
    with opened(files.process(), clock) as other:
        other.topic("orders")
        with partition_of(topic).lock.hold(UPKEEP):
            upkeep_of(other).run()
            assert (manifest_of(topic).end, upkeep_of(other).errors) == (0, {})
        upkeep_of(other).run()
        assert manifest_of(topic).end == 1


# Errors


def test_an_error_is_kept_and_told_once_and_the_rest_goes_on(
    files: MemoryFiles, stem: Mainstem, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    broken = stem.create_topic("broken", schema=SCHEMA, key="k", keep=Keep.latest_per_key())
    sealed(broken, [("a", 0), ("a", 1)])
    fine = stem.create_topic("fine", schema=SCHEMA, key="k")
    fill(fine, [("a", 0)])
    partition_of(fine).roll()
    path = f"{HOME}/topics/broken/0/{manifest_of(broken).segments[0].file}"
    data = files.content(path)
    files.put(path, data[:50] + b"x" + data[51:])
    with caplog.at_level(logging.ERROR, logger="mainstem.upkeep"):
        for _ in range(3):
            upkeep_of(stem).run()
    assert isinstance(upkeep_of(stem).last_error, CorruptSegment)
    assert list(upkeep_of(stem).errors) == ["broken"]
    assert [record.getMessage()[:26] for record in caplog.records] == ["upkeep of broken in the lo"]
    assert manifest_of(fine).end == 1
    files.put(path, data)
    upkeep_of(stem).run()
    assert (upkeep_of(stem).last_error, upkeep_of(stem).errors, shown(broken)) == (None, {}, [(1, "a", 1)])


def test_on_a_full_disk_retention_still_frees_space(
    stem: Mainstem, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = stem.create_topic("aged", schema=SCHEMA, key="k", keep="1 hour")
    sealed(topic, [("a", 0)])
    clock.advance("1 hour")
    fill(topic, [("a", 1)])
    partition_of(topic).roll()
    fill(topic, [("a", 2)])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(upkeep_pass, "write_sealed", full)
    upkeep_of(stem).run()
    assert isinstance(upkeep_of(stem).last_error, DiskFull)
    assert manifest_of(topic).start == 1
    monkeypatch.undo()
    upkeep_of(stem).run()
    assert (upkeep_of(stem).last_error, manifest_of(topic).end) == (None, 2)


def test_a_jump_of_the_clock_is_told(stem: Mainstem, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    topic = stem.create_topic("aged", schema=SCHEMA, key="k", keep="1 hour")
    sealed(topic, [("a", 0)])
    clock._now += 3600 * 1_000_000 * 24
    with caplog.at_level(logging.WARNING, logger="mainstem.upkeep"):
        for _ in range(3):
            upkeep_of(stem).run()
    [record] = caplog.records
    assert record.getMessage() == (
        "the time of day differs by +86400 seconds from what the machine's own clock says; "
        "upkeep of aged goes by the latter"
    )
    assert shown(topic) == [(0, "a", 0)]


# The thread


def test_it_is_woken_by_a_segment_s_worth_of_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "EVERY_SECONDS", 3600.0)
    done = threading.Event()
    sealed_by: list[str] = []
    seal = topic_upkeep.seal

    def noted(*facts: object) -> int:
        made: int = seal(*facts)  # type: ignore[arg-type]
        sealed_by.append(threading.current_thread().name)
        done.set()
        return made

    monkeypatch.setattr(topic_upkeep, "seal", noted)
    before = set(threading.enumerate())
    with background(tmp_path / "home") as stem:
        topic = stem.create_topic("orders", schema=SCHEMA, key="k", segment_bytes_max=20_000)
        for number in range(20):
            fill(topic, [(f"key-{number}", number)] * 100)
        assert done.wait(SECONDS_MAX)
        assert sealed_by[0] == "mainstem-upkeep"
        assert len(shown(topic)) == 2000
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "mainstem-upkeep"]


def test_it_comes_by_every_so_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    monkeypatch.setattr(upkeep, "EVERY_SECONDS", 0.01)
    passes = threading.Semaphore(0)
    run = Upkeep.run
    monkeypatch.setattr(Upkeep, "run", lambda self: (run(self), passes.release()))
    with background(tmp_path / "home", clock=clock) as stem:
        topic = stem.create_topic("aged", schema=SCHEMA, key="k", keep="1 hour")
        fill(topic, [("a", 0)])
        clock.advance("1 hour")
        # Those before do not count.
        while passes.acquire(blocking=False):
            pass
        for _ in range(3):
            assert passes.acquire(timeout=SECONDS_MAX)
        assert shown(topic) == []


def test_closing_ends_it_in_the_middle_of_its_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "EVERY_SECONDS", 0.01)
    begun, left_off = threading.Event(), threading.Event()

    def for_ever(self: TopicUpkeep, number: int, check_stop: upkeep_pass.CheckStop) -> None:
        begun.set()
        try:
            while True:
                check_stop()
        finally:
            left_off.set()

    monkeypatch.setattr(TopicUpkeep, "_seal", for_ever)
    stem = background(tmp_path / "home")
    stem.create_topic("orders", schema=SCHEMA, key="k")
    assert begun.wait(SECONDS_MAX)
    stem.close()
    assert left_off.is_set()


def test_a_fork_waits_for_a_point_where_nothing_is_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "EVERY_SECONDS", 0.01)
    begun = threading.Event()

    def busy(self: TopicUpkeep, number: int, check_stop: upkeep_pass.CheckStop) -> None:
        begun.set()
        for _ in range(100_000):
            check_stop()

    monkeypatch.setattr(TopicUpkeep, "_seal", busy)
    with background(tmp_path / "home") as stem:
        topic = stem.create_topic("orders", schema=SCHEMA, key="k")
        assert begun.wait(SECONDS_MAX)
        for number in range(5):
            child = os.fork()
            if child == 0:
                # The child goes on with all its parent had open, upkeep included.
                ended = 1
                try:
                    fill(topic, [("child", number)])
                    upkeep_of(stem)._settle()
                    ended = 0 if upkeep_of(stem)._thread is None else 2
                finally:
                    os._exit(ended)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
        assert [number for _, _, number in shown(topic)] == [0, 1, 2, 3, 4]


def test_a_log_that_was_not_closed_can_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "EVERY_SECONDS", 0.01)
    stem = background(tmp_path / "home")
    thread, gone = upkeep_of(stem)._thread, weakref.ref(upkeep_of(stem))
    assert thread is not None
    del stem

    def ended() -> bool:
        gc.collect()
        return not thread.is_alive()

    wait_until(ended)
    assert gone() is None


def test_a_home_says_who_does_the_upkeep(tmp_path: Path) -> None:
    with open_home(tmp_path / "home", upkeep="manual") as stem:
        assert upkeep_of(stem)._thread is None
    with open_home(tmp_path / "home") as stem:
        assert upkeep_of(stem)._thread is not None
    with pytest.raises(Invalid, match='upkeep "never" is not known'):
        open_home(tmp_path / "home", upkeep="never")  # type: ignore[arg-type]
