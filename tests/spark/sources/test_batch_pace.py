"""The pause between two batches: how long it is, what ends it, and what a source gives meanwhile."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import mainstem
from mainstem.batch import Batch, FlowRun
from mainstem.clock import ManualClock
from mainstem.file_watch import Watch
from mainstem.spark.sources import topic_stream_reader
from mainstem.spark.sources.batch_clock import leave_due, set_now
from mainstem.spark.sources.batch_pace import BatchPace, BatchPause
from mainstem.stem import Mainstem
from mainstem.views.view import View
from mainstem.views.view_source import ViewStreamReader
from tests.spark.sources.asked_sources import AskedSources

SECOND = 1_000_000
NEVER = 2**63 - 1


class PassingTime:
    """Stands for a watch of the file: a wait moves the clock instead, and may do something meanwhile."""

    def __init__(self, clock: ManualClock, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.clock = clock
        self.waits: list[float] = []
        self.meanwhile = meanwhile

    def __call__(self, paths: Sequence[str]) -> Any:
        return self

    def wait(self, seconds: float) -> bool:
        self.waits.append(round(seconds, 6))
        self.meanwhile()
        self.clock.advance(f"{round(seconds * SECOND)} microseconds")
        return False

    def close(self) -> None: ...


@pytest.fixture
def passing(clock: ManualClock) -> PassingTime:
    return PassingTime(clock)


def pace_of(folder: Path, clock: ManualClock, every: int | None = None) -> BatchPace:
    pace = BatchPace(every, clock)
    pace.begin(str(folder))
    return pace


def do_batch(pace: BatchPace, clock: ManualClock, milliseconds: int) -> None:
    begun = pace.now()
    clock.advance(f"{milliseconds} milliseconds")
    pace.batch_over(begun)


@pytest.mark.parametrize(
    ("took_ms", "every_ms", "pause_ms"),
    [(150, None, 150), (900, None, 200), (150, 400, 250), (150, 0, 0), (500, 400, 0), (150, 150, 0)],
)
def test_a_source_waits_as_long_as_the_batch_took_or_until_every_has_passed(
    took_ms: int, every_ms: int | None, pause_ms: int, tmp_path: Path, clock: ManualClock, passing: PassingTime
):
    pace = pace_of(tmp_path, clock, None if every_ms is None else every_ms * 1000)
    pause = BatchPause(str(tmp_path), clock, passing)
    assert pause.wait()
    assert not passing.waits

    do_batch(pace, clock, took_ms)

    assert pause.wait()
    assert sum(passing.waits) == pause_ms / 1000
    assert pause.wait()
    assert sum(passing.waits) == pause_ms / 1000


def test_rows_that_come_long_after_a_batch_do_not_wait(tmp_path: Path, clock: ManualClock, passing: PassingTime):
    do_batch(pace_of(tmp_path, clock), clock, 150)
    clock.advance("1 second")
    assert BatchPause(str(tmp_path), clock, passing).wait()
    assert not passing.waits


def test_two_sources_of_a_flow_wait_once(tmp_path: Path, clock: ManualClock, passing: PassingTime):
    do_batch(pace_of(tmp_path, clock), clock, 150)
    assert all(BatchPause(str(tmp_path), clock, passing).wait() for _ in range(2))
    assert sum(passing.waits) == 0.15


def test_a_long_pause_is_waited_for_a_second_at_a_time_or_until_something_is_due(
    tmp_path: Path, clock: ManualClock, passing: PassingTime
):
    pace = pace_of(tmp_path, clock, 10 * SECOND)
    pause = BatchPause(str(tmp_path), clock, passing)
    do_batch(pace, clock, 1000)

    assert not pause.wait()
    assert passing.waits == [1]
    assert not pause.wait(SECOND // 4)
    assert passing.waits == [1, 0.25]
    assert not pause.wait(-1)
    assert passing.waits == [1, 0.25]


def test_a_hurry_ends_a_wait_and_there_is_none_until_it_is_over(tmp_path: Path, clock: ManualClock):
    pace = pace_of(tmp_path, clock, 3600 * SECOND)
    hurry = pace.hurry()
    passing = PassingTime(clock, meanwhile=hurry.__enter__)
    pause = BatchPause(str(tmp_path), clock, passing)
    do_batch(pace, clock, 100)

    assert pause.wait()
    assert pause.hurried
    assert len(passing.waits) == 1
    do_batch(pace, clock, 100)
    with pace.hurry():
        assert pause.wait()
    assert pause.wait()
    assert len(passing.waits) == 1

    hurry.__exit__(None, None, None)
    passing.meanwhile = lambda: None
    assert not pause.hurried
    assert not pause.wait()
    assert len(passing.waits) == 2


def test_a_write_to_the_file_ends_a_wait(tmp_path: Path, clock: ManualClock):
    """With the kernel's own watch, and a clock that stands still: nothing but the write can end it."""
    pace = pace_of(tmp_path, clock, SECOND)
    hurry = pace.hurry()
    woken: list[bool] = []

    class Written(Watch):
        def wait(self, seconds: float, processes: Any = ()) -> bool:
            hurry.__enter__()
            woken.append(super().wait(60))
            return True

    pause = BatchPause(str(tmp_path), clock, Written)
    do_batch(pace, clock, 100)
    assert pause.wait()
    assert woken == [True]
    pause.close()


