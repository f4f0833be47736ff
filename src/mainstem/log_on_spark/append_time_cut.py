"""Where a batch ends that is read from Kafka: all partitions at one append time, so that none runs ahead of another.

Kafka knows when its records were appended, not when they happened: event times are not known before they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from mainstem.log.kafka.kafka_topic import KafkaTopic
from mainstem.log.watermark import times_of

__all__ = ["appended_at", "appended_from", "cut_by_append_time", "cut_lanes"]

L = TypeVar("L")


def cut_by_append_time(
    backend: KafkaTopic, starts: Mapping[int, int], ends: dict[int, int], rows_max: int
) -> dict[int, int]:
    """Ends for a batch of about so many rows of one topic."""
    return cut_lanes({number: (backend, number) for number in ends}, starts, ends, rows_max)


def cut_lanes(
    lanes: Mapping[L, tuple[KafkaTopic, int]], starts: Mapping[L, int], ends: dict[L, int], rows_max: int
) -> dict[L, int]:
    """Ends for a batch of about so many rows of some partitions, of one topic or several."""
    rest = {lane: end - starts.get(lane, 0) for lane, end in ends.items() if end > starts.get(lane, 0)}
    if sum(count / lanes[lane][0].offsets_of_rows(rows_max) for lane, count in rest.items()) <= 1:
        return ends
    rows = max(1, rows_max // len(rest))
    shares = {lane: lanes[lane][0].offsets_of_rows(rows) for lane in rest}
    behind = [lane for lane, count in rest.items() if count > shares[lane]]
    if not behind:
        return ends
    until = min(appended_at(*lanes[lane], starts.get(lane, 0) + shares[lane]) for lane in behind)
    cut = dict(ends)
    for lane, share in shares.items():
        topic, partition = lanes[lane]
        first = starts.get(lane, 0)
        reached = topic.at_time(partition, until + 1)
        # Where very many were appended at one time, they are divided all the same.
        cut[lane] = min(ends[lane], max(reached, first), first + 2 * share)
    if any(cut[lane] > starts.get(lane, 0) for lane in shares):
        return cut
    # Ends of transactions have the broker's time. Where that is later than the records', all of them lie behind the first.
    return {**ends, **{lane: min(ends[lane], starts.get(lane, 0) + share) for lane, share in shares.items()}}


def appended_from(backend: KafkaTopic, planned: Mapping[int, int], ends: Mapping[int, int], now: int) -> int:
    """The earliest append time of what a batch leaves for later ones; now, if it leaves nothing."""
    left = [number for number, end in ends.items() if end > planned.get(number, 0)]
    return min([now, *(appended_at(backend, number, planned.get(number, 0)) for number in left)])


def appended_at(backend: KafkaTopic, partition: int, offset: int) -> int:
    """When the first record from an offset on was appended; now, if there is none."""
    record = backend.read(partition, offset, 1, [])
    return backend.clock.now() if record is None else int(times_of(record.column("record").field("appended_at"))[0])
