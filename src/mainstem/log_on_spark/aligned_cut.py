"""Where a batch ends in each partition: at one event time in all of them, never at equal numbers of rows.

Spark's watermark is the highest event time it has seen, less the delay. A batch that went far ahead in one partition
would make the rows late that still wait in the others. So the steps of all partitions are put into one line by the
highest time up to each of them, and the batch is the beginning of that line, up to one time. In each partition the step
that goes on beyond that time is looked at row by row, and taken up to the first later row: what stays behind is then
nowhere older than the newest row that was taken, except by as much as its own partition is out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mainstem.log.steps import Steps

__all__ = ["FirstAfter", "aligned_cut"]

# partition, first offset, offset behind the last, time -> the first offset with a later time
FirstAfter = Callable[[int, int, int, int], int]


def aligned_cut(
    starts: Mapping[int, int], steps: Mapping[int, Steps], rows_max: int, first_after: FirstAfter
) -> dict[int, int]:
    """The end of a batch of about `rows_max` rows in every partition; at least one step is taken if there is one.

    >>> early = Steps.of([(10, 10, 100), (20, 10, 200)])
    >>> late = Steps.of([(5, 5, 900), (9, 4, 950)])
    >>> aligned_cut({0: 0, 1: 0}, {0: early, 1: late}, 20, lambda partition, first, end, time: first + 2)
    {0: 20, 1: 2}
    """
    ends = dict(starts)
    known = {partition: found for partition, found in steps.items() if len(found.ends)}
    if not known:
        return ends
    numbers = np.concatenate([np.full(len(found.ends), partition) for partition, found in known.items()])
    offsets = np.concatenate([found.ends for found in known.values()])
    rows = np.concatenate([found.rows for found in known.values()])
    # A partition never goes back: a step stands where the highest time up to it stands.
    reached = np.concatenate([np.maximum.accumulate(found.times) for found in known.values()])
    line = np.argsort(reached, kind="stable")
    taken = max(1, int(np.searchsorted(np.cumsum(rows[line]), rows_max, side="right")))
    time = int(reached[line[taken - 1]])
    for partition, found in known.items():
        theirs = offsets[line[:taken][numbers[line[:taken]] == partition]]
        if len(theirs):
            ends[partition] = int(theirs[-1])
        rest = found.after(ends[partition]).ends
        if len(rest):
            ends[partition] = first_after(partition, ends[partition], int(rest[0]), time)
    return ends
