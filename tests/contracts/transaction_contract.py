"""What every log promises of transactions: over topics, partitions and a group's offsets, all of it or nothing."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from mainstem.errors import Fenced, Invalid
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.contracts.group_contract import taken_over
from tests.contracts.other_process import Line, OtherProcess
from tests.contracts.promises import Promise, promise
from tests.contracts.shown_rows import changes, fill, numbers, places, taken

ROWS = [{"k": f"key-{number}", "n": number} for number in range(12)]


class TransactionContract:
    """Nobody sees anything of a transaction before it is committed, and nobody ever sees a part of it."""

    @pytest.fixture
    def payments(self, stem: Mainstem) -> Topic:
        return stem.create_topic("payments", schema="k string, n bigint", key="k", partitions=2)

    @promise(Promise.ATOMIC)
    def test_it_is_seen_when_it_is_committed(
        self, stem: Mainstem, other: Mainstem, spread: Topic, payments: Topic
    ) -> None:
        with stem.transaction() as transaction:
            transaction.append(spread, ROWS)
            transaction.append("payments", ROWS[:3])
            transaction.append(spread, [{"k": "key-1", "n": 99}])
            assert transaction.state == "open"
            for seen in (stem, other):
                assert len(seen.topic("spread").to_arrow()) == len(seen.topic("payments").to_arrow()) == 0
        assert transaction.state == "committed"
        for seen in (stem, other):
            assert sorted(numbers(seen.topic("spread").to_arrow())) == [*range(12), 99]
            assert sorted(numbers(seen.topic("payments").to_arrow())) == [0, 1, 2]

    @promise(Promise.ATOMIC)
    def test_an_exception_undoes_all_of_it(
        self, stem: Mainstem, other: Mainstem, spread: Topic, payments: Topic
    ) -> None:
        with pytest.raises(ZeroDivisionError), stem.transaction() as transaction:  # noqa: PT012
            transaction.append(spread, ROWS)
            transaction.append(payments, ROWS)
            _ = 1 / 0
        assert transaction.state == "aborted"
        for seen in (stem, other):
            assert len(seen.topic("spread").to_arrow()) == len(seen.topic("payments").to_arrow()) == 0
        fill(spread, 1)
        assert numbers(spread.to_arrow()) == [1]

    @promise(Promise.ATOMIC)
    def test_it_can_be_committed_and_aborted_by_hand(self, stem: Mainstem, single: Topic) -> None:
        kept, undone = stem.transaction(), stem.transaction()
        kept.append(single, [{"k": "a", "n": 1}])
        undone.append(single, [{"k": "a", "n": 2}])
        kept.append(single, [{"k": "a", "n": 3}])
        undone.abort()
        undone.abort()
        token = kept.commit()
        assert numbers(single.batches(stop=token)) == numbers(single.to_arrow()) == [1, 3]
        for over in (kept, undone):
            for step in (
                lambda over=over: over.append(single, [{"k": "a", "n": 4}]),
                over.commit,
                lambda over=over: over.delete(single, ["a"]),
            ):
                with pytest.raises(Invalid, match="already"):
                    step()
        assert numbers(single.to_arrow()) == [1, 3]

    @promise(Promise.ATOMIC)
    def test_deletions_are_part_of_it(self, stem: Mainstem, single: Topic) -> None:
        fill(single, 1)
        with stem.transaction() as transaction:
            transaction.delete(single, ["a"])
            assert changes(single.to_arrow()) == ["insert"]
        assert changes(single.to_arrow()) == ["insert", "delete"]

    @promise(Promise.ATOMIC)
    def test_a_refused_append_leaves_it_open(self, stem: Mainstem, single: Topic) -> None:
        with stem.transaction() as transaction:
            transaction.append(single, [{"k": "a", "n": 1}])
            with pytest.raises(Invalid):
                transaction.append(single, [{"k": "a", "n": "two"}])
            transaction.append(single, [{"k": "a", "n": 3}])
        assert numbers(single.to_arrow()) == [1, 3]

    @promise(Promise.ATOMIC)
    def test_what_is_open_holds_followers_up_and_not_a_bounded_read(
        self, stem: Mainstem, other: Mainstem, single: Topic
    ) -> None:
        fill(single, 1)
        transaction = stem.transaction()
        transaction.append(single, [{"k": "a", "n": 2}])
        fill(other.topic("single"), 3)
        follower = other.topic("single").follow(start="earliest")
        assert [row["n"] for row in taken(follower, 1)] == [1]
        assert numbers(single.to_arrow()) == [1, 3]
        transaction.commit()
        assert [row["n"] for row in taken(follower, 2)] == [2, 3]
        assert numbers(single.to_arrow()) == [1, 2, 3]
        follower.close()

    @promise(Promise.ATOMIC)
    def test_what_was_aborted_is_never_seen_by_anyone(self, stem: Mainstem, other: Mainstem, single: Topic) -> None:
        follower = other.topic("single").follow(start="earliest")
        for number in range(10):
            transaction = stem.transaction()
            transaction.append(single, [{"k": "a", "n": -number}])
            fill(single, number)
            transaction.append(single, [{"k": "a", "n": -number}])
            transaction.abort()
        assert numbers(single.to_arrow()) == list(range(10))
        assert [row["n"] for row in taken(follower, 10)] == list(range(10))
        with other.topic("single").join_group("billing") as member:
            seen = []
            while (batch := member.poll(rows_max=3)) is not None:
                seen += numbers(batch)
        assert seen == list(range(10))
        follower.close()

    @promise(Promise.ATOMIC, Promise.DENSE_OFFSETS)
    def test_markers_and_aborted_records_keep_their_offsets(self, stem: Mainstem, single: Topic) -> None:
        with stem.transaction() as kept:
            kept.append(single, [{"k": "a", "n": 0}, {"k": "a", "n": 1}])
        undone = stem.transaction()
        undone.append(single, [{"k": "a", "n": -1}])
        undone.abort()
        fill(single, 2)
        # Two records and a commit marker, one record and an abort marker, one record.
        assert places(single.to_arrow()) == [(0, 0), (0, 1), (0, 5)]
        assert numbers(single.batches(start={0: 2})) == [2]

    @promise(Promise.ATOMIC, Promise.DENSE_OFFSETS)
    def test_who_has_read_all_records_is_not_behind_for_a_marker(self, stem: Mainstem, single: Topic) -> None:
        with stem.transaction() as kept:
            kept.append(single, [{"k": "a", "n": 0}, {"k": "a", "n": 1}])
        assert (single.lag({0: 1}).records > 0, single.lag({0: 2}).records) == (True, 0)

    @promise(Promise.ATOMIC)
    def test_transactions_may_interleave(self, stem: Mainstem, other: Mainstem, spread: Topic) -> None:
        open_ones = [(stem if number % 2 else other).transaction() for number in range(6)]
        for turn in range(3):
            for number, transaction in enumerate(open_ones):
                transaction.append("spread", [{"k": f"key-{turn}", "n": number}])
        for number in (3, 0, 5, 1, 4, 2):
            (open_ones[number].commit if number % 3 else open_ones[number].abort)()
        assert sorted(numbers(spread.to_arrow())) == sorted([1, 2, 4, 5] * 3)

    @promise(Promise.ATOMIC)
    def test_a_bounded_read_shows_all_of_one_or_none(
        self, opener: Callable[[], Mainstem], stem: Mainstem, spread: Topic
    ) -> None:
        done = threading.Event()
        failures: list[BaseException] = []

        def write() -> None:
            try:
                with opener() as writer:
                    for number in range(60):
                        transaction = writer.transaction()
                        for partition in range(4):
                            transaction.append("spread", [{"k": key_of(partition), "n": number}])
                        (transaction.abort if number % 5 == 4 else transaction.commit)()
            except BaseException as error:  # noqa: BLE001 - the test raises it
                failures.append(error)
            finally:
                done.set()

        spread.append([{"k": key_of(partition), "n": -1} for partition in range(4)])
        thread = threading.Thread(target=write)
        thread.start()
        torn = []
        reads = 0
        while not done.is_set():
            counts: dict[int, int] = {}
            for number in numbers(spread.to_arrow()):
                counts[number] = counts.get(number, 0) + 1
            torn += [number for number, count in counts.items() if count != 4 or (number % 5 == 4 and number >= 0)]
            reads += 1
        thread.join()
        assert not failures
        assert not torn, f"{len(torn)} torn in {reads} reads"
        assert sorted(set(numbers(spread.to_arrow()))) == [-1, *(n for n in range(60) if n % 5 != 4)]

    @promise(Promise.ATOMIC)
    def test_a_bounded_read_shows_all_of_one_or_none_although_another_is_open(
        self, stem: Mainstem, spread: Topic
    ) -> None:
        open_one, committed = stem.transaction(), stem.transaction()
        # The committed one lies behind the open one in one partition, and alone in another.
        open_one.append(spread, [{"k": key_of(0), "n": 1}])
        committed.append(spread, [{"k": key_of(0), "n": 2}, {"k": key_of(1), "n": 2}])
        committed.commit()
        assert numbers(spread.to_arrow()) in ([], [2, 2])
        open_one.commit()
        assert sorted(numbers(spread.to_arrow())) == [1, 2, 2]

    # A group's offsets

    @promise(Promise.ATOMIC, Promise.GROUPS)
    def test_a_group_s_offsets_are_part_of_it(self, stem: Mainstem, single: Topic, payments: Topic) -> None:
        fill(single, 1, 2, 3)
        with single.join_group("billing", session="1 hour") as member:
            batch = member.poll(rows_max=2)
            with stem.transaction() as transaction:
                transaction.append(payments, [{"k": "paid", "n": sum(numbers(batch))}])
                transaction.commit_offsets(member)
                assert single.group("billing").describe().partitions[0].committed == 0
            assert single.group("billing").describe().partitions[0].committed == 2
            assert numbers(payments.to_arrow()) == [3]
            assert numbers(member.poll()) == [3]

    @promise(Promise.ATOMIC, Promise.GROUPS)
    def test_offsets_of_an_aborted_one_come_again(self, stem: Mainstem, single: Topic, payments: Topic) -> None:
        fill(single, 1, 2, 3)
        with single.join_group("billing", session="1 hour") as member:
            batch = member.poll(rows_max=2)
            with pytest.raises(ZeroDivisionError), stem.transaction() as transaction:  # noqa: PT012
                transaction.append(payments, [{"k": "paid", "n": sum(numbers(batch))}])
                transaction.commit_offsets(member)
                _ = 1 / 0
        assert len(payments.to_arrow()) == 0
        with single.join_group("billing") as member:
            assert numbers(member.poll()) == [1, 2, 3]

    @promise(Promise.ATOMIC, Promise.GROUPS)
    def test_a_member_that_was_taken_for_dead_cannot_commit_in_one(
        self, stem: Mainstem, other: Mainstem, single: Topic, payments: Topic, clock: Any
    ) -> None:
        fill(single, 1, 2)
        slow = single.join_group("billing", session="1 hour")
        slow.poll()
        quick = other.topic("single").join_group("billing", session="10 hours")
        assert taken_over(quick, clock) == [1, 2]
        with pytest.raises(Fenced), stem.transaction() as transaction:  # noqa: PT012
            transaction.append(payments, [{"k": "paid", "n": 3}])
            transaction.commit_offsets(slow)
        assert len(payments.to_arrow()) == 0
        for member in (slow, quick):
            member.leave()

    @promise(Promise.ATOMIC, Promise.GROUPS)
    def test_read_work_write_happens_once_although_it_dies_over_and_over(
        self, elsewhere: Callable[..., OtherProcess], stem: Mainstem, single: Topic, payments: Topic
    ) -> None:
        fill(single, *range(40))
        for steps in (3, 1, 4, 2, 5):
            worker = elsewhere(_work_in_transactions)
            for _ in range(steps):
                worker.hear()
            worker.kill()
        elsewhere(_work_in_transactions, "to the end").end()
        done = numbers(payments.to_arrow())
        assert sorted(done) == list(range(40))

    @promise(Promise.ATOMIC)
    def test_what_a_dead_process_left_open_holds_back_no_read(
        self, elsewhere: Callable[..., OtherProcess], spread: Topic, payments: Topic
    ) -> None:
        worker = elsewhere(_open_transaction)
        worker.hear()
        payments.append(ROWS)
        worker.kill()
        assert len(payments.to_arrow()) == len(ROWS)

    # Its producer

    @promise(Promise.ATOMIC, Promise.IDEMPOTENT)
    def test_a_producer_s_sequences_count_when_it_is_committed(self, stem: Mainstem, single: Topic) -> None:
        producer = stem.producer("checkout")
        with producer.transaction() as transaction:
            assert transaction.append(single, [{"k": "a", "n": 1}], sequence=1).appended
        assert not producer.append(single, [{"k": "a", "n": 1}], sequence=1).appended
        with producer.transaction() as transaction:
            assert not transaction.append(single, [{"k": "a", "n": 1}], sequence=1).appended
            assert transaction.append(single, [{"k": "a", "n": 2}], sequence=2).appended
        assert numbers(single.to_arrow()) == [1, 2]

    @promise(Promise.ATOMIC, Promise.IDEMPOTENT)
    def test_appends_of_one_transaction_count_on_by_themselves(self, stem: Mainstem, single: Topic) -> None:
        producer = stem.producer("checkout")
        for first in (0, 3):
            with producer.transaction() as transaction:
                appended = [transaction.append(single, [{"k": "a", "n": first + n}]).appended for n in range(3)]
            assert appended == [True, True, True]
        assert numbers(single.to_arrow()) == [0, 1, 2, 3, 4, 5]
        assert producer.last_sequence(single) == 5

    @promise(Promise.ATOMIC, Promise.IDEMPOTENT)
    def test_a_producer_s_sequences_of_an_aborted_one_may_be_appended_again(
        self, stem: Mainstem, spread: Topic
    ) -> None:
        producer = stem.producer("checkout")
        producer.append(spread, ROWS, sequence=1)
        undone = producer.transaction()
        undone.append(spread, ROWS, sequence=2)
        undone.append(spread, ROWS, sequence=3)
        undone.abort()
        assert not producer.append(spread, ROWS, sequence=1).appended
        with producer.transaction() as transaction:
            assert transaction.append(spread, ROWS, sequence=2).appended
        assert not producer.append(spread, ROWS, sequence=2).appended
        assert producer.append(spread, ROWS, sequence=3).appended
        assert len(spread.to_arrow()) == 36

    @promise(Promise.ATOMIC, Promise.IDEMPOTENT)
    def test_a_deletion_first_changes_nothing_about_its_sequences(self, stem: Mainstem, single: Topic) -> None:
        producer = stem.producer("checkout")
        undone = producer.transaction()
        undone.delete(single, ["a"])
        undone.append(single, [{"k": "a", "n": 1}], sequence=1)
        undone.abort()
        assert producer.append(single, [{"k": "a", "n": 1}], sequence=1).appended
        assert numbers(single.to_arrow()) == [1]

    @promise(Promise.ATOMIC, Promise.IDEMPOTENT)
    def test_a_repeat_after_an_aborted_one_is_told_where_it_lies_and_not_where_it_does_not(
        self, stem: Mainstem, single: Topic
    ) -> None:
        producer = stem.producer("checkout")
        first = producer.append(single, [{"k": "a", "n": 1}], sequence=1)
        undone = producer.transaction()
        undone.append(single, [{"k": "a", "n": 2}], sequence=2)
        undone.abort()
        again = producer.append(single, [{"k": "a", "n": 1}], sequence=1)
        assert not again.appended
        assert again.offsets in ({}, first.offsets)

    @promise(Promise.ATOMIC, Promise.IDEMPOTENT)
    def test_a_producer_in_a_transaction_has_no_other_way_in(self, stem: Mainstem, single: Topic) -> None:
        producer = stem.producer("checkout")
        with producer.transaction() as transaction:
            transaction.append(single, [{"k": "a", "n": 1}], sequence=1)
            for outside in (lambda: producer.append(single, [{"k": "a", "n": 2}], sequence=2), producer.transaction):
                with pytest.raises(Invalid, match='producer "checkout" is in a transaction'):
                    outside()
        assert producer.append(single, [{"k": "a", "n": 2}], sequence=2).appended
        assert numbers(single.to_arrow()) == [1, 2]

    @promise(Promise.ATOMIC, Promise.IDEMPOTENT, Promise.FENCED)
    def test_a_new_run_of_a_producer_ends_what_the_older_one_left_open(
        self, stem: Mainstem, other: Mainstem, single: Topic
    ) -> None:
        left = stem.producer("checkout").transaction(timeout="1 hour")
        left.append(single, [{"k": "a", "n": 1}], sequence=1)
        # What is not committed is not there: the same sequence of the next run must not be taken for a repeat.
        assert other.producer("checkout").append("single", [{"k": "a", "n": 1}], sequence=1).appended
        with pytest.raises(Fenced):
            left.commit()
        assert left.state == "aborted"
        assert numbers(single.to_arrow()) == [1]
        assert not stem.producer("checkout").append(single, [{"k": "a", "n": 1}], sequence=1).appended

    # What its owner cannot decide any more

    @promise(Promise.ATOMIC)
    def test_the_death_of_its_process_aborts_it(
        self, elsewhere: Callable[..., OtherProcess], stem: Mainstem, spread: Topic, payments: Topic
    ) -> None:
        owner = elsewhere(_open_transaction)
        owner.hear()
        fill(spread, 99, key="key-0")
        owner.kill()
        # Its timeout is an hour: whoever comes by sees that it is dead.
        follower = spread.follow(start="earliest")
        assert [row["n"] for row in taken(follower, 1)] == [99]
        follower.close()
        assert numbers(spread.to_arrow()) == [99]
        assert len(payments.to_arrow()) == 0
        with stem.transaction() as transaction:
            transaction.append(spread, [{"k": "key-0", "n": 100}])
        assert numbers(spread.to_arrow()) == [99, 100]

    @promise(Promise.ATOMIC)
    def test_past_its_timeout_it_is_aborted_by_whoever_comes_by(
        self, stem: Mainstem, other: Mainstem, single: Topic, clock: Any
    ) -> None:
        late = stem.transaction(timeout="1 hour")
        late.append(single, [{"k": "a", "n": 1}])
        clock.advance("59 minutes")
        with other.transaction() as transaction:
            transaction.append("single", [{"k": "a", "n": 2}])
        late.append(single, [{"k": "a", "n": 3}])
        clock.advance("2 minutes")
        with other.transaction() as transaction:
            transaction.append("single", [{"k": "a", "n": 4}])
        assert numbers(single.to_arrow()) == [2, 4]
        with pytest.raises(Fenced, match="has ended"):
            late.append(single, [{"k": "a", "n": 5}])
        with pytest.raises(Fenced, match="has ended"):
            late.commit()
        late.abort()
        assert numbers(single.to_arrow()) == [2, 4]

    @promise(Promise.ATOMIC)
    def test_a_follower_waits_no_longer_than_the_timeout_of_somebody_s_transaction(
        self, stem: Mainstem, other: Mainstem, single: Topic, clock: Any
    ) -> None:
        forgotten = stem.transaction(timeout="1 hour")
        forgotten.append(single, [{"k": "a", "n": 1}])
        fill(single, 2)
        assert list(other.topic("single").follow(start="earliest", wait="1 millisecond")) == []
        clock.advance("61 minutes")
        follower = other.topic("single").follow(start="earliest")
        assert [row["n"] for row in taken(follower, 1)] == [2]
        follower.close()
        with pytest.raises(Fenced):
            forgotten.commit()

    @promise(Promise.ATOMIC)
    def test_an_error_inside_shows_although_it_is_past_its_timeout(
        self, stem: Mainstem, single: Topic, clock: Any
    ) -> None:
        with pytest.raises(ZeroDivisionError), stem.transaction(timeout="1 minute") as transaction:  # noqa: PT012
            transaction.append(single, [{"k": "a", "n": 1}])
            clock.advance("1 hour")
            _ = 1 / 0
        assert len(single.to_arrow()) == 0


def key_of(partition: int) -> str:
    """A key that murmur2 places in that one of four partitions."""
    return {0: "key-1", 1: "key-0", 2: "key-2", 3: "key-3"}[partition]


def _open_transaction(stem: Mainstem, line: Line) -> None:
    transaction = stem.transaction(timeout="1 hour")
    transaction.append("spread", ROWS)
    transaction.append("payments", ROWS)
    line.say()
    line.hear()


def _work_in_transactions(stem: Mainstem, line: Line, until: str = "killed") -> None:
    """Read, work, write: each row of one topic becomes a row of another, together with the offset it was read at."""
    single = stem.topic("single")
    with single.join_group("work", session="1 hour") as member:
        while (batch := member.poll(rows_max=1, wait=None if until != "killed" else "1 minute")) is not None:
            with stem.transaction(timeout="1 hour") as transaction:
                transaction.append("payments", [{"k": f"paid-{n}", "n": n} for n in numbers(batch)])
                transaction.commit_offsets(member)
            if until == "killed":
                line.say()
