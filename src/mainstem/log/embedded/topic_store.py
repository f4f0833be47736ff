"""One topic in a home: its settings, its partitions, and operations on all of them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from itertools import count as counter
from random import randrange
from typing import TypeVar

from mainstem.clock import Clock
from mainstem.durable_files import Files, closed_error, decode_checked, encode_checked, read_file, replace_file
from mainstem.errors import (
    Corrupt,
    CorruptHome,
    IncompleteAppend,
    LockHeld,
    MainstemError,
    NewerFormat,
    TopicNotFound,
    summary_of,
)
from mainstem.log.embedded.read.holds import Holds
from mainstem.log.embedded.read.partition_reader import PartitionReader, Visible
from mainstem.log.embedded.read.topic_schemas import TopicSchemas
from mainstem.log.embedded.transaction_log import Decisions
from mainstem.log.embedded.write.heads import End, Slots, create_slots
from mainstem.log.embedded.write.partition import Partition, Pending, create_partition
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.watermark import NO_TIME

SETTINGS = "topic.json"
# Of topic.json. 2: it has a checksum.
FORMAT = 2

T = TypeVar("T")


def encode_settings(settings: TopicSettings, id: str) -> bytes:
    """The bytes of topic.json. The id distinguishes a topic from a deleted one of the same name."""
    return encode_checked({**settings.to_json(), "version": FORMAT, "id": id}, indent=1)


def create_topic(files: Files, folder: str, settings: TopicSettings, clock: Clock) -> None:
    """Fill a topic's directory; synced when this returns."""
    files.make_directory(folder)
    ends = [create_partition(files, f"{folder}/{number}", clock) for number in range(settings.partitions)]
    create_slots(files, f"{folder}/heads", ends)
    replace_file(files, f"{folder}/{SETTINGS}", encode_settings(settings, uuid.uuid4().hex))


