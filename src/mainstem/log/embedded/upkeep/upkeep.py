"""Background upkeep: one thread for each open log, which closes, deletes, seals and compacts segments.

It wakes when this process has appended a segment's worth, and every half minute. Each process that has the home open
runs such a thread; one that finds a partition's upkeep lock held skips the partition. It uses its own file handles, and
every step may be interrupted; closing the log ends it within one step. An error never ends the process: it is logged
(`mainstem.upkeep`), kept in `last_error`, and the work is retried.

Topics that this process has not opened are included, less often: retention also applies to unused topics.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from mainstem.arguments import check_choice
from mainstem.errors import LockHeld, TopicNotFound
from mainstem.file_locks import UPKEEP
from mainstem.log.embedded.topic_store import TopicStore
from mainstem.log.embedded.upkeep.compaction import compact, compaction_due
from mainstem.log.embedded.upkeep.manifest import MICROSECOND
from mainstem.log.embedded.upkeep.retention import drop_expired, retention_due
from mainstem.log.embedded.upkeep.sealing import seal
from mainstem.log.embedded.upkeep.upkeep_pass import CheckStop, closed_segments, first_append, now_of
from mainstem.log.embedded.write.active_segment import SegmentName
from mainstem.log.embedded.write.partition import Partition
from mainstem.log.upkeep_report import CompactionReport, RetentionReport

if TYPE_CHECKING:
    from mainstem.log.embedded.embedded_log import EmbeddedLog

__all__ = ["Upkeep", "UpkeepMode"]


# Finds which work is due in a topic: segments to close, drop, seal or compact. Finding none is cheap.


Report = RetentionReport | CompactionReport


class TopicUpkeep:
    """Upkeep of one topic, with its own file handles. Not thread-safe."""

    def __init__(self, store: TopicStore) -> None:
        self.store = store
        # For each partition: the active segment, when its first record was appended, and the boot clock when upkeep
        # first saw it.
        self._active: dict[int, tuple[SegmentName, int, int]] = {}

    def current(self) -> bool:
        """Whether the topic still exists and is the same one."""
        return self.store.is_current()

    def steps(self, check_stop: CheckStop) -> Iterator[Callable[[], Report | int | None]]:
        """The work that may be due; a failed step does not affect the others."""
        self.store.refresh()
        for number, partition in enumerate(self.store.partitions):
            check_stop()
            for step in (self._close_old, self._drop, self._seal, self._compact):
                # If another process holds the lock, it does the work.
                if partition.lock.holder(UPKEEP) is None:
                    yield lambda step=step, number=number: _skip_if_held(step, number, check_stop)  # type: ignore[misc]

    def _close_old(self, number: int, check_stop: CheckStop) -> None:
        """Close an active segment that is older than the topic's `segment_age_max`."""
        partition = self.store.partitions[number]
        age_max = self.store.settings.segment_age_max // MICROSECOND
        boot = partition.clock.boot()
        active = self._active_since(number, partition, boot)
        if active is None:
            return
        _, first, seen = active
        now = now_of(partition, partition.manifest_file.read(), self.store.settings.segment_age_max).now
        # Also by the boot clock, because append times may be in the future.
        if (now - first >= age_max or boot - seen >= age_max) and not partition.fenced():
            partition.roll()

    def _active_since(self, number: int, partition: Partition, boot: int) -> tuple[SegmentName, int, int] | None:
        head = partition.published_end()
        name = SegmentName(head.segment, head.epoch)
        known = self._active.get(number)
        if known is None or known[0] != name:
            self._active.pop(number, None)
            first = first_append(partition, name) if head.offset > head.segment else None
            if first is None:
                return None
            known = self._active[number] = (name, first, boot)
        return known

    def _drop(self, number: int, check_stop: CheckStop) -> RetentionReport | None:
        return drop_expired(self.store, number, check_stop) if retention_due(self.store, number) else None

    def _seal(self, number: int, check_stop: CheckStop) -> int:
        partition = self.store.partitions[number]
        closed = closed_segments(partition, partition.manifest_file.read())
        if not closed or closed[0][1].base > self.store.readers[number].visible().end:
            return 0
        return seal(self.store, number, check_stop)

    def _compact(self, number: int, check_stop: CheckStop) -> CompactionReport | None:
        return compact(self.store, number, check_stop) if compaction_due(self.store, number) else None


