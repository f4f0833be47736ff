"""What every log promises of producers: an append repeated is there once, and of several runs only the newest appends."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from mainstem.errors import AppendConflict, Fenced, Invalid, InvalidName
from mainstem.log.producer import Producer
from mainstem.log.sequence_runs import RUNS_MAX
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.contracts.other_process import Line, OtherProcess
from tests.contracts.promises import Promise, promise
from tests.contracts.shown_rows import by_partition, numbers, places


class ProducerContract:
    """Who does not know whether an append went through does it again, and it is there once."""

    @promise(Promise.IDEMPOTENT)
    def test_an_append_without_rows_uses_no_sequence(self, stem: Mainstem, single: Topic) -> None:
        producer = stem.producer("checkout")
        assert producer.append(single, [{"k": "a", "n": 1}], sequence=1).appended
        empty = producer.append(single, [], sequence=5)
        assert (empty.appended, empty.count, producer.last_sequence(single)) == (False, 0, 1)
        assert not single.append([]).appended
        assert producer.append(single, [{"k": "a", "n": 2}], sequence=5).appended
        assert (numbers(single.to_arrow()), producer.last_sequence(single)) == ([1, 2], 5)

    @promise(Promise.IDEMPOTENT)
    def test_the_same_sequence_again_is_acknowledged_and_there_once(self, stem: Mainstem, single: Topic) -> None:
        producer = stem.producer("checkout")
        first = producer.append(single, [{"k": "a", "n": 1}, {"k": "a", "n": 2}], sequence=7)
        again = producer.append(single, [{"k": "a", "n": 1}, {"k": "a", "n": 2}], sequence=7)
        assert (first.appended, again.appended) == (True, False)
        assert (again.offsets, again.appended_at) == (first.offsets, first.appended_at)
        assert numbers(single.to_arrow()) == [1, 2]

    @promise(Promise.IDEMPOTENT)
    def test_it_is_there_once_across_restarts(
        self, opener: Callable[[], Mainstem], stem: Mainstem, single: Topic
    ) -> None:
        stem.producer("checkout").append(single, [{"k": "a", "n": 1}], sequence=1)
        stem.close()
        for _ in range(3):
            with opener() as again:
                producer = again.producer("checkout")
                assert producer.last_sequence("single") == 1
                assert not producer.append("single", [{"k": "a", "n": 1}], sequence=1).appended
        with opener() as again:
            assert again.producer("checkout").append("single", [{"k": "a", "n": 2}], sequence=2).appended
            assert numbers(again.topic("single").to_arrow()) == [1, 2]

    @promise(Promise.IDEMPOTENT)
    def test_it_is_there_once_although_its_process_died_over_and_over(
        self, elsewhere: Callable[..., OtherProcess], single: Topic
    ) -> None:
        done = 0
        for _ in range(5):
            worker = elsewhere(_produce_from, done)
            for _ in range(7):
                done = worker.hear()
            worker.kill()
        last = elsewhere(_produce_from, done)
        while done < 60:
            done = last.hear()
        last.kill()
        found = numbers(single.to_arrow())
        assert found == list(range(len(found)))
        assert len(found) >= 60

    @promise(Promise.IDEMPOTENT)
    def test_sequences_rise_and_gaps_are_allowed(self, stem: Mainstem, single: Topic) -> None:
        producer = stem.producer("checkout")
        for sequence in (0, 1, 5, 1000):
            assert producer.append(single, [{"k": "a", "n": sequence}], sequence=sequence).appended
        for sequence in (0, 1, 5, 1000):
            assert not producer.append(single, [{"k": "a", "n": sequence}], sequence=sequence).appended
        assert numbers(single.to_arrow()) == [0, 1, 5, 1000]
        for wrong in (-1, 2**63, 1.5, "7", True):
            with pytest.raises(Invalid, match="sequence"):
                producer.append(single, [{"k": "a", "n": 0}], sequence=wrong)

    @promise(Promise.IDEMPOTENT)
    def test_a_sequence_that_comes_after_a_higher_one_is_refused(
        self, opener: Callable[[], Mainstem], stem: Mainstem, spread: Topic
    ) -> None:
        """It is no repeat: dropped as one, its rows would be lost without a word."""
        rows = [{"k": f"key-{number}", "n": number} for number in range(8)]
        producer = stem.producer("checkout")
        for sequence in (4, 6, 9):
            producer.append(spread, rows, sequence=sequence)

        def try_all(producer: Producer, topic: Topic | str) -> None:
            for sequence in (0, 3, 5, 7, 8):
                # Of one key: its partition alone could not know.
                with pytest.raises(AppendConflict, match=f"sequence {sequence} .*out of order") as refused:
                    producer.append(topic, rows[:1], sequence=sequence)
                assert "is 9;" in refused.value.detail
                assert refused.value.hint
            for sequence in (4, 6, 9):
                assert not producer.append(topic, rows, sequence=sequence).appended

        try_all(producer, spread)
        with producer.transaction() as transaction, pytest.raises(AppendConflict, match="out of order"):
            transaction.append(spread, rows, sequence=5)
        assert len(spread.to_arrow()) == 24
        stem.close()
        with opener() as again:
            try_all(again.producer("checkout"), "spread")
            assert len(again.topic("spread").to_arrow()) == 24

    @promise(Promise.IDEMPOTENT)
    def test_sequences_with_more_gaps_than_are_remembered(self, stem: Mainstem, single: Topic) -> None:
        producer = stem.producer("checkout")
        with producer.transaction() as transaction:
            for number in range(RUNS_MAX + 2):
                transaction.append(single, [{"k": "a", "n": number}], sequence=2 * number)
        assert not producer.append(single, [{"k": "a", "n": 2}], sequence=4).appended
        # Whether it was there is not known any more: so it is not taken for a repeat.
        for sequence in (0, 2):
            with pytest.raises(AppendConflict, match="out of order"):
                producer.append(single, [{"k": "a", "n": 0}], sequence=sequence)
        assert len(single.to_arrow()) == RUNS_MAX + 2

    @promise(Promise.IDEMPOTENT)
    def test_threads_that_share_a_producer_lose_nothing(self, stem: Mainstem, spread: Topic) -> None:
        producer = stem.producer("checkout")
        # Two of them, as a program may make them: they have one run.
        sharing = [producer, Producer(stem.log, producer.run)]

        def append(thread: int) -> list[bool]:
            return [
                sharing[thread % 2].append(spread, [{"k": f"{thread}-{number}", "n": number}]).appended
                for number in range(10)
            ]

        with ThreadPoolExecutor(4) as threads:
            appended = [done for each in threads.map(append, range(4)) for done in each]
        assert appended == [True] * 40
        assert len(set(spread.to_arrow().column("k").to_pylist())) == len(spread.to_arrow()) == 40
        assert producer.last_sequence(spread) == 39

    @promise(Promise.IDEMPOTENT)
    def test_a_repeat_after_partitions_were_added_adds_nothing(self, stem: Mainstem, other: Mainstem) -> None:
        keyed = stem.create_topic("keyed", schema="k string, n bigint", key="k", partitions=2)
        keyless = stem.create_topic("keyless", schema="k string, n bigint", partitions=2)
        rows = [{"k": f"key-{number}", "n": number} for number in range(8)]
        producer = stem.producer("checkout")
        for topic in (keyed, keyless):
            placed = {sequence: producer.append(topic, rows, sequence=sequence) for sequence in (2, 3)}
            topic.backend.alter({"partitions": 5})
            assert not producer.append(topic, rows, sequence=2).appended
            repeated = producer.append(topic, rows, sequence=3)
            assert (repeated.appended, repeated.offsets) == (False, placed[3].offsets)
            assert len(topic.to_arrow()) == 16
        again = other.producer("checkout")
        for name in ("keyed", "keyless"):
            assert not again.append(name, rows, sequence=3).appended
            assert again.append(name, rows, sequence=4).appended
            assert len(other.topic(name).to_arrow()) == 24

    @promise(Promise.IDEMPOTENT)
    def test_without_a_sequence_the_next_one_is_used(self, stem: Mainstem, single: Topic) -> None:
        producer = stem.producer("checkout")
        assert producer.last_sequence(single) == -1
        for number in range(3):
            producer.append(single, [{"k": "a", "n": number}])
        assert producer.last_sequence(single) == 2
        assert not producer.append(single, [{"k": "a", "n": 2}], sequence=2).appended

    @promise(Promise.IDEMPOTENT)
    def test_each_producer_and_each_topic_has_its_own_sequences(
        self, stem: Mainstem, single: Topic, spread: Topic
    ) -> None:
        one, two = stem.producer("one"), stem.producer("two")
        for producer in (one, two):
            for topic in (single, spread):
                assert producer.append(topic, [{"k": "a", "n": 1}], sequence=1).appended
        assert len(single.to_arrow()) == len(spread.to_arrow()) == 2

    @promise(Promise.IDEMPOTENT)
    def test_rows_over_several_partitions_are_there_once_in_each(self, stem: Mainstem, spread: Topic) -> None:
        rows = [{"k": f"key-{number}", "n": number} for number in range(30)]
        producer = stem.producer("checkout")
        producer.append(spread, rows, sequence=1)
        # Fewer rows under the next sequence: some partitions have not heard of it.
        producer.append(spread, rows[:1], sequence=2)
        for sequence, again in ((1, rows), (2, rows[:1])):
            assert not producer.append(spread, again, sequence=sequence).appended
        assert sorted(numbers(spread.to_arrow())) == sorted([*range(30), 0])

    @promise(Promise.IDEMPOTENT)
    def test_rows_without_a_key_are_placed_by_sequence(self, stem: Mainstem, other: Mainstem) -> None:
        topic = stem.create_topic("keyless", schema="n bigint", partitions=3)
        producer = stem.producer("checkout")
        for sequence in range(9):
            producer.append(topic, [{"n": sequence}], sequence=sequence)
        before = by_partition(topic.to_arrow())
        assert {frozenset(held) for held in before.values()} == {
            frozenset({0, 3, 6}),
            frozenset({1, 4, 7}),
            frozenset({2, 5, 8}),
        }
        again = other.producer("checkout")
        for sequence in range(9):
            assert not again.append("keyless", [{"n": sequence}], sequence=sequence).appended
        assert by_partition(topic.to_arrow()) == before

    @promise(Promise.IDEMPOTENT)
    def test_a_refused_append_uses_up_no_sequence(self, stem: Mainstem, single: Topic) -> None:
        producer = stem.producer("checkout")
        with pytest.raises(Invalid):
            producer.append(single, [{"k": "a", "n": "seven"}], sequence=1)
        assert producer.append(single, [{"k": "a", "n": 7}], sequence=1).appended

    @promise(Promise.FENCED)
    def test_an_older_run_is_refused(self, stem: Mainstem, other: Mainstem, single: Topic) -> None:
        old = stem.producer("checkout")
        old.append(single, [{"k": "a", "n": 1}], sequence=1)
        new = other.producer("checkout")
        assert new.epoch > old.epoch
        # Fenced from the moment the newer one was opened, not from its first append on.
        with pytest.raises(Fenced) as refused:
            old.append(single, [{"k": "a", "n": 2}], sequence=2)
        assert "newer run" in str(refused.value)
        assert refused.value.hint
        new.append("single", [{"k": "a", "n": 3}], sequence=2)
        with pytest.raises(Fenced):
            old.append(single, [{"k": "a", "n": 4}], sequence=3)
        assert numbers(single.to_arrow()) == [1, 3]

    @promise(Promise.FENCED, Promise.DENSE_OFFSETS)
    def test_a_refused_append_takes_no_offset(self, stem: Mainstem, other: Mainstem, single: Topic) -> None:
        old = stem.producer("checkout")
        new = other.producer("checkout")
        with pytest.raises(Fenced):
            old.append(single, [{"k": "a", "n": 1}], sequence=1)
        new.append("single", [{"k": "a", "n": 2}], sequence=2)
        assert places(single.to_arrow()) == [(0, 0)]

    @promise(Promise.FENCED)
    def test_a_run_in_a_process_that_was_thought_dead_is_refused(
        self, elsewhere: Callable[..., OtherProcess], stem: Mainstem, single: Topic
    ) -> None:
        old = elsewhere(_produce_when_told)
        old.say(1)
        assert old.hear() == "appended"
        stem.producer("checkout").append(single, [{"k": "a", "n": 2}], sequence=2)
        old.say(3)
        assert old.hear() == "Fenced"
        assert numbers(single.to_arrow()) == [1, 2]

    @promise(Promise.FENCED)
    def test_an_older_run_is_refused_within_a_transaction_too(
        self, stem: Mainstem, other: Mainstem, single: Topic
    ) -> None:
        old = stem.producer("checkout")
        transaction = old.transaction()
        transaction.append(single, [{"k": "a", "n": 1}], sequence=1)
        other.producer("checkout")
        with pytest.raises(Fenced):
            transaction.append(single, [{"k": "a", "n": 2}], sequence=2)
        transaction.abort()
        assert len(single.to_arrow()) == 0

    @promise(Promise.FENCED)
    def test_a_name_that_could_be_a_trick_is_refused(self, stem: Mainstem) -> None:
        for name in ("", "../checkout", "a" * 300):
            with pytest.raises(InvalidName):
                stem.producer(name)


def _produce_from(stem: Mainstem, line: Line, done: int) -> None:
    """Numbers from a little before what was heard last: whoever took over cannot know what went through."""
    producer = stem.producer("checkout")
    for number in range(max(0, done - 5), 1 << 30):
        producer.append("single", [{"k": "a", "n": number}], sequence=number)
        line.say(number)


def _produce_when_told(stem: Mainstem, line: Line) -> None:
    producer = stem.producer("checkout")
    while True:
        number = line.hear()
        try:
            producer.append("single", [{"k": "a", "n": number}], sequence=number)
            line.say("appended")
        except Fenced as refused:
            line.say(type(refused).__name__)
