"""Whether a flow can resume from its checkpoint: checked before it is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mainstem.durations import show_span
from mainstem.errors import Conflict, Invalid
from mainstem.flows.real_time import check_mode
from mainstem.spark.checkpoint.checkpoint_check import check_topics
from mainstem.spark.checkpoint.checkpoint_offsets import last_batch, source_offsets
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.checkpoint.read_since import check_no_deletions_missed
from mainstem.spark.sources.topic_glob import match_topics

if TYPE_CHECKING:
    from mainstem.flows.program import PlannedFlow
    from mainstem.log.log import Log
    from mainstem.operators.stage.stage import StageSpec
    from mainstem.sinks.sink import BatchWriter, Sink

__all__ = [
    "FlowProspect",
    "PlanChange",
    "SinkIdentity",
    "check_code",
    "check_held",
    "check_sink",
    "check_sources",
    "plan_changes",
    "replayed_topics",
    "rows_to_replay",
    "way_out",
]


# The changes of a flow since its checkpoint was created, and whether its state is still valid after each.
#
# The plan of a flow says what its checkpoint depends on (`flow_plan.fingerprint`), and has every parameter of each stage's
# operator. State depends on these parameters: buffered rows, timers, results that were emitted. State that was built with
# other parameters is refused, except where the operator declares that a parameter does not affect its state.


# The state of these does not depend on a watermark.
TIMELESS = frozenset({"aggregate", "distinct", "table", "top", "versions"})
# Of longer texts only the part that differs is shown.
SHOWN_MAX = 100


@dataclass(frozen=True)
class PlanChange:
    """One change in words, and whether the existing state remains valid with it."""

    text: str
    taken: bool


def plan_changes(before: Mapping[str, Any], planned: PlannedFlow) -> list[PlanChange]:
    """All changes since `before`, the plan that the state was built with; empty if there are none.

    An operator may also raise an error that names what is missing.
    """
    now = planned.plan
    # A part that an older Mainstem did not record counts as unchanged.
    before = {**now, **before}
    changes = []
    if before["sources"] != now["sources"]:
        changes.append(
            PlanChange(f"sources: {_format_value(before['sources'])} -> {_format_value(now['sources'])}", taken=False)
        )
    else:
        changes += _watermark_changes(before, planned)
    changes += _operator_changes(before["operators"], planned)
    if before["places"] != now["places"] and all(change.taken for change in changes):
        changes += [
            PlanChange(f"order of its state: {_apart(_format_value(old), _format_value(new))}", taken=False)
            for old, new in zip(before["places"], now["places"], strict=False)
            if old != new
        ]
    return changes


def _watermark_changes(before: Mapping[str, Any], planned: PlannedFlow) -> Iterator[PlanChange]:
    """A longer delay moves the watermark back: rows that it admits again would need state that was already evicted."""
    timed = any(stage.spec.operator not in TIMELESS for stage in planned.stages)
    known, now = before["watermarks"], planned.plan["watermarks"]
    for source, old, new in zip(planned.plan["sources"], known, now, strict=True):
        if old != new:
            shorter = old is not None and new is not None and new < old
            text = f"{source}: watermark {_format_value(show_span(old))} -> {_format_value(show_span(new))}"
            yield PlanChange(text, taken=shorter or not timed)


def _operator_changes(old: Sequence[Mapping[str, Any]], planned: PlannedFlow) -> Iterator[PlanChange]:
    new = planned.plan["operators"]
    if [kept["operator"] for kept in old] != [kept["operator"] for kept in new]:
        gone = [_format_operator(kept) for kept in old if kept not in new]
        come = [_format_operator(kept) for kept in new if kept not in old]
        if not (gone or come):
            gone, come = ([kept["operator"] for kept in plan] for plan in (old, new))
        yield PlanChange(f"stateful operators: {_format_value(gone)} -> {_format_value(come)}", taken=False)
        return
    specs = {stage.name: stage.spec for stage in planned.stages}
    for before, now in zip(old, new, strict=True):
        yield from _changes_of(before, now, specs.get(now["operator"]))


def _changes_of(before: Mapping[str, Any], now: Mapping[str, Any], spec: StageSpec | None) -> Iterator[PlanChange]:
    """The changes of one operator."""
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
        yield PlanChange(
            f"{now['operator']}: {name} {_apart(_format_value(old), _format_value(new))}", taken=fits and free
        )
    if others and not changed:
        for name, old, new in _differences(others, kept):
            yield PlanChange(f"{now['operator']}: {name} {_apart(_format_value(old), _format_value(new))}", taken=fits)


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name, was in old.items():
        if isinstance(was, Mapping) and isinstance(new[name], Mapping):
            for key in sorted({*was, *new[name]}):
                if was.get(key) != new[name].get(key):
                    yield key, was.get(key), new[name].get(key)
        else:
            yield name, was, new[name]


def _format_operator(kept: Mapping[str, Any]) -> str:
    """The name of an operator (Spark's or ours) with its key."""
    by = f" by {_format_value(kept['by'])}" if kept.get("by") else ""
    return f"{kept['operator']}{by}"


def _format_value(value: Any) -> str:
    if value is None or value in ((), [], {}):
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(key if key == of else f"{key} = {_format_value(of)}" for key, of in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_format_value, value))
    return str(value)


