"""Compaction: the latest record of each key stays where it was, a deleted key goes in the end, and readers go on."""

from datetime import timedelta

import pytest

from mainstem.clock import ManualClock, as_datetime
from mainstem.errors import CorruptSegment, Invalid
from mainstem.log.embedded.upkeep import compaction as latest_offsets
from mainstem.log.keep_rule import Keep
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.log.embedded.memory_files import MemoryFiles
from tests.log.embedded.upkeep_home import SCHEMA, fill, manifest_of, opened, partition_of, sealed, shown


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def stem(files: MemoryFiles, clock: ManualClock) -> Mainstem:
    return opened(files, clock)


@pytest.fixture
def topic(stem: Mainstem) -> Topic:
    return stem.create_topic("profiles", schema=SCHEMA, key="k", keep=Keep.latest_per_key(tombstones="1 day"))


def offsets(topic: Topic) -> list[int]:
    return [offset for offset, _, _ in shown(topic)]


# What stays


def test_the_segment_being_appended_to_is_never_compacted(topic: Topic) -> None:
    sealed(topic, [("a", 0), ("a", 1)])
    fill(topic, [("a", 2), ("a", 3)])
    topic.compact()
    assert shown(topic) == [(1, "a", 1), (2, "a", 2), (3, "a", 3)]


def test_closed_segments_are_sealed_on_the_way(topic: Topic) -> None:
    fill(topic, [("a", 0), ("a", 1)])
    partition_of(topic).roll()
    report = topic.compact()
    assert (report.sealed, report.removed, report.records_after) == (1, 1, 1)
    assert shown(topic) == [(1, "a", 1)]


def test_what_loses_nothing_keeps_its_file(stem: Mainstem, topic: Topic) -> None:
    sealed(topic, [(f"old-{number}", number) for number in range(200)])
    topic.compact()
    files = [entry.file for entry in manifest_of(topic).segments]
    sealed(topic, [("new", 0)])
    topic.compact()
    assert [entry.file for entry in manifest_of(topic).segments][:1] == files
    sealed(topic, [("old-7", 7)])
    topic.compact()
    assert [entry.file for entry in manifest_of(topic).segments][:1] != files
    assert 7 not in offsets(topic)


def test_small_neighbours_become_one_segment(topic: Topic) -> None:
    for number in range(8):
        sealed(topic, [(f"key-{number}", number)])
    assert len(manifest_of(topic).segments) == 8
    report = topic.compact()
    assert (report.segments_before, report.segments_after, report.removed) == (8, 1, 0)
    assert offsets(topic) == list(range(8))
    assert topic.verify().sound


def test_a_segment_does_not_grow_beyond_what_the_topic_wants(stem: Mainstem) -> None:
    topic = stem.create_topic("profiles", schema=SCHEMA, key="k", keep=Keep.latest_per_key(), segment_bytes_max=12_000)
    for number in range(12):
        sealed(topic, [(f"key-{number}", number)])
    topic.compact()
    segments = manifest_of(topic).segments
    assert 1 < len(segments) < 12
    assert offsets(topic) == list(range(12))


def test_a_pass_without_anything_new_does_nothing(files: MemoryFiles, topic: Topic) -> None:
    sealed(topic, [("a", 0), ("a", 1)])
    topic.compact()
    before = manifest_of(topic)
    writes = files.counts["rename"]
    report = topic.compact()
    assert (report.removed, report.segments_before, report.segments_after) == (0, 1, 1)
    assert manifest_of(topic) == before
    assert files.counts["rename"] == writes


def test_records_without_a_key_stay(stem: Mainstem) -> None:
    topic = stem.create_topic("profiles", schema=SCHEMA, key="k")
    topic.append([{"k": None, "n": 0}, {"k": "a", "n": 1}, {"k": None, "n": 2}, {"k": "a", "n": 3}])
    topic.seal()
    topic.alter(keep=Keep.latest_per_key())
    topic.compact()
    assert offsets(topic) == [0, 2, 3]


def test_keys_of_several_columns_and_types(stem: Mainstem) -> None:
    topic = stem.create_topic(
        "lines", schema="o int, d date, k string, n bigint", key=["o", "d"], keep=Keep.latest_per_key()
    )
    rows = [{"o": o, "d": None if d is None else as_datetime(d * 86_400_000_000).date(), "k": "x", "n": number}
            for number, (o, d) in enumerate([(1, 1), (1, 2), (1, 1), (None, 1), (1, None), (None, 1)])]  # fmt: skip
    topic.append(rows)
    topic.seal()
    topic.compact()
    assert offsets(topic) == [1, 2, 4, 5]


