"""What a batch read of each source: offsets, records, watermarks and lag, from Spark's report on it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from mainstem.clock import as_datetime
from mainstem.flows.flow_handle import FlowHandle, PartitionProgress, SourceProgress
from mainstem.flows.flow_waits import offsets_by_topic, reached_times
from mainstem.log.lag import Lag
from mainstem.log.log import Promise
from mainstem.log.watermark import NO_TIME
from mainstem.spark.checkpoint.checkpoint_offsets import source_offsets
from mainstem.spark.checkpoint.flow_store import FlowStore

if TYPE_CHECKING:
    from mainstem.spark.build import Leaf
    from mainstem.stem import Mainstem

__all__ = ["BatchSource", "batch_sources", "lag_after", "source_progress"]

VIEW, TOPICS = "view ", "topics "


@dataclass(frozen=True)
class BatchSource:
    """A source of a batch: its offsets before and after it, as the source writes them, and the rows that Spark counted."""

    start: dict[str, Any]
    end: dict[str, Any]
    rows: int


def batch_sources(stem: Mainstem, handle: FlowHandle, said: dict[str, Any]) -> list[BatchSource]:
    """The sources of the batch that Spark reports."""
    given = said.get("sources") or []
    starts, ends = ([_content(source.get(name)) for source in given] for name in ("startOffset", "endOffset"))
    if handle.run is not None and (
        any("logOffset" in offset for offset in (*starts, *ends)) or handle.planned.flow.mode == "real-time"
    ):
        # A batch of sealed files or of Spark's own source: the checkpoint has its offsets in the log.
        checkpoint = FlowStore(stem.home, handle.name).checkpoint(handle.run.version)
        number = said["batchId"]
        starts, ends = (list(source_offsets(checkpoint, batch)) for batch in (number - 1, number))
    counts = [source.get("numInputRows") or 0 for source in given]
    return [
        BatchSource(start or {}, end, rows or 0)
        for start, end, rows in zip_longest(starts, ends, counts)
        if end is not None and end
    ]


def _content(offset: Any) -> dict[str, Any]:
    found = json.loads(offset) if isinstance(offset, str) else offset
    return found if isinstance(found, dict) else {}


def lag_after(stem: Mainstem, sources: list[BatchSource]) -> Lag:
    """The lag of the flow after the batch."""
    parts = []
    for source in sources:
        for topic, offsets in offsets_by_topic(source.end).items():
            backend = stem.log.open_topic(topic)
            parts += [backend.behind(int(number), offset) for number, offset in offsets.items()]
    return Lag.total(parts)


def source_progress(
    stem: Mainstem, handle: FlowHandle, sources: list[BatchSource], rows_read: int | None
) -> tuple[SourceProgress, ...]:
    """What the batch read of each topic and view. `rows_read`: the rows of all of them, if Spark does not know it."""
    found: list[SourceProgress] = []
    for source in sources:
        if "view" in source.end:
            positions = PartitionProgress(0, source.start.get("position", 0), source.end["position"])
            found.append(SourceProgress(f"{VIEW}{source.end['view']}", source.rows, (positions,)))
            continue
        before, after = offsets_by_topic(source.start), offsets_by_topic(source.end)
        for topic, ends in after.items():
            partitions = _partitions(stem, handle, source, topic, before.get(topic, {}), ends)
            records = source.rows
            if rows_read is not None or len(after) > 1:
                # Spark knows the rows of a pattern as a whole; of columns, it knows none.
                records = sum(part.stop - part.start for part in partitions if part.start is not None)
            found.append(SourceProgress(topic, records, partitions))
    if rows_read is not None and len(found) == 1:
        return (SourceProgress(found[0].source, rows_read, found[0].partitions),)
    return tuple(found)


def _partitions(
    stem: Mainstem, handle: FlowHandle, source: BatchSource, topic: str, before: dict[str, int], ends: dict[str, int]
) -> tuple[PartitionProgress, ...]:
    leaf = _leaf(handle, source, topic)
    delay = source.end.get("delay", None if leaf is None else leaf.delay)
    times: dict[int, int] = {}
    if delay is not None and ("times" in source.end or Promise.WATERMARKS in stem.log.promises):
        times = reached_times(stem.log, source.end, topic, delay)
    found = []
    for name, stop in sorted(ends.items(), key=lambda item: int(item[0])):
        number, at = int(name), times.get(int(name), NO_TIME)
        start = before.get(name)
        if start is None and (before or (leaf is not None and leaf.from_earliest)):
            # The first batch, or a partition that was added since.
            start = min(stop, stem.log.open_topic(topic).earliest(number))
        found.append(PartitionProgress(number, start, stop, None if at == NO_TIME else as_datetime(at)))
    return tuple(found)


def _leaf(handle: FlowHandle, source: BatchSource, topic: str) -> Leaf | None:
    name = f"{TOPICS}{source.end['glob']}" if "glob" in source.end else topic
    return next((leaf for leaf in handle.planned.leaves.values() if leaf.source == name), None)
