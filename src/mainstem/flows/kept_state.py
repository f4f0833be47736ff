"""Whether the stages of a flow can go on with the state that a program kept before it was changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainstem.flows.program import PlannedFlow

__all__ = ["state_is_taken"]


def state_is_taken(planned: PlannedFlow, before: dict[str, Any]) -> bool:
    """Whether all that changed since `before`, the plan that the state was kept by, is how stages describe themselves, and
    each of these says that it can take what is there. A stage may also raise, and say what is missing.
    """
    now = planned.plan
    if {**before, "operators": []} != {**now, "operators": []} or len(before["operators"]) != len(now["operators"]):
        return False
    engines = {stage.name: stage.spec.engine for stage in planned.stages}
    for old, new in zip(before["operators"], now["operators"], strict=True):
        if old == new:
            continue
        takes = getattr(engines.get(new["operator"]), "takes", None)
        if takes is None or any(old.get(name) != new[name] for name in ("operator", "of")) or not takes(old):
            return False
    return True
