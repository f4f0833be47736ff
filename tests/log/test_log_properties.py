"""L17: random actions on two openings of one home, against a list per partition.

Whatever is appended, repeated, committed, aborted, sealed, compacted, altered, taken, released, closed or killed, in
whatever order: every reader sees what the list says. MAINSTEM_PROPERTY_STEPS sets how many steps, MAINSTEM_SEED repeats
a run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import rule, run_state_machine_as_test

from mainstem.errors import MainstemError
from mainstem.log.embedded import embedded_topic
from mainstem.log.embedded.embedded_log import Producers
from mainstem.log.embedded.write.partition_state import PartitionState
from mainstem.log.groups.group_state import GroupState
from tests.log.compared_log import (
    COMPACTED,
    DICE,
    HOUR,
    TIMEOUT,
    TOMBSTONES,
    Dice,
)
from tests.log.log_handle import LogHandle
from tests.log.log_model import ModelTopic
from tests.log.reading_rules import ReadingRules
from tests.log.writing_rules import WritingRules

STEPS = int(os.environ.get("MAINSTEM_PROPERTY_STEPS", "100000"))
# Each part is a test of its own, so that they run side by side.
PARTS = 8
STEPS_A_RUN = 200


class LogMachine(WritingRules, ReadingRules):
    """All actions together, with upkeep, time and death between them."""

    # Upkeep

    @rule(number=DICE)
    def look_after(self, number: int) -> None:
        """What costs more than a step should, or is rarer than an append."""
        dice, handle, topic = self.dice(number)
        often = [self.join, self.join, self.begin_a_run, self.read_the_rejected] * 6
        seldom = [self.seal, self.compact, self.open_again] * 3 + [self.alter, self.alter, self.ask]
        dice.of(often + seldom)(dice, handle, topic)

    def seal(self, dice: Dice, handle: LogHandle, topic: ModelTopic) -> None:
        handle.topic(topic.name).seal()

    def compact(self, dice: Dice, handle: LogHandle, topic: ModelTopic) -> None:
        topic = self.topics[1]
        compacted = handle.topic(COMPACTED)
        compacted.seal()
        compacted.compact()
        # By a follower, which sees what is decided in each partition, whatever is open in others.
        batches = list(compacted.follow(start="earliest", wait="0 seconds"))
        batches.sort(key=lambda batch: int(batch.column("record").field("partition")[0].as_py()))
        left = pa.Table.from_batches(batches, schema=compacted.to_arrow().schema)
        record = left.column("record").combine_chunks()
        kept = list(zip(record.field("partition").to_pylist(), record.field("offset").to_pylist(), strict=True))
        assert topic.compacted_to(kept, self.clock.now(), TOMBSTONES) == []
        self.same(left, topic.shown())

    def alter(self, dice: Dice, handle: LogHandle, topic: ModelTopic) -> None:
        narrow = [name for name, kind in topic.columns.items() if kind == "INT"]
        if narrow and dice.below(2):
            topic.columns[dice.of(narrow)] = "BIGINT"
        elif len(topic.columns) < 6:
            topic.columns[f"x{len(topic.columns)}"] = "INT"
        handle.topic(topic.name).alter(schema=topic.ddl)
        assert handle.topic(topic.name).ddl == topic.ddl

    # Time and death

    @rule(number=DICE)
    def let_time_pass(self, number: int) -> None:
        dice, handle, topic = self.dice(number)
        self.clock.advance(timedelta(microseconds=dice.of([1, HOUR // 2, HOUR, 12 * HOUR])))
        handle.topic(topic.name).backend.settle()
        self.settled()

    def open_again(self, dice: Dice, handle: LogHandle, topic: ModelTopic) -> None:
        killed = bool(dice.below(2))
        # The rest of its process is gone with it: its members, transactions and runs of producers.
        for name, member in list(self.members.items()):
            if member._reads._backend._log is handle.log:
                member._heartbeat.stop() if killed else member.leave()
                del self.members[name]
        mine = [it for it in self.open if it[0] is handle]
        if killed:
            handle.kill()
            # This process lives on, so its sessions, leases and transactions end by time.
            self.clock.advance(timedelta(microseconds=TIMEOUT + HOUR))
        else:
            for _, transaction, model in mine:
                transaction.abort()
                self.decided(model, "aborted")
            handle.close()
        fresh = LogHandle(self.folder / "home", self.clock)
        self.handles[self.handles.index(handle)] = fresh
        if killed:
            fresh.topic(topic.name).backend.settle()
            self.settled()
        self.same_bounded(fresh.topic(topic.name).to_arrow(), topic)


class NoWatch:
    """Nothing waits here, and to let go of what the kernel would watch takes it milliseconds."""

    def __init__(self, paths: Sequence[str]) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.thorough
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, PARTS))])
def test_the_log_equals_a_list_per_partition(
    part: int, fault_report: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_topic, "Watch", NoWatch)
    chosen = int(os.environ.get("MAINSTEM_SEED", random.SystemRandom().randrange(1 << 32)))
    machine = seed(chosen + part)(type("LogMachine", (LogMachine,), {"steps": 0, "compared": 0}))
    print(f"MAINSTEM_SEED={chosen}")
    # A run now and then ends before its last step: a fifth more of them make up for it.
    runs = STEPS * 6 // (5 * PARTS * STEPS_A_RUN)
    rounds = settings(
        max_examples=max(5, runs),
        stateful_step_count=STEPS_A_RUN,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=rounds)
    fault_report("L17", points=machine.steps, compared=machine.compared, violations=[], seed=chosen)


def show_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionState, "aborted_ranges", lambda *_: [])
    monkeypatch.setattr(PartitionState, "hidden_ranges_at", lambda *_: [])


def show_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionState, "stable_offset", lambda state, end: end)
    monkeypatch.setattr(PartitionState, "hidden_ranges_at", lambda state, *_: state.aborted_ranges())


def check_no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producers, "check", lambda *_: None)


def forget_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupState, "_move", lambda *_: None)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "break_it",
    [show_aborted, show_undecided, check_no_epoch, forget_commits],
    ids=lambda it: it.__name__,
)
def test_a_log_that_does_wrong_is_found_out(break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: Any) -> None:
    monkeypatch.setattr(embedded_topic, "Watch", NoWatch)
    break_it(monkeypatch)
    machine = seed(1)(type("LogMachine", (LogMachine,), {"steps": 0, "compared": 0}))
    hunt = settings(
        max_examples=200,
        stateful_step_count=100,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises((AssertionError, MainstemError)):
        run_state_machine_as_test(machine, settings=hunt)