def test_a_wait_of_a_source_ends_even_if_its_clock_is_far_behind(tmp_path: Path, clock: ManualClock):
    ahead = ManualClock()
    ahead.advance("30 days")
    do_batch(pace_of(tmp_path, ahead), ahead, 150)
    passing = PassingTime(clock)
    assert not BatchPause(str(tmp_path), clock, passing).wait(100_000)
    assert passing.waits == [0.1]


def test_there_is_no_pause_without_a_pace(tmp_path: Path, clock: ManualClock, passing: PassingTime):
    for folder in ("", str(tmp_path)):
        assert BatchPause(folder, clock, passing).wait()
        assert not BatchPause(folder, clock, passing).hurried
    assert not passing.waits


# What sources give meanwhile


@pytest.fixture
def stem(tmp_path: Path) -> Iterator[Mainstem]:
    """A home without Spark: its sources are asked by the tests."""
    with mainstem.open(tmp_path / "home", upkeep="manual") as opened:
        yield opened


class PacedSources(AskedSources):
    """The sources of a flow with a pace."""

    def __init__(self, stem: Mainstem, folder: Path, requests: list[dict[str, Any]], *, every: int) -> None:
        super().__init__(stem, folder, requests)
        self.clock = ManualClock()
        self.pace = BatchPace(every, self.clock)
        agreement = self._readers[0]._request.together
        self.pace.begin(agreement)
        self.time = PassingTime(self.clock)
        for reader in self._readers:
            reader._pause = BatchPause(agreement, self.clock, self.time)

    def did_batch(self) -> None:
        """The driver's part of a batch."""
        self.pace.batch_over(self.clock.monotonic())


def append(stem: Mainstem, topic: str, *numbers: int) -> None:
    stem.topic(topic).append([{"n": number} for number in numbers])


@pytest.mark.parametrize("reads", [["t"], ["t", "u"], ["t", "t"]])
@pytest.mark.parametrize("reverse", [False, True])
def test_rows_of_a_pause_come_all_at_once_after_it(stem: Mainstem, tmp_path: Path, reads: list[str], reverse: bool):
    for name in {*reads}:
        stem.create_topic(name, schema="n BIGINT", partitions=2)
        append(stem, name, 0)
    sources = PacedSources(stem, tmp_path / "c", [{"topic": name} for name in reads], every=3 * SECOND)
    order = list(range(len(reads)))[::-1] if reverse else None
    assert sources.batch(order) == [0] * len(reads)
    sources.did_batch()

    for number in (1, 2):
        for name in {*reads}:
            append(stem, name, number)
        before = sources.offsets
        assert sources.batch(order) == []
        assert sources.offsets == before  # else Spark would run a batch
    append(stem, reads[-1], 3)
    # The pause is over in the wait, and what came meanwhile is in.
    rows = [n for name in reads for n in ([1, 2, 3] if name == reads[-1] else [1, 2])]
    assert sources.batch(order) == sorted(rows)
    assert sum(sources.time.waits) == 3
    sources.stop()


