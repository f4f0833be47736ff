"""A made-up history of a topic, and what must hold of it however its upkeep is cut short."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Literal

from mainstem.clock import ManualClock
from mainstem.errors import MainstemError
from mainstem.log.keep_rule import Keep
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.log.embedded.memory_disk import MODES
from tests.log.embedded.memory_files import MemoryFiles, Stopped
from tests.log.embedded.upkeep_home import SCHEMA, manifest_of, opened, partition_of, shown

TOMBSTONES = timedelta(hours=3)
KEEP_AGE = timedelta(hours=3)
MICROSECOND = timedelta(microseconds=1)

Row = tuple[int, str, int | None]


@dataclass
class Script:
    """A topic with a history. `rows`: every record that readers saw in the end. `appended`: when, by the boot clock."""

    files: MemoryFiles
    clock: ManualClock
    rows: list[Row] = field(default_factory=list)
    appended: dict[int, int] = field(default_factory=dict)
    end: int = 0
    sequence: int = -1

    def open(self, files: MemoryFiles) -> Mainstem:
        return opened(files, self.clock)

    def at_its_end(self) -> Script:
        """The same with a clock of its own, which stands where the history ends."""
        return replace(self, clock=copy(self.clock))


def written_script(seed: int, keep: Keep) -> Script:
    """Appends, deletions, transactions, seals and earlier passes, as the seed has it."""
    chance = random.Random(seed)
    script = Script(MemoryFiles(), ManualClock())
    with opened(script.files, script.clock) as stem:
        topic = stem.create_topic("orders", schema=SCHEMA, key="k", keep=keep)
        producer = stem.producer("checkout")
        for number in range(26):
            _act(chance, stem, topic, number)
            if chance.random() < 0.2:
                script.sequence += 1
                producer.append(topic, [{"k": "sequenced", "n": script.sequence}], sequence=script.sequence)
            _note(script, topic)
        script.rows = shown(topic)
        script.end = partition_of(topic).published_end().offset
    return script


def _act(chance: random.Random, stem: Mainstem, topic: Topic, number: int) -> None:
    keys = [chance.choice("abcdefgh") for _ in range(chance.randrange(1, 6))]
    rows = [{"k": key, "n": number} for key in keys]
    act = chance.choices(
        ["append", "delete", "commit", "abort", "roll", "seal", "pass", "wait"], [8, 4, 3, 2, 4, 4, 2, 2]
    )[0]
    if act == "append":
        topic.append(rows)
    elif act == "delete":
        topic.delete(sorted(set(keys)))
    elif act in ("commit", "abort"):
        transaction = stem.transaction(timeout="3650 days")
        transaction.append(topic, rows)
        if chance.random() < 0.3:
            partition_of(topic).roll()
        transaction.commit() if act == "commit" else transaction.abort()
    elif act == "roll":
        partition_of(topic).roll()
    elif act == "seal":
        topic.seal()
    elif act == "pass":
        topic.seal()
        topic.compact() if topic.settings.keep.compacted else topic.drop_expired()
    else:
        stem.log.clock.advance(timedelta(hours=chance.randrange(1, 3)))  # type: ignore[attr-defined]


def _note(script: Script, topic: Topic) -> None:
    for offset, _, _ in shown(topic, start="earliest"):
        script.appended.setdefault(offset, script.clock.boot())


def every_call(script: Script, action: Callable[[Topic], object]) -> list[str]:
    """The names of the calls that the action makes."""
    names: list[str] = []
    files = script.files.copy()
    topic = script.open(files).topic("orders")
    files.machine.seen = names.append
    action(topic)
    files.machine.seen = None
    return names


def crashed(
    script: Script, action: Callable[[Topic], object], seed: int, *, only: Sequence[str] = (), times: int = 1
) -> Iterator[tuple[str, MemoryFiles]]:
    """The files after the action was cut short at each of its calls, in some way; what happened in words.

    `only`: at the calls of these names, each so many `times`.
    """
    chance = random.Random(seed)
    for call, name in enumerate(every_call(script.at_its_end(), action), start=1):
        for _ in range(times if not only or name in only else 0):
            mode = chance.choice(["killed", "killed", "twice", "twice", *MODES])
            where = f"seed {seed}, call {call} ({name}), {mode}"
            files = script.files.copy()
            stopped(script, action, files, call, chance.choice(["nothing", "part", "all"]))
            if mode == "killed":
                yield where, files.killed()
            elif mode == "twice":
                # The next process is cut short too, and by a power cut: what the first left half done is still so.
                files = files.killed()
                stopped(script, action, files, chance.randrange(1, 80), "all")
                yield where, files.crash(call, chance.choice(MODES))
            else:
                yield where, files.crash(chance.randrange(1 << 30), mode)


def stopped(
    script: Script,
    action: Callable[[Topic], object],
    files: MemoryFiles,
    call: int,
    done: Literal["nothing", "part", "all"],
) -> None:
    """Let the action run until that call, at which the process is killed."""
    topic = script.at_its_end().open(files).topic("orders")
    files.stop_at(call, done=done)
    with suppress(Stopped):
        action(topic)


def guarded(where: str, look: Callable[[], Iterator[str]]) -> list[str]:
    """What is wrong, an error included."""
    try:
        return [f"{where}: {text}" for text in look()]
    except (MainstemError, OSError, AssertionError) as error:
        return [f"{where}: {type(error).__name__}: {error}"]


def always_wrong(script: Script, topic: Topic) -> Iterator[str]:
    """What must hold at any time, whatever was cut short: nothing invented, nothing moved, no end forgotten."""
    rows = shown(topic)
    known = set(script.rows)
    if strange := [row for row in rows if row not in known]:
        yield f"records that were not there: {strange}"
    if rows != sorted(rows):
        yield "out of order"
    sealed_to = manifest_of(topic).end
    if missing := [row for row in script.rows if row[0] >= sealed_to and row not in rows]:
        yield f"of what is not sealed is missing: {missing}"
    if partition_of(topic).published_end().offset != script.end:
        yield f"ends at {partition_of(topic).published_end().offset}, not at {script.end}"
    if not topic.verify().sound:
        yield f"not sound: {topic.verify().problems}"


def compaction_wrong(script: Script, topic: Topic) -> Iterator[str]:
    """And of a compacted topic: the latest per key, deleted keys gone, young tombstones still there."""
    yield from always_wrong(script, topic)
    rows = shown(topic)
    expected = {key: number for key, number in _replayed(script.rows).items() if number is not None}
    found = {key: number for key, number in _replayed(rows).items() if number is not None}
    if found != expected:
        yield f"latest per key: {found}, not {expected}"
    last = {key: offset for offset, key, _ in script.rows}
    for offset, key, number in script.rows:
        age = (script.clock.boot() - script.appended[offset]) * MICROSECOND
        if number is None and last[key] == offset and age < TOMBSTONES and (offset, key, None) not in rows:
            yield f"the tombstone of {key} at {offset} is gone after {age}"


def _replayed(rows: list[Row]) -> dict[str, int | None]:
    return {key: number for _, key, number in rows}


def compaction_ends_wrong(script: Script, topic: Topic) -> Iterator[str]:
    """And when it is let go on: no key twice, and no trace of deleted ones once their time is over."""
    topic.compact()
    yield from compaction_wrong(script, topic)
    for _ in range(2):
        script.clock.advance(TOMBSTONES)
        topic.compact()
    sealed_to = manifest_of(topic).end
    rows = shown(topic)
    sealed = [row for row in rows if row[0] < sealed_to]
    if len({key for _, key, _ in sealed}) < len(sealed):
        yield f"a key is there twice: {sealed}"
    if tombstones := [row for row in sealed if row[2] is None]:
        yield f"tombstones that should be gone: {tombstones}"
    expected = {key: number for key, number in _replayed(script.rows).items() if number is not None}
    if {key: number for key, number in _replayed(rows).items() if number is not None} != expected:
        yield f"a deleted key returned, or one is lost: {rows}"
    if last_sequence(topic) != script.sequence:
        yield "the producer's sequence is forgotten"


def last_sequence(topic: Topic) -> int:
    return topic.backend.numbered.known_appends(1, 1).runs.last  # type: ignore[attr-defined, no-any-return]


def retention_wrong(script: Script, topic: Topic) -> Iterator[str]:
    """And of a topic that keeps for some time: what is young is there, and what is there has no hole."""
    yield from always_wrong(script, topic)
    rows = shown(topic)
    start = manifest_of(topic).start
    if rows != [row for row in script.rows if row[0] >= start]:
        yield f"not all from {start} on: {rows}"
    young = [row for row in script.rows if (script.clock.boot() - script.appended[row[0]]) * MICROSECOND < KEEP_AGE]
    if lost := [row for row in young if row not in rows]:
        yield f"dropped too early: {lost}"
