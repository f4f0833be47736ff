"""Background upkeep: one thread for each open log, which closes, deletes, seals and compacts segments.

It wakes when this process has appended a segment's worth, and every half minute. Any number of processes may have a
home open, each with such a thread: one that finds a partition's upkeep lock held skips the partition. It works with
handles of its own, and through steps that may be cut short anywhere; closing the log ends it within one of them. An
error never ends the process: it is logged (`mainstem.upkeep`), kept in `last_error`, and the work is tried again.

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

from mainstem.arguments import chosen
from mainstem.errors import LockHeld, TopicNotFound
from mainstem.file_locks import UPKEEP
from mainstem.log.embedded.topic_store import TopicStore
from mainstem.log.embedded.upkeep.compaction import compact, compaction_due
from mainstem.log.embedded.upkeep.manifest import MICROSECOND
from mainstem.log.embedded.upkeep.retention import drop_expired, retention_due
from mainstem.log.embedded.upkeep.sealing import seal
from mainstem.log.embedded.upkeep.upkeep_pass import GoOn, closed_segments, first_append, now_of
from mainstem.log.embedded.write.active_segment import SegmentName
from mainstem.log.embedded.write.partition import Partition
from mainstem.log.upkeep_report import CompactionReport, RetentionReport

if TYPE_CHECKING:
    from mainstem.log.embedded.embedded_log import EmbeddedLog

__all__ = ["Upkeep", "UpkeepMode"]


# What is due in one topic now: segments to close, to drop, to seal, to compact. Finding nothing costs little.


Report = RetentionReport | CompactionReport


class TopicUpkeep:
    """Upkeep of one topic, with handles of its own. For one thread at a time."""

    def __init__(self, store: TopicStore) -> None:
        self.store = store
        # Of each partition the segment being appended to, since when its first record is there, and the boot clock
        # when it was first seen.
        self._active: dict[int, tuple[SegmentName, int, int]] = {}

    def current(self) -> bool:
        """Whether the topic is still there, and the one it was."""
        return self.store.is_current()

    def steps(self, go_on: GoOn) -> Iterator[Callable[[], Report | int | None]]:
        """What may be due, one after the other; each may fail without the others."""
        self.store.refresh()
        for number, partition in enumerate(self.store.partitions):
            go_on()
            for step in (self._close_old, self._drop, self._seal, self._compact):
                # Another process at it does it for all.
                if partition.lock.holder(UPKEEP) is None:
                    yield lambda step=step, number=number: _unless_held(step, number, go_on)  # type: ignore[misc]

    def _close_old(self, number: int, go_on: GoOn) -> None:
        """Close a segment that has been appended to for longer than the topic wants."""
        partition = self.store.partitions[number]
        age_max = self.store.settings.segment_age_max // MICROSECOND
        boot = partition.clock.boot()
        active = self._active_since(number, partition, boot)
        if active is None:
            return
        _, first, seen = active
        now = now_of(partition, partition.manifest_file.read(), self.store.settings.segment_age_max).now
        # By the boot clock as well: append times may lie in the future.
        if (now - first >= age_max or boot - seen >= age_max) and not partition.fenced():
            partition.roll()

    def _active_since(self, number: int, partition: Partition, boot: int) -> tuple[SegmentName, int, int] | None:
        head = partition.published()
        name = SegmentName(head.segment, head.epoch)
        known = self._active.get(number)
        if known is None or known[0] != name:
            self._active.pop(number, None)
            first = first_append(partition, name) if head.offset > head.segment else None
            if first is None:
                return None
            known = self._active[number] = (name, first, boot)
        return known

    def _drop(self, number: int, go_on: GoOn) -> RetentionReport | None:
        return drop_expired(self.store, number, go_on) if retention_due(self.store, number) else None

    def _seal(self, number: int, go_on: GoOn) -> int:
        partition = self.store.partitions[number]
        closed = closed_segments(partition, partition.manifest_file.read())
        if not closed or closed[0][1].base > self.store.readers[number].visible().end:
            return 0
        return seal(self.store, number, go_on)

    def _compact(self, number: int, go_on: GoOn) -> CompactionReport | None:
        return compact(self.store, number, go_on) if compaction_due(self.store, number) else None


def _unless_held(step: Callable[[int, GoOn], Report | int | None], number: int, go_on: GoOn) -> Report | int | None:
    try:
        return step(number, go_on)
    except LockHeld:
        return None  # another process came first, and is long at it


UpkeepMode = Literal["background", "manual"]

logger = logging.getLogger("mainstem.upkeep")

EVERY_SECONDS = 30.0

# Topics that nobody in this process has opened are looked at this often.
OTHERS_EVERY = 600_000_000

# A fork waits no longer than this for a step to come to a point where it can stand still.
FORK_WAIT_SECONDS = 1.0

# A smaller jump of the time of day is nothing to tell a person of.
WORTH_TELLING = timedelta(minutes=1)

_all: weakref.WeakSet[Upkeep] = weakref.WeakSet()


class _LeftOff(Exception):
    """The log is being closed."""


class Upkeep:
    """Upkeep of all topics of an open log. Thread-safe."""

    def __init__(self, log: EmbeddedLog, opened: Callable[[], Collection[str]], mode: UpkeepMode) -> None:
        detail = 'It is "background" (a thread of this process does it) or "manual" (another process does).'
        chosen(mode, "upkeep", ("background", "manual"), detail=detail)
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
        """A thread of the parent does not exist in a forked child; it is started anew when something is appended."""
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stopping = False
        # Held while something is done; let go of at points where a fork does no harm.
        self.working = threading.Lock()
        self.wanted_still = False
        self._forking: set[int] = set()
        self._resumed = threading.Event()

    # The thread

    def start(self) -> None:
        """Begin to work in the background, if that is the mode."""
        if self.mode == "background" and self._thread is None:
            self._thread = threading.Thread(
                target=_work, args=(weakref.ref(self), self._wake), name="mainstem-upkeep", daemon=True
            )
            self._thread.start()

    def appended(self, size: int, segment_bytes_max: int) -> None:
        """Bytes were appended: after a segment's worth there is probably something to seal."""
        self._appended += size
        if self._appended >= segment_bytes_max:
            self._appended = 0
            self.start()
            self._wake.set()

    def stop(self) -> None:
        """End the thread, if there is one; what it was at is left off at the next step."""
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
        """Before a fork: wait until nothing is half done, if that does not take long."""
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

    def _go_on(self) -> None:
        if self._stopping:
            raise _LeftOff
        if self.wanted_still:
            self.working.release()
            self._resumed.wait(FORK_WAIT_SECONDS)
            self.working.acquire()

    # Passes

    def run(self) -> list[Report]:
        """One pass over all topics; what was dropped and compacted. Errors are kept, not raised."""
        reports: list[Report] = []
        with self.working:
            with suppress(_LeftOff):
                self._settle()
                for name in self._due():
                    self._go_on()
                    reports += self._look_after(name)
            self.passes += 1
        return reports

    def run_safely(self) -> None:
        """A pass in the background: not even a home that cannot be looked at ends the thread."""
        try:
            self.run()
        except OSError as error:
            self.errors["home"] = self.last_error = error
            logger.error("upkeep of %s failed and will be tried again: %s", self._log.title, error)

    def _settle(self) -> None:
        """Transactions that nobody will decide hold up sealing."""
        try:
            self._log.transactions.settle()
        except Exception as error:  # noqa: BLE001 - kept and shown
            self._failed("transactions", error)
        else:
            self._succeeded("transactions")

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

    def _look_after(self, name: str) -> list[Report]:
        reports: list[Report] = []
        failed = False
        try:
            for step in self._topic(name).steps(self._go_on):
                try:
                    report = step()
                except _LeftOff:
                    raise
                except Exception as error:  # noqa: BLE001 - kept and shown; the other steps may succeed
                    self._failed(name, error)
                    failed = True
                else:
                    if isinstance(report, RetentionReport | CompactionReport):
                        self._tell_of_jump(name, report)
                        reports.append(report)
        except _LeftOff:
            raise
        except Exception as error:  # noqa: BLE001 - kept and shown
            self._failed(name, error)
            failed = True
        if not failed:
            self._succeeded(name)
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

    # What a person should know

    def _failed(self, name: str, error: Exception) -> None:
        gone = name != "transactions" and not self._log.files.exists(self._log.home.topic_folder(name))
        if gone or isinstance(error, TopicNotFound):
            return  # deleted meanwhile
        self.errors[name] = self.last_error = error
        text = f"{type(error).__name__}: {error}"
        if self._told.get(name) != text:
            self._told[name] = text
            logger.error("upkeep of %s in %s failed and will be tried again: %s", name, self._log.title, text)

    def _succeeded(self, name: str) -> None:
        if self.errors.pop(name, None) is not None:
            self._told.pop(name, None)
            self.last_error = next(reversed(self.errors.values()), None)

    def _tell_of_jump(self, name: str, report: Report) -> None:
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
    """What the thread does. While it waits it holds on to nothing, so that a log that was not closed can go."""
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
# A thread that is in the middle of something when the interpreter ends may take the process down with it.
atexit.register(_each(Upkeep.stop))
