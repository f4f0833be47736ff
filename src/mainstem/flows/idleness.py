"""Whether a flow has everything that its sources have, by what its checkpoint says and what the log holds now.

Spark's own word for it may be a trigger old: one that looked before the last append, and ended after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.log_on_spark.checkpoint_offsets import batch_offsets, last_batch, source_offsets

if TYPE_CHECKING:
    from mainstem.stem import Mainstem

__all__ = ["caught_up"]


def caught_up(stem: Mainstem, checkpoint: str) -> bool:
    """True also for a flow that has had no batch: of where it begins nothing is written down yet."""
    number = last_batch(checkpoint)
    if number is None:
        return True
    for topic, reached in batch_offsets(checkpoint, number).items():
        backend = stem.log.open_topic(topic)
        partitions = range(backend.settings.partitions)
        if any(backend.latest(partition) > reached.get(partition, 0) for partition in partitions):
            return False
    views = {found["view"]: found["position"] for found in source_offsets(checkpoint, number) if "view" in found}
    return all(stem.view(view).last_position() <= position for view, position in views.items())
