"""What would come of a flow if it were started now: looked at without starting it.

    new                 it has no checkpoint: it reads everything
    unchanged           it continues; its sources, its sink and what it keeps are as they were
    continues           it continues, though something changed that its state goes on with
    must be rebuilt     it would be refused: its checkpoint was made for another flow, source or sink

Filters and projections that keep nothing are not written down: a flow with other ones is unchanged here. They count from the
next row on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mainstem.errors import Conflict, Invalid
from mainstem.flows.checkpoint_fit import check_code, check_sources, rows_to_replay
from mainstem.flows.plan_changes import PlanChange, plan_changes
from mainstem.flows.real_time import check_pace
from mainstem.flows.sink_identity import check_sink
from mainstem.log_on_spark.checkpoint_offsets import last_batch
from mainstem.log_on_spark.flow_store import FlowStore

if TYPE_CHECKING:
    from mainstem.flows.program import PlannedFlow
    from mainstem.log.log import Log

__all__ = ["FlowProspect"]


@dataclass(frozen=True)
class FlowProspect:
    """Whether a flow would continue, and what changed since it last ran."""

    outcome: Literal["new", "unchanged", "continues", "must be rebuilt"]
    changes: tuple[str, ...] = ()
    # How many rows are read if it begins anew; 0 where it does not have to.
    rows: int = 0
    # What to do, where it must be rebuilt.
    hint: str = ""

    @classmethod
    def of(cls, planned: PlannedFlow, home: str, log: Log) -> FlowProspect:
        """By the home alone: of a checkpoint that is kept elsewhere, by the copy of it in the home."""
        store = FlowStore(home, planned.name)
        version = planned.flow.into.version
        known, checkpoint = store.of_version(version), store.checkpoint(version)
        if last_batch(checkpoint, "offsets") is None:
            return cls("new", rows=rows_to_replay(log, planned))
        changes: list[PlanChange] = []
        try:
            changes = plan_changes(known["plan"], planned) if "plan" in known else []
            check_pace(planned, known, checkpoint)
            check_code(planned, known, checkpoint, log)
            check_sources(planned, checkpoint, log)
            check_sink(planned, known, checkpoint, log)
        except (Conflict, Invalid) as error:
            refused = tuple(change.text for change in changes if not change.taken)
            reasons = refused or (f"{error.summary}. {error.detail}",)
            return cls("must be rebuilt", reasons, rows_to_replay(log, planned), error.hint)
        return cls("continues" if changes else "unchanged", tuple(change.text for change in changes))
