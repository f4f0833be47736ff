"""The archive: what is dropped was copied before, whole, and can be read when asked for."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mainstem.clock import ManualClock
from mainstem.errors import Conflict, CorruptSegment, FellOff, NotFound
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.embedded.upkeep.manifest import ManifestFile
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.log.embedded.memory_files import MemoryFiles, Stopped
from tests.log.embedded.upkeep_home import SCHEMA, fill, manifest_of, opened, partition_of, sealed, shown

ARCHIVE = "/cold/archive"
FOLDER = f"{ARCHIVE}/orders/0"


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    files.make_directory("/cold")
    files.sync_everything()
    return files


@pytest.fixture
def stem(files: MemoryFiles, clock: ManualClock) -> Mainstem:
    return opened(files, clock)


@pytest.fixture
def topic(stem: Mainstem) -> Topic:
    return stem.create_topic("orders", schema=SCHEMA, key="k", keep="1 hour", archive=ARCHIVE)


def history(topic: Topic, clock: ManualClock) -> list[tuple[int, str, int | None]]:
    """Six segments an hour apart, all but the last of them dropped."""
    for number in range(6):
        sealed(topic, [("a", 2 * number), ("b", 2 * number + 1)])
        clock.advance("1 hour")
    everything = shown(topic)
    topic.alter(keep="2 hours")
    topic.drop_expired()
    return everything


def test_what_was_dropped_can_be_read_when_asked_for(files: MemoryFiles, topic: Topic, clock: ManualClock) -> None:
    everything = history(topic, clock)
    kept = shown(topic)
    assert 0 < len(kept) < len(everything)
    assert shown(topic, archive=ARCHIVE) == everything
    assert shown(topic, archive=Path(ARCHIVE)) == everything
    assert shown(topic, archive=ARCHIVE, start={0: 3}) == everything[3:]
    assert shown(topic, archive=ARCHIVE, start={0: 3}, stop={0: 5}) == everything[3:5]
    assert shown(topic, archive=ARCHIVE, start="latest") == []
    at = datetime(2026, 1, 1, 1, tzinfo=UTC)
    assert shown(topic, archive=ARCHIVE, start=at) == everything[2:]
    assert shown(topic, archive=ARCHIVE, start=at, stop=at + timedelta(hours=1)) == everything[2:4]
    assert shown(topic, archive=ARCHIVE, start=datetime(2027, 1, 1, tzinfo=UTC)) == []
    assert [batch.column("n").to_pylist() for batch in topic.batches(archive=ARCHIVE, columns=["n"], stop={0: 2})] == [
        [0, 1]
    ]
    # Without being asked for it is not there.
    with pytest.raises(FellOff):
        shown(topic, start={0: 3})


def test_columns_added_since_are_null(topic: Topic, clock: ManualClock) -> None:
    sealed(topic, [("a", 0)])
    clock.advance("1 hour")
    topic.drop_expired()
    topic.alter(schema="k string, n bigint, note string")
    topic.append([{"k": "b", "n": 1, "note": "new"}])
    assert [row["note"] for batch in topic.batches(archive=ARCHIVE) for row in batch.to_pylist()] == [None, "new"]


def test_blocks_are_sealed_before_they_are_archived(files: MemoryFiles, topic: Topic, clock: ManualClock) -> None:
    fill(topic, [("a", 0)])
    clock.advance("1 hour")
    report = topic.drop_expired()
    assert (report.segments, report.archived) == (1, 1)
    assert shown(topic) == []
    assert shown(topic, archive=ARCHIVE) == [(0, "a", 0)]


def test_what_cannot_be_sealed_waits(stem: Mainstem, topic: Topic, clock: ManualClock) -> None:
    transaction = stem.transaction(timeout="10 hours")
    transaction.append(topic, [{"k": "a", "n": 0}])
    clock.advance("2 hours")
    assert topic.drop_expired().segments == 0
    transaction.commit()
    topic.drop_expired()
    assert shown(topic, archive=ARCHIVE) == [(0, "a", 0)]


def test_a_gap_is_told(topic: Topic, clock: ManualClock) -> None:
    for number, archive in enumerate([ARCHIVE, "/cold/other", ARCHIVE]):
        topic.alter(archive=archive)
        sealed(topic, [("a", number)])
        clock.advance("1 hour")
        topic.drop_expired()
    fill(topic, [("a", 3)])
    reading = topic.batches(archive=ARCHIVE)
    assert next(reading).column("n").to_pylist() == [0]
    with pytest.raises(FellOff) as fell:
        next(reading)
    assert (fell.value.first_lost, fell.value.last_lost, fell.value.partition) == (1, 1, 0)
    assert shown(topic, archive=ARCHIVE, start={0: 2}) == [(2, "a", 2), (3, "a", 3)]
    with pytest.raises(FellOff) as fell:
        shown(topic, archive="/cold/other", start={0: 0})
    assert (fell.value.first_lost, fell.value.last_lost) == (0, 0)
    # The archive ends before what is kept begins.
    reading = topic.batches(archive="/cold/other")
    assert next(reading).column("n").to_pylist() == [1]
    with pytest.raises(FellOff) as fell:
        next(reading)
    assert (fell.value.first_lost, fell.value.last_lost) == (2, 2)


def test_a_reader_under_way_goes_on_in_the_archive(topic: Topic, clock: ManualClock) -> None:
    for number in range(3):
        sealed(topic, [("a", number)])
    reading = topic.batches(archive=ARCHIVE)
    seen = [next(reading).column("n").to_pylist()]
    clock.advance("2 hours")
    topic.drop_expired()
    seen += [batch.column("n").to_pylist() for batch in reading]
    assert seen == [[0], [1], [2]]


def test_an_archive_that_is_not_there_is_told(topic: Topic) -> None:
    fill(topic, [("a", 0)])
    # The topic's own is made when there is something to put into it.
    assert shown(topic, archive=ARCHIVE) == [(0, "a", 0)]
    with pytest.raises(NotFound, match="/cold/nowhere") as refused:
        shown(topic, archive="/cold/nowhere")
    assert refused.value.hint


def test_nothing_is_dropped_that_could_not_be_archived(files: MemoryFiles, topic: Topic, clock: ManualClock) -> None:
    sealed(topic, [("a", number) for number in range(100)])
    entry = manifest_of(topic).segments[0]
    path = f"{partition_of(topic).folder}/{entry.file}"
    data = files.content(path)
    files.put(path, data[:100] + bytes([data[100] ^ 1]) + data[101:])
    clock.advance("1 hour")
    with pytest.raises(CorruptSegment):
        topic.drop_expired()
    assert manifest_of(topic).start == 0
    assert not files.exists(f"{FOLDER}/manifest")
    files.put(path, data)
    assert topic.drop_expired().archived == 1


def test_a_flipped_bit_in_the_archive_is_not_served(
    files: MemoryFiles, topic: Topic, clock: ManualClock, fault_report: Callable[..., None]
) -> None:
    sealed(topic, [("a", number) for number in range(100)])
    clock.advance("1 hour")
    topic.drop_expired()
    [entry] = ManifestFile(files, FOLDER).read().segments
    path = f"{FOLDER}/{entry.file}"
    data = files.content(path)
    violations, flips = [], 0
    for position in range(0, len(data), 7):
        flips += 1
        files.put(path, data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :])
        for start in ({0: 0}, datetime(2026, 1, 1, tzinfo=UTC)):
            try:
                violations.append(f"byte {position}: {len(shown(topic, archive=ARCHIVE, start=start))} rows")
            except CorruptSegment:
                continue
    fault_report("L5 archive", points=flips, compared=2 * flips, violations=violations)


def test_an_archive_of_another_topic_of_that_name_is_not_mixed_up(
    stem: Mainstem, topic: Topic, clock: ManualClock
) -> None:
    sealed(topic, [("a", 0), ("a", 1)])
    clock.advance("1 hour")
    topic.drop_expired()
    stem.delete_topic("orders")
    again = stem.create_topic("orders", schema=SCHEMA, key="k", keep="1 hour", archive=ARCHIVE)
    sealed(again, [("b", 0)])
    clock.advance("1 hour")
    with pytest.raises(Conflict, match="already has other records") as refused:
        again.drop_expired()
    assert "archive" in refused.value.hint
    assert shown(again) == [(0, "b", 0)]


@pytest.mark.thorough
def test_a_crash_anywhere_loses_nothing_and_copies_once(
    files: MemoryFiles, clock: ManualClock, fault_report: Callable[..., None]
) -> None:
    with opened(files, clock) as stem:
        topic = stem.create_topic("orders", schema=SCHEMA, key="k", keep="1 hour", archive=ARCHIVE)
        for number in range(3):
            sealed(topic, [("a", number)])
        everything = shown(topic)
    files.sync_everything()
    clock.advance("2 hours")
    violations: list[str] = []
    points = 0
    while True:
        points += 1
        for mode in ("killed", "lost", "pieces"):
            crashed = files.copy()
            crashed.stop_at(points, done="part")
            try:
                opened(crashed, clock).topic("orders").drop_expired()
            except Stopped:
                pass
            else:
                points -= 1
                fault_report("L13 archive", points=3 * points, compared=9 * points, violations=violations)
                return
            after = crashed.killed() if mode == "killed" else crashed.crash(points, mode)
            with opened(after, clock) as stem:
                orders = stem.topic("orders")
                for step in ("at once", "after another pass", "after a third"):
                    if (found := shown(orders, archive=ARCHIVE)) != everything:
                        violations.append(f"call {points}, {mode}, {step}: {found}")
                    orders.drop_expired()
                if shown(orders):
                    violations.append(f"call {points}, {mode}: not dropped")


def test_a_relative_archive_stays_where_it_was_meant(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Mainstem(EmbeddedLog("home", clock=clock)) as stem:
        topic = stem.create_topic("orders", schema=SCHEMA, key="k", keep="1 hour")
        topic.alter(archive="cold")
        assert topic.settings.archive == str(tmp_path / "cold")
        sealed(topic, [("a", 0)])
        clock.advance("1 hour")
        topic.drop_expired()
        assert shown(topic, archive=tmp_path / "cold") == [(0, "a", 0)]
        # For its owner alone, as all data is.
        assert {path.stat().st_mode & 0o077 for path in (tmp_path / "cold").rglob("*")} == {0}
