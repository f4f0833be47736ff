"""Held records stay as they were, whatever compaction and retention do; and nothing else stays because of them."""

import random
from typing import Any

import pytest

from mainstem.clock import ManualClock
from mainstem.errors import FellOff
from mainstem.log.embedded.embedded_topic import EmbeddedTopic
from mainstem.log.embedded.read.holds import HeldCopy, Holds
from mainstem.log.keep_rule import Keep
from mainstem.log.topic import Topic
from tests.log.embedded.memory_files import MemoryFiles, Stopped
from tests.log.embedded.upkeep_home import HOME, SCHEMA, manifest_of, opened, sealed, shown


def backend_of(topic: Topic) -> EmbeddedTopic:
    assert isinstance(topic.backend, EmbeddedTopic)
    return topic.backend


def held(topic: Topic, start: int, stop: int) -> list[tuple[int, str, int | None]]:
    return [
        (row["record"]["offset"], row["k"], row["n"])
        for batch in backend_of(topic).read_held(0, start, stop, None)
        for row in batch.to_pylist()
    ]


def copies(topic: Topic) -> list[tuple[int, int]]:
    return [(copy.base, copy.end) for copy in backend_of(topic).store.holds.copies(0)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def test_compaction_takes_out_what_is_held_and_it_is_still_read(files: MemoryFiles, clock: ManualClock):
    with opened(files, clock) as stem:
        topic = stem.create_topic("profiles", schema=SCHEMA, key="k", keep=Keep.latest_per_key())
        sealed(topic, [("a", 1), ("b", 1)], [("a", 2), ("c", 1)])
        sealed(topic, [("a", 3), ("b", 2)])
        before = held(topic, 1, 4)
        backend_of(topic).hold("flow", {0: (1, 4)})
        assert topic.compact().removed == 3
        assert shown(topic) == [(3, "c", 1), (4, "a", 3), (5, "b", 2)]
        assert held(topic, 1, 4) == before == [(1, "b", 1), (2, "a", 2), (3, "c", 1)]
        assert copies(topic) == [(0, 4)]
        # What is not held any more goes with the next hold, and is then read as it is.
        backend_of(topic).hold("flow", {0: (4, 6)})
        assert copies(topic) == []
        assert held(topic, 1, 4) == [(3, "c", 1)]


def test_retention_drops_what_is_held_and_it_is_still_read(files: MemoryFiles, clock: ManualClock):
    with opened(files, clock) as stem:
        topic = stem.create_topic("orders", schema=SCHEMA, keep="1 hour")
        sealed(topic, [("a", 1), ("b", 1)])
        sealed(topic, [("c", 1), ("d", 1)])
        sealed(topic, [("e", 1), ("f", 1)])
        backend_of(topic).hold("dead", {0: (1, 2)})
        clock.advance("2 hours")
        topic.drop_expired()
        # A hold that nobody ever lets go keeps the segment it lies in, and nothing behind it.
        assert (manifest_of(topic).start, shown(topic), copies(topic)) == (6, [], [(0, 2)])
        assert held(topic, 1, 2) == [(1, "b", 1)]
        with pytest.raises(FellOff):
            held(topic, 1, 3)
        sealed(topic, [("g", 1)])
        clock.advance("2 hours")
        topic.drop_expired()
        assert (manifest_of(topic).start, held(topic, 1, 2)) == (7, [(1, "b", 1)])


def test_what_is_held_and_not_sealed_yet_is_sealed_before_it_is_dropped(files: MemoryFiles, clock: ManualClock):
    with opened(files, clock) as stem:
        topic = stem.create_topic("orders", schema=SCHEMA, keep="1 hour")
        topic.append([{"k": "a", "n": 1}, {"k": "b", "n": 2}])
        backend_of(topic).hold("flow", {0: (0, 2)})
        clock.advance("2 hours")
        topic.drop_expired()
        topic.append([{"k": "c", "n": 3}])
        topic.drop_expired()
        assert shown(topic) == [(2, "c", 3)]
        assert held(topic, 0, 2) == [(0, "a", 1), (1, "b", 2)]


def test_the_oldest_copy_counts(files: MemoryFiles, clock: ManualClock):
    with opened(files, clock) as stem:
        topic = stem.create_topic("profiles", schema=SCHEMA, key="k", keep=Keep.latest_per_key())
        sealed(topic, [("a", 1), ("b", 1)])
        sealed(topic, [("a", 2), ("c", 1)])
        backend_of(topic).hold("one", {0: (0, 1)})
        topic.compact()
        backend_of(topic).hold("two", {0: (0, 4)})
        mixed = held(topic, 0, 4)
        assert mixed == [(0, "a", 1), (1, "b", 1), (2, "a", 2), (3, "c", 1)]
        sealed(topic, [("a", 3), ("b", 2), ("c", 2)])
        topic.compact()
        backend_of(topic).hold("one", {})
        assert held(topic, 0, 4) == mixed
        assert shown(topic) == [(4, "a", 3), (5, "b", 2), (6, "c", 2)]


def test_a_copy_is_known_by_its_name():
    copy = HeldCopy.at("holds/0/00000007-10-20-4096-00ff00ff.parquet")
    assert copy[:5] == (7, 10, 20, 4096, 0x00FF00FF)


@pytest.mark.parametrize("seed", range(12))
def test_held_records_never_change(files: MemoryFiles, clock: ManualClock, seed: int):
    """Appends, deletions, seals, passes and holds in any order, and processes that are killed anywhere in a pass."""
    chance = random.Random(seed)
    keep: Any = chance.choice(["1 hour", Keep.latest_per_key(tombstones="1 hour")])
    stem = opened(files, clock)
    topic = stem.create_topic("t", schema=SCHEMA, key="k", keep=keep)
    holders: dict[str, tuple[int, int, list[tuple[int, str, int | None]]]] = {}
    for step in range(60):
        end = backend_of(topic).latest(0)
        action = chance.choice(["append", "append", "delete", "seal", "hold", "release", "upkeep", "kill", "time"])
        if action == "append":
            topic.append([{"k": chance.choice("abcd"), "n": step} for _ in range(chance.randint(1, 4))])
        elif action == "delete":
            topic.delete([{"k": chance.choice("abcd")}])
        elif action == "seal":
            topic.seal()
        elif action == "hold" and end > backend_of(topic).earliest(0):
            first = chance.randint(backend_of(topic).earliest(0), end - 1)
            last = chance.randint(first + 1, end)
            name = chance.choice(["one", "two", "three"])
            backend_of(topic).hold(name, {0: (first, last)})
            holders[name] = (first, last, held(topic, first, last))
        elif action == "release" and holders:
            backend_of(topic).hold(next(iter(holders)), {})
            holders.pop(next(iter(holders)))
        elif action in ("upkeep", "kill"):
            if action == "kill":
                files.stop_at(chance.randint(0, 60))
            try:
                topic.compact() if isinstance(keep, Keep) else topic.drop_expired()
            except Stopped:
                files = files.killed()
                stem = opened(files, clock)
                topic = stem.topic("t")
            files.machine.stops.clear()
        elif action == "time":
            clock.advance("40 minutes")
        for name, (first, last, rows) in holders.items():
            assert held(topic, first, last) == rows, (step, action, name)
    spared = copies(topic)
    assert all(any(first < end and last > base for first, last, _ in holders.values()) for base, end in spared)


def test_a_reader_that_is_overtaken_by_compaction_reads_the_copy(files: MemoryFiles, clock: ManualClock):
    with opened(files, clock) as stem:
        topic = stem.create_topic("profiles", schema=SCHEMA, key="k", keep=Keep.latest_per_key())
        sealed(topic, [("a", 1), ("b", 1)])
        sealed(topic, [("a", 2), ("b", 2)])
        sealed(topic, [("a", 3), ("b", 3)])
        backend_of(topic).hold("flow", {0: (0, 6)})
        batches = backend_of(topic).read_held(0, 0, 6, None)
        first = next(batches).to_pylist()
        topic.compact()
        rest = [row for batch in batches for row in batch.to_pylist()]
        assert [row["n"] for row in first + rest] == [1, 1, 2, 2, 3, 3]


def test_a_hold_of_no_file_is_none(files: MemoryFiles):
    files.make_directory(HOME)
    assert Holds(files, HOME).ranges(0) == []
    assert Holds(files, HOME).copies(3) == []