def _skip_if_held(
    step: Callable[[int, CheckStop], Report | int | None], number: int, check_stop: CheckStop
) -> Report | int | None:
    try:
        return step(number, check_stop)
    except LockHeld:
        return None  # another process holds the lock


UpkeepMode = Literal["background", "manual"]

logger = logging.getLogger("mainstem.upkeep")

EVERY_SECONDS = 30.0

# How often topics are checked that this process has not opened.
OTHERS_EVERY = 600_000_000

# The longest time that a fork waits for a step to reach a safe point.
FORK_WAIT_SECONDS = 1.0

# A smaller jump of the wall clock is not reported.
WORTH_TELLING = timedelta(minutes=1)

_all: weakref.WeakSet[Upkeep] = weakref.WeakSet()


class _Stopped(Exception):
    """The log is being closed."""


class Upkeep:
    """Upkeep of all topics of an open log. Thread-safe."""

    def __init__(self, log: EmbeddedLog, opened: Callable[[], Collection[str]], mode: UpkeepMode) -> None:
        detail = 'It is "background" (a thread of this process does it) or "manual" (another process does).'
        check_choice(mode, "upkeep", ("background", "manual"), detail=detail)
        self.mode = mode
        self.passes = 0
        self.last_error: Exception | None = None
        self.errors: dict[str, Exception] = {}
        self._log = log
        self._opened = opened
        self._topics: dict[str, TopicUpkeep] = {}
        self._looked: dict[str, int] = {}
        self._told: dict[str, str] = {}
        self._appended = 0
        self.renew_in_child()
        _all.add(self)

    def renew_in_child(self) -> None:
        """Reset: a forked child has no thread; the next append starts one."""
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stopping = False
        # Held during a step; released at points where a fork is safe.
        self.working = threading.Lock()
        self.wanted_still = False
        self._forking: set[int] = set()
        self._resumed = threading.Event()

    # The thread

    def start(self) -> None:
        """Start the thread, if the log has background upkeep."""
        if self.mode == "background" and self._thread is None:
            self._thread = threading.Thread(
                target=_work, args=(weakref.ref(self), self._wake), name="mainstem-upkeep", daemon=True
            )
            self._thread.start()

    def count_append(self, size: int, segment_bytes_max: int) -> None:
        """Count appended bytes; wakes the thread after a segment's worth."""
        self._appended += size
        if self._appended >= segment_bytes_max:
            self._appended = 0
            self.start()
            self._wake.set()

    def stop(self) -> None:
        """End the thread, if there is one; its work stops at the next step."""
        self._stopping = True
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        for topic in self._topics.values():
            topic.store.close()
        self._topics.clear()

    @property
    def stopping(self) -> bool:
        return self._stopping

    def pause(self) -> None:
        """Before a fork: wait until no step is running, for a limited time."""
        self._resumed.clear()
        self.wanted_still = True
        if self.working.acquire(timeout=FORK_WAIT_SECONDS):
            self._forking.add(threading.get_ident())

    def resume(self) -> None:
        """After a fork, in the parent."""
        self.wanted_still = False
        if threading.get_ident() in self._forking:
            self._forking.discard(threading.get_ident())
            self.working.release()
        self._resumed.set()

    def _check_stop(self) -> None:
        if self._stopping:
            raise _Stopped
        if self.wanted_still:
            self.working.release()
            self._resumed.wait(FORK_WAIT_SECONDS)
            self.working.acquire()

    # Passes

    def run(self) -> list[Report]:
        """One pass over all topics; returns the reports. Errors are kept, not raised."""
        reports: list[Report] = []
        with self.working:
            with suppress(_Stopped):
                self._settle()
                for name in self._due():
                    self._check_stop()
                    reports += self._maintain(name)
            self.passes += 1
        return reports

    def run_safely(self) -> None:
        """A pass in the background; no error ends the thread, not even an unreadable home."""
        try:
            self.run()
        except OSError as error:
            self.errors["home"] = self.last_error = error
            logger.error("upkeep of %s failed and will be tried again: %s", self._log.title, error)

    def _settle(self) -> None:
        """Settle abandoned transactions: they block sealing."""
        try:
            self._log.transactions.settle()
        except Exception as error:  # noqa: BLE001 - kept and shown
            self._record_failure("transactions", error)
        else:
            self._record_success("transactions")

    def _due(self) -> list[str]:
        boot = self._log.clock.boot()
        opened = set(self._opened())
        names = self._log.home.topic_names()
        for name in set(self._topics) - set(names):
            self._forget(name)
        due = [
            name
            for name in names
            if name in opened or name not in self._looked or boot - self._looked[name] >= OTHERS_EVERY
        ]
        self._looked = {name: boot if name in due else self._looked[name] for name in names}
        return due

    def _maintain(self, name: str) -> list[Report]:
        reports: list[Report] = []
        failed = False
        try:
            for step in self._topic(name).steps(self._check_stop):
                try:
                    report = step()
                except _Stopped:
                    raise
                except Exception as error:  # noqa: BLE001 - kept and shown; the other steps may succeed
                    self._record_failure(name, error)
                    failed = True
                else:
                    if isinstance(report, RetentionReport | CompactionReport):
                        self._report_jump(name, report)
                        reports.append(report)
        except _Stopped:
            raise
        except Exception as error:  # noqa: BLE001 - kept and shown
            self._record_failure(name, error)
            failed = True
        if not failed:
            self._record_success(name)
        if name not in self._opened():
            self._forget(name)
        return reports

    def _topic(self, name: str) -> TopicUpkeep:
        topic = self._topics.get(name)
        if topic is not None and not topic.current():
            self._forget(name)
            topic = None
        if topic is None:
            log = self._log
            store = TopicStore(log.files, log.home.topic_folder(name), name, log.clock, _no_executor)
            topic = self._topics[name] = TopicUpkeep(store)
        return topic

    def _forget(self, name: str) -> None:
        topic = self._topics.pop(name, None)
        if topic is not None:
            topic.store.close()

    # Reports

    def _record_failure(self, name: str, error: Exception) -> None:
        gone = name != "transactions" and not self._log.files.exists(self._log.home.topic_folder(name))
        if gone or isinstance(error, TopicNotFound):
            return  # deleted meanwhile
        self.errors[name] = self.last_error = error
        text = f"{type(error).__name__}: {error}"
        if self._told.get(name) != text:
            self._told[name] = text
            logger.error("upkeep of %s in %s failed and will be tried again: %s", name, self._log.title, text)

    def _record_success(self, name: str) -> None:
        if self.errors.pop(name, None) is not None:
            self._told.pop(name, None)
            self.last_error = next(reversed(self.errors.values()), None)

    def _report_jump(self, name: str, report: Report) -> None:
        if report.clock_jump is not None and abs(report.clock_jump) >= WORTH_TELLING:
            key, text = f"{name} clock", f"{report.clock_jump.total_seconds():+.0f} seconds"
            if self._told.get(key) != text:
                self._told[key] = text
                logger.warning(
                    "the time of day differs by %s from what the machine's own clock says; upkeep of %s goes by the latter",
                    text,
                    name,
                )


def _no_executor() -> Executor:
    raise AssertionError("upkeep appends nothing")


def _work(reference: weakref.ref[Upkeep], wake: threading.Event) -> None:
    """The thread's loop. While it waits it holds no reference, so that a log that was not closed is collected."""
    while True:
        wake.wait(EVERY_SECONDS)
        wake.clear()
        upkeep = reference()
        if upkeep is None or upkeep.stopping:
            return
        upkeep.run_safely()
        del upkeep


def _each(do: Callable[[Upkeep], None]) -> Callable[[], None]:
    def each() -> None:
        for upkeep in list(_all):
            do(upkeep)

    return each


os.register_at_fork(
    before=_each(Upkeep.pause), after_in_parent=_each(Upkeep.resume), after_in_child=_each(Upkeep.renew_in_child)
)
# A daemon thread that still runs when the interpreter ends may crash the process.
atexit.register(_each(Upkeep.stop))