def test_a_key_that_was_widened_is_the_same_key(stem: Mainstem) -> None:
    topic = stem.create_topic("numbers", schema="k int, n bigint", key="k", keep=Keep.latest_per_key())
    topic.append([{"k": 1, "n": 0}, {"k": 2, "n": 1}])
    topic.seal()
    topic.alter(schema="k bigint, n bigint, note string")
    topic.append([{"k": 1, "n": 2, "note": "new"}])
    topic.seal()
    topic.compact()
    assert [(row["k"], row["n"], row["note"]) for row in topic.to_arrow().to_pylist()] == [(2, 1, None), (1, 2, "new")]
    assert {entry.schema_version for entry in manifest_of(topic).segments} == {2}


def test_change_headers_and_times_of_what_stays_are_as_they_were(stem: Mainstem, clock: ManualClock) -> None:
    topic = stem.create_topic(
        "rich", schema="k string, at timestamp", key="k", event_time="at", keep=Keep.latest_per_key()
    )
    headers = [{"key": "trace", "value": b"\0"}]
    topic.append([{"k": "a", "at": as_datetime(10_000_000)}])
    clock.advance("1 minute")
    topic.append([{"k": "b", "at": as_datetime(20_000_000), "record": {"change": "update", "headers": headers}}])
    topic.append([{"k": "a", "at": as_datetime(30_000_000)}])
    before = topic.to_arrow(watermark="1 second").slice(1)
    topic.seal()
    topic.compact()
    assert topic.to_arrow(watermark="1 second").combine_chunks().equals(before.combine_chunks())


# Tombstones


def test_a_tombstone_s_time_runs_from_the_pass_that_cleaned_its_segment(topic: Topic, clock: ManualClock) -> None:
    fill(topic, [("a", 0), ("b", 1)])
    topic.delete(["a"])
    topic.seal()
    clock.advance("30 days")
    topic.compact()
    assert shown(topic) == [(1, "b", 1), (2, "a", None)]
    clock.advance("23 hours")
    topic.compact()
    assert offsets(topic) == [1, 2]
    clock.advance("1 hour")
    assert topic.compact().tombstones == 1
    assert offsets(topic) == [1]
    assert topic.compact().tombstones == 0


def test_tombstones_of_two_ages_stay_apart(files: MemoryFiles, topic: Topic, clock: ManualClock) -> None:
    topic.delete(["a"])
    topic.seal()
    topic.compact()
    clock.advance("20 hours")
    topic.delete(["b"])
    topic.seal()
    topic.compact()
    assert len(manifest_of(topic).segments) == 2
    clock.advance("4 hours")
    topic.compact()
    assert shown(topic) == [(1, "b", None)]
    clock.advance("20 hours")
    topic.compact()
    assert shown(topic) == []
    sealed(topic, [("c", 2)])
    topic.compact()
    # What has no rows left needs no file.
    assert [(entry.base, entry.end, entry.rows) for entry in manifest_of(topic).segments] == [(0, 3, 1)]
    assert len([name for name in files.names(partition_of(topic).folder) if "parquet" in name]) == 1
    assert shown(topic) == [(2, "c", 2)]


@pytest.mark.parametrize("by", [timedelta(hours=1), timedelta(hours=-1), timedelta(days=3652), timedelta(days=-3652)])
def test_a_jump_of_the_clock_neither_shortens_nor_stretches_a_tombstone_s_time(
    topic: Topic, clock: ManualClock, by: timedelta
) -> None:
    fill(topic, [("a", 0)])
    topic.delete(["a"])
    topic.seal()
    topic.compact()
    clock.advance("12 hours")
    clock.set(as_datetime(clock.now()) + by)
    assert topic.compact().clock_jump == by
    clock.advance("11 hours")
    topic.compact()
    assert shown(topic) == [(1, "a", None)]
    clock.advance("1 hour")
    topic.compact()
    assert shown(topic) == []
    clock.advance("1 day")
    topic.compact()
    assert topic.compact().clock_jump is None


# Lags


def test_young_records_are_left_alone(stem: Mainstem, clock: ManualClock) -> None:
    topic = stem.create_topic("young", schema=SCHEMA, key="k", keep=Keep.latest_per_key(lag_min="1 hour"))
    sealed(topic, [("a", 0), ("a", 1)])
    clock.advance("30 minutes")
    sealed(topic, [("a", 2), ("a", 3)])
    clock.advance("30 minutes")
    topic.compact()
    # The first segment is old enough, the second is not; neither does it count.
    assert offsets(topic) == [1, 2, 3]
    clock.advance("30 minutes")
    topic.compact()
    assert offsets(topic) == [3]


def test_records_from_the_future_are_compacted_in_the_end(stem: Mainstem, clock: ManualClock) -> None:
    topic = stem.create_topic("young", schema=SCHEMA, key="k", keep=Keep.latest_per_key(lag_min="1 hour"))
    clock.set(as_datetime(clock.now()) + timedelta(days=3652))
    sealed(topic, [("a", 0), ("a", 1)])
    clock.set(as_datetime(clock.now()) - timedelta(days=3652))
    topic.compact()
    assert offsets(topic) == [0, 1]
    clock.advance("1 hour")
    topic.compact()
    assert offsets(topic) == [1]


