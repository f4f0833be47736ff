"""The stages of a flow: found in its plan, put in order, and the streaming query that is before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mainstem.errors import Conflict, Invalid
from mainstem.log_on_spark.flow_plan import Operator, leaves_in, operators_in, stages_in
from mainstem.names import check_own_name
from mainstem.operators.stage.stage import Stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["query_rows", "root_rows", "roots_of", "stage_operators", "stages_of"]

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
        before = stages_in(known[number].rows)
        if before:
            _check_after(known[number].rows, flow)
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


def roots_of(stages: Sequence[Stage]) -> list[Stage]:
    """The stages whose rows come from the streaming query."""
    return [stage for stage in stages if not stages_in(stage.rows)]


def query_rows(stages: Sequence[Stage]) -> DataFrame:
    """What the streaming query of a flow with stages gives: the rows that go into its first stage, or, if there are several
    such stages, all their rows, each in a column of its own."""
    from pyspark.sql import functions as F

    roots = roots_of(stages)
    if len(roots) == 1:
        return roots[0].rows
    names = [f"input_{stage.number}" for stage in roots]
    united = None
    for stage, mine in zip(roots, names, strict=True):
        columns: list[Any] = [F.lit(stage.number).alias(ROOT)]
        for other, name in zip(roots, names, strict=True):
            whole = F.struct(*[other.rows[column] for column in other.rows.columns]) if name == mine else None
            columns.append((F.lit(None).cast(other.rows.schema) if whole is None else whole).alias(name))
        rows = stage.rows.select(*columns)
        united = rows if united is None else united.unionByName(rows)
    assert united is not None
    return united


def root_rows(batch: DataFrame, roots: Sequence[Stage], number: int) -> DataFrame:
    """Of a batch of that query, the rows that go into one of the stages behind it."""
    from pyspark.sql import functions as F

    if len(roots) == 1:
        return batch
    [stage] = [stage for stage in roots if stage.number == number]
    given = batch.where(F.col(ROOT) == number)
    return given.select(
        *[F.col(f"input_{number}")[at.name].alias(at.name, metadata=at.metadata) for at in stage.rows.schema.fields]
    )


def stage_operators(stages: Sequence[Stage]) -> list[Operator]:
    return [Operator(stage.name, stage.spec.bounded_by) for stage in stages]
