"""Whether what a checkpoint says can be believed: looked at before Spark goes on from it.

    metadata                    who the checkpoint is
    offsets/<batch>             a version, metadata and one line for each source; written before the batch runs
    commits/<batch>             a version and metadata; written after it
    state/<operator>/<part>/    what Spark's operators keep
    .<name>.crc                 beside each file: "crc\\0", bytes in a chunk (u32), the CRC-32 of each chunk (u32), big-endian

Spark checks a file against its checksums when it reads it. But one that was cut where a chunk ends is taken as it is, and
a log whose last entry is gone is taken for a shorter one: rows would be skipped or counted twice. So before it starts:

- every entry that Spark will look at is whole: where it began, where it ended, and what is committed;
- no batch is committed, or held by the sink, that is not planned: its number would be given out again, for other rows;
- the sink holds every batch that is committed (`sink_rows` says which ones had rows, where it keeps no account of the
  others): else it is older than the checkpoint, and what it lacks would never be written again.

Two things are mended, since nothing can be lost by it. The entry of a batch that was planned, but which the sink does not
hold (a power cut leaves it empty), is removed: the batch is planned anew. A damaged commit is removed: its batch is done
again, and the sink knows it. All else is refused.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

from mainstem.errors import CorruptHome
from mainstem.log_on_spark.sink_rows import last_with_rows

__all__ = ["check_checkpoint", "checkpoint_id", "damaged_files"]

_HEAD = struct.Struct(">4sI")
_MAGIC = b"crc\0"
# Hadoop's default, and there is no reason to change it.
CHUNK = 512
_ANEW = "Or begin anew: delete the checkpoint together with what the flow has written; the next run makes both again from the log."
_HINT = f"Restore the checkpoint from a copy. {_ANEW}"


def checkpoint_id(checkpoint: str) -> str:
    """Who a checkpoint is: another one, made in the same place, has another id."""
    with open(f"{checkpoint}/metadata", encoding="utf-8") as file:
        return str(json.load(file)["id"])


def check_checkpoint(
    checkpoint: str, held: int, *, accounts: Literal["every batch", "rows"] = "rows", otherwise: str = ""
) -> None:
    """Raise `CorruptHome` if Spark must not go on from here.

    `held` is the last batch that the sink has, -1 for none; `accounts` says whether it keeps account of every batch, or
    only of those that had rows for it. `otherwise` says what can be done if the sink is older and no copy is there.
    """
    planned, committed = _numbers(checkpoint, "offsets"), _numbers(checkpoint, "commits")
    _mend(checkpoint, planned, committed, held)
    last, done = max(planned, default=-1), max(committed, default=-1)
    if last < done:
        raise _refused(f"{checkpoint}/offsets", f"Batch {done} is committed, but planned are only those up to {last}.")
    if last < held:
        raise _refused(
            f"{checkpoint}/offsets", f"The sink holds batch {held}, but planned are only those up to {last}."
        )
    # A batch is planned when the one before it is committed, also if that commit was found damaged.
    finished = max(done, last - 1)
    expected = finished if accounts == "every batch" else last_with_rows(checkpoint, finished)
    if held < expected:
        raise CorruptHome(
            f'the sink is older than the checkpoint "{checkpoint}"',
            detail=f"Batch {expected} is committed, but the sink holds only those up to {held}: it was restored from an "
            "older copy, or is another one. The rows of the missing batches would never be written again.",
            hint=f"Restore a copy of the sink that holds batch {expected}, or a copy of the checkpoint from the same moment "
            f"as the sink. {otherwise or _ANEW}",
            path=checkpoint,
        )
    # A batch is what lies between the entry before and its own.
    for number in (last - 1, last):
        if number >= 0 and (reason := _damage(checkpoint, "offsets", number)):
            raise _refused(f"{checkpoint}/offsets/{number}", reason)
    if os.path.exists(f"{checkpoint}/metadata") and (reason := _damage(checkpoint, "", "metadata")):
        raise _refused(f"{checkpoint}/metadata", reason)
    _check_sizes(f"{checkpoint}/state", done + 1)


def damaged_files(checkpoint: str) -> Iterator[tuple[str, str]]:
    """Every file of a checkpoint that is not what Spark's checksums beside it say, and what is wrong with it."""
    for inside, _, names in os.walk(checkpoint):
        known = set(names)
        for name in sorted(known):
            if name.startswith(".") or f".{name}.crc" not in known:
                continue
            with suppress(FileNotFoundError):  # removed meanwhile
                if reason := _damaged_chunk(f"{inside}/{name}", f"{inside}/.{name}.crc"):
                    yield f"{inside}/{name}", reason


