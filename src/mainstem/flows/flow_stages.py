"""The stages of a flow: found in its plan, put in order, and the streaming query that is before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mainstem.errors import Conflict, Invalid
from mainstem.log_on_spark.flow_plan import Operator, is_straight, leaves_in, operators_in, stage_uses, stages_in
from mainstem.names import check_own_name
from mainstem.operators.stage.stage import Stage, prepared_together

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "Root",
    "are_counted_together",
    "lags_of",
    "query_rows",
    "root_rows",
    "roots_of",
    "shared_stages",
    "stage_operators",
    "stages_of",
]

# Where several streams go into stages, this column says which one a row is of.
ROOT = "root"


def stages_of(rows: DataFrame, known: Mapping[int, Stage], flow: str) -> tuple[Stage, ...]:
    """The stages that a flow's rows pass, in their order, each with its name in the flow."""
    numbers: set[int] = set()
    waiting = stages_in(rows)
    if waiting:
        _check_after(rows, flow)
    while waiting:
        number = waiting.pop()
        numbers.add(number)
        for given in known[number].inputs:
            before = stages_in(given)
            if before:
                _check_after(given, flow)
            waiting |= before - numbers
    stages: list[Stage] = []
    for place, number in enumerate(sorted(numbers)):
        stage = known[number]
        name = check_own_name(stage.name or f"{stage.spec.operator}-{place}", "stage")
        if name in (other.name for other in stages):
            raise Conflict(
                f'two stages of flow "{flow}" are named "{name}"',
                detail="A stage's name is the place of its state.",
                hint="Give one of them another name: name=...",
            )
        stages.append(replace(stage, name=name))
    return tuple(stages)


def _check_after(rows: DataFrame, flow: str) -> None:
    """What comes after a stage runs batch by batch: it cannot keep anything there, nor be joined by another stream."""
    if kept := operators_in(rows):
        raise Invalid(
            f'flow "{flow}" has Spark\'s own "{kept[0].name}" behind an operator of mainstem',
            detail="Behind it each batch stands by itself, so nothing could be kept from one to the next.",
            hint="Put it before the operator, use an operator of mainstem there (windowed, process), or go through a topic: "
            "one flow into it, another one out of it.",
        )
    if leaves_in(rows):
        raise Invalid(
            f'flow "{flow}" brings another stream in behind an operator of mainstem',
            detail="Behind it each batch stands by itself; a stream that has not passed it has no batches there.",
            hint="Bring it in before the operator, or go through a topic: one flow into it, another one out of it.",
        )


@dataclass(frozen=True)
class Root:
    """What the streaming query gives to a stage: its rows, or of several inputs those that are from there, prepared, since
    they lie in one frame."""

    number: int
    rows: DataFrame


def roots_of(stages: Sequence[Stage]) -> list[Root]:
    """What the streaming query gives to the stages that take rows of it."""
    found = []
    for stage in stages:
        places = [place for place, rows in enumerate(stage.inputs) if not stages_in(rows)]
        if places:
            rows = stage.inputs[0] if len(stage.inputs) == 1 else prepared_together(stage, places)
            found.append(Root(stage.number, rows))
    return found


def lags_of(stages: Sequence[Stage]) -> dict[int, int]:
    """By how many microseconds the clock of each stage is behind the flow's, by the stage's number."""
    found: dict[int, int] = {}
    for stage in sorted(stages, key=lambda stage: stage.number):
        before = set().union(*(stages_in(rows) for rows in stage.inputs))
        behind = {other.number: other.spec.behind for other in stages}
        found[stage.number] = max((found[number] + behind[number] for number in before), default=0)
    return found


def shared_stages(rows: DataFrame, stages: Sequence[Stage]) -> set[int]:
    """The numbers of the stages whose rows go to several places of a flow with these rows: further stages, and the sink."""
    uses = stage_uses(rows)
    for stage in stages:
        for given in stage.inputs:
            uses += stage_uses(given)
    return {number for number, count in uses.items() if count > 1}


def are_counted_together(rows: DataFrame, stages: Sequence[Stage]) -> bool:
    """Whether the tasks of a stage of a flow with these rows may be counted by Spark together with tasks of something else."""
    behind = [given for stage in stages for given in stage.inputs if stages_in(given)]
    united = any(len(stage.inputs) > 1 and any(map(stages_in, stage.inputs)) for stage in stages)
    return united or bool(shared_stages(rows, stages)) or not all(map(is_straight, [rows, *behind]))


def query_rows(stages: Sequence[Stage]) -> DataFrame:
    """What the streaming query of a flow with stages gives: the rows that go into its first stage, or, if there are several
    such stages, all their rows, each in a column of its own."""
    from pyspark.sql import functions as F

    roots = roots_of(stages)
    if len(roots) == 1:
        return roots[0].rows
    united = None
    for root in roots:
        columns: list[Any] = [F.lit(root.number).alias(ROOT)]
        for other in roots:
            whole = F.struct(*[other.rows[name] for name in other.rows.columns]) if other is root else None
            nothing = F.lit(None).cast(other.rows.schema)
            columns.append((nothing if whole is None else whole).alias(f"input_{other.number}"))
        rows = root.rows.select(*columns)
        united = rows if united is None else united.unionByName(rows)
    assert united is not None
    return united


def root_rows(batch: DataFrame, roots: Sequence[Root], number: int) -> DataFrame:
    """Of a batch of that query, the rows that go into one of the stages behind it."""
    from pyspark.sql import functions as F

    if len(roots) == 1:
        return batch
    [root] = [root for root in roots if root.number == number]
    given = batch.where(F.col(ROOT) == number)
    fields = root.rows.schema.fields
    return given.select(*[F.col(f"input_{number}")[at.name].alias(at.name, metadata=at.metadata) for at in fields])


def stage_operators(stages: Sequence[Stage]) -> list[Operator]:
    return [Operator(stage.name, stage.spec.bounded_by) for stage in stages]
