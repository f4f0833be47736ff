"""BatchWatermarks: the watermark of each record as a flow's reports have it, for a log that does not record it (Kafka).

There a record's watermark is the one that the batch before its own had reached: see `spark/plan/observed_times`.

    batch       reads offsets       reached         its records have
    7           100 to 110          12:00:00        that of batch 6
    8           110 to 125          12:00:05        12:00:00
    -           125 on, not read                    12:00:05
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mainstem.clock import as_datetime, as_us
from mainstem.flows.progress_rows import PROGRESS_TOPIC
from mainstem.log.watermark import NO_TIME

if TYPE_CHECKING:
    from mainstem.stem import Mainstem

__all__ = ["BatchWatermarks"]

# The batch before the first one of a span is in the reports of this time before it.
BEFORE_US = 60_000_000


class BatchWatermarks:
    """The watermarks in the reports of one flow since a time, in microseconds."""

    def __init__(self, stem: Mainstem, flow: str, since: int) -> None:
        # Of each partition, the first offset of each batch, and the watermark of its records.
        self._parts: dict[tuple[str, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        # Watermark and time, a pair for each batch that reached one.
        self.line: list[tuple[int, int]] = []
        reached = NO_TIME
        ends: dict[tuple[str, int], int] = {}
        for row in _reports(stem, flow, since):
            for source in row["sources"] or ():
                for part in source["partitions"] or ():
                    starts, marks = self._parts[source["source"], part["partition"]]
                    # Null in the first report of a flow.
                    starts.append(part["start"] or 0)
                    marks.append(reached)
                    ends[source["source"], part["partition"]] = part["stop"]
            if row["watermark"] is not None:
                reached = max(reached, as_us(row["watermark"]))
                self.line.append((reached, as_us(row["at"])))
        for place, end in ends.items():
            self._parts[place][0].append(end)
            self._parts[place][1].append(reached)

    def of(self, topic: str, partition: int, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The watermark of each of these records; NO_TIME where it is not known."""
        starts, marks = self._parts.get((topic, partition), ([], []))
        places = np.searchsorted(np.asarray(starts, np.int64), offsets, side="right")
        return np.asarray([NO_TIME, *marks], np.int64)[places]


def _reports(stem: Mainstem, flow: str, since: int) -> list[dict[str, Any]]:
    """The reports of the flow's batches, oldest first."""
    if PROGRESS_TOPIC not in stem.topics():
        return []
    columns = ["flow", "epoch", "batch", "at", "watermark", "sources"]
    rows = stem.topic(PROGRESS_TOPIC).to_arrow(start=as_datetime(since - BEFORE_US), columns=columns).to_pylist()
    found = [row for row in rows if row["flow"] == flow and row["at"] is not None]
    return sorted(found, key=lambda row: (row["epoch"], row["batch"]))
