"""Which sink a flow writes into: by an id that it keeps when it is moved, and that another one in its place does not have.

A topic and a view have an id since they were made, a folder of files since a flow first wrote into it. A sink of somebody
else's may have one too, `id`, and a `location` to name in messages. Both are noted in `flow.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainstem.errors import Conflict
from mainstem.flows.checkpoint_fit import rows_to_replay, way_out
from mainstem.log_on_spark.checkpoint_offsets import last_batch

if TYPE_CHECKING:
    from mainstem.flows.program import PlannedFlow
    from mainstem.log.log import Log
    from mainstem.sinks.sink import Sink

__all__ = ["SinkIdentity", "check_sink"]


@dataclass(frozen=True)
class SinkIdentity:
    """What a flow notes of its sink."""

    # Empty where the sink has none, or is not there yet.
    id: str
    # Where it is, as a person finds it; may be empty.
    location: str
    there: bool

    @classmethod
    def of(cls, sink: Sink, log: Log) -> SinkIdentity:
        """As it is now."""
        if sink.kind == "topic":
            there = sink.name in log.topic_names()
            return cls(log.open_topic(sink.name).id if there else "", "", there)
        there = bool(getattr(sink, "exists", True))
        return cls(str(getattr(sink, "id", "")) if there else "", str(getattr(sink, "location", "")), there)

    def facts(self) -> dict[str, str]:
        """As `flow.json` has it."""
        return {"sink_id": self.id, "sink_location": self.location}


def check_sink(planned: PlannedFlow, known: dict[str, Any], checkpoint: str, log: Log) -> SinkIdentity:
    """Raise `Conflict` if the sink is not the one that the flow has written into so far; which one it is."""
    sink = planned.flow.into
    current = SinkIdentity.of(sink, log)
    before = SinkIdentity(known.get("sink_id", ""), known.get("sink_location", ""), True)
    if not before.id or last_batch(checkpoint, "offsets") is None:
        return current
    if current.there and current.id in ("", before.id):
        return SinkIdentity(before.id, current.location, True)
    if sink.kind == "files":
        raise _another_folder(planned, before.location, current)
    was = "deleted and made again" if current.there else "deleted"
    moved = before.location != current.location
    raise Conflict(
        f'{sink.kind} "{sink.name}" is not the one that flow "{planned.name}" has written into so far',
        detail=(f"That one was in {before.location}, and this one is in {current.location}" if moved else f"It was {was} since")
        + ": what the flow wrote before is not in it, and would not be written again.",
        hint=(f"Open the home with its views in {before.location}. Or " if moved else "")
        + f'delete its checkpoint, "{checkpoint}", or give the flow another name, Flow(..., name="{planned.name}_2"): '
        f"it begins anew and writes all of it. That replays {rows_to_replay(log, planned):,} rows.",
    )  # fmt: skip


def _another_folder(planned: PlannedFlow, before: str, current: SinkIdentity) -> Conflict:
    if before == current.location:
        return Conflict(
            f'the folder "{before}" is not the one that flow "{planned.name}" has written into so far',
            detail=("It was deleted and made again since" if current.there else "It was deleted since")
            + ": the rows of earlier batches are not in it, and would not be written again.",
            hint=f"Restore the folder from a copy. {way_out(planned)}",
        )
    return Conflict(
        f'flow "{planned.name}" has written into another folder so far: "{before}"',
        detail=f'It is now to write into "{current.location}", which '
        + ("has another id." if current.there else "no flow has written into.")
        + " The rows of earlier batches are not in it. A relative path depends on the working directory.",
        hint=f'Give the path of that folder: stem.files("{before}"), or run the program from the same working directory. '
        f"If you have moved the folder, give the path where it is now. {way_out(planned)}",
    )
