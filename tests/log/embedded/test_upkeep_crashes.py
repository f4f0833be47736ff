"""L13: upkeep cut short at any of its calls, by a kill or a power cut, loses no latest value and brings no key back."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import pytest

from mainstem.durable_files import remove_if_there
from mainstem.errors import MainstemError
from mainstem.log.embedded.upkeep import compaction, sealing, upkeep_pass
from mainstem.log.embedded.upkeep import compaction as segment_merge
from mainstem.log.embedded.upkeep.compaction import _Compaction
from mainstem.log.embedded.upkeep.manifest import SealedEntry
from mainstem.log.embedded.upkeep.retention import _Retention
from mainstem.log.embedded.write.partition import Partition
from mainstem.log.keep_rule import Keep
from mainstem.log.topic import Topic
from tests.log.embedded.memory_files import MemoryFiles
from tests.log.embedded.upkeep_home import partition_of
from tests.log.embedded.upkeep_script import (
    KEEP_AGE,
    TOMBSTONES,
    Script,
    compaction_ends_wrong,
    compaction_wrong,
    crashed,
    every_call,
    guarded,
    retention_wrong,
    stopped,
    written_script,
)

COMPACTED = Keep.latest_per_key(tombstones=TOMBSTONES)

Wrong = Callable[[Script, Topic], Iterator[str]]


class Cut(NamedTuple):
    """What came of cutting something short: how often, how many facts were looked at then, what was wrong."""

    points: int
    compared: int
    violations: list[str]


def cut_short(
    seeds: Iterable[int],
    keep: Keep,
    action: Callable[[Topic], object],
    *checks: Wrong,
    only: Sequence[str] = (),
    times: int = 1,
    stop_after: int | None = None,
) -> Cut:
    """Cut the action short at each of its calls."""
    points = compared = 0
    violations: list[str] = []
    for seed in seeds:
        written = written_script(seed, keep)
        for where, files in crashed(written, action, seed, only=only, times=times):
            script = written.at_its_end()
            points += 1
            with ExitStack() as closing:
                for check in checks:
                    violations += guarded(where, partial(_opened_and_checked, script, files, check, closing))
                    compared += len(script.rows)
            if stop_after is not None and len(violations) >= stop_after:
                return Cut(points, compared, violations)
    return Cut(points, compared, violations)


def _opened_and_checked(script: Script, files: MemoryFiles, check: Wrong, closing: ExitStack) -> Iterator[str]:
    stem = script.open(files)
    closing.callback(stem.close)
    yield from check(script, stem.topic("orders"))


def seal_and_compact(topic: Topic) -> None:
    topic.seal()
    topic.compact()


def drop(topic: Topic) -> None:
    topic.drop_expired()


@pytest.mark.thorough
def test_a_crash_in_compaction_loses_no_latest_value_and_brings_no_key_back(
    fault_report: Callable[..., None],
) -> None:
    cut = cut_short([1], COMPACTED, seal_and_compact, compaction_wrong, compaction_ends_wrong)
    fault_report("L13 compaction", **cut._asdict(), seed=1)
    assert cut.points >= 300


@pytest.mark.thorough
@pytest.mark.parametrize("seeds", [range(10, 12), pytest.param(range(10, 16), marks=pytest.mark.long)], ids=str)
def test_a_crash_in_retention_drops_nothing_that_is_young_and_leaves_no_hole(
    fault_report: Callable[..., None], seeds: range
) -> None:
    cut = cut_short(seeds, Keep(age=KEEP_AGE), drop, retention_wrong, _dropped)
    fault_report("L13 retention", **cut._asdict(), seed=str(seeds))
    assert cut.points >= 40 * len(seeds)


def _dropped(script: Script, topic: Topic) -> Iterator[str]:
    """The next pass does the rest."""
    topic.drop_expired()
    yield from retention_wrong(script, topic)
    topic.append([{"k": "new", "n": 1}])
    *_, last = topic.to_arrow(columns=[]).column("record").to_pylist()
    if last["offset"] != script.end:
        yield f"the next record got offset {last['offset']}, not {script.end}"
    if topic.drop_expired().segments:
        yield "a third pass found more to drop"


@pytest.mark.thorough
def test_a_call_that_fails_in_compaction_costs_nothing(fault_report: Callable[..., None]) -> None:
    written = written_script(1, COMPACTED)
    violations: list[str] = []
    call = compared = 0
    failed = True
    while failed:
        call += 3
        script = written.at_its_end()
        files = written.files.copy()
        with script.open(files) as stem:
            topic = stem.topic("orders")
            topic.seal()
            files.fail_at(call, errno.EIO)
            try:
                topic.compact()
                failed = bool(files.machine.failed)
            except (MainstemError, OSError):
                pass
            files.machine.fails.clear()
            for check in (compaction_wrong, compaction_ends_wrong):
                violations += guarded(f"call {call}", partial(check, script, topic))
                compared += len(script.rows)
    fault_report("L8 compaction", points=call // 3, compared=compared, violations=violations, seed=1)


def left_half_done() -> list[str]:
    """One process is killed before its manifest is on disk, the next one clears up, then the power goes: what is wrong."""
    violations: list[str] = []
    written = written_script(1, COMPACTED)
    *_, last = [call for call, name in enumerate(every_call(written, Topic.seal), 1) if name == "sync_directory"]
    for seed in range(20):
        files = written.files.copy()
        stopped(written, Topic.seal, files, last, "nothing")
        files = files.killed()
        partition = partition_of(written.open(files).topic("orders"))
        with upkeep_pass.upkeep_of(partition):
            pass
        script = written.at_its_end()
        with ExitStack() as closing:
            after = files.crash(seed, "pieces")
            violations += guarded(f"{seed}", partial(_opened_and_checked, script, after, compaction_wrong, closing))
    return violations


def test_what_was_left_half_done_is_not_cleared_before_the_manifest_is_on_disk() -> None:
    assert left_half_done() == []


def test_it_is_noticed_when_what_is_left_is_cleared_at_once() -> None:
    with built(leftovers_removed_unseen()):
        assert left_half_done()


# Builds that are wrong on purpose: each must be noticed.


def files_removed_before_the_manifest() -> list[tuple[object, str, object]]:
    rewrite = _Compaction._rewrite

    def broken(self: _Compaction, run: list[Any], gone: Any) -> None:
        merged = compaction.merge_segments

        def and_remove(partition: Partition, *facts: Any) -> Any:
            entry = merged(partition, *facts)
            for old in run:
                remove_if_there(partition.files, f"{partition.folder}/{old.file}")
            return entry

        with mock.patch.object(compaction, "merge_segments", and_remove):
            rewrite(self, run, gone)

    return [(_Compaction, "_rewrite", broken)]


def tombstones_dropped_at_once() -> list[tuple[object, str, object]]:
    return [(compaction, "_tombstones_expired", lambda entry, keep, now: bool(entry.tombstones))]


def manifest_before_fsync() -> list[tuple[object, str, object]]:
    write = upkeep_pass.write_sealed

    def broken(*facts: Any) -> Any:
        with mock.patch.object(MemoryFiles, "sync", return_value=None):
            return write(*facts)

    return [(upkeep_pass, "write_sealed", broken)]


def no_directory_fsync() -> list[tuple[object, str, object]]:
    put = upkeep_pass.put_sealed

    def broken(*facts: Any) -> Any:
        with mock.patch.object(MemoryFiles, "sync_directory", return_value=None):
            return put(*facts)

    return [(sealing, "put_sealed", broken), (segment_merge, "put_sealed", broken)]


def cleaned_before_it_is_clean() -> list[tuple[object, str, object]]:
    rewrite = _Compaction._rewrite

    def broken(self: _Compaction, run: list[Any], gone: Any) -> None:
        at = [entry.base for entry in self._manifest.segments].index(run[0].base)
        segments = [
            replace(entry, cleaned_at=entry.cleaned_at if entry.cleaned_at is not None else self._now)
            for entry in self._manifest.segments
        ]
        run[:] = segments[at : at + len(run)]
        self._manifest = replace(self._manifest, cleaned=segments[-1].end, segments=tuple(segments))
        rewrite(self, run, gone)

    return [(_Compaction, "_rewrite", broken)]


def leftovers_removed_unseen() -> list[tuple[object, str, object]]:
    clear = upkeep_pass.clear_leftovers

    def broken(partition: Partition) -> None:
        with mock.patch.object(type(partition.manifest_file), "write", return_value=None):
            clear(partition)

    return [(upkeep_pass, "clear_leftovers", broken)]


def dropped_before_the_manifest() -> list[tuple[object, str, object]]:
    drop_segments = _Retention._drop

    def broken(self: _Retention, manifest: Any, expired: list[Any]) -> None:
        for segment in expired:
            if segment.sealed is not None:
                remove_if_there(self._partition.files, f"{self._partition.folder}/{segment.sealed.file}")
            if segment.blocks is not None:
                upkeep_pass.remove_blocks(self._partition, segment.blocks)
        drop_segments(self, manifest, expired)

    return [(_Retention, "_drop", broken)]


def old_as_its_first_record() -> list[tuple[object, str, object]]:
    return [(SealedEntry, "last_append", lambda self, now: self.appended_first)]


@contextmanager
def built(patches: list[tuple[object, str, object]]) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, value in patches:
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        yield


@pytest.mark.thorough
@pytest.mark.parametrize(
    "mutant",
    [
        files_removed_before_the_manifest,
        tombstones_dropped_at_once,
        manifest_before_fsync,
        no_directory_fsync,
        cleaned_before_it_is_clean,
    ],
)
def test_a_wrong_compaction_is_noticed(mutant: Callable[[], Any]) -> None:
    with built(mutant()):
        cut = cut_short(
            range(1, 9), COMPACTED, seal_and_compact, compaction_wrong, compaction_ends_wrong,
            only=["sync_directory", "remove"], times=6, stop_after=1,
        )  # fmt: skip
    assert cut.violations, f"not noticed at {cut.points} points"


@pytest.mark.parametrize("mutant", [dropped_before_the_manifest, old_as_its_first_record])
def test_a_wrong_retention_is_noticed(mutant: Callable[[], Any]) -> None:
    with built(mutant()):
        cut = cut_short(
            range(10, 30), Keep(age=KEEP_AGE), drop, retention_wrong, _dropped,
            only=["sync", "sync_directory", "rename", "remove"], stop_after=1,
        )  # fmt: skip
    assert cut.violations, f"not noticed at {cut.points} points"