def _damaged_chunk(path: str, sums_path: str) -> str:
    """The same as `_difference`, of a file that may be large."""
    with open(sums_path, "rb") as file:
        sums = file.read()
    if len(sums) < _HEAD.size or _HEAD.unpack_from(sums) != (_MAGIC, CHUNK):
        return "its checksums are damaged"
    with open(path, "rb") as file:
        place = _HEAD.size
        while chunk := file.read(CHUNK):
            if sums[place : place + 4] != struct.pack(">I", zlib.crc32(chunk)):
                return f"it is not what its checksums say, from byte {(place - _HEAD.size) // 4 * CHUNK} on"
            place += 4
    return "" if place == len(sums) else "it has fewer bytes than it has checksums for"


def _mend(checkpoint: str, planned: set[int], committed: set[int], held: int) -> None:
    """Remove what stands in the way and can be made again."""
    last = max(planned, default=-1)
    if last > max(committed, default=-1) and last > held and _damage(checkpoint, "offsets", last):
        _forget(f"{checkpoint}/offsets", last)
        planned.remove(last)
    done = max(committed, default=-1)
    if done in planned and _damage(checkpoint, "commits", done):
        _forget(f"{checkpoint}/commits", done)
        committed.remove(done)


def _check_sizes(folder: str, version: int) -> None:
    """Files of state are large, and Spark reads what it needs of them; but one that was cut it may take for whole.

    What is named after a later version belongs to a batch that is done again, and is written again with it; what begins
    with a dot was being written when a run was killed.
    """
    for inside, _, names in os.walk(folder):
        known = set(names)
        for name in names:
            number = name.partition(".")[0]
            if name.startswith(".") or f".{name}.crc" not in known or (number.isdigit() and int(number) > version):
                continue
            size, sums = os.path.getsize(f"{inside}/{name}"), os.path.getsize(f"{inside}/.{name}.crc")
            if sums != _HEAD.size + 4 * -(-size // CHUNK):
                raise _refused(f"{inside}/{name}", f"Its {size} bytes are not as many as it has checksums for.")


def _refused(path: str, detail: str) -> CorruptHome:
    return CorruptHome(f'the checkpoint file "{path}" cannot be right', detail=detail, hint=_HINT, path=path)


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
        # A session of somebody else's may have written it so.
        return _nonsense(content, log)
    return _difference(content, sums) or _nonsense(content, log)


def _difference(content: bytes, sums: bytes) -> str:
    if len(sums) < _HEAD.size or _HEAD.unpack_from(sums) != (_MAGIC, CHUNK):
        return "Its checksums are damaged."
    chunks = [content[first : first + CHUNK] for first in range(0, len(content), CHUNK)]
    expected = b"".join(struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return "" if expected == sums[_HEAD.size :] else "It is not what its checksums say."


def _nonsense(content: bytes, log: str) -> str:
    """What is wrong by the look of it: for a file without checksums."""
    version, *lines = content.split(b"\n")
    try:
        read = [json.loads(line) for line in (lines if log else [version])]
    except ValueError:
        return "It does not read as JSON."
    if log and (not version.startswith(b"v") or len(read) < (2 if log == "offsets" else 1)):
        return f"It is no entry of {log}."
    return ""
