"""The moments at which it is known what a view was and what of the log was in it: its batches, as far as it keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mainstem.log_on_spark.checkpoint_offsets import applied_offsets
from mainstem.log_on_spark.flow_run import Offsets
from mainstem.views.view_store import VersionSnapshot

__all__ = ["Moment", "OffsetLine", "offsets_between", "view_moments"]


@dataclass(frozen=True)
class Moment:
    """Right after a position this much of the log was in; `first` if nothing was before it."""

    position: int
    applied: Offsets
    first: bool = False


def view_moments(snapshot: VersionSnapshot, checkpoint: str, topics: Sequence[str], last: Moment) -> list[Moment]:
    """All that are known of the live version, up to the last one.

    A view with history says it itself. Of others the flow's checkpoint says what a batch had read, for as many as Spark keeps.
    """
    begun = snapshot.facts.history[-1].after
    since = snapshot.kept_since()
    if since is not None:
        found = _reached(snapshot, topics)
        oldest = max(begun, since.position)
        whole = since.position < 0
    else:
        batches = [
            (position, applied_offsets(checkpoint, batch)) for position, batch in snapshot.commits() if batch >= 0
        ]
        found = [Moment(position, _of(applied, topics)) for position, applied in batches if applied]
        oldest = max(begun, snapshot.positions()[0] - 1)
        whole = oldest == 0
    known = [moment for moment in found if oldest <= moment.position < last.position and any(moment.applied.values())]
    moments = [*known, last]
    if whole and begun == 0:
        moments[0] = replace(moments[0], first=True)
    return moments


def _reached(snapshot: VersionSnapshot, topics: Sequence[str]) -> list[Moment]:
    applied: dict[str, dict[int, int]] = {}
    found: dict[int, Moment] = {}
    for position, topic, partition, end in snapshot.reached():
        if topic in topics:
            applied = {**applied, topic: {**applied.get(topic, {}), partition: end}}
            found[position] = Moment(position, applied)
    return list(found.values())


def _of(applied: Offsets, topics: Sequence[str]) -> Offsets:
    return {topic: dict(ends) for topic, ends in applied.items() if topic in topics}


@dataclass(frozen=True)
class OffsetLine:
    """The records between two positions in a row: partition by partition."""

    parts: tuple[tuple[str, int, int, int], ...]

    def __len__(self) -> int:
        return sum(end - start for *_, start, end in self.parts)

    def applied(self, count: int) -> Offsets:
        """What is in with so many of them.

        >>> offsets_between({"orders": {0: 2, 1: 5}}, {"orders": {0: 4, 1: 7}}).applied(3)
        {'orders': {0: 4, 1: 6}}
        """
        found: dict[str, dict[int, int]] = {}
        for topic, partition, start, end in self.parts:
            taken = min(count, end - start)
            found.setdefault(topic, {})[partition] = start + taken
            count -= taken
        return found

    def record(self, count: int) -> tuple[str, int, int]:
        """The last one of so many: topic, partition, offset."""
        for topic, partition, start, end in self.parts:
            if count <= end - start:
                return topic, partition, start + count - 1
            count -= end - start
        raise IndexError(count)


def offsets_between(start: Offsets, end: Offsets) -> OffsetLine:
    """Behind one position up to another."""
    parts = [
        (topic, partition, start.get(topic, {}).get(partition, 0), upto)
        for topic, ends in sorted(end.items())
        for partition, upto in sorted(ends.items())
    ]
    return OffsetLine(tuple((topic, partition, first, max(first, upto)) for topic, partition, first, upto in parts))
