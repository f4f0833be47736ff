"""Rows of a sealed segment: the same whether their offsets have gaps, are known from the footer, or are cut to a range."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mainstem.durable_files import REAL_FILES
from mainstem.log.embedded.read import sealed_segment
from mainstem.log.embedded.read.sealed_segment import (
    RECORD_COLUMNS,
    SEALED_RECORD,
    read_sealed,
    sealed_schema,
    write_sealed,
)

SCHEMA = sealed_schema(pa.schema([("n", pa.int64()), ("text", pa.string())]))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def batch(offsets: list[int]) -> pa.RecordBatch:
    records = [
        {
            "partition": 0,
            "offset": at,
            "appended_at": NOON,
            "change": "insert",
            "headers": [{"key": "k", "value": b"v"}],
        }
        for at in offsets
    ]
    columns = [pa.array(offsets), pa.array([str(at) for at in offsets]), pa.array(records, SEALED_RECORD)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@pytest.mark.parametrize("gaps", [False, True])
def test_rows_have_their_own_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gaps: bool) -> None:
    monkeypatch.setattr(sealed_segment, "ROW_GROUP_ROWS", 10)
    # Of three row groups, the one in the middle has gaps or not.
    middle = range(20, 40, 2) if gaps else range(20, 30)
    groups = [list(range(10, 20)), list(middle), list(range(40, 50))]
    offsets = [at for group in groups for at in group]
    path = str(tmp_path / "segment.parquet")
    write_sealed(REAL_FILES, path, SCHEMA, [batch(group) for group in groups])

    def found(start: int, stop: int | None, columns: list[str], leaves: list[str]) -> list[dict[str, Any]]:
        parts = read_sealed(REAL_FILES, path, columns=columns, start=start, stop=stop, record_columns=leaves)
        return [row for part in parts for row in part.to_pylist()]

    for start, stop in ((0, None), (13, 45), (24, 26), (29, 30)):
        wanted = [at for at in offsets if start <= at and (stop is None or at < stop)]
        rows = found(start, stop, ["text"], RECORD_COLUMNS)
        assert [(row["text"], row["record"]["offset"]) for row in rows] == [(str(at), at) for at in wanted]
        assert all(list(row["record"]) == [leaf.removeprefix("record.") for leaf in RECORD_COLUMNS] for row in rows)
        assert all(row["record"]["headers"] == [{"key": "k", "value": b"v"}] for row in rows)
        assert found(start, stop, [], ["record.offset"]) == [{"record": {"offset": at}} for at in wanted]