def test_a_topic_that_joins_waits_for_the_pause(stem: Mainstem, tmp_path: Path):
    stem.create_topic("t.a", schema="n BIGINT")
    append(stem, "t.a", 0)
    sources = PacedSources(stem, tmp_path / "c", [{"topic": "t.*", "pattern": True}], every=2 * SECOND)
    assert sources.batch() == [0]
    sources.did_batch()
    stem.create_topic("t.b", schema="n BIGINT")
    append(stem, "t.b", 1)
    before = sources.offsets
    assert sources.batch() == []
    assert sources.offsets == before
    assert sources.batch() == [1]
    sources.stop()


def test_a_flow_that_is_far_behind_does_not_pause(stem: Mainstem, tmp_path: Path):
    stem.create_topic("t", schema="n BIGINT")
    for number in range(10):
        append(stem, "t", number)
    sources = PacedSources(stem, tmp_path / "c", [{"topic": "t", "rows_max": 4}], every=SECOND)
    found = []
    for _ in range(3):
        found.append(sources.batch())
        sources.did_batch()
    # The last batch is smaller than the limit, and less than one was left.
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert sources.time.waits == [1]
    sources.stop()


def test_a_timer_that_is_due_ends_the_pause(stem: Mainstem, tmp_path: Path):
    stem.create_topic("t", schema="n BIGINT")
    append(stem, "t", 0)
    folder = tmp_path / "c" / "stages"
    set_now(str(folder), 5 * SECOND)
    sources = PacedSources(stem, tmp_path / "c", [{"topic": "t", "clock": str(folder)}], every=10 * SECOND)
    assert sources.batch() == [0]
    sources.did_batch()
    leave_due(str(folder), NEVER, 5 * SECOND + SECOND // 2, 0)
    append(stem, "t", 1)
    before = sources.offsets

    assert sources.batch() == []
    assert sources.offsets == before
    assert sources.time.waits == [0.5]

    set_now(str(folder), 5 * SECOND + SECOND // 2)
    assert sources.batch() == [1]
    assert sources.time.waits == [0.5]
    sources.stop()


def test_changes_of_a_view_wait_for_the_pause_too(
    tmp_path: Path, clock: ManualClock, passing: PassingTime, monkeypatch: Any
):
    view = View(tmp_path / "home", "totals", key="n")
    run = FlowRun("totals", 1)
    writer = view.writer(run, pa.schema([("n", pa.int64())]))

    def write(number: int) -> None:
        writer.apply(pa.table({"n": pa.array([number], pa.int64())}), Batch(number, run, {"t": {0: number}}))

    pace = pace_of(tmp_path, clock, 2 * SECOND)
    request = {"home": str(tmp_path / "home"), "view": "totals", "flow": "", "columns": ["n"], "wait_ms": 0}
    reader = ViewStreamReader({**request, "together": str(tmp_path)}, None)
    reader._pause = BatchPause(str(tmp_path), clock, passing)
    write(0)
    at = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert (at["position"], passing.waits) == (1, [])
    do_batch(pace, clock, 0)

    write(1)
    assert reader.latestOffset(at, ReadAllAvailable()) == at
    write(2)
    assert reader.latestOffset(at, ReadAllAvailable())["position"] == 3
    assert passing.waits == [1, 1]

    do_batch(pace, clock, 0)
    monkeypatch.setattr("mainstem.views.view_source.CHANGES_MAX", 1)
    with pace.hurry():
        at = reader.latestOffset(at, ReadAllAvailable())
    assert reader.latestOffset(at, ReadAllAvailable())["position"] == 3  # it was behind: no pause
    assert passing.waits == [1, 1]
    reader.stop()
    writer.close()


# How long a source waits while nothing comes


IDLE = 0.125


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source waits for an append in real time: not for seconds here."""
    monkeypatch.setattr(topic_stream_reader, "IDLE_SECONDS", IDLE)


class Listened:
    """Stands for the watch of a topic's appends: it notes how long it should have waited."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def wait(self, seconds: float, processes: Any = ()) -> bool:
        self.waits.append(seconds)
        return True

    def close(self) -> None: ...


def idle_wait(sources: PacedSources) -> float:
    """How long the first source waits for an append when it is asked and there is none."""
    assert sources.batch() == []
    heard = Listened()
    reader = sources._readers[0]
    assert reader._watch is not None
    reader._watch = reader._watch[0], heard
    assert sources.batch() == []
    return heard.waits[-1] if heard.waits else 0.0


def idle_sources(stem: Mainstem, folder: Path, *requests: dict[str, Any]) -> PacedSources:
    sources = PacedSources(stem, folder, [{"wait_ms": 1, "only_topics": True, **it} for it in requests], every=0)
    sources.batches()
    return sources


def test_a_source_waits_long_if_only_an_append_can_begin_a_batch(stem: Mainstem, tmp_path: Path):
    for name in ("t", "u"):
        stem.create_topic(name, schema="n BIGINT", partitions=2)
        append(stem, name, 0)
    sources = idle_sources(stem, tmp_path / "c", {"topic": "t"})
    assert idle_wait(sources) == IDLE
    with sources.pace.hurry():
        assert idle_wait(sources) == 0
    transaction = stem.transaction()
    transaction.append("t", [{"n": 1}])
    assert idle_wait(sources) == 0.001
    transaction.commit()
    assert sources.batches() == [[1]]
    assert idle_wait(sources) == IDLE
    sources.stop()

    both = idle_sources(stem, tmp_path / "d", {"topic": "t"}, {"topic": "u"})
    assert idle_wait(both) == IDLE
    both.stop()
    assert idle_wait(idle_sources(stem, tmp_path / "e", {"topic": "t", "only_topics": False})) == 0.001
    assert idle_wait(idle_sources(stem, tmp_path / "f", {"topic": "t*", "pattern": True})) == 0.001
    assert idle_wait(idle_sources(stem, tmp_path / "g", {"topic": "t"}, {"topic": "u*", "pattern": True})) == 0.001


def test_a_source_with_a_clock_waits_until_something_is_due(stem: Mainstem, tmp_path: Path):
    stem.create_topic("t", schema="n BIGINT")
    append(stem, "t", 0)
    folder = tmp_path / "c" / "stages"
    set_now(str(folder), 5 * SECOND)
    sources = idle_sources(stem, tmp_path / "c", {"topic": "t", "clock": str(folder)})
    assert idle_wait(sources) == 1
    leave_due(str(folder), NEVER, 5 * SECOND + SECOND // 4, 0)
    assert idle_wait(sources) == 0.25
    leave_due(str(folder), NEVER, 50 * SECOND, 0)
    assert idle_wait(sources) == 1
    sources.stop()


@pytest.mark.parametrize("asked", [0, 1])
def test_an_append_to_any_source_ends_the_wait_of_the_first(stem: Mainstem, tmp_path: Path, asked: int):
    for name in ("t", "u"):
        stem.create_topic(name, schema="n BIGINT")
    sources = idle_sources(stem, tmp_path / "c", {"topic": "t"}, {"topic": "u"})
    order = [asked, 1 - asked]
    sources.batch(order)
    watch: Any = sources._readers[asked]._watch
    for name in ("t", "u"):
        while watch[1].wait(0):
            pass
        append(stem, name, 1)
        assert watch[1].wait(60)
    with sources.pace.hurry():
        assert watch[1].wait(60)
    sources.stop()


def test_a_source_does_not_wait_long_while_another_is_behind(stem: Mainstem, tmp_path: Path):
    stem.create_topic("t", schema="n BIGINT")
    stem.create_topic("u", schema="n BIGINT")
    sources = idle_sources(stem, tmp_path / "c", {"topic": "t"}, {"topic": "u", "rows_max": 2})
    for number in range(6):
        append(stem, "u", number)
    heard = Listened()
    sources._readers[0]._watch = ["t", "u"], heard
    assert sources.batches(empty_max=1) == [[0, 1], [2, 3], [4, 5]]
    assert heard.waits[1:3] == [0.001, 0.001]
    assert heard.waits[3] == IDLE
    sources.stop()
