"""BatchReports: which offsets each batch of a flow read, and its watermark, from `mainstem.progress`."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mainstem.clock import as_us
from mainstem.flows.progress_rows import PROGRESS_TOPIC
from mainstem.flows.why.traced_rows import Inexact
from mainstem.log.log import Log
from mainstem.log.topic import Topic
from mainstem.log.watermark import NO_TIME

__all__ = ["UNKNOWN", "BatchReport", "BatchReports"]

Ranges = Mapping[str, Mapping[int, tuple[int, int]]]
# The offsets at which sources were read first, as a lineage has them: by source and partition.
Starts = Mapping[str, Mapping[str, int]]
# In place of the first offset of a source, if it is not known.
UNKNOWN = -1


@dataclass(frozen=True)
class BatchReport:
    """One batch: from which offset of each partition up to which (not included), by source."""

    batch: int
    ranges: Ranges
    watermark: int


class BatchReports:
    """The batches of one version of a flow, in order; those that were reported twice once."""

    def __init__(self, reports: Sequence[BatchReport], starts: Starts | None = None) -> None:
        self._starts = starts or {}
        self._reports = sorted({it.batch: it for it in reports}.values(), key=lambda it: it.batch)
        self._numbers = [it.batch for it in self._reports]

    @classmethod
    def read(cls, log: Log, flow: str, version: int, starts: Starts | None = None) -> BatchReports:
        """The reports that are kept."""
        if PROGRESS_TOPIC not in log.topic_names():
            return cls([], starts)
        rows = Topic(log, log.open_topic(PROGRESS_TOPIC)).to_arrow(
            columns=["flow", "version", "batch", "watermark", "sources"]
        )
        chosen = [row for row in rows.to_pylist() if row["flow"] == flow and row["version"] == version]
        return cls([_report(row) for row in chosen], starts)

    def ranges(self, batch: int | None) -> Ranges:
        """The offsets of one batch; empty if they are not known."""
        found = None if batch is None else self._at(batch)
        known = {} if found is None else found.ranges
        return {
            source: {
                number: (self._first(source, number) if first == UNKNOWN else first, stop)
                for number, (first, stop) in spans.items()
                if first != UNKNOWN or self._first(source, number) != UNKNOWN
            }
            for source, spans in known.items()
        }

    def _first(self, source: str, partition: int) -> int:
        """The first offset that the flow read of a source, or UNKNOWN."""
        if self._reports and self._reports[0].batch == 0:
            spans = (it.ranges.get(source, {}).get(partition) for it in self._reports)
            first = next((span[0] for span in spans if span is not None), UNKNOWN)
            if first != UNKNOWN:
                return first
        return self._starts[source].get(str(partition), 0) if source in self._starts else UNKNOWN

    def spans(
        self, batch: int | None, applied: Mapping[str, Mapping[int, int]]
    ) -> dict[str, dict[int, tuple[int, int]]]:
        """What the flow had read of each source after a batch; `applied`: by now."""
        last = self._reports[-1].ranges if self._reports else {}
        reported = {source: {number: stop for number, (_, stop) in spans.items()} for source, spans in last.items()}
        found = {
            source: {number: (self._first(source, number), end) for number, end in ends.items()}
            for source, ends in {**reported, **applied}.items()
        }
        if batch is None:
            return found
        # A source that a batch did not read stood where the next one began, or the one before ended.
        for source, ends in found.items():
            for number, (first, end) in ends.items():
                ends[number] = first, min(end, self._stop(source, number, batch, end))
        return found

    def _stop(self, source: str, partition: int, batch: int, end: int) -> int:
        mine = self._at(batch)
        if mine is not None and (span := mine.ranges.get(source, {}).get(partition)) is not None:
            return span[1]
        place = bisect.bisect_right(self._numbers, batch)
        for report in self._reports[place:]:
            if (span := report.ranges.get(source, {}).get(partition)) is not None:
                return span[0]
        return end

    def watermark(self, batch: int | None) -> int | None:
        """The watermark of a batch; None if it is not known."""
        found = None if batch is None else self._at(batch)
        return None if found is None else found.watermark

    def knows_end(self, batch: int) -> bool:
        """Whether it is known how far the sources were read after a batch."""
        return self._at(batch) is not None or self._at(batch + 1) is not None

    def watermark_at(self, source: str, partition: int, offset: int) -> int:
        """The watermark by which Spark dropped late rows in the batch that read a record: that of the batch before. Raises
        `Inexact` if it is not known."""
        for report in self._reports:
            first, stop = report.ranges.get(source, {}).get(partition, (0, 0))
            if first <= offset < stop:
                before = self._at(report.batch - 1)
                if before is None and report.batch:
                    break
                return NO_TIME if before is None else before.watermark
        raise Inexact("the reports on its batches, by which Spark's late rows are known, are no longer kept")

    def _at(self, batch: int) -> BatchReport | None:
        place = bisect.bisect_left(self._numbers, batch)
        return self._reports[place] if place < len(self._numbers) and self._numbers[place] == batch else None


def _report(row: Mapping[str, Any]) -> BatchReport:
    ranges = {
        source["source"]: {
            it["partition"]: (UNKNOWN if it["start"] is None else it["start"], it["stop"])
            for it in source["partitions"] or ()
        }
        for source in row["sources"] or ()
    }
    return BatchReport(row["batch"], ranges, NO_TIME if row["watermark"] is None else as_us(row["watermark"]))
