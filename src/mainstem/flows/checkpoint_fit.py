"""Whether a flow can go on from its checkpoint: looked at before it is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.errors import Conflict
from mainstem.log_on_spark.checkpoint_offsets import last_batch

if TYPE_CHECKING:
    from mainstem.flows.program import PlannedFlow
    from mainstem.log.log import Log
    from mainstem.sinks.sink import BatchWriter

__all__ = ["check_code", "check_held", "rows_to_replay"]


def check_code(planned: PlannedFlow, known: dict[str, Any], checkpoint: str, log: Log) -> None:
    """Raise `Conflict` if the flow's state was made by other code than it has now."""
    before = known.get("plan")
    if before is None or before == planned.plan or last_batch(checkpoint, "offsets") is None:
        return
    raise Conflict(
        f'flow "{planned.name}" was changed in a way that its checkpoint cannot take',
        detail=f"{_difference(before, planned.plan)} What it has kept so far belongs to the flow as it was.",
        hint=f"{_way_out(planned)} That replays {rows_to_replay(log, planned):,} rows.",
    )


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
        hint=f"Restore the checkpoint, or begin anew. {_way_out(planned)}",
    )


def rows_to_replay(log: Log, planned: PlannedFlow) -> int:
    """How many records a flow would read from the beginning."""
    rows = 0
    for name in planned.topics:
        backend = log.open_topic(name)
        rows += sum(backend.latest(p) - backend.earliest(p) for p in range(backend.settings.partitions))
    return rows


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    if before["sources"] != now["sources"]:
        return f"It read {_list(before['sources'])}, and now reads {_list(now['sources'])}."
    old, new = ([_shown(kept) for kept in plan["operators"]] for plan in (before, now))
    gone, come = [kept for kept in old if kept not in new], [kept for kept in new if kept not in old]
    return f"It kept {_list(gone or old)}, and now keeps {_list(come or new)}."


def _list(things: list[str]) -> str:
    return ", ".join(things) or "nothing"


def _shown(kept: dict[str, Any]) -> str:
    by = f" by {', '.join(kept['by'])}" if kept.get("by") else ""
    of = f" of {', '.join(kept['of'])}" if kept.get("of") else ""
    return f"{kept['operator']}{of}{by}"


def _way_out(planned: PlannedFlow) -> str:
    sink = planned.flow.into
    if sink.kind == "view":
        return f"Make a new version beside the live one: mainstem view rebuild {sink.name} --program FILE."
    return f'Give the flow another name, Flow(..., name="{planned.name}_2"), and a sink of its own.'
