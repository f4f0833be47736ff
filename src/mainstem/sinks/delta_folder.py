"""DeltaFolder: the files of a Delta table on a local disk, for what deltalake leaves open.

    <table>/_delta_log/00000000000000000017.json    one commit: a line of JSON for each file that it adds or removes
    <table>/part-00000-<id>-c000.snappy.parquet     rows

Deltalake syncs neither to the disk, and does not notice missing files before it reads them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from functools import reduce
from operator import and_
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.types as kinds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError
from pyarrow import fs

from mainstem.durable_files import REAL_FILES, sync_file
from mainstem.sinks.delta_fence import FACTS

__all__ = ["commit_file", "dataset", "find_row", "has_its_files", "is_empty", "scanner", "sync_commit", "was_ours"]


def commit_file(path: str, version: int) -> str:
    """The file of a commit."""
    return f"{path}/_delta_log/{version:020}.json"


def sync_commit(path: str, version: int) -> None:
    """Bring a commit with its files to the disk: Delta leaves that to the operating system."""
    log = f"{path}/_delta_log"
    entry, checkpoint = commit_file(path, version), f"{log}/{version:020}.checkpoint.parquet"
    with open(entry, encoding="utf-8") as lines:
        added = [unquote(action["add"]["path"]) for line in lines if "add" in (action := json.loads(line))]
    for name in added:
        sync_file(REAL_FILES, f"{path}/{name}")
    sync_file(REAL_FILES, entry)
    if os.path.exists(checkpoint):
        sync_file(REAL_FILES, checkpoint)
    for folder in (path, log):
        REAL_FILES.sync_directory(folder)


def _files(table: DeltaTable) -> dict[str, int]:
    """The files of a table, with their sizes."""
    actions = pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pydict()
    return {unquote(path): size for path, size in zip(*actions.values(), strict=True)}


def has_its_files(table: DeltaTable, path: str) -> bool:
    """Whether all files of the table are there in full. They may not be, after a restored backup or a loss of power."""
    try:
        return all(os.stat(f"{path}/{name}").st_size == size for name, size in _files(table).items())
    except FileNotFoundError:
        return False


def is_empty(path: str) -> bool:
    """Whether there is nothing, or a folder in which a table is only about to be made."""
    try:
        found = os.listdir(path)
        log = os.listdir(f"{path}/_delta_log") if "_delta_log" in found else []
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False
    return set(found) <= {"_delta_log"} and not any(name.endswith((".json", ".parquet")) for name in log)


def was_ours(path: str) -> bool:
    """Whether a table that cannot be read was made by a flow."""
    try:
        names = sorted(os.listdir(f"{path}/_delta_log"), reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return False
    for name in names:
        if name.endswith(".json"):
            with open(f"{path}/_delta_log/{name}", "rb") as file:
                if f'"appId":"{FACTS}"'.encode() in file.read():
                    return True
    return False


def dataset(table: DeltaTable, path: str, schema: pa.Schema) -> ds.Dataset:
    """The files of a table, with these columns. Not `to_pyarrow_dataset`, which fails at a filter by text."""
    features = set(table.protocol().reader_features or ())
    if unread := features & {"deletionVectors", "columnMapping"}:
        raise DeltaProtocolError(f"the table has {', '.join(sorted(unread))}")
    files = [f"{path}/{name}" for name in _files(table)]
    return ds.dataset(files, schema=schema, format="parquet", filesystem=fs.LocalFileSystem())


def scanner(rows: ds.Dataset) -> ds.Scanner:
    """Reads a few batches at a time: memory does not grow with the table."""
    return rows.scanner(batch_readahead=2, fragment_readahead=1)


def find_row(rows: ds.Dataset, key: Mapping[str, pa.Scalar]) -> dict[str, Any] | None:
    """The row with this key; only row groups that may have it are read."""
    parts = [_equals(name, value) for name, value in key.items()]
    # The statistics of a file leave NaN out.
    values = {name: value.as_py() for name, value in key.items() if not _is_nan(value)}
    for file in rows.get_fragments():
        groups = [group.id for group in file.row_groups if _may_have(group.statistics or {}, values)]
        if groups:
            found = file.subset(row_group_ids=groups).to_table(schema=rows.schema, filter=reduce(and_, parts))
            if found.num_rows:
                return dict(found.to_pylist()[0])
    return None


def _is_nan(value: pa.Scalar) -> bool:
    return kinds.is_floating(value.type) and math.isnan(value.as_py())


def _equals(name: str, value: pa.Scalar) -> pc.Expression:
    column = ds.field(name)
    if _is_nan(value):
        return pc.is_nan(column)
    # Delta's files call text and bytes views of it, which Arrow cannot compare with anything else.
    other = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(value.type)
    return column == value if other is None else column.cast(other) == pa.scalar(value.as_py(), other)


def _may_have(statistics: Mapping[str, Any], key: Mapping[str, Any]) -> bool:
    """Whether a row group may have a row with this key."""
    for name, value in key.items():
        bounds = statistics.get(name)
        if bounds is not None and not bounds["min"] <= value <= bounds["max"]:
            return False
    return True
