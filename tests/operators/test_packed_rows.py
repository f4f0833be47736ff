"""Rows that a reader packs for a stage: all of them come out again, prepared, each in the bucket that Spark would give it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mainstem.errors import Invalid
from mainstem.log.record import EVENT_TIME_MARK, RECORD_MARK
from mainstem.log.watermark import WATERMARKED_RECORD
from mainstem.operators.joins.join_results import INPUT_COLUMNS
from mainstem.operators.joins.join_rows import JoinSide
from mainstem.operators.joins.join_terms import LEFT
from mainstem.operators.stage import packed_rows
from mainstem.operators.stage.packed_reader import packing_of, to_option
from mainstem.operators.stage.packed_rows import PACKED, Packing, unpack
from mainstem.operators.stage.spark_hashes import buckets_of
from mainstem.operators.windows.window_time import RowTime
from mainstem.spark import columnar_rows

TIME = pa.timestamp("us", "UTC")
READ = pa.schema([("id", pa.int64()), ("at", TIME), ("kind", pa.string()), ("record", WATERMARKED_RECORD)])
# As the program has them: "id" is called "order" there, and "change" is taken from the record.
SIDE = JoinSide(
    pa.schema([
        ("order", pa.int64()), pa.field("at", TIME, metadata=EVENT_TIME_MARK), ("change", pa.string()),
        pa.field("record", WATERMARKED_RECORD, metadata=RECORD_MARK),
    ]),
    ("order",), RowTime(("at",)), LEFT, pa.struct([("city", pa.string())]),
)  # fmt: skip
TAKEN = pa.schema([*INPUT_COLUMNS, ("left", SIDE.row_type), ("right", SIDE.other)])
COLUMNS = tuple((name, ["column", *path.split(".")]) for name, path in
                {"order": "id", "at": "at", "change": "record.change", "record": "record"}.items())  # fmt: skip
WANTED = ["=", ["column", "kind"], ["literal", "string", "order"]]
BUCKETS = 5


def blocks() -> list[pa.RecordBatch]:
    """Many small ones; every tenth row has no key, every third is of another kind."""
    found = []
    for start in range(0, 300, 7):
        rows = [
            {
                "id": None if number % 10 == 0 else number % 40, "at": number * 1000,
                "kind": "other" if number % 3 == 0 else "order",
                "record": {"partition": 1, "offset": number, "change": "insert", "watermark": number},
            }
            for number in range(start, min(start + 7, 300))
        ]  # fmt: skip
        found.append(pa.RecordBatch.from_pylist(rows, READ))
    return found


def packing(folder: str = "") -> Packing:
    """As the reader gets it."""
    sent = Packing(READ, COLUMNS, WANTED, SIDE, TAKEN, BUCKETS, 7, folder)
    return packing_of(to_option(sent))


def differences(folder: str = "") -> list[str]:
    """What is wrong with what comes out."""
    found = []
    by_bucket: dict[int, list[pa.RecordBatch]] = {}
    for batch in packing(folder).pack(blocks()):
        for place in range(batch.num_rows):
            by_bucket.setdefault(batch.column(0)[place].as_py(), []).append(batch.slice(place, 1))
    seen: list[Any] = []
    counted = 0
    for bucket, values in by_bucket.items():
        nothing = [pa.array([bucket], pa.int32()), pa.array([b""]), pa.array([0]), pa.array([7], pa.int32())]
        marker = pa.RecordBatch.from_arrays(nothing, schema=PACKED)
        number, rows, given = unpack([marker, *values, marker], TAKEN, 99)
        counted += given
        if number != bucket:
            found.append(f"bucket {bucket} is taken for {number}")
        if rows.schema != TAKEN:
            found.append(f"columns {rows.schema}")
        if set(buckets_of(np.asarray(rows.column("group")), BUCKETS).tolist()) != {bucket}:
            found.append(f"bucket {bucket} has rows of others")
        if rows.column("right").null_count != rows.num_rows:
            found.append("the other side is not null")
        seen += zip(rows.column("offset").to_pylist(), rows.column("left").to_pylist(), strict=True)
        if any(keyed != (row["order"] is not None) for keyed, row in
               zip(rows.column("keyed").to_pylist(), rows.column("left").to_pylist(), strict=True)):  # fmt: skip
            found.append("a key is told wrongly")
    wanted = [number for number in range(300) if number % 3]
    if counted != len(seen):
        found.append(f"{len(seen)} rows are told as {counted}")
    if sorted(offset for offset, _ in seen) != wanted:
        found.append("other rows than were asked for")
    if any(row["order"] != (None if offset % 10 == 0 else offset % 40) for offset, row in seen):
        found.append("a row has another one's columns")
    if any(row["change"] != "insert" or row["at"].microsecond != offset % 1000 * 1000 for offset, row in seen):
        found.append("a column is not what it was")
    return found


def test_all_rows_come_out_in_their_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    [together] = packing().pack(blocks())
    assert differences() == []
    # In several values each, too: a value has some bytes at most.
    monkeypatch.setattr(packed_rows, "VALUE_BYTES", 1000)
    [divided] = packing().pack(blocks())
    assert divided.num_rows > 3 * together.num_rows
    assert max(len(value.as_py()) for value in divided.column(1)) < max(
        len(value.as_py()) for value in together.column(1)
    )
    assert differences() == []
    monkeypatch.setattr(packed_rows, "ROWS", 20)
    assert len(list(packing().pack(blocks()))) > 10
    assert differences() == []
    assert list(packing().pack([])) == []


def test_many_rows_go_into_a_file_that_only_its_owner_may_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "sent 1" / "2"
    assert differences(str(folder)) == []
    assert not folder.exists()
    monkeypatch.setattr(packed_rows, "VALUE_BYTES_MAX", 1000)
    [values] = packing(str(folder)).pack(blocks())
    [file] = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert all(value.as_py().decode().endswith(f" {file}") for value in values.column(1))
    assert values.num_rows == BUCKETS
    assert differences(str(folder)) == []


@pytest.mark.parametrize("mutant", ["one bucket too far", "all rows wanted", "the last is left out"])
def test_what_is_packed_wrongly_is_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant == "one bucket too far":
        monkeypatch.setattr(packed_rows, "buckets_of", lambda groups, count: (buckets_of(groups, count) + 1) % count)
    elif mutant == "all rows wanted":
        monkeypatch.setattr(columnar_rows, "condition_mask", lambda condition, rows: pa.array([True] * rows.num_rows))
    else:
        gathered = packed_rows.gather_rows
        monkeypatch.setattr(
            packed_rows, "gather_rows", lambda batches, rows_min: (rows[:-1] for rows in gathered(batches, rows_min))
        )
    assert differences()


def test_only_kinds_that_are_listed_are_made_from_an_option() -> None:
    assert packing() == Packing(READ, COLUMNS, WANTED, SIDE, TAKEN, BUCKETS, 7)

    @dataclass(frozen=True)
    class JoinSide:
        def arrow(self, table: pa.Table) -> pa.Table:
            return table

    with pytest.raises(Invalid, match="JoinSide cannot be passed to a Spark source"):
        to_option(Packing(READ, COLUMNS, WANTED, JoinSide(), TAKEN, BUCKETS, 7))
    with pytest.raises(KeyError):
        packing_of('{"kind": "os:system", "fields": {}}')
