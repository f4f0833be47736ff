"""What changed in a flow since its checkpoint was made, one change after the other, and whether its state goes on with each.

The plan of a flow says what its checkpoint depends on (`flow_plan.fingerprint`), and for each stage every parameter of its
operator. A stage keeps state by its parameters: rows that wait, times at which they wake, results that were shown. State that
was kept by other ones would not follow the new rule, so it is not taken; but for parameters of which the operator says
that they decide nothing about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainstem.durations import show_span

if TYPE_CHECKING:
    from mainstem.flows.program import PlannedFlow
    from mainstem.operators.stage.stage import StageSpec

__all__ = ["PlanChange", "plan_changes"]

# What these keep does not depend on a watermark.
TIMELESS = frozenset({"aggregate", "distinct", "table", "top"})
# Of two long texts only the part that differs is shown.
SHOWN_MAX = 100


@dataclass(frozen=True)
class PlanChange:
    """One change, as a person reads it, and whether the state that is kept goes on with it."""

    text: str
    taken: bool


def plan_changes(before: Mapping[str, Any], planned: PlannedFlow) -> list[PlanChange]:
    """All that changed since `before`, the plan that the state was kept by; empty if nothing did.

    An operator may also raise, and say what is missing.
    """
    now = planned.plan
    # A part that an older Mainstem did not write down fits.
    before = {**now, **before}
    changes = []
    if before["sources"] != now["sources"]:
        changes.append(PlanChange(f"sources: {_shown(before['sources'])} -> {_shown(now['sources'])}", taken=False))
    else:
        changes += _watermark_changes(before, planned)
    changes += _operator_changes(before["operators"], planned)
    if before["places"] != now["places"] and all(change.taken for change in changes):
        changes += [
            PlanChange(f"order of what it keeps: {_apart(_shown(old), _shown(new))}", taken=False)
            for old, new in zip(before["places"], now["places"], strict=False)
            if old != new
        ]
    return changes


def _watermark_changes(before: Mapping[str, Any], planned: PlannedFlow) -> Iterator[PlanChange]:
    """A longer delay sets the watermark back: what was evicted would be missing when rows come that it lets in again."""
    timed = any(stage.spec.operator not in TIMELESS for stage in planned.stages)
    known, now = before["watermarks"], planned.plan["watermarks"]
    for source, old, new in zip(planned.plan["sources"], known, now, strict=True):
        if old != new:
            shorter = old is not None and new is not None and new < old
            text = f"{source}: watermark {_shown(show_span(old))} -> {_shown(show_span(new))}"
            yield PlanChange(text, taken=shorter or not timed)


def _operator_changes(old: Sequence[Mapping[str, Any]], planned: PlannedFlow) -> Iterator[PlanChange]:
    new = planned.plan["operators"]
    if [kept["operator"] for kept in old] != [kept["operator"] for kept in new]:
        gone = [_titled(kept) for kept in old if kept not in new]
        come = [_titled(kept) for kept in new if kept not in old]
        if not (gone or come):
            gone, come = ([kept["operator"] for kept in plan] for plan in (old, new))
        yield PlanChange(f"stateful operators: {_shown(gone)} -> {_shown(come)}", taken=False)
        return
    specs = {stage.name: stage.spec for stage in planned.stages}
    for before, now in zip(old, new, strict=True):
        yield from _changes_of(before, now, specs.get(now["operator"]))


def _changes_of(before: Mapping[str, Any], now: Mapping[str, Any], spec: StageSpec | None) -> Iterator[PlanChange]:
    """Of one operator."""
    kept = {name: value for name, value in now.items() if name != "parameters"}
    others = {name: before.get(name) for name in kept if before.get(name) != kept[name]}
    takes = getattr(None if spec is None else spec.engine, "takes", None)
    fits = not others or (takes is not None and not {"operator", "of"} & set(others) and takes(before))
    parameters = before.get("parameters", {})
    changed = {
        name: (parameters[name], value)
        for name, value in now.get("parameters", {}).items()
        if name in parameters and parameters[name] != value
    }
    for name, (old, new) in changed.items():
        free = spec is not None and name in spec.changeable
        yield PlanChange(f"{now['operator']}: {name} {_apart(_shown(old), _shown(new))}", taken=fits and free)
    if others and not changed:
        for name, old, new in _differences(others, kept):
            yield PlanChange(f"{now['operator']}: {name} {_apart(_shown(old), _shown(new))}", taken=fits)


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name, was in old.items():
        if isinstance(was, Mapping) and isinstance(new[name], Mapping):
            for key in sorted({*was, *new[name]}):
                if was.get(key) != new[name].get(key):
                    yield key, was.get(key), new[name].get(key)
        else:
            yield name, was, new[name]


def _titled(kept: Mapping[str, Any]) -> str:
    """An operator of Spark's or ours."""
    by = f" by {_shown(kept['by'])}" if kept.get("by") else ""
    return f"{kept['operator']}{by}"


def _shown(value: Any) -> str:
    if value is None or value in ((), [], {}):
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(key if key == of else f"{key} = {_shown(of)}" for key, of in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value))
    return str(value)


def _apart(old: str, new: str) -> str:
    """Both, of long ones the part that differs."""
    if max(len(old), len(new)) <= SHOWN_MAX:
        return f"{old} -> {new}"
    first = _same(old, new)
    last = _same(old[first:][::-1], new[first:][::-1])
    # A few words more on both sides, to see where it is.
    first, last = max(0, first - SHOWN_MAX // 4), max(0, last - SHOWN_MAX // 4)
    parts = [text[first : len(text) - last][: 2 * SHOWN_MAX] for text in (old, new)]
    return " -> ".join(f"{'...' if first else ''}{part}{'...' if last else ''}" for part in parts)


def _same(old: str, new: str) -> int:
    """How many characters both begin with."""
    return next(
        (at for at, (mine, other) in enumerate(zip(old, new, strict=False)) if mine != other), min(len(old), len(new))
    )
