"""BatchCut: where the next batch of a source ends, with admission control by rows and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mainstem.log.log import TopicBackend
from mainstem.log.steps import Steps
from mainstem.log_on_spark.aligned_cut import aligned_cut

__all__ = ["BatchCut", "Lane"]


class Lane(NamedTuple):
    """One partition of one topic."""

    backend: TopicBackend
    partition: int


class BatchCut:
    """Cuts batch after batch over the same lanes, which have numbers. For one thread."""

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._steps: dict[int, Steps] = {}

    def ends(self, lanes: Mapping[int, Lane], starts: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
        """Where the batch ends in each lane: at its end, if all of it is little enough, else at one event time."""
        rows = sum(ends[number] - starts[number] for number in lanes)
        rows_max = self._admitted(lanes, starts, rows)
        if rows <= rows_max:
            self._steps.clear()
            return {number: max(ends[number], starts[number]) for number in lanes}
        steps = {number: self._steps_from(number, lane, starts[number], rows_max) for number, lane in lanes.items()}

        def first_after(number: int, first: int, end: int, time: int) -> int:
            lane = lanes[number]
            return lane.backend.first_after(lane.partition, first, end, time)

        cut = aligned_cut({number: starts[number] for number in lanes}, steps, rows_max, first_after)
        return {
            number: min(end, ends[number]) if ends[number] > starts[number] else starts[number]
            for number, end in cut.items()
        }

    def rows_together(self, lanes: Mapping[int, Lane], starts: Mapping[int, int]) -> int:
        """How many rows a batch may have that cannot be divided: those of `bytes_max`."""
        behind = [lane.backend.behind(lane.partition, starts[number]) for number, lane in lanes.items()]
        rows, size = sum(lag.records for lag in behind), sum(lag.bytes for lag in behind)
        return max(1, self._bytes_max // max(1, size // max(1, rows)))

    def _steps_from(self, number: int, lane: Lane, start: int, rows_min: int) -> Steps:
        """Those that are known from the last batch are not looked up again."""
        known = self._steps.get(number, Steps.of([])).after(start)
        rows = int(known.rows.sum())
        if rows < rows_min:
            reached = int(known.ends[-1]) if len(known.ends) else start
            known = known.followed_by(lane.backend.steps(lane.partition, reached, rows_min - rows))
        self._steps[number] = known
        return known

    def _admitted(self, lanes: Mapping[int, Lane], starts: Mapping[int, int], rows: int) -> int:
        if rows <= self._rows_max // 100:
            return self._rows_max
        size = sum(lane.backend.behind(lane.partition, starts[number]).bytes for number, lane in lanes.items())
        per_row = max(1, size // max(1, rows))
        return max(1, min(self._rows_max, self._bytes_max // per_row))
