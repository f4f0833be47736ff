"""A histogram of bins that lie where the values are: the two closest are joined until few enough remain.

Ben-Haim and Tom-Tov, "A streaming parallel decision tree algorithm", as Spark's histogram_numeric; here over all values
at once, so that the answer does not depend on their order.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

__all__ = ["closest_bins"]


def closest_bins(values: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], bins: int) -> list[tuple[float, int]]:
    """Middle and count of at most so many bins, by their middle; the values are in order, each once.

    >>> closest_bins(np.array([1.0, 2.0, 10.0]), np.array([1, 1, 4]), 2)
    [(1.5, 2), (10.0, 4)]
    """
    middles, sizes = values.tolist(), counts.tolist()
    after = [*range(1, len(middles)), -1]
    before = list(range(-1, len(middles) - 1))
    # A change makes what was noted of a bin out of date; `stamp` tells.
    stamp = [0] * len(middles)
    gaps = [(middles[at + 1] - middles[at], at, 0, 0) for at in range(len(middles) - 1)]
    heapq.heapify(gaps)
    alive = len(middles)
    while alive > bins and gaps:
        _, left, left_stamp, right_stamp = heapq.heappop(gaps)
        right = after[left]
        if stamp[left] != left_stamp or right < 0 or stamp[right] != right_stamp:
            continue
        size = sizes[left] + sizes[right]
        middles[left] = (middles[left] * sizes[left] + middles[right] * sizes[right]) / size
        sizes[left] = size
        stamp[left] += 1
        stamp[right] = -1
        after[left] = after[right]
        if after[left] >= 0:
            before[after[left]] = left
        alive -= 1
        for first, second in ((before[left], left), (left, after[left])):
            if first >= 0 and second >= 0:
                heapq.heappush(gaps, (middles[second] - middles[first], first, stamp[first], stamp[second]))
    return [(middles[at], sizes[at]) for at in range(len(middles)) if stamp[at] >= 0]
