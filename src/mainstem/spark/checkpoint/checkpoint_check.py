"""Whether a checkpoint is intact and matches its sink: checked before Spark resumes from it.

    metadata                    the id of the checkpoint
    offsets/<batch>             a version, metadata and one line for each source; written before the batch runs
    commits/<batch>             a version and metadata; written after it
    state/<operator>/<part>/    the state of Spark's operators
    .<name>.crc                 beside each file: "crc\0", bytes in a chunk (u32), the CRC-32 of each chunk (u32), big-endian

Spark checks a file against its checksums when it reads it. But it accepts a file that was truncated at the end of a chunk,
and a log whose last entry is missing: rows would be skipped or counted twice. So before it starts:

- every entry that Spark will read is intact: the start and end of the batch, and the last commit;
  - every batch that is committed, by Spark or by the sink, is planned: otherwise its number would be reused for other rows;
  - the sink has every committed batch (`sink_rows` records which ones had rows, for sinks that do not track empty
  ones): otherwise it is older than the checkpoint, and the missing rows would never be written again.

Two kinds of damage are repaired, since nothing can be lost. The damaged entry of a batch that was planned but not committed
by the sink (a power cut leaves it empty) is removed: the batch is planned again. A damaged commit is removed: its batch is
repeated, and the sink skips it. Any other damage is an error.
"""

from __future__ import annotations

import json
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal

from mainstem.durable_files import REAL_FILES
from mainstem.errors import BeyondEnd, Conflict, CorruptHome
from mainstem.log.log import Log, TopicBackend
from mainstem.spark.checkpoint.checkpoint_location import is_elsewhere

__all__ = [
    "check_checkpoint",
    "check_reached",
    "check_same_topic",
    "check_topics",
    "checkpoint_id",
    "damaged_files",
    "last_with_rows",
    "note_rows",
    "topics_in",
]


# Whether a topic is the one that a flow has read so far: it may have been deleted and created again.
#
# The old offsets are meaningless for the new topic. A flow that resumed from them would silently skip its first records,
# or wait for records that never come.


_IDENTITY_HINT = (
    "Nothing that the flow has written is lost. Stop it and run the program again: its error says what to do."
)


def check_same_topic(backend: TopicBackend, known: str, flow: str, *, hint: str = _IDENTITY_HINT) -> None:
    """Raise `Conflict` if the topic has another id than the known one; an empty id matches every topic."""
    if known and backend.id and backend.id != known:
        raise Conflict(
            f'topic "{backend.name}" is not the one that flow "{flow}" has read so far',
            detail="It was deleted and created again since: its offsets start at 0 again.",
            hint=hint,
        )


def topics_in(offset: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[int, int]]]:
    """Name, id and positions of each topic in the offset of a source."""
    if "topic" in offset:
        yield offset["topic"], offset.get("id", ""), _parse_positions(offset["offsets"])
    for name, positions in offset.get("topics", {}).items():
        yield name, offset.get("ids", {}).get(name, ""), _parse_positions(positions)


def check_topics(log: Log, offset: Mapping[str, Any], flow: str, *, hint: str) -> None:
    """Raise `Conflict` if a source cannot resume from its offset: its topic is a different one, or (`BeyondEnd`) ends before
    it.

    Records are durable before they can be read, so a topic never becomes shorter: it was created again, or restored from a copy.
    """
    there = set(log.topic_names())
    for name, known, positions in topics_in(offset):
        if name not in there:
            continue
        backend = log.open_topic(name)
        check_same_topic(backend, known, flow, hint=hint)
        check_reached(backend, positions, flow, hint=hint)


def check_reached(
    backend: TopicBackend, positions: Mapping[int, int], flow: str, *, hint: str = _IDENTITY_HINT
) -> None:
    """Raise `BeyondEnd` if a topic ends before the position of a flow."""
    partitions = backend.settings.partitions
    for number, reached in positions.items():
        # The end of the log: a flow may start behind an open transaction.
        end = backend.end(number) if number < partitions else 0
        if end < reached:
            raise BeyondEnd(
                f'topic "{backend.name}" ends before the position of flow "{flow}"',
                detail=f"The flow has read partition {number} up to offset {reached}; it ends at {end}: the topic was "
                "deleted and created again, or restored from an older copy.",
                hint=hint,
                topic=backend.name,
                partition=number,
                position=reached,
                end=end,
            )


def _parse_positions(positions: Mapping[str, int]) -> dict[int, int]:
    return {int(number): at for number, at in positions.items()}