def _apart(old: str, new: str) -> str:
    """Both texts; of long ones only the part that differs."""
    if max(len(old), len(new)) <= SHOWN_MAX:
        return f"{old} -> {new}"
    first = _same(old, new)
    last = _same(old[first:][::-1], new[first:][::-1])
    # Some context on both sides.
    first, last = max(0, first - SHOWN_MAX // 4), max(0, last - SHOWN_MAX // 4)
    parts = [text[first : len(text) - last][: 2 * SHOWN_MAX] for text in (old, new)]
    return " -> ".join(f"{'...' if first else ''}{part}{'...' if last else ''}" for part in parts)


def _same(old: str, new: str) -> int:
    """The length of the common prefix."""
    return next(
        (at for at, (mine, other) in enumerate(zip(old, new, strict=False)) if mine != other), min(len(old), len(new))
    )


def check_code(planned: PlannedFlow, known: dict[str, Any], checkpoint: str, log: Log) -> None:
    """Raise `Conflict` if the flow's state was built by code that does not fit its current code."""
    before = known.get("plan")
    if before is None or last_batch(checkpoint, "offsets") is None:
        return
    _check_sink(planned, known.get("sink"))
    refused = [change.text for change in plan_changes(before, planned) if not change.taken]
    if not refused:
        return
    raise Conflict(
        f'flow "{planned.name}" was changed in a way that does not fit its checkpoint',
        detail=f"What changed: {'; '.join(refused)}. Its state was built by the old program.",
        hint=f"{way_out(planned)} That replays {rows_to_replay(log, planned):,} rows.",
    )


def _check_sink(planned: PlannedFlow, before: str | None) -> None:
    sink = planned.flow.into
    if before not in (None, f"{sink.kind} {sink.name}"):
        raise Conflict(
            f'flow "{planned.name}" has written into {before} so far, and the program now writes into {sink.kind} {sink.name}',
            detail="It would continue at its checkpoint: what it has written so far would be missing in the new sink.",
            hint=f'Give the flow a new name for the new sink, Flow(..., name="{planned.name}_2"): it starts from the beginning.',
        )


def check_sources(planned: PlannedFlow, checkpoint: str, log: Log) -> None:
    """Raise `Conflict` if a topic of the checkpoint's offsets was deleted and created again.

    Raises `MissedDeletions` if compaction removed deletions that the flow has not read.
    """
    last = last_batch(checkpoint, "offsets")
    if last is None:
        return
    hint = f"{way_out(planned)} That reads the topic as it is now, {rows_to_replay(log, planned):,} rows."
    for offset in source_offsets(checkpoint, last):
        check_topics(log, offset, planned.name, hint=hint)
        check_no_deletions_missed(log, offset, planned.name, hint=hint)


def check_held(planned: PlannedFlow, writer: BatchWriter, checkpoint: str) -> None:
    """Raise `Conflict` if the sink has committed batches that the checkpoint does not have.

    The batch numbers would be used again, and the sink would skip the new batches as already committed.
    """
    last = last_batch(checkpoint, "offsets")
    committed_batch = writer.committed_batch
    if committed_batch <= (-1 if last is None else last):
        return
    sink = planned.flow.into
    raise Conflict(
        f'the checkpoint of flow "{planned.name}" is not the one that its sink was written from',
        detail=f'The {sink.kind} "{sink.name}" has committed batches up to {committed_batch}; the checkpoint in "{checkpoint}" '
        + ("has none." if last is None else f"ends with batch {last}."),
        hint=f"Restore the checkpoint, or start over. {way_out(planned)}",
    )


def replayed_topics(log: Log, planned: PlannedFlow) -> list[str]:
    """The topics that a flow would read from the beginning, including those that match its patterns now."""
    patterns = [source.removeprefix("topics ") for source in planned.sources if source.startswith("topics ")]
    names = log.topic_names()
    # A topic that an earlier flow of the program will create is still empty.
    read = {name for name in planned.topics if name in names}
    return sorted({*read, *(name for pattern in patterns for name in match_topics(pattern, names))})


def rows_to_replay(log: Log, planned: PlannedFlow) -> int:
    """The number of records that a flow would read from the beginning."""
    rows = 0
    for name in replayed_topics(log, planned):
        backend = log.open_topic(name)
        rows += sum(backend.latest(p) - backend.earliest(p) for p in range(backend.settings.partitions))
    return rows


def way_out(planned: PlannedFlow) -> str:
    """What to do if a flow cannot resume."""
    sink = planned.flow.into
    if sink.kind == "view":
        return f"Build a new version beside the live one: mainstem view rebuild {sink.name} --program FILE."
    if sink.kind == "store":
        return f"Fill the store again: mainstem store rebuild {sink.name} --program FILE."
    return f'Give the flow another name, Flow(..., name="{planned.name}_2"), and a sink of its own.'


# The identity of a flow's sink: an id that survives a move, and that a replacement at the same location does not have.
#
# A topic and a view get an id when they are created, a folder of files when a flow first writes into it. A user's own sink
# may have an `id` too, and a `location` to name in messages. Both are recorded in `flow.json`.


@dataclass(frozen=True)
class SinkIdentity:
    """What a flow records of its sink."""

    # Empty if the sink has no id or does not exist yet.
    id: str
    # For messages; may be empty.
    location: str
    there: bool

    @classmethod
    def of(cls, sink: Sink, log: Log) -> SinkIdentity:
        """The current identity of a sink."""
        if sink.kind == "topic":
            there = sink.name in log.topic_names()
            return cls(log.open_topic(sink.name).id if there else "", "", there)
        there = bool(getattr(sink, "exists", True))
        return cls(str(getattr(sink, "id", "")) if there else "", str(getattr(sink, "location", "")), there)

    def facts(self) -> dict[str, str]:
        """The fields of `flow.json`."""
        return {"sink_id": self.id, "sink_location": self.location}


def check_sink(planned: PlannedFlow, known: dict[str, Any], checkpoint: str, log: Log) -> SinkIdentity:
    """Raise `Conflict` if the sink is not the one that the flow has written into so far; returns its identity."""
    sink = planned.flow.into
    current = SinkIdentity.of(sink, log)
    before = SinkIdentity(known.get("sink_id", ""), known.get("sink_location", ""), True)
    if not before.id or last_batch(checkpoint, "offsets") is None:
        return current
    if current.there and current.id in ("", before.id):
        return SinkIdentity(before.id, current.location, True)
    if sink.kind == "files":
        raise _another_folder(planned, before.location, current)
    was = "deleted and created again" if current.there else "deleted"
    moved = before.location != current.location
    raise Conflict(
        f'{sink.kind} "{sink.name}" is not the one that flow "{planned.name}" has written into so far',
        detail=(f"That one was in {before.location}, and this one is in {current.location}" if moved else f"It was {was} since")
        + ": what the flow wrote before is not in it, and would not be written again.",
        hint=(f"Open the home with its views in {before.location}. Or " if moved else "")
        + f'delete its checkpoint, "{checkpoint}", or give the flow another name, Flow(..., name="{planned.name}_2"): '
        f"it starts over and writes all rows. That replays {rows_to_replay(log, planned):,} rows.",
    )  # fmt: skip


def _another_folder(planned: PlannedFlow, before: str, current: SinkIdentity) -> Conflict:
    if before == current.location:
        return Conflict(
            f'the folder "{before}" is not the one that flow "{planned.name}" has written into so far',
            detail=("It was deleted and created again since" if current.there else "It was deleted since")
            + ": the rows of earlier batches are not in it, and would not be written again.",
            hint=f"Restore the folder from a copy. {way_out(planned)}",
        )
    return Conflict(
        f'flow "{planned.name}" has written into a different folder so far: "{before}"',
        detail=f'The program now writes into "{current.location}", which '
        + ("has a different id." if current.there else "no flow has written into.")
        + " The rows of earlier batches are not in it. A relative path depends on the working directory.",
        hint=f'Give the path of that folder: stem.files("{before}"), or run the program from the same working directory. '
        f"If you have moved the folder, give the path where it is now. {way_out(planned)}",
    )


# What a flow would do if it were started now; determined without starting it.
#
#     new                 it has no checkpoint: it reads everything
#     unchanged           it continues; its sources, its sink and its state are the same
#     continues           it continues: something changed, but its state remains valid
#     must be rebuilt     it would be refused: its checkpoint was created for another flow, source or sink
#
# Stateless filters and projections are not recorded: a flow in which only these changed is "unchanged". They apply from the
# next row on.


@dataclass(frozen=True)
class FlowProspect:
    """Whether a flow would continue, and what changed since it last ran."""

    outcome: Literal["new", "unchanged", "continues", "must be rebuilt"]
    changes: tuple[str, ...] = ()
    # The number of rows to replay if it must be rebuilt; else 0.
    rows: int = 0
    # What to do if it must be rebuilt.
    hint: str = ""

    @classmethod
    def of(cls, planned: PlannedFlow, home: str, log: Log) -> FlowProspect:
        """Reads only the home; of a checkpoint that is stored elsewhere, its copy there."""
        store = FlowStore(home, planned.name)
        version = planned.flow.into.version
        known, checkpoint = store.of_version(version), store.checkpoint(version)
        if last_batch(checkpoint, "offsets") is None:
            return cls("new", rows=rows_to_replay(log, planned))
        changes: list[PlanChange] = []
        try:
            changes = plan_changes(known["plan"], planned) if "plan" in known else []
            check_mode(planned, known, checkpoint)
            check_code(planned, known, checkpoint, log)
            check_sources(planned, checkpoint, log)
            check_sink(planned, known, checkpoint, log)
        except (Conflict, Invalid) as error:
            refused = tuple(change.text for change in changes if not change.taken)
            reasons = refused or (f"{error.summary}. {error.detail}",)
            return cls("must be rebuilt", reasons, rows_to_replay(log, planned), error.hint)
        return cls("continues" if changes else "unchanged", tuple(change.text for change in changes))
