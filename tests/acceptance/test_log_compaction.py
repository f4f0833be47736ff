"""Case A10: compaction, tombstones and transaction markers, as Kafka's documents and its own tests have them.

Kafka numbers records within a producer, Mainstem appends: an append's sequence here is that of its last record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from mainstem.clock import ManualClock
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.keep_rule import Keep
from mainstem.log.producer import Producer
from mainstem.log.topic import Topic
from mainstem.log.transaction import Transaction
from mainstem.stem import Mainstem
from tests.acceptance.case_files import case

CASE = case("A10")
TRANSACTIONS = {name: steps for name, steps in CASE["transactions"].items() if isinstance(steps, list)}


@pytest.fixture
def stem(tmp_path: Path, clock: ManualClock) -> Iterator[Mainstem]:
    with Mainstem(EmbeddedLog(tmp_path / "home", clock=clock)) as stem:
        yield stem


@pytest.fixture
def compacted(stem: Mainstem) -> Callable[..., Topic]:
    def create(schema: str = "k string, v string", **keep: Any) -> Topic:
        rule = Keep.latest_per_key(**{"tombstones": "1 day", **keep})
        return stem.create_topic("compacted", schema=schema, key="k", keep=rule)

    return create


def clean(topic: Topic) -> None:
    """One pass of the cleaner, over everything that was appended so far."""
    topic.seal()
    topic.compact()


def records(topic: Topic, **where: Any) -> list[list[Any]]:
    """Offset, key, value."""
    return [[row["record"]["offset"], row["k"], row["v"]] for row in topic.to_arrow(**where).to_pylist()]


def offsets(topic: Topic) -> list[int]:
    """The offsets of the records and of the markers that are still kept."""
    [partition] = topic.backend.store.partitions  # type: ignore[attr-defined]
    segments = partition.manifest_file.read().segments
    markers = [marker.offset for segment in segments for marker in segment.markers]
    return sorted([*markers, *(offset for offset, _, _ in records(topic))])


# The figures


def test_the_figure(compacted: Callable[..., Topic]) -> None:
    before = CASE["figure"]["before [offset,key,value]"]
    topic = compacted()
    for _, key, value in before:
        topic.append([{"k": key, "v": value}])
    assert records(topic) == before
    clean(topic)
    assert records(topic) == CASE["figure"]["after"]


def test_the_latest_address_of_a_person_stays(compacted: Callable[..., Topic]) -> None:
    topic = compacted("k bigint, v string")
    for key, value in CASE["email"]["writes"]:
        topic.append([{"k": key, "v": value}])
    clean(topic)
    left = [[key, value] for _, key, value in records(topic)]
    assert all(wanted in left for wanted in CASE["email"]["must_retain_at_least"])
    assert left == CASE["email"]["must_retain_at_least"]


def test_offsets_that_are_gone_read_as_the_next_that_is_there(
    compacted: Callable[..., Topic], clock: ManualClock
) -> None:
    facts = CASE["offset_equivalence"]
    tail, head = facts["compacted_tail_offsets"], facts["head_offsets"]
    topic = compacted()
    for offset in range(facts["cleaner_point"]):
        # What is to go has the key of the next that stays; after the last of those, a deletion that is forgotten.
        stays = next((kept for kept in tail if kept >= offset), None)
        placed = (
            topic.delete(["forgotten"]) if stays is None else topic.append([{"k": f"key {stays}", "v": str(offset)}])
        )
        assert dict(placed.offsets) == {0: (offset, offset + 1)}
    clean(topic)
    clock.advance("2 days")
    clean(topic)
    for offset in head:
        assert dict(topic.append([{"k": "the same key", "v": "new"}]).offsets) == {0: (offset, offset + 1)}

    assert [offset for offset, _, _ in records(topic)] == [*tail, *head]
    for asked, found in facts["read_from"].items():
        expected = [offset for offset in [*tail, *head] if offset >= found]
        assert [offset for offset, _, _ in records(topic, start={0: int(asked)})] == expected
        follower = topic.follow(start={0: int(asked)}, rows_max=1)
        assert next(follower).column("record").field("offset").to_pylist() == [found]
        follower.close()
    next_write = topic.append([{"k": "the same key", "v": "newer"}])
    assert dict(next_write.offsets) == {0: (facts["next_write"], facts["next_write"] + 1)}


# Transactions


@pytest.mark.parametrize("name", TRANSACTIONS)
def test_transactions(name: str, stem: Mainstem, compacted: Callable[..., Topic], clock: ManualClock) -> None:
    steps = TRANSACTIONS[name]
    topic = compacted("k bigint, v string")
    script = Script(stem, topic, list(chain.from_iterable(step.get("append", []) for step in steps)))
    for number, step in enumerate(steps):
        for _ in step.get("append", []):
            script.go_on()
        PASSES[step["clean"]](topic, clock)
        shown = f"step {number} of {name}"
        assert [key for _, key, _ in records(topic)] == step["keys"], shown
        assert offsets(topic) == step["offsets"], shown
        if "producer_last_sequence" in step:
            # In the partition's state; for who goes on after it, those of an aborted transaction do not count.
            [partition] = topic.backend.store.partitions  # type: ignore[attr-defined]
            known = partition.producer_state(script.producers["p1"].run.id)
            assert known.sequence == step["producer_last_sequence"], shown


def _after_retention(topic: Topic, clock: ManualClock) -> None:
    # A first pass finds what is bare and begins to count its time; the next one after that time takes it.
    clean(topic)
    clock.advance("25 hours")
    clean(topic)


PASSES: dict[str, Callable[[Topic, ManualClock], None]] = {
    "now": lambda topic, clock: clean(topic),
    "same time again": lambda topic, clock: clean(topic),
    "after delete retention": _after_retention,
    "two more passes": _after_retention,
}


class Script:
    """Appends what the producers of a case append: in transactions, where the case commits or aborts them."""

    def __init__(self, stem: Mainstem, topic: Topic, actions: list[list[Any]]) -> None:
        self.stem = stem
        self.topic = topic
        self.actions = actions
        self.at = 0
        self.producers: dict[str, Producer] = {}
        self.open: dict[str, Transaction] = {}
        self.records: dict[str, int] = {}

    def go_on(self) -> None:
        name, action = self.actions[self.at]
        self.at += 1
        if name not in self.producers:
            self.producers[name] = self.stem.producer(name)
        if action == "commit":
            self.open.pop(name).commit()
        elif action == "abort":
            self.open.pop(name).abort()
        else:
            self._append(name, action)

    def _append(self, name: str, keys: list[int]) -> None:
        self.records[name] = self.records.get(name, 0) + len(keys)
        sequence = self.records[name] - 1
        rows = [{"k": key, "v": str(key)} for key in keys]
        if self._ends(name):
            if name not in self.open:
                self.open[name] = self.producers[name].transaction()
            self.open[name].append(self.topic, rows, sequence=sequence)
        else:
            self.producers[name].append(self.topic, rows, sequence=sequence)

    def _ends(self, name: str) -> bool:
        """Whether this producer's transaction is committed or aborted later on."""
        return any(who == name and isinstance(action, str) for who, action in self.actions[self.at :])


