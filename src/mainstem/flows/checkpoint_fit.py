"""Whether a flow can go on from its checkpoint: looked at before it is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.errors import Conflict
from mainstem.flows.plan_changes import plan_changes
from mainstem.log_on_spark.checkpoint_offsets import last_batch, source_offsets
from mainstem.log_on_spark.read_since import check_no_deletions_missed
from mainstem.log_on_spark.topic_glob import fitting
from mainstem.log_on_spark.topic_identity import check_topics

if TYPE_CHECKING:
    from mainstem.flows.program import PlannedFlow
    from mainstem.log.log import Log
    from mainstem.sinks.sink import BatchWriter

__all__ = ["check_code", "check_held", "check_sources", "replayed_topics", "rows_to_replay", "way_out"]


def check_code(planned: PlannedFlow, known: dict[str, Any], checkpoint: str, log: Log) -> None:
    """Raise `Conflict` if the flow's state was made by other code than it has now."""
    before = known.get("plan")
    if before is None or last_batch(checkpoint, "offsets") is None:
        return
    _check_sink(planned, known.get("sink"))
    refused = [change.text for change in plan_changes(before, planned) if not change.taken]
    if not refused:
        return
    raise Conflict(
        f'flow "{planned.name}" was changed in a way that its checkpoint cannot take',
        detail=f"What changed: {'; '.join(refused)}. What it has kept so far belongs to the flow as it was.",
        hint=f"{way_out(planned)} That replays {rows_to_replay(log, planned):,} rows.",
    )


def _check_sink(planned: PlannedFlow, before: str | None) -> None:
    sink = planned.flow.into
    if before not in (None, f"{sink.kind} {sink.name}"):
        raise Conflict(
            f'flow "{planned.name}" has written into {before} so far, and now is to write into {sink.kind} {sink.name}',
            detail="It would go on where it stands: what it has written so far would be missing in the new place.",
            hint=f'Give the flow a name of its own for the new place, Flow(..., name="{planned.name}_2"): it begins anew.',
        )


def check_sources(planned: PlannedFlow, checkpoint: str, log: Log) -> None:
    """Raise `Conflict` if a topic is not the one that the checkpoint's offsets are of: it was deleted and made again.

    And `MissedDeletions` if deletions were compacted away that the flow has not read.
    """
    last = last_batch(checkpoint, "offsets")
    if last is None:
        return
    hint = f"{way_out(planned)} That reads the topic as it is now, {rows_to_replay(log, planned):,} rows."
    for offset in source_offsets(checkpoint, last):
        check_topics(log, offset, planned.name, hint=hint)
        check_no_deletions_missed(log, offset, planned.name, hint=hint)


def check_held(planned: PlannedFlow, writer: BatchWriter, checkpoint: str) -> None:
    """Raise `Conflict` if the sink holds batches that the checkpoint does not know of.

    The numbers of batches would be given out again, and the sink would take the new ones for those it has.
    """
    last = last_batch(checkpoint, "offsets")
    held = writer.held
    if held <= (-1 if last is None else last):
        return
    sink = planned.flow.into
    raise Conflict(
        f'the checkpoint of flow "{planned.name}" is not the one that its sink was written from',
        detail=f'The {sink.kind} "{sink.name}" holds batches up to {held}; the checkpoint in "{checkpoint}" '
        + ("has none." if last is None else f"ends with batch {last}."),
        hint=f"Restore the checkpoint, or begin anew. {way_out(planned)}",
    )


def replayed_topics(log: Log, planned: PlannedFlow) -> list[str]:
    """The topics that a flow would read from the beginning, those of a pattern as they are now."""
    patterns = [source.removeprefix("topics ") for source in planned.sources if source.startswith("topics ")]
    names = log.topic_names()
    # One that an earlier flow of the program is about to make has nothing yet.
    read = {name for name in planned.topics if name in names}
    return sorted({*read, *(name for pattern in patterns for name in fitting(pattern, names))})


def rows_to_replay(log: Log, planned: PlannedFlow) -> int:
    """How many records a flow would read from the beginning."""
    rows = 0
    for name in replayed_topics(log, planned):
        backend = log.open_topic(name)
        rows += sum(backend.latest(p) - backend.earliest(p) for p in range(backend.settings.partitions))
    return rows


def way_out(planned: PlannedFlow) -> str:
    """What can be done where a flow cannot go on."""
    sink = planned.flow.into
    if sink.kind == "view":
        return f"Make a new version beside the live one: mainstem view rebuild {sink.name} --program FILE."
    return f'Give the flow another name, Flow(..., name="{planned.name}_2"), and a sink of its own.'
