"""L5 for sealed segments: a bit that flipped anywhere in the file is noticed by every reader, SQL included."""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mainstem.clock import ManualClock
from mainstem.errors import CorruptManifest, CorruptSegment
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.embedded.read import sealed_check
from mainstem.log.keep_rule import Keep
from mainstem.stem import Mainstem
from tests.log.embedded.memory_files import MemoryFiles
from tests.log.embedded.upkeep_home import HOME, SCHEMA, manifest_of, opened, sealed, shown

EVERY = 7


def flipped(data: bytes) -> Iterator[bytes]:
    """The bytes with one bit flipped in every seventh of them, each time another bit."""
    for position, bit in zip(range(0, len(data), EVERY), itertools.cycle(range(8)), strict=False):
        damaged = bytearray(data)
        damaged[position] ^= 1 << bit
        yield bytes(damaged)


def filled(stem: Mainstem, count: int = 500, **settings: object) -> None:
    """Three sealed segments of so many records each."""
    topic = stem.create_topic("orders", schema=SCHEMA, key="k", **settings)
    for first in range(0, 3 * count, count):
        sealed(topic, [(f"key-{number % 700}", number) for number in range(first, first + count)])


@pytest.mark.thorough
def test_no_reader_is_served_a_flipped_bit(clock: ManualClock, fault_report: Callable[..., None]) -> None:
    files = MemoryFiles()
    violations: list[str] = []
    flips = 0
    with opened(files, clock) as stem:
        filled(stem, keep=Keep.latest_per_key())
        topic = stem.topic("orders")
        expected = shown(topic)
        entry = manifest_of(topic).segments[1]
        path = f"{HOME}/topics/orders/0/{entry.file}"
        data = files.content(path)
        ways: dict[str, Callable[[], object]] = {
            "all": lambda: shown(topic),
            "one column": lambda: topic.to_arrow(columns=["n"], start={0: 900}),
            "one record": lambda: topic.backend.read(0, 700, 1),
            "compaction": topic.compact,
        }
        for damaged in flipped(data):
            flips += 1
            files.put(path, damaged)
            violations += [f"{way}, byte {flips * EVERY}" for way, read in ways.items() if not _refused(read)]
            if flips % 20 == 0:
                assert not topic.verify().sound
        files.put(path, data)
        assert shown(topic) == expected
        assert topic.verify().sound
    fault_report("L5 sealed segments", points=flips, compared=flips * len(ways), violations=violations)


def _refused(read: Callable[[], object]) -> bool:
    try:
        read()
    except CorruptSegment as error:
        return "500 to 999" in error.detail and "Restore" in error.hint
    return False


@pytest.mark.thorough
def test_sql_is_not_served_a_flipped_bit(tmp_path: Path, fault_report: Callable[..., None]) -> None:
    ticks = itertools.count(1)
    violations: list[str] = []
    flips = 0
    with Mainstem(EmbeddedLog(tmp_path / "home")) as stem:
        filled(stem, 40)
        question = "SELECT k, n, record.offset FROM orders ORDER BY ALL"
        expected = stem.query(question)
        [first, *_] = sorted((tmp_path / "home/topics/orders/0").glob("*.parquet"))
        data = first.read_bytes()
        for damaged in flipped(data):
            flips += 1
            first.write_bytes(damaged)
            os.utime(first, ns=(next(ticks), next(ticks)))
            try:
                answer = stem.query(question)
            except CorruptSegment:
                continue
            violations.append(
                f"served {answer.num_rows} rows, {'the same' if answer.equals(expected) else 'WRONG ones'}"
            )
        first.write_bytes(data)
        assert stem.query(question).equals(expected)
    fault_report("L5 SQL", points=flips, compared=flips, violations=violations)


@pytest.mark.thorough
def test_the_flips_are_seen_to_be_served_where_nobody_checks(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sealed_check, "check_sealed", lambda *_: None)
    with Mainstem(EmbeddedLog(tmp_path / "home")) as stem:
        filled(stem, 40)
        question = "SELECT k, n, record.offset FROM orders ORDER BY ALL"
        expected = stem.query(question)
        [first, *_] = sorted((tmp_path / "home/topics/orders/0").glob("*.parquet"))
        wrong = 0
        for damaged in itertools.islice(flipped(first.read_bytes()), 0, None, 10):
            first.write_bytes(damaged)
            try:
                wrong += not stem.query(question).equals(expected)
            except Exception:  # noqa: BLE001 - whatever DuckDB says of nonsense
                continue
        assert wrong > 0


def test_a_file_is_checked_once_until_it_is_touched(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    checked = []
    frame = sealed_check._frame
    monkeypatch.setattr(sealed_check, "_frame", lambda *facts: (checked.append(facts[1]), frame(*facts))[1])
    with opened(files, clock) as stem:
        filled(stem)
        topic = stem.topic("orders")
        shown(topic)
        shown(topic)
        assert len(checked) == len(set(checked)) == 3
        files.put(checked[0], files.content(checked[0]))
        shown(topic)
        assert len(checked) == 4


def test_a_flipped_bit_in_a_manifest_is_refused(clock: ManualClock, fault_report: Callable[..., None]) -> None:
    files = MemoryFiles()
    violations = []
    flips = 0
    with opened(files, clock) as stem:
        filled(stem)
        topic = stem.topic("orders")
        expected = shown(topic)
        path = f"{HOME}/topics/orders/0/manifest"
        data = files.content(path)
        for damaged in flipped(data):
            flips += 1
            files.put(path, damaged)
            with suppress(CorruptManifest):
                violations.append(f"served {len(shown(topic))} rows")
        files.put(path, data)
        assert shown(topic) == expected
    fault_report("L5 manifest", points=flips, compared=flips, violations=violations)