# Invariants


def test_every_invariant_has_its_check() -> None:
    assert set(CASE["invariants"]) <= set(INVARIANTS)


@pytest.mark.parametrize("invariant", CASE["invariants"])
def test_invariants(invariant: str, compacted: Callable[..., Topic], clock: ManualClock) -> None:
    INVARIANTS[invariant](compacted, clock)


def _neither_offsets_nor_order_change(compacted: Callable[..., Topic], clock: ManualClock) -> None:
    topic = compacted()
    latest: dict[str, list[Any]] = {}
    for number in range(60):
        key = f"key {number * number % 17}"
        topic.append([{"k": key, "v": str(number)}])
        latest[key] = [number, key, str(number)]
        if number % 13 == 0:
            clean(topic)
    clean(topic)
    assert records(topic) == sorted(latest.values())


def _the_active_segment_is_never_compacted(compacted: Callable[..., Topic], clock: ManualClock) -> None:
    topic = compacted()
    for number in range(5):
        topic.append([{"k": "a", "v": str(number)}])
    topic.seal()
    topic.append([{"k": "a", "v": "5"}])
    topic.append([{"k": "a", "v": "6"}])
    topic.compact()
    assert records(topic)[-2:] == [[5, "a", "5"], [6, "a", "6"]]


def _a_reader_at_the_head_sees_every_record(compacted: Callable[..., Topic], clock: ManualClock) -> None:
    topic = compacted()
    follower = topic.follow(start="earliest")
    for number in range(20):
        topic.append([{"k": "a", "v": str(number)}])
        assert next(follower).column("record").field("offset").to_pylist() == [number]
        clean(topic)
    follower.close()


def _tombstones_survive_for_a_while(compacted: Callable[..., Topic], clock: ManualClock) -> None:
    topic = compacted(tombstones="1 hour")
    topic.append([{"k": "a", "v": "1"}])
    topic.delete(["a"])
    topic.append([{"k": "b", "v": "2"}])
    clean(topic)
    assert records(topic) == [[1, "a", None], [2, "b", "2"]]
    clock.advance("59 minutes")
    clean(topic)
    assert records(topic) == [[1, "a", None], [2, "b", "2"]]
    clock.advance("2 minutes")
    clean(topic)
    assert records(topic) == [[2, "b", "2"]]


def _lags(compacted: Callable[..., Topic], clock: ManualClock) -> None:
    topic = compacted(lag_min="1 hour", lag_max="1 day")
    topic.append([{"k": "a", "v": "1"}])
    topic.append([{"k": "a", "v": "2"}])
    clean(topic)
    assert records(topic) == [[0, "a", "1"], [1, "a", "2"]]
    clock.advance("61 minutes")
    topic.append([{"k": "a", "v": "3"}])
    clean(topic)
    assert records(topic) == [[1, "a", "2"], [2, "a", "3"]]
    # Past lag_max even a record that nobody asked to seal may wait no longer.
    topic.append([{"k": "a", "v": "4"}])
    clock.advance("25 hours")
    topic.compact()
    assert records(topic) == [[3, "a", "4"]]


INVARIANTS: dict[str, Callable[[Callable[..., Topic], ManualClock], None]] = {
    "offsets never change": _neither_offsets_nor_order_change,
    "order never changes": _neither_offsets_nor_order_change,
    "the active segment is never compacted": _the_active_segment_is_never_compacted,
    "a reader at the head sees every record": _a_reader_at_the_head_sees_every_record,
    "tombstones survive at least the delete-retention time and then vanish": _tombstones_survive_for_a_while,
    "min compaction lag keeps young records; max compaction lag forces eligibility": _lags,
}
