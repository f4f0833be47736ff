"""Program: a function from a mainstem to flows, looked at without starting any of them.

    def flows(stem):
        yield Flow(stem.topic("orders").stream().where("amount > 1000"), into=stem.topic("big_orders"))

What can be known to be wrong is found here: an unknown topic or column, a sink that cannot take the rows, two flows into
one sink, an operator that Spark cannot run as a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from mainstem.errors import Conflict, FlowNotFound, Invalid, did_you_mean
from mainstem.flows.flow import Flow
from mainstem.flows.spark_errors import spark_errors
from mainstem.log_on_spark.build import Build, Leaf
from mainstem.log_on_spark.flow_plan import (
    Operator,
    fingerprint,
    leaves_in,
    needed_columns,
    operators_in,
    output_mode,
    row_conditions,
)
from mainstem.log_on_spark.flow_run import FlowRun
from mainstem.log_on_spark.spark_types import arrow_schema
from mainstem.log_on_spark.topic_request import LIGHT_ROWS_MAX, ROWS_MAX

if TYPE_CHECKING:
    from mainstem.stem import Mainstem

__all__ = ["Flows", "PlannedFlow", "Program"]

Flows: TypeAlias = "Callable[[Mainstem], Iterable[Flow]]"


@dataclass(frozen=True)
class PlannedFlow:
    """A flow that could be started: what it reads, keeps and gives."""

    flow: Flow
    mode: str
    schema: pa.Schema
    leaves: dict[int, Leaf]
    operators: Sequence[Operator]
    # What its checkpoint depends on.
    plan: dict[str, Any]

    @property
    def name(self) -> str:
        return self.flow.name

    @property
    def sources(self) -> list[str]:
        return sorted({leaf.source for leaf in self.leaves.values()})

    @property
    def topics(self) -> list[str]:
        """The topics among its sources."""
        return [source for source in self.sources if not source.startswith(("view ", "topics "))]

    def warnings(self) -> list[str]:
        """What is not wrong, but will hurt."""
        return [
            f'the state of "{operator.name}" in flow "{self.name}" grows without bound: nothing lets it forget'
            for operator in self.operators
            if not operator.bounded_by
        ]


class Program:
    """The flows of one program on one mainstem."""

    def __init__(self, stem: Mainstem, flows: Flows) -> None:
        self._stem = stem
        self._flows = flows
        self._build = Build()
        self.flows = self._planned()

    def only(self, names: Sequence[str] | None) -> list[PlannedFlow]:
        """The flows of these names, or all."""
        if names is None:
            return self.flows
        known = {flow.name: flow for flow in self.flows}
        for name in names:
            if name not in known:
                raise FlowNotFound(
                    f'the program has no flow "{name}"',
                    detail=f"Its flows are: {', '.join(known) or 'none'}.",
                    hint=did_you_mean(name, known) or "Name some of these.",
                )
        return [known[name] for name in names]

    def _planned(self) -> list[PlannedFlow]:
        planned: list[PlannedFlow] = []
        with self._build.entered():
            for flow in _yielded(self._flows, self._stem):
                _check_apart(flow, planned)
                with spark_errors(f'flow "{flow.name}"'):
                    planned.append(self._plan(flow))
                self._build.schemas[f"{flow.into.kind}:{flow.into.name}"] = planned[-1].schema
        return planned

    def _plan(self, flow: Flow) -> PlannedFlow:
        if not flow.rows.isStreaming:
            raise Invalid(
                f'the rows of flow "{flow.name}" are not a stream',
                detail="They are what was there when the program was built, and would never change.",
                hint='Begin with .stream() instead of .read(): stem.topic("...").stream().',
            )
        schema = arrow_schema(flow.rows.schema)
        flow.into.accept(schema)
        needed = needed_columns(flow.rows)
        conditions = row_conditions(flow.rows)
        leaves = {}
        for number in leaves_in(flow.rows):
            leaf = self._build.leaves[number]
            # In the order in which the topic has them.
            wanted = [name for name in leaf.schema.names if name in needed.get(number, ())]
            # A count needs no column, but its rows must be counted.
            columns = tuple(wanted) or (leaf.schema.names[-1],)
            leaves[number] = Leaf(number, leaf.source, leaf.schema, columns, conditions.get(number))
        names = {number: leaf.source for number, leaf in leaves.items()}
        return PlannedFlow(
            flow,
            output_mode(flow.rows, flow.name),
            schema,
            leaves,
            operators_in(flow.rows),
            fingerprint(flow.rows, names),
        )

    def built_for(self, planned: PlannedFlow, run: FlowRun) -> Flow:
        """The flow once more, with its sources bound to this run and narrowed to what it needs.

        If the program cannot be built from fewer columns (another flow of it names one that this flow does not need, or
        one that is dropped later was made from it), they are there and null; and if not even that, as they are.
        """
        filled = {number: replace(leaf, filled=True) for number, leaf in planned.leaves.items()}
        everything = {number: Leaf(number, leaf.source, leaf.schema) for number, leaf in planned.leaves.items()}
        # Into topics and views rows go through the driver's memory, and state takes memory by the batch.
        light = not planned.operators and planned.flow.into.kind not in ("topic", "view")
        rows_max = LIGHT_ROWS_MAX if light else ROWS_MAX
        for leaves in (planned.leaves, filled, everything):
            build = Build(
                run=run, leaves=leaves, frames=self._build.frames, wait_ms=100 if len(leaves) == 1 else 10,
                rows_max=rows_max, schemas=self._build.schemas,
            )  # fmt: skip
            try:
                with build.entered():
                    flow = next(flow for flow in _yielded(self._flows, self._stem) if flow.name == planned.name)
                    if arrow_schema(flow.rows.schema).equals(planned.schema, check_metadata=False):
                        return flow
            except Exception:
                if leaves is everything:
                    raise
        raise Invalid(
            f'flow "{planned.name}" is another one each time it is built',
            detail="The columns it gave differ from those it gave before.",
            hint="Make the program depend on nothing but the mainstem it is given.",
        )


def _yielded(flows: Flows, stem: Mainstem) -> Iterable[Flow]:
    with spark_errors("the program"):
        made = flows(stem)
        if not isinstance(made, Iterable):
            raise Invalid(
                f"the program gave {type(made).__name__}, not flows",
                detail="`flows` is a function that yields flows, or returns a list of them.",
                hint="Write: yield Flow(rows, into=sink).",
            )
        for flow in made:
            if not isinstance(flow, Flow):
                raise Invalid(
                    f"the program yielded {type(flow).__name__}, not a flow",
                    detail=f"It is {str(flow)[:200]}.",
                    hint="Write: yield Flow(rows, into=sink).",
                )
            yield flow


def _check_apart(flow: Flow, earlier: Sequence[PlannedFlow]) -> None:
    for other in earlier:
        sink, theirs = flow.into, other.flow.into
        if (sink.kind, sink.name) == (theirs.kind, theirs.name):
            raise Conflict(
                f'two flows go into {sink.kind} "{sink.name}"',
                detail=f'They are "{other.name}" and "{flow.name}". Each would take the other\'s batches for its own.',
                hint="Union their rows into one flow, or give each a sink of its own.",
            )
        if flow.name == other.name:
            raise Conflict(
                f'two flows are named "{flow.name}"',
                detail="A flow's name is the place of its checkpoint.",
                hint="Give one of them another name: Flow(..., name=...).",
            )
