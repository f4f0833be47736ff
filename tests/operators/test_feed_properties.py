"""Applying a feed, against the naive way: rows in any order, ties, deletes, several partitions, any division into batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.operators import table, versions
from mainstem.operators.tables import table_engine, versions_engine
from tests.operators.naive_feed import Fact, facts_of, feed, naive_newest, naive_versions, split_anyhow
from tests.operators.scripted_tables import changes, held, scripted_table

SEEDS = st.integers(0, 2**32)
ORDER = ["version", "rank"]
DELETED = "op = 'DELETE'"
TRACKED: dict[str, tuple[Any, Callable[[dict[str, Any]], Any]]] = {
    "all columns": (None, lambda row: [row[name] for name in ("id", "city", "note", "version", "rank", "op")]),
    "one column": ("city", lambda row: row["city"]),
    "two columns": (["city", "note"], lambda row: (row["city"], row["note"])),
}


def in_any_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=str)


def ordered_deletes(facts: Sequence[Fact]) -> list[Fact]:
    return [fact for fact in facts if not (fact.deleted and fact.row["version"] is None)]


def newest(batches: Sequence[Sequence[Fact]], *, killed: bool = False) -> list[dict[str, Any]]:
    """Deletes have an order: one without would delete what there is when it arrives."""
    rows = feed(batches, killed=killed)
    return held(changes(table(rows, key="id", order_by=ORDER)))


def every_version(batches: Sequence[Sequence[Fact]], track: Any, *, killed: bool = False) -> list[dict[str, Any]]:
    rows = feed(batches, killed=killed)
    found = changes(versions(rows, key="id", order_by=ORDER, track=track))
    for batch in found:
        # Nothing is deleted and inserted unchanged.
        gone, come = ([row for sign, row in batch if sign == of] for of in "-+")
        assert not [row for row in gone if row in come]
    missing = sum(fact.row["version"] is None for batch in batches for fact in batch)
    assert len(rows.run.late) == rows.run.counts.get("too_late", 0) == missing
    return held(found)


@settings(max_examples=40)
@given(seed=SEEDS)
def test_the_newest_row_of_each_key_does_not_depend_on_batches(seed: int) -> None:
    chance = Random(seed)
    facts = ordered_deletes(facts_of(chance, chance.randrange(25)))
    expected = in_any_order(naive_newest(facts))

    assert newest([facts]) == expected
    assert newest([[fact] for fact in facts]) == expected
    for killed in (False, True):
        assert newest(split_anyhow(facts, chance), killed=killed) == expected


@settings(max_examples=40)
@given(seed=SEEDS, tracking=st.sampled_from(sorted(TRACKED)))
def test_the_versions_of_each_key_do_not_depend_on_batches(seed: int, tracking: str) -> None:
    chance = Random(seed)
    track, tracked = TRACKED[tracking]
    facts = facts_of(chance, chance.randrange(25))
    expected = in_any_order(naive_versions(facts, tracked))

    assert every_version([facts], track) == expected
    assert every_version([[fact] for fact in facts], track) == expected
    for killed in (False, True):
        assert every_version(split_anyhow(facts, chance), track, killed=killed) == expected


@settings(max_examples=8)
@given(seed=SEEDS)
def test_a_condition_is_as_good_as_a_deletion_in_the_log(seed: int) -> None:
    chance = Random(seed)
    facts = facts_of(chance, 20)
    batches = [facts[:7], facts[7:]]
    every = held(changes(versions(feed(batches, in_log=False), key="id", order_by=ORDER, delete_when=DELETED)))
    assert every == in_any_order(naive_versions(facts, TRACKED["all columns"][1]))
    # A delete without an order is below every value, as any other row without one.
    found = held(changes(table(feed(batches, in_log=False), key="id", order_by=ORDER, delete_when=DELETED)))
    assert found == in_any_order(naive_newest(facts))


@given(seed=SEEDS)
@settings(max_examples=30)
def test_after_every_batch_the_versions_are_those_of_the_rows_so_far(seed: int) -> None:
    chance = Random(seed)
    batches = split_anyhow(facts_of(chance, 20), chance)
    found = changes(versions(feed(batches), key="id", order_by=ORDER, track="city"))

    for count in range(len(batches)):
        facts = [fact for batch in batches[: count + 1] for fact in batch]
        expected = naive_versions(facts, lambda row: row["city"])
        assert held(found[: count + 1]) == in_any_order(expected)
        # They follow each other without a gap but that of a delete, and only the last one is open.
        for key in {row["id"] for row in expected}:
            spans = sorted(((row["valid_from"], row["valid_until"]) for row in expected if row["id"] == key), key=str)
            assert all(until is not None and until <= begin for (_, until), (begin, _) in pairwise(spans))


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "texts": (pa.string(), ["", "B", "a", "ä"]),
    "bytes": (pa.binary(), [b"", b"a", b"b", b"\xff"]),
    "times": (pa.timestamp("us", "UTC"), [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]),
    "local times": (pa.timestamp("us"), [datetime(2026, 1, day) for day in (1, 2, 3, 4)]),  # noqa: DTZ001
    "days": (pa.date32(), [date(2026, 1, day) for day in (1, 2, 3, 4)]),
    "decimals": (pa.decimal128(38, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal(2**70), Decimal(2**71)]),
    "doubles": (pa.float64(), [float("-inf"), 0.0, 1.5, float("nan")]),
    "floats": (pa.float32(), [-1.5, -0.0, 2.0, float("inf")]),
    "Booleans": (pa.bool_(), [False, True]),
    "small numbers": (pa.int8(), [-128, -1, 0, 127]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_rows_are_ordered_by_values_of_every_type(kind: str) -> None:
    of, given = VALUES[kind]
    values = pa.array(given, of).to_pylist()
    schema = pa.schema([("id", pa.int32()), ("at", of)])
    script = [[("+", {"id": 1, "at": values[place]})] for place in (1, 0, *range(2, len(values)), 1)]
    found = held(changes(versions(scripted_table(schema, script), key="id", order_by="at")))
    # As text: NaN is not equal to itself.
    spans = [(row["valid_from"], row["valid_until"]) for row in found]
    assert sorted(map(str, spans)) == sorted(map(str, zip(values, [*values[1:], None], strict=True)))
    [newest] = held(changes(table(scripted_table(schema, script), key="id", order_by="at")))
    assert str(newest["at"]) == str(values[-1])


def test_a_negative_zero_is_the_same_time_and_a_row_that_says_the_same_changes_nothing() -> None:
    schema = pa.schema([("id", pa.int32()), ("city", pa.string()), ("at", pa.float64())])
    script = [
        [("+", {"id": 1, "city": "Bonn", "at": 0.0})],
        [("+", {"id": 1, "city": "Ulm", "at": -0.0})],
        [("+", {"id": 1, "city": "Ulm", "at": 0.0})],
    ]
    rows = scripted_table(schema, script)
    found = changes(versions(rows, key="id", order_by="at"))

    assert [len(batch) for batch in found] == [1, 2, 0]
    assert [row["city"] for row in held(found)] == ["Ulm"]
    assert rows.run.state_rows == {"versions-1": 1}


def test_many_keys_at_once() -> None:
    chance = Random(5)
    facts = ordered_deletes(facts_of(chance, 1_500, keys=300, times=9))
    for batches in ([facts], split_anyhow(facts, chance)):
        assert newest(batches) == in_any_order(naive_newest(facts))
        assert every_version(batches, "city") == in_any_order(naive_versions(facts, lambda row: row["city"]))


# Wrong engines, which the tests above find.


def _arrival(self: Any, *given: Any) -> bool:
    """Of rows with the same order the one that arrives later counts."""
    return False


def _first_of_each(ids: Any) -> Any:
    return np.r_[True, ids[1:] != ids[:-1]] if len(ids) else np.zeros(0, np.bool_)


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "ties of a table by arrival": (table_engine.TableEngine, "_tied", _arrival),
    "of equal times the oldest row": (versions_engine, "last_of_each", _first_of_each),
    "each row begins a version": (
        versions_engine.VersionsEngine, "_changed", lambda self, rows, found: np.ones(len(found) - 1, np.bool_)
    ),
    "deletes are not kept": (
        versions_engine.VersionsEngine, "_state",
        lambda self, rows, slots, right=versions_engine.VersionsEngine._state: right(self, rows, slots).filter(
            pa.array(~np.asarray(right(self, rows, slots).column("deleted")))
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_engine_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    # A delete of what is not there is a `ValueError`.
    with pytest.raises((AssertionError, ValueError)):
        compare_some(60)


def compare_some(scripts: int) -> None:
    for seed in range(scripts):
        chance = Random(seed)
        facts = facts_of(chance, 20, nulls=False)
        batches = split_anyhow(facts, chance)
        assert newest(batches) == in_any_order(naive_newest(facts)), seed
        assert every_version(batches, "city") == in_any_order(naive_versions(facts, lambda row: row["city"])), seed
