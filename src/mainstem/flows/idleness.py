"""Whether a flow has everything that its sources have, by what its checkpoint says and what the log holds now.

Spark's own word for it may be a trigger old: one that looked before the last append, and ended after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mainstem.log.embedded.embedded_topic import EmbeddedTopic
from mainstem.log_on_spark.batch_clock import clocks_of, is_due, now_of, watermark_of
from mainstem.log_on_spark.checkpoint_offsets import batch_offsets, last_batch, source_offsets
from mainstem.log_on_spark.passed_tokens import PassedTokens
from mainstem.operators.stage.stage_manifest import StageManifests
from mainstem.views.view_offsets import missing_of

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
    if _waits(stem, checkpoint, number):
        return False
    offsets = list(source_offsets(checkpoint, number))
    return all(_has(stem, offset) for offset in offsets if "view" in offset) and all(
        _has_tokens(stem, offset) for offset in offsets if "topic" in offset
    )


def _has_tokens(stem: Mainstem, offset: Mapping[str, Any]) -> bool:
    """Whether everything is in that the flows into a topic have read of their own topics."""
    backend = stem.log.open_topic(offset["topic"])
    if not isinstance(backend, EmbeddedTopic):
        return True
    passed = PassedTokens(stem.home, offset["topic"]).passed(backend)
    ends = {number: backend.latest(number) for number in passed.ends}
    # Behind an undecided transaction nothing can be had yet.
    return not passed.reached(ends) or not missing_of(_numbered(passed.applied), _numbered(offset.get("applied", {})))


def _numbered(applied: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    return {topic: {int(number): end for number, end in ends.items()} for topic, ends in applied.items()}


def _has(stem: Mainstem, offset: Mapping[str, Any]) -> bool:
    """Whether everything that a view has is in, also that it has applied records that changed nothing in it."""
    view = stem.view(offset["view"])
    if not view.exists:
        return True
    position, applied = view.standing()
    return position <= offset["position"] and not missing_of(applied, _numbered(offset.get("applied", {})))


def _waits(stem: Mainstem, checkpoint: str, number: int) -> bool:
    """Whether a batch of a flow with stages comes though its topics have nothing new: something in its state is due."""
    folder = StageManifests(checkpoint).folder
    offsets = [offset for offset in source_offsets(checkpoint, number) if "now" in offset]
    if not offsets:
        return False
    now = now_of(folder, stem.log.clock)
    return is_due(folder, max(clocks_of(offsets).watermark, watermark_of(stem.log, offsets, checkpoint, now)), now)
