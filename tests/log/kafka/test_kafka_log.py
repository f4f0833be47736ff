"""The log on Kafka keeps the contract of a log, but for what it does not promise."""

import uuid
from collections.abc import Callable, Mapping
from typing import ClassVar

import pytest

from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.log.kafka.kafka_settings import KafkaSettings
from mainstem.stem import Mainstem
from tests.contracts.log_contract import LogContract
from tests.contracts.promises import Promise
from tests.contracts.shifted_clock import ShiftedClock
from tests.kafka_broker import KafkaBroker

AT_ONCE = "the brokers compact when they find it worth while, not when they are told"
BY_PARTITION = "a transaction becomes visible partition by partition, and an open one holds up all readers behind it"
BROKER_CLOCK = "a transaction's timeout runs by the broker's clock, which no test can move"


class TestKafkaLog(LogContract):
    promised = frozenset(Promise) - {Promise.DENSE_OFFSETS, Promise.REWIND, Promise.WATERMARKS}
    left_out: ClassVar[Mapping[str, str]] = {
        "test_the_latest_of_each_key_stays_where_it_was": AT_ONCE,
        "test_compacting_twice_is_compacting_once": AT_ONCE,
        "test_a_deleted_key_goes_and_its_tombstone_after_a_while": AT_ONCE,
        "test_young_records_are_left_alone": AT_ONCE,
        "test_readers_under_way_go_on_through_a_compaction": AT_ONCE,
        "test_only_what_is_committed_counts_as_the_latest": AT_ONCE,
        "test_a_producer_s_sequence_outlives_its_records": AT_ONCE,
        "test_what_is_too_much_goes_the_oldest_first": "the brokers drop by size when they find it worth while",
        "test_what_is_dropped_can_be_kept_in_an_archive": "the brokers drop by themselves, and copy nothing",
        "test_a_clock_that_jumps_ahead_drops_nothing": "the brokers drop by their own clocks",
        "test_what_is_open_holds_followers_up_and_not_a_bounded_read": BY_PARTITION,
        "test_a_bounded_read_shows_all_of_one_or_none_although_another_is_open": BY_PARTITION,
        "test_a_bounded_read_shows_all_of_one_or_none": BY_PARTITION,
        "test_a_query_shows_all_of_a_transaction_or_none": BY_PARTITION,
        "test_a_query_shows_all_of_a_transaction_or_none_although_another_is_open": BY_PARTITION,
        "test_past_its_timeout_it_is_aborted_by_whoever_comes_by": BROKER_CLOCK,
        "test_a_follower_waits_no_longer_than_the_timeout_of_somebody_s_transaction": BROKER_CLOCK,
    }

    @pytest.fixture
    def opener(self, kafka_broker: KafkaBroker, clock: ShiftedClock) -> Callable[[], Mainstem]:
        settings = KafkaSettings((kafka_broker.address,), prefix=f"t{uuid.uuid4().hex[:8]}.")
        return lambda: Mainstem(KafkaLog(settings, clock=clock))