# Which batches had rows, for a sink that does not track empty batches: a topic.
#
#     <checkpoint>/sink_rows/<batch>      an empty file; the last two such batches are kept
#
# A topic that was restored from an older copy cannot be told from one that had no new rows for a while. So the flow itself
# records the last batches that had rows:
#
#     the sink's commit  ->  the note  ->  Spark's commit of the batch
#
# A run that is killed between the first two finds that the sink has the batch, and writes the note when it restarts. The
# note of a batch that Spark has not committed does not count, since that batch is replayed. This is why two are kept.
#
# A note is a directory entry, as Spark's own commit is, and is created before it: a journaling file system cannot keep the
# commit and lose the note, so a batch needs no further sync. If Spark stores its commits on another machine, the
# directory is synced.


def last_with_rows(checkpoint: str, upto: int) -> int:
    """The last batch up to this one that had rows for the sink; -1 if none is recorded."""
    return max((number for number in _list_noted_batches(checkpoint) if number <= upto), default=-1)


def note_rows(checkpoint: str, batch: int) -> None:
    """Record that the sink has a batch with rows, and none after it. For the current run."""
    noted = _list_noted_batches(checkpoint)
    if batch < 0 or (batch in noted and max(noted) == batch):
        return
    folder = f"{checkpoint}/sink_rows"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/{batch}", "w"):
        pass
    if is_elsewhere(checkpoint):
        REAL_FILES.sync_directory(folder)
    before = max((number for number in noted if number < batch), default=-1)
    for number in noted - {batch, before}:
        with suppress(FileNotFoundError):
            os.remove(f"{folder}/{number}")


def _list_noted_batches(checkpoint: str) -> set[int]:
    with suppress(FileNotFoundError):
        return {int(name) for name in os.listdir(f"{checkpoint}/sink_rows") if name.isdigit()}
    return set()


_HEAD = struct.Struct(">4sI")
_MAGIC = b"crc\0"
# Hadoop's default.
CHUNK = 512
_ANEW = "Or start over: delete the checkpoint together with what the flow has written; the next run rebuilds both from the log."
_HINT = f"Restore the checkpoint from a copy. {_ANEW}"


def checkpoint_id(checkpoint: str) -> str:
    """The id of a checkpoint: a new one in the same directory has another id."""
    with open(f"{checkpoint}/metadata", encoding="utf-8") as file:
        return str(json.load(file)["id"])


def check_checkpoint(
    checkpoint: str, in_sink: int, *, accounts: Literal["every batch", "rows"] = "rows", otherwise: str = ""
) -> None:
    """Raise `CorruptHome` if Spark must not resume from here.

    `in_sink` is the last batch that the sink has, -1 for none; `accounts` is whether it tracks every batch, or
    only those with rows. `otherwise` is what to do if the sink is older and there is no copy.
    """
    planned, committed = _numbers(checkpoint, "offsets"), _numbers(checkpoint, "commits")
    _mend(checkpoint, planned, committed, in_sink)
    last, done = max(planned, default=-1), max(committed, default=-1)
    if last < done:
        raise _damage_error(
            f"{checkpoint}/offsets", f"Batch {done} is committed, but only batches up to {last} are planned."
        )
    if last < in_sink:
        raise _damage_error(
            f"{checkpoint}/offsets",
            f"The sink has committed batch {in_sink}, but only batches up to {last} are planned.",
        )
    # A batch is planned after the one before it is committed, even if that commit was damaged and removed.
    finished = max(done, last - 1)
    expected = finished if accounts == "every batch" else last_with_rows(checkpoint, finished)
    if in_sink < expected:
        raise CorruptHome(
            f'the sink is older than the checkpoint "{checkpoint}"',
            detail=f"Batch {expected} is committed, but the sink has only batches up to {in_sink}: it was restored from an "
            "older copy, or is a different sink. The rows of the missing batches would never be written again.",
            hint=f"Restore a copy of the sink that has batch {expected}, or a copy of the checkpoint taken at the same time "
            f"as the sink. {otherwise or _ANEW}",
            path=checkpoint,
        )
    # A batch is the range between the previous entry and its own.
    for number in (last - 1, last):
        if number >= 0 and (reason := _damage(checkpoint, "offsets", number)):
            raise _damage_error(f"{checkpoint}/offsets/{number}", reason)
    if os.path.exists(f"{checkpoint}/metadata") and (reason := _damage(checkpoint, "", "metadata")):
        raise _damage_error(f"{checkpoint}/metadata", reason)
    _check_sizes(f"{checkpoint}/state", done + 1)


def damaged_files(checkpoint: str) -> Iterator[tuple[str, str]]:
    """Every file of a checkpoint that does not match Spark's checksums beside it, and the reason."""
    for inside, _, names in os.walk(checkpoint):
        known = set(names)
        for name in sorted(known):
            if name.startswith(".") or f".{name}.crc" not in known:
                continue
            with suppress(FileNotFoundError):  # removed meanwhile
                if reason := _damaged_chunk(f"{inside}/{name}", f"{inside}/.{name}.crc"):
                    yield f"{inside}/{name}", reason


