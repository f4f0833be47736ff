"""The view source: a view's changes as a streaming source for Spark.

    offset  {"view": "revenue", "id": "5f..", "position": 900, "applied": {"orders": {"0": 512}}}   changes up to here are in
            {"view": "revenue", "id": "5f..", "position": 900, "snapshot": "....parquet", ...}      begin with these rows

The id identifies the view, in case it is dropped and created again. Positions go through all versions of a
view; the same range gives the same rows at every replay. If the first changes are no longer kept, a new reader starts
with a snapshot, which is written before the first batch.

`applied` has the offsets that the view had applied of its own topics at its last change up to the position. It is passed on to
the sinks that are computed from these changes, so that a token of a topic is valid there too. Records that changed nothing
in the view advance it as well: a batch without rows reports them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from mainstem.batch import FlowRun
from mainstem.errors import Conflict, FellOff
from mainstem.log.record import record_array
from mainstem.spark.checkpoint.flow_store import check_epoch
from mainstem.spark.sources.batch_pace import BatchPause
from mainstem.spark.sources.topic_request import OPTION
from mainstem.spark.sources.worker_memory import spare_collections
from mainstem.views.home_views import ADDRESS, backend_at
from mainstem.views.view import View
from mainstem.views.view_store import CommitWatch

__all__ = ["ViewSource"]

CHANGES_MAX = 200_000

# Topic -> partition, as text -> the applied offset.
Applied = dict[str, dict[str, int]]
PIECE = 20_000


class ViewSource(DataSource):
    """`spark.readStream.format("mainstem_view")`; see `SparkView.stream`."""

    @classmethod
    def name(cls) -> str:
        return "mainstem_view"

    def streamReader(self, schema: StructType) -> ViewStreamReader:  # noqa: N802 - Spark's name
        return ViewStreamReader(json.loads(self.options[OPTION]), self.options.get(ADDRESS))


@lru_cache(maxsize=16)
def open_view(home: str, name: str, address: str | None) -> View:
    return View(home, name, backend=backend_at(home, address))


def _read_status(view: View) -> tuple[int, Applied]:
    """The position of a view's last change, and its applied offsets; empty if the view does not exist yet."""
    if not view.exists:
        return 0, {}
    position, applied = view.status()
    written = {topic: {str(number): end for number, end in sorted(ends.items())} for topic, ends in applied.items()}
    return position, dict(sorted(written.items()))


class ViewRange(InputPartition):
    """Changes after one position up to another."""

    def __init__(self, start: dict[str, Any], end: int) -> None:
        super().__init__((start, end))
        self.start, self.end = start, end


class ViewStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes of a view, batch by batch."""

    def __init__(self, request: dict[str, Any], address: str | None) -> None:
        self._request = request
        self._address = address
        self._limit: tuple[int, Applied] | None = None
        self._watch: CommitWatch | None = None
        self._pause = BatchPause(request.get("together", ""))
        # Whether the last batch left changes that its limit did not allow.
        self._behind = False

    def __getstate__(self) -> dict[str, Any]:
        # Workers get only the request.
        return {"_request": self._request, "_address": self._address}

    def _view(self) -> View:
        return open_view(self._request["home"], self._request["view"], self._address)

    def _check(self) -> View:
        request = self._request
        if request["flow"]:
            check_epoch(request["home"], FlowRun(request["flow"], request["epoch"], request["version"]))
        return self._view()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names from here on
        view = self._check()
        if not view.exists:
            return self._offset(0)
        try:
            view.changes_between(0, 1, 1)
        except FellOff:
            folder = f"{self._request['home']}/flows/{self._request['flow'] or '.unnamed'}/snapshots"
            path = view.export(folder)
            # The file's name has the position of the snapshot.
            position = int(os.path.basename(path).rsplit("-", 2)[1])
            return {**self._offset(position), "snapshot": path}
        return self._offset(0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._limit = _read_status(self._check())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        view = self._check()
        self._check_same(view, start)
        last, applied = self._read_status(view)
        if not self._news(start, last, applied) and "snapshot" not in start and self._limit is None:
            if self._watch is None and view.exists:
                self._watch = view.watch()
            elif self._watch is not None:
                self._watch.wait(self._request["wait_ms"] / 1000)
            last, applied = self._read_status(view)
        if self._limit is None and not self._behind and self._news(start, last, applied):
            if not self._pause.wait():
                return start
            last, applied = self._read_status(view)
        self._behind = last > start["position"] + CHANGES_MAX
        reached = max(start["position"], min(last, start["position"] + CHANGES_MAX))
        # If the batch ends before the last change, only the earlier applied offsets are certain.
        return self._offset(reached, start.get("id", ""), applied if reached >= last else start.get("applied", {}))

    def _read_status(self, view: View) -> tuple[int, Applied]:
        if self._limit is not None:
            return self._limit
        return _read_status(view)

    def _news(self, start: dict[str, Any], last: int, applied: Applied) -> bool:
        return bool(last > start["position"] or applied != start.get("applied", {}))

    def _offset(self, position: int, known: str = "", applied: Applied | None = None) -> dict[str, Any]:
        view = self._view()
        made = view.id if view.exists else known
        return {"view": view.name, "id": made, "position": position, "applied": applied or {}}

    def _check_same(self, view: View, offset: dict[str, Any]) -> None:
        """Raise `Conflict` if the view was created again: its positions start from 1."""
        known = offset.get("id", "")
        if known and (not view.exists or view.id != known):
            raise Conflict(
                f'view "{view.name}" is not the one that flow "{self._request["flow"]}" has read so far',
                detail="It was dropped and created again since: its changes are numbered from the start.",
                hint="Start over: delete the flow's checkpoint and what it has written.",
            )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._check()
        return [ViewRange(start, end["position"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ViewRange)
        spare_collections()
        view = self._check()
        columns = self._request["columns"]
        if "snapshot" in partition.start:
            for batch in pq.ParquetFile(partition.start["snapshot"]).iter_batches(PIECE):
                # A change at position p has the offsets 2p and 2p + 1: the snapshot comes before every later change.
                places = np.full(batch.num_rows, 2 * partition.start["position"] + 1, np.int64)
                record = record_array(0, places, 0, count=batch.num_rows)
                names = [*batch.schema.names, "record"]
                yield pa.RecordBatch.from_arrays([*batch.columns, record], names=names).select(columns)
        position = partition.start["position"]
        while position < partition.end:
            changes = view.changes_between(position, partition.end, PIECE)
            for batch in changes.rows.select(columns).combine_chunks().to_batches():
                yield batch
            if changes.end == position:
                return
            position = changes.end

    def stop(self) -> None:
        self._pause.close()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