def test_an_old_record_is_not_kept_back_by_an_open_segment(stem: Mainstem, clock: ManualClock) -> None:
    topic = stem.create_topic("old", schema=SCHEMA, key="k", keep=Keep.latest_per_key(lag_max="1 hour"))
    fill(topic, [("a", 0), ("a", 1)])
    topic.compact()
    assert offsets(topic) == [0, 1]
    clock.advance("1 hour")
    assert topic.compact().sealed == 1
    assert offsets(topic) == [1]


# Transactions


def test_markers_go_after_their_records(stem: Mainstem, topic: Topic, clock: ManualClock) -> None:
    with stem.transaction() as transaction:
        transaction.append(topic, [{"k": "a", "n": 0}])
    undone = stem.transaction()
    undone.append(topic, [{"k": "b", "n": 1}])
    undone.abort()
    topic.seal()
    topic.compact()

    def markers() -> list[int]:
        return [marker.offset for entry in manifest_of(topic).segments for marker in entry.markers]

    assert markers() == [1, 3]
    clock.advance("1 day")
    assert topic.compact().markers == 1
    # What was committed is still there, and so is its marker; the aborted one has nothing to mark.
    assert markers() == [1]
    sealed(topic, [("a", 2)])
    topic.compact()
    assert markers() == [1]
    clock.advance("1 day")
    topic.compact()
    assert markers() == []
    assert shown(topic) == [(4, "a", 2)]


def test_a_producer_is_known_after_all_it_wrote_is_gone(files: MemoryFiles, stem: Mainstem, topic: Topic) -> None:
    producer = stem.producer("checkout")
    producer.append(topic, [{"k": "a", "n": 0}], sequence=7)
    sealed(topic, [("a", 1)])
    topic.compact()
    topic.seal()
    assert offsets(topic) == [1]
    assert stem.log.open_producer("checkout").last_sequence("profiles") == 7  # type: ignore[misc]


# Readers


def test_a_reader_under_way_goes_on_with_what_is_left(topic: Topic) -> None:
    for number in range(4):
        sealed(topic, [(f"key-{number}", number), ("all", number)])
    reading = topic.batches()
    seen = next(reading).column("n").to_pylist()
    topic.compact()
    seen += [number for batch in reading for number in batch.column("n").to_pylist()]
    assert seen == [0, 0, 1, 2, 3, 3]


def test_a_question_in_sql_is_not_asked_of_a_past_that_was_compacted(
    files: MemoryFiles, clock: ManualClock, topic: Topic
) -> None:
    moment = topic.backend.moment()
    sealed(topic, [("a", 0)])
    sealed(topic, [("a", 1)])
    topic.compact()
    # Whoever still reads as of then may miss a key: so `query` looks again when `cleaned` lies behind its moment.
    assert manifest_of(topic).cleaned > moment.latest(0)


def test_damage_is_not_made_sound_by_writing_it_anew(files: MemoryFiles, topic: Topic) -> None:
    sealed(topic, [(f"key-{number}", number) for number in range(300)])
    shown(topic)
    sealed(topic, [("key-1", 1)])
    entry = manifest_of(topic).segments[0]
    path = f"{partition_of(topic).folder}/{entry.file}"
    data = files.content(path)
    files.put(path, data[:200] + bytes([data[200] ^ 4]) + data[201:])
    for _ in range(2):
        with pytest.raises(CorruptSegment):
            topic.compact()
    files.put(path, data)
    topic.compact()
    assert 1 not in offsets(topic)


def test_only_a_topic_that_keeps_the_latest_per_key_is_compacted(stem: Mainstem) -> None:
    topic = stem.create_topic("plain", schema=SCHEMA, key="k", keep="7 days")
    with pytest.raises(Invalid, match="does not keep the latest record per key") as refused:
        topic.compact()
    assert refused.value.detail == "It keeps: 7 days."


def test_more_keys_than_may_be_held_are_worked_on_in_shares(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest_offsets, "KEYS_MAX", 20)
    monkeypatch.setattr(latest_offsets, "ROWS_TOGETHER", 10)
    for first in range(3):
        sealed(topic, [(f"key-{number * (first + 1) % 300}", number) for number in range(200)])
    latest = {key: offset for offset, key, _ in shown(topic)}
    topic.compact()
    assert offsets(topic) == sorted(latest.values())


def test_every_partition_is_compacted(stem: Mainstem) -> None:
    topic = stem.create_topic("spread", schema=SCHEMA, key="k", partitions=3, keep=Keep.latest_per_key())
    for number in range(3):
        sealed(topic, [(f"key-{key}", number) for key in range(20)])
    report = topic.compact()
    assert (report.records_before, report.records_after, report.removed) == (60, 20, 40)
    assert {number for _, _, number in shown(topic)} == {2}