def _damaged_chunk(path: str, sums_path: str) -> str:
    """As `_difference`, for a file that may be large."""
    with open(sums_path, "rb") as file:
        sums = file.read()
    if len(sums) < _HEAD.size or _HEAD.unpack_from(sums) != (_MAGIC, CHUNK):
        return "its checksums are damaged"
    with open(path, "rb") as file:
        place = _HEAD.size
        while chunk := file.read(CHUNK):
            if sums[place : place + 4] != struct.pack(">I", zlib.crc32(chunk)):
                return f"it does not match its checksums from byte {(place - _HEAD.size) // 4 * CHUNK} on"
            place += 4
    return "" if place == len(sums) else "it is shorter than its checksums say"


# Spark writes an entry into ".0.<uuid>.tmp", with Hadoop's checksums in "..0.<uuid>.tmp.crc", and renames it.
_UNFINISHED = re.compile(r"\.{1,2}\d+\.[0-9a-f-]+\.tmp(\.crc)?")


def _mend(checkpoint: str, planned: set[int], committed: set[int], in_sink: int) -> None:
    """Remove damaged entries that can be written again, and unfinished ones of a run that was killed: with one of these Spark
    refuses to begin."""
    for log in ("offsets", "commits"):
        with suppress(FileNotFoundError):
            for name in filter(_UNFINISHED.fullmatch, os.listdir(f"{checkpoint}/{log}")):
                os.remove(f"{checkpoint}/{log}/{name}")
    last = max(planned, default=-1)
    if last > max(committed, default=-1) and last > in_sink and _damage(checkpoint, "offsets", last):
        _forget(f"{checkpoint}/offsets", last)
        planned.remove(last)
    done = max(committed, default=-1)
    if done in planned and _damage(checkpoint, "commits", done):
        _forget(f"{checkpoint}/commits", done)
        committed.remove(done)


def _check_sizes(folder: str, version: int) -> None:
    """Check the sizes of state files: they are large, Spark reads them in parts, and may accept a truncated one.

    A file named after a later version belongs to a batch that is replayed, which writes it again; a name that begins
    with a dot is a temporary file of a run that was killed.
    """
    for inside, _, names in os.walk(folder):
        known = set(names)
        for name in names:
            number = name.partition(".")[0]
            if name.startswith(".") or f".{name}.crc" not in known or (number.isdigit() and int(number) > version):
                continue
            size, sums = os.path.getsize(f"{inside}/{name}"), os.path.getsize(f"{inside}/.{name}.crc")
            if sums != _HEAD.size + 4 * -(-size // CHUNK):
                raise _damage_error(f"{inside}/{name}", f"Its size, {size} bytes, does not match its checksums.")


def _damage_error(path: str, detail: str) -> CorruptHome:
    return CorruptHome(f'the checkpoint file "{path}" is damaged', detail=detail, hint=_HINT, path=path)


def _numbers(checkpoint: str, log: str) -> set[int]:
    try:
        return {int(name) for name in os.listdir(f"{checkpoint}/{log}") if name.isdigit()}
    except FileNotFoundError:
        return set()


def _forget(log: str, number: int) -> None:
    for name in (f"{number}", f".{number}.crc"):
        with suppress(FileNotFoundError):
            os.remove(f"{log}/{name}")


def _damage(checkpoint: str, log: str, name: object) -> str:
    """What is wrong with a file of the checkpoint; empty if nothing is."""
    folder = f"{checkpoint}/{log}" if log else checkpoint
    try:
        with open(f"{folder}/{name}", "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return "It is missing."
    try:
        with open(f"{folder}/.{name}.crc", "rb") as file:
            sums = file.read()
    except FileNotFoundError:
        # A user's own session may write no checksums.
        return _nonsense(content, log)
    return _difference(content, sums) or _nonsense(content, log)


def _difference(content: bytes, sums: bytes) -> str:
    if len(sums) < _HEAD.size or _HEAD.unpack_from(sums) != (_MAGIC, CHUNK):
        return "Its checksums are damaged."
    chunks = [content[first : first + CHUNK] for first in range(0, len(content), CHUNK)]
    expected = b"".join(struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return "" if expected == sums[_HEAD.size :] else "It does not match its checksums."


def _nonsense(content: bytes, log: str) -> str:
    """What is wrong with the content: for a file without checksums."""
    version, *lines = content.split(b"\n")
    try:
        read = [json.loads(line) for line in (lines if log else [version])]
    except ValueError:
        return "It is not valid JSON."
    if log and (not version.startswith(b"v") or len(read) < (2 if log == "offsets" else 1)):
        return f"It is not an entry of {log}."
    return ""
