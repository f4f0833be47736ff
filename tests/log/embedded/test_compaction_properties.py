"""Compaction against a stupid one: a list of records, filtered anew after every pass."""

import random
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mainstem.clock import ManualClock
from mainstem.log.embedded.upkeep import compaction as latest_offsets
from mainstem.log.embedded.upkeep.compaction import KeyRows, plan_merges, replaced_rows, without_empty
from mainstem.log.embedded.upkeep.manifest import SealedEntry
from mainstem.log.keep_rule import Keep
from mainstem.log.topic import Topic
from mainstem.log.transaction import Transaction
from mainstem.stem import Mainstem
from tests.log.embedded.memory_files import MemoryFiles
from tests.log.embedded.upkeep_home import SCHEMA, manifest_of, opened, shown

TOMBSTONES = timedelta(hours=3)
KEYS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=5)


@dataclass
class Record:
    """A record of the model; `cleaned_at`: when a pass first went over it."""

    offset: int
    key: str
    number: int | None
    transaction: int | None = None
    cleaned_at: int | None = None


class CompactedTopic(RuleBasedStateMachine):
    """Appends, deletions, transactions, seals, passes, hours and kills in any order; the topic and the list agree."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.files = MemoryFiles()
        self.records: list[Record] = []
        self.open: dict[int, Transaction] = {}
        self.aborted: set[int] = set()
        self.end = 0
        self.count = 0
        self.begun = 0

    @initialize(lag_min=st.sampled_from([timedelta(0), timedelta(hours=2)]), size=st.sampled_from([1000, 64 << 20]))
    def begin(self, lag_min: timedelta, size: int) -> None:
        self.lag_min = lag_min
        with opened(self.files, self.clock) as stem:
            stem.create_topic(
                "profiles", schema=SCHEMA, key="k", segment_bytes_max=size,
                keep=Keep.latest_per_key(tombstones=TOMBSTONES, lag_min=lag_min),
            )  # fmt: skip
        self.reopen()

    def reopen(self) -> None:
        self.stem: Mainstem = opened(self.files, self.clock)
        self.topic: Topic = self.stem.topic("profiles")

    def _note(self, keys: list[str], numbers: list[int | None], transaction: int | None = None) -> None:
        for key, number in zip(keys, numbers, strict=True):
            self.records.append(Record(self.end, key, number, transaction))
            self.end += 1

    def _rows(self, keys: list[str]) -> tuple[list[dict[str, object]], list[int | None]]:
        numbers: list[int | None] = list(range(self.count, self.count + len(keys)))
        self.count += len(keys)
        return [{"k": key, "n": number} for key, number in zip(keys, numbers, strict=True)], numbers

    @rule(keys=KEYS)
    def append(self, keys: list[str]) -> None:
        rows, numbers = self._rows(keys)
        self.topic.append(rows)
        self._note(keys, numbers)

    @rule(keys=KEYS)
    def delete(self, keys: list[str]) -> None:
        self.topic.delete(keys)
        self._note(keys, [None] * len(keys))

    @precondition(lambda self: len(self.open) < 2)
    @rule(keys=KEYS)
    def begin_transaction(self, keys: list[str]) -> None:
        self.begun += 1
        self.open[self.begun] = self.stem.transaction(timeout="3650 days")
        self._append_in(self.begun, keys)

    @precondition(lambda self: self.open)
    @rule(keys=KEYS, data=st.data())
    def append_in_transaction(self, keys: list[str], data: st.DataObject) -> None:
        self._append_in(data.draw(st.sampled_from(sorted(self.open))), keys)

    def _append_in(self, number: int, keys: list[str]) -> None:
        rows, numbers = self._rows(keys)
        self.open[number].append(self.topic, rows)
        self._note(keys, numbers, number)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commit=st.booleans())
    def end_transaction(self, data: st.DataObject, commit: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        transaction = self.open.pop(number)
        if commit:
            transaction.commit()
        else:
            transaction.abort()
            self.aborted.add(number)
        self.end += 1  # the marker

    @rule()
    def seal(self) -> None:
        self.topic.seal()

    @rule(hours=st.integers(1, 4))
    def wait(self, hours: int) -> None:
        self.clock.advance(timedelta(hours=hours))

    @precondition(lambda self: not self.open)
    @rule()
    def kill(self) -> None:
        self.files = self.files.killed()
        self.reopen()

    @rule()
    def compact(self) -> None:
        self.topic.compact()
        cleaned = manifest_of(self.topic).cleaned
        now = self.clock.now()
        committed = [record for record in self.records if record.transaction not in self.aborted]
        latest = {record.key: record.offset for record in committed if record.offset < cleaned}
        over = now - TOMBSTONES // timedelta(microseconds=1)
        self.records = [
            record
            for record in committed
            if record.offset >= cleaned
            or (
                record.offset == latest[record.key]
                and not (record.number is None and record.cleaned_at is not None and record.cleaned_at <= over)
            )
        ]
        for record in self.records:
            if record.offset < cleaned and record.cleaned_at is None:
                record.cleaned_at = now

    @invariant()
    def the_topic_shows_what_the_list_has(self) -> None:
        expected = [
            (record.offset, record.key, record.number)
            for record in self.records
            if record.transaction not in self.open and record.transaction not in self.aborted
        ]
        assert shown(self.topic) == expected

    @invariant()
    def every_offset_is_accounted_for_and_every_byte_sound(self) -> None:
        manifest = manifest_of(self.topic)
        assert [entry.base for entry in manifest.segments] == [0, *(entry.end for entry in manifest.segments)][
            : len(manifest.segments)
        ]
        assert self.topic.verify().sound


TestCompactedTopic = pytest.mark.thorough(CompactedTopic.TestCase)
TestCompactedTopic.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# Which records are replaced


@given(
    seed=st.integers(0, 2**32),
    keys=st.integers(1, 60),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    clean=st.integers(0, 5),
    keys_max=st.sampled_from([1, 10, 1000]),
    together=st.sampled_from([1, 7, 1000]),
)
def test_replaced_rows_are_those_with_a_later_one_of_their_key(
    seed: int, keys: int, sizes: list[int], clean: int, keys_max: int, together: int
) -> None:
    chance = random.Random(seed)
    clean = min(clean, len(sizes) - 1)
    segments: dict[int, list[tuple[int, bytes | None]]] = {}
    offset = 0
    for number, size in enumerate(sizes):
        segments[number] = []
        for _ in range(size):
            offset += chance.randrange(1, 4)
            key = None if chance.random() < 0.1 else f"key-{chance.randrange(keys)}".encode()
            segments[number].append((offset, key))

    def read(segment: int) -> list[KeyRows]:
        rows = segments[segment]
        pieces = [(first, rows[first : first + 7]) for first in range(0, len(rows), 7)]
        return [
            KeyRows(
                segment,
                np.arange(first, first + len(piece)),
                pa.array([key for _, key in piece], pa.binary()),
                np.array([at for at, _ in piece], np.int64),
            )
            for first, piece in pieces
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latest_offsets, "KEYS_MAX", keys_max)
        patch.setattr(latest_offsets, "SHARES_MAX", 8)
        patch.setattr(latest_offsets, "ROWS_TOGETHER", together)
        marks = replaced_rows(
            {number: len(rows) for number, rows in segments.items()},
            list(range(clean, len(sizes))),
            lambda segment: iter(read(segment)),
            lambda: None,
        )
    fresh = {key: at for number in range(clean, len(sizes)) for at, key in segments[number] if key is not None}
    for number, rows in segments.items():
        expected = [key is not None and fresh.get(key, -1) > at for at, key in rows]
        assert marks.of(number).tolist() == expected
        assert marks.count(number) == sum(expected)


# Which segments are written anew


class Gone:
    """Marks that are only counted."""

    def __init__(self, counts: dict[int, int]) -> None:
        self._counts = counts

    def count(self, base: int) -> int:
        return self._counts[base]


ENTRY = st.builds(
    lambda rows, size, gone, tombstones, age: (rows, size, min(rows, gone), tombstones, age),
    st.integers(0, 50), st.integers(1, 1000), st.sampled_from([0, 0, 3, 50]), st.sampled_from([0, 0, 1]),
    st.sampled_from([None, 1, 2]),
)  # fmt: skip


@given(facts=st.lists(ENTRY, max_size=12), bytes_max=st.sampled_from([1, 500, 2000]))
def test_runs_to_write_are_neighbours_that_fit_and_all_that_lose_rows_are_among_them(
    facts: list[tuple[int, int, int, int, int | None]], bytes_max: int
) -> None:
    entries = [
        SealedEntry(
            10 * at,
            10 * at + 10,
            f"file-{at}",
            size,
            0,
            rows,
            1,
            at,
            at,
            at,
            at,
            at,
            [],
            [],
            cleaned_at=age,
            tombstones=tombstones,
        )
        for at, (rows, size, _, tombstones, age) in enumerate(facts)
    ]
    gone = {10 * at: lost for at, (_, _, lost, _, _) in enumerate(facts)}
    runs = plan_merges(entries, Gone(gone), bytes_max)  # type: ignore[arg-type]
    written = [entry for run in runs for entry in run]
    assert written == sorted(written, key=lambda entry: entry.base)
    assert {entry.base for entry in entries if gone[entry.base]} <= {entry.base for entry in written}
    for run in runs:
        at = entries.index(run[0])
        assert run == entries[at : at + len(run)]
        assert len({entry.cleaned_at for entry in run if entry.tombstones}) <= 1
        left = [entry.bytes * (entry.rows - gone[entry.base]) // entry.rows if entry.rows else 0 for entry in run]
        assert len(run) == 1 or sum(left) <= bytes_max
        for entry, size in zip(run, left, strict=True):
            # Nothing is written again for the sake of less than itself.
            assert gone[entry.base] or size <= sum(left) - size
    joined = without_empty(entries)
    assert [entry.rows for entry in joined if entry.rows] == [entry.rows for entry in entries if entry.rows]
    assert len(joined) == max(sum(1 for entry in entries if entry.rows), min(1, len(entries)))
    assert [entry.base for entry in joined[1:]] == [entry.end for entry in joined[:-1]]