class TopicStore:
    """A topic, open in this process. Thread-safe."""

    def __init__(
        self, files: Files, folder: str, name: str, clock: Clock, executor: Callable[[], Executor],
        synced: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.folder = folder
        self.heads_path = f"{folder}/heads"
        self.files = files
        self.clock = clock
        self.holds = Holds(files, folder)
        self.partitions: list[Partition] = []
        self.readers: list[PartitionReader] = []
        self._executor = executor
        self._synced = synced
        self._settings_path = f"{folder}/{SETTINGS}"
        self._turns = counter(randrange(1 << 16))
        self._identity: tuple[int, int, int] | None = None
        self._settings: TopicSettings
        self.id: str
        self.schemas: TopicSchemas
        self._refreshing = threading.Lock()
        self._closed = False
        self._inode: int | None = None
        with self._refuse_missing():
            if not files.exists(self.heads_path) and files.exists(self._settings_path):
                # Never synced, so it may be lost: it is rebuilt from the segments.
                create_slots(files, self.heads_path, [])
            self.heads = Slots(files, self.heads_path)
            self.heads.check = self._check_heads
            self._inode = files.identity(self.heads_path)[0]
        self.refresh()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for reader in self.readers:
            reader.close()
        for partition in self.partitions:
            partition.close()
        self.heads.close()

    # Settings

    @property
    def settings(self) -> TopicSettings:
        """The current settings: another process may have altered them."""
        self.refresh()
        return self._settings

    def refresh(self) -> None:
        """Read altered settings; raises if the topic was deleted, or is closed."""
        with self._refuse_missing():
            if self._closed:
                if not self.is_current():
                    raise FileNotFoundError(self.folder)
                raise closed_error(f'topic "{self.name}"')
            identity = self.files.identity(self._settings_path)
            if identity != self._identity:
                with self._refreshing:
                    self._read_settings(identity)

    def is_current(self) -> bool:
        """Whether the topic of this name is still the one that was opened: it may be deleted or recreated."""
        try:
            # While it is open, its inode is not reused.
            with nullcontext() if self._closed else self.heads.keep_open():
                return self.files.identity(self.heads_path)[0] == self._inode
        except (FileNotFoundError, TopicNotFound):
            return False

    def _check_heads(self) -> None:
        """Raises if the files at these paths are not those that were opened. The tail of a partition identifies
        them."""
        if self.partitions:
            self.partitions[0].check_there()

    @contextmanager
    def _refuse_missing(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if self._inode is not None and self.is_current():
                raise self._incomplete_folder(error) from error
            raise TopicNotFound(
                f'topic "{self.name}" does not exist',
                detail="It was deleted while it was open.",
                hint="Create it again if you need it, then open it again.",
                topic=self.name,
            ) from error

    def _read_settings(self, identity: tuple[int, int, int]) -> None:
        if not self.is_current():
            raise FileNotFoundError(self.folder)
        try:
            data = read_file(self.files, self._settings_path)
            content = decode_checked(data, since=2, known=FORMAT, version="version")
            settings = TopicSettings.from_json(content, known=FORMAT)
            if settings.name != self.name:
                raise ValueError(f'it is the file of topic "{settings.name}"')
            # A topic created before there were ids has none.
            self.id = str(content.get("id", ""))
        except (ValueError, LookupError, TypeError, AttributeError, CorruptHome) as error:
            if isinstance(error, NewerFormat):
                raise
            raise self._damaged_settings(error) from error
        self._settings = settings
        by_version = {version: settings.schema_of(version) for version in range(1, settings.schema_version + 1)}
        self.schemas = TopicSchemas(by_version, settings.event_time, self._settings_path)
        for number in range(len(self.partitions), settings.partitions):
            partition = Partition(
                self.files, f"{self.folder}/{number}", self.heads, number, self.clock,
                title=f'"{self.name}" partition {number}', segment_bytes_max=settings.segment_bytes_max,
                observe=self._observed_time if settings.event_time is not None else None, synced=self._synced,
            )  # fmt: skip
            self.partitions.append(partition)
            self.readers.append(PartitionReader(partition, number, self.name))
        for partition in self.partitions:
            partition.segment_bytes_max = settings.segment_bytes_max
        self._identity = identity

    def _incomplete_folder(self, error: FileNotFoundError) -> CorruptHome:
        return CorruptHome(
            f'a file of topic "{self.name}" is missing',
            detail=f'"{error.filename or error}" was removed after the topic was created.',
            hint="Restore the file from a copy. Other topics are not affected.",
            path=str(error.filename or self.folder),
        )

    def _damaged_settings(self, error: Exception) -> CorruptHome:
        return CorruptHome(
            f'the settings of topic "{self.name}" cannot be read',
            detail=f'"{self._settings_path}" is not what was written: {summary_of(error)}.',
            hint="Restore the file from a copy. Other topics are not affected.",
            path=self._settings_path,
        )

    def write_settings(self, settings: TopicSettings) -> None:
        """Write altered settings; the caller holds the home's lock. New partitions are created before they are
        named."""
        for number in range(self._settings.partitions, settings.partitions):
            end = create_partition(self.files, f"{self.folder}/{number}", self.clock)
            self.heads.write(number, end)
        self.files.sync_directory(self.folder)
        replace_file(self.files, self._settings_path, encode_settings(settings, self.id))
        self.refresh()

    # Ends

    def ends(self) -> list[End]:
        """The published end of each partition."""
        ends = self.heads.read_all(len(self.partitions))
        return [self.partitions[number].published_end() if end is None else end for number, end in enumerate(ends)]

    def _observed_time(self, slot: int, event_time_max: int, now: int) -> int:
        """The event time observed before an append: the lowest, over partitions that are not idle, of the highest event
        time so far. It never decreases: an idle or new partition continues from what the others have recorded."""
        if len(self.partitions) == 1:
            return event_time_max
        ends = {number: end for number, end in enumerate(self.heads.read_all(len(self.partitions))) if end is not None}
        reached = max((end.observed_up_to for end in ends.values()), default=NO_TIME)
        if event_time_max == NO_TIME:
            return reached
        idle_since = now - self._settings.idle_after // timedelta(microseconds=1)
        live = [
            end.event_time_max
            for number, end in ends.items()
            if number != slot and end.event_time_max != NO_TIME and end.appended_at >= idle_since
        ]
        return max(reached, min([event_time_max, *live]))

    def visible(self, moment: Decisions) -> dict[int, Visible]:
        """The visible records of every partition at one moment of the ledger of transactions."""
        return {number: reader.visible(moment) for number, reader in enumerate(self.readers)}

    def visible_or_damaged(self, moment: Decisions) -> dict[int, Visible | Corrupt]:
        """The same; for a damaged partition the error."""
        return {number: _or_damage(reader.visible, moment) for number, reader in enumerate(self.readers)}

    def visible_without_ledger(self, damage: Corrupt) -> dict[int, Visible | Corrupt]:
        """The same if the ledger of transactions itself is damaged."""
        return {number: _or_damage(reader.visible_without_ledger, damage) for number, reader in enumerate(self.readers)}

    # Appending

    def next_turn(self) -> int:
        """A partition for rows without a key, round robin."""
        return next(self._turns) % len(self.partitions)

    def append(self, blocks: Mapping[int, Pending]) -> None:
        """Append one block to each partition given; synced when this returns."""
        if len(blocks) == 1:
            for number, pending in blocks.items():
                self.partitions[number].append(pending)
            return
        # Each partition has its own file, so their fsyncs run at the same time.
        (first, mine), *others = blocks.items()
        own = {first: mine}
        waiting: list[tuple[int, Future[None]]] = []
        for number, pending in others:
            try:
                waiting.append((number, self._executor().submit(self.partitions[number].append, pending)))
            except RuntimeError as error:
                if not pool_was_shut_down(error):
                    raise
                own[number] = pending
        errors: dict[int, BaseException] = {}
        try:
            for number, pending in own.items():
                try:
                    self.partitions[number].append(pending)
                except Exception as error:  # noqa: BLE001 - told together with the others
                    errors[number] = error
        except BaseException:
            # Interrupted: wait, so that no write lands after the caller's next step.
            wait([future for _, future in waiting])
            raise
        for number, future in waiting:
            if (failure := future.exception()) is not None:
                errors[number] = failure
        if errors:
            raise self._incomplete(blocks, errors)

    def _incomplete(self, blocks: Mapping[int, Pending], errors: Mapping[int, BaseException]) -> BaseException:
        first = next(iter(errors.values()))
        written = sorted(set(blocks) - set(errors))
        if not written or not isinstance(first, MainstemError | OSError):
            return first
        held = next((why for _, why in sorted(errors.items()) if isinstance(why, LockHeld)), None)
        incomplete = IncompleteAppend(
            f'an append to "{self.name}" reached {len(written)} of {len(blocks)} partitions',
            detail=f"Written: {', '.join(map(str, written))}. Not written: "
            + "; ".join(f"{number} ({summary_of(why)})" for number, why in sorted(errors.items())) + "."
            + (f" {held.detail}" if held is not None else ""),
            hint=(f"{held.hint} Then append" if held is not None else "Append")
            + " again through a producer with the same sequence: rows already written are not repeated. "
            "A transaction writes all rows or none.",
            topic=self.name,
            written=tuple(written),
            not_written=tuple(sorted(errors)),
            pid=held.pid if held is not None else 0,
        )  # fmt: skip
        incomplete.__cause__ = first
        return incomplete


def pool_was_shut_down(error: RuntimeError) -> bool:
    """Whether a thread pool has refused work because it was shut down.

    Python shuts pools down once the main thread has ended; other threads may still run and then do the work themselves.
    """
    return "cannot schedule new futures" in str(error)


def _or_damage(look: Callable[[T], Visible], at: T) -> Visible | Corrupt:
    try:
        return look(at)
    except Corrupt as error:
        return error
