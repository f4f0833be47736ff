"""A checkpoint as Spark writes it, what Spark would do with it, and what becomes of the rows then.

A flow reads a topic of one partition; batch n holds the records from ENDS[n-1] to ENDS[n]. The model follows Spark's own
rules: the last entry of `offsets` is done again unless it is committed, and a file whose checksums do not fit is an error.
"""

import json
import random
import struct
import zlib
from pathlib import Path

CONF = {"spark.sql.shuffle.partitions": "2", "padding": "x" * 700}
CHUNK = 512


def end_of(batch: int) -> int:
    """Where a batch ends: batches are not of one size."""
    return (batch + 1) * 100 + batch % 3


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    chunks = [content[first : first + CHUNK] for first in range(0, len(content), CHUNK)]
    sums = b"".join(struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\0" + struct.pack(">I", CHUNK) + sums)


def write_checkpoint(folder: Path, planned: int, committed: int) -> None:
    """The checkpoint of a flow that has planned and committed batches up to these numbers."""
    put(folder / "metadata", json.dumps({"id": "0000-1111"}).encode())
    for batch in range(planned + 1):
        metadata = json.dumps({"batchWatermarkMs": 0, "conf": CONF})
        offset = json.dumps({"topic": "orders", "offsets": {"0": end_of(batch)}})
        put(folder / "offsets" / str(batch), f"v1\n{metadata}\n{offset}".encode())
    for batch in range(committed + 1):
        put(folder / "commits" / str(batch), b'v1\n{"nextBatchWatermarkMs":0}')
        put(folder / "state" / "0" / "0" / f"{batch + 1}.changelog", bytes(range(256)) * 3)


def damage(folder: Path, chance: random.Random) -> str:
    """Truncate, delete or flip something; what was done."""
    logs = [folder / "offsets", folder / "commits"]
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and "state" not in path.parts)
    # What is at the end of a log matters most.
    last = [
        max((p for p in log.iterdir() if p.name.isdigit()), key=lambda p: int(p.name)) for log in logs if log.exists()
    ]
    path = chance.choice(last if chance.random() < 0.6 else paths)
    kind = chance.choice(
        ["truncate", "cut at a chunk", "empty", "delete", "delete with checksums", "flip", "many", "state"]
    )
    content = path.read_bytes()
    if kind == "truncate":
        path.write_bytes(content[: chance.randrange(max(1, len(content)))])
    elif kind == "cut at a chunk":
        path.write_bytes(content[:CHUNK])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "delete":
        path.unlink()
    elif kind == "delete with checksums":
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    elif kind == "flip":
        flipped = bytearray(content)
        flipped[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
    elif kind == "many":
        log = chance.choice(logs)
        for entry in sorted(log.iterdir()):
            if entry.name.lstrip(".").split(".")[0].isdigit() and chance.random() < 0.7:
                entry.unlink()
        return f"many of {log.name} deleted"
    else:
        path = next((folder / "state").rglob("1.changelog"), path)
        path.write_bytes(path.read_bytes()[:CHUNK])
    return f"{kind} {path.relative_to(folder)}"


class SparkRefuses(Exception):
    """Spark itself finds that something is wrong."""


def _read(path: Path) -> str:
    content = path.read_bytes()
    sums = path.with_name(f".{path.name}.crc")
    if sums.exists():
        known = sums.read_bytes()
        if len(known) < 8 or known[:4] != b"crc\0":
            raise SparkRefuses(path)
        size = struct.unpack(">I", known[4:8])[0]
        if not size:
            raise SparkRefuses(path)
        for number, first in enumerate(range(0, len(content), size)):
            if known[8 + 4 * number : 12 + 4 * number] != struct.pack(">I", zlib.crc32(content[first : first + size])):
                raise SparkRefuses(path)
    if not content:
        raise SparkRefuses(path)
    return content.decode(errors="replace")


def _end(folder: Path, batch: int) -> int:
    path = folder / "offsets" / str(batch)
    if not path.exists():
        raise SparkRefuses(path)
    lines = _read(path).split("\n")
    try:
        return int(json.loads(lines[2])["offsets"]["0"])
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise SparkRefuses(path) from error


def rows_after(folder: Path, held: int, latest: int) -> list[tuple[int, int]]:
    """The ranges of records that are in the sink after Spark has gone on from here, up to the topic's end."""
    numbers = {
        log: sorted(int(p.name) for p in (folder / log).glob("*") if p.name.isdigit()) for log in ("offsets", "commits")
    }
    ranges = [(0 if batch == 0 else end_of(batch - 1), end_of(batch)) for batch in range(held + 1)]
    if numbers["commits"]:
        _read(folder / "commits" / str(numbers["commits"][-1]))
    batch, start = 0, 0
    if numbers["offsets"]:
        last = numbers["offsets"][-1]
        before = 0 if last == 0 else _end(folder, last - 1)
        reached = _end(folder, last)
        if last not in numbers["commits"] and last > held:
            ranges.append((before, reached))
        batch, start = last + 1, reached
    if batch > held and start < latest:
        ranges.append((start, latest))
    return ranges


def wrong(ranges: list[tuple[int, int]], latest: int) -> str:
    """What is missing or there twice; empty if every record is there once."""
    reached = 0
    for first, end in sorted(ranges):
        if first != reached:
            return f"records {min(first, reached)} to {max(first, reached)} are {'missing' if first > reached else 'twice'}"
        reached = end
    return "" if reached == latest else f"records {reached} to {latest} are missing"
