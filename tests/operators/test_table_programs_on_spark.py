"""Generated programs over tables that change, through Spark, against DuckDB after every step: with stops and failures.

Programs share one query, told apart by their chain of operators (`chain`) and by `case_id`: three chains of five cases each
in every run, with each operator in one of them, and before a release fifty chains. Filters, projections and unions between the operators are Spark's own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import duckdb
import numpy as np
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem import Flow, Mainstem
from mainstem.errors import FlowFailed
from mainstem.flows.staged_batches import StagedBatches
from mainstem.testing.scripted_rows import ScriptedRun
from tests.flows.memory_sink import MemorySink
from tests.operators.table_programs import NAMES, OPERATORS, Program, Tables, history, program

CASES = 5
SCHEMA = "case_id INT, a INT, b STRING, c BIGINT, moment INT, gone BOOLEAN"
Rows = Counter[tuple[Any, ...]]


# Seeds of chains in which every operator is.
EVERY_RUN = (0, 5, 7)


class ProgramFlow:
    """Some programs in one flow into memory."""

    def __init__(self, stem: Mainstem, seeds: Sequence[int], failing: set[int]) -> None:
        self.stem = stem
        self.seeds = seeds
        self.sink = MemorySink("shown", failing=failing)
        # What stands of each of them after the batches so far.
        self.there: Rows = Counter()
        self._seen = 0

    def programs(self, rows: list[DataFrame]) -> list[Program]:
        tables = Tables(rows)
        return [program(seed, tables) for seed in self.seeds]

    def united(self, rows: list[DataFrame]) -> DataFrame:
        chains = self.programs(rows)
        told = [of.node.rows.select(F.lit(of.seed).alias("chain"), *NAMES.split(", "), "record") for of in chains]
        return reduce(DataFrame.unionByName, told)

    def flows(self, stem: Mainstem) -> Iterator[Flow]:
        facts = [with_deletes(stem.topic(f"facts_{place}").stream()) for place in range(2)]
        yield Flow(self.united(facts), into=self.sink)

    def read(self) -> list[DataFrame]:
        return [with_deletes(self.stem.topic(f"facts_{place}").read()) for place in range(2)]

    def run(self) -> None:
        """A run from its start to its end, over all that is there."""
        try:
            self.stem.run(self.flows, until="idle")
        except FlowFailed:
            self.stem.run(self.flows, until="idle")
        for number in range(self._seen, self.sink.committed_batch + 1):
            self.there = applied(self.there, self.sink.attempts[number][-1])
        self._seen = self.sink.committed_batch + 1

    def expected(self) -> Rows:
        """All programs over what the topics have now, by DuckDB."""
        found: Rows = Counter()
        chains = self.programs(self.read())
        with duckdb.connect() as connection:
            for place in range(2):
                facts = self.stem.topic(f"facts_{place}").to_arrow()
                connection.register("facts", facts)
                told = '* EXCLUDE (record), gone AS deleted, record."offset" AS place'
                connection.execute(f"CREATE TABLE facts_{place} AS SELECT {told} FROM facts")
            for of in chains:
                rows = connection.sql(f"SELECT {NAMES} FROM ({of.node.sql})").fetchall()
                found.update((of.seed, *row) for row in rows)
        return found


def applied(there: Rows, rows: list[dict[str, Any]]) -> Rows:
    """The bag with some changes in it."""
    after = Counter(there)
    for row in rows:
        after[row["chain"], *(row[name] for name in NAMES.split(", "))] += (
            1 if row["record"]["change"] == "insert" else -1
        )
    return Counter({row: count for row, count in after.items() if count})


def fact(chance: random.Random, step: int) -> dict[str, Any]:
    return {
        "case_id": chance.randrange(CASES),
        "a": chance.randrange(4),
        "b": chance.choice(["x", "y", "z", None]),
        "c": chance.choice([-2, 0, 1, 3, 5, None]),
        "moment": 3 * step + chance.randint(-4, 4),
        "gone": chance.random() < 0.2,
    }


def with_deletes(rows: DataFrame) -> DataFrame:
    """Where a row says `gone` its record is a delete: one that says when it was."""
    change = F.when(F.col("gone"), "delete").otherwise("insert")
    # What is made anew has no mark.
    record = F.col("record").withField("change", change).alias("record", metadata={"mainstem.record": "1"})
    return rows.select(*NAMES.split(", "), "moment", record)


def differing(stem: Mainstem, seeds: Sequence[int], failing: set[int], steps: int) -> list[str]:
    """The first step after which something is not right."""
    chance = random.Random(11)
    # One partition: what is newest is then the same for any key.
    for place in range(2):
        stem.create_topic(f"facts_{place}", schema=SCHEMA, partitions=1)
    flow = ProgramFlow(stem, seeds, failing)
    for step in range(steps):
        for place in range(2):
            facts = [fact(chance, step) for _ in range(30)]
            # Some are delivered again.
            stem.topic(f"facts_{place}").append([*facts, *facts[:5]])
        # Every step is a run of its own.
        flow.run()
        expected = flow.expected()
        if flow.there != expected:
            return [f"step {step}: {flow.there - expected} and not {expected - flow.there}"]
    assert not flow.sink.failing
    assert len({row[0] for row in flow.there}) > len(seeds) // 2
    at_once = flow.united(flow.read()).toArrow().to_pylist()
    assert applied(Counter(), at_once) == flow.there
    return []


def test_every_operator_is_in_a_chain_of_every_run() -> None:
    facts = [history(np.random.default_rng(place), CASES, batches=1, rows=1) for place in range(2)]
    tables = Tables([one.scripted(ScriptedRun(), set()) for one in facts])
    assert {name for seed in EVERY_RUN for name in program(seed, tables).operators} == set(OPERATORS)


@pytest.mark.thorough
@pytest.mark.usefixtures("one_bucket")
@pytest.mark.parametrize(
    ("chains", "steps"),
    [pytest.param(EVERY_RUN, 2, id="some"), pytest.param(range(50), 3, marks=pytest.mark.long, id="all")],
)
def test_generated_programs_are_right_after_every_step_with_stops_and_failures(
    stem: Mainstem, chains: Sequence[int], steps: int
) -> None:
    assert differing(stem, chains, {1}, steps) == []


@pytest.mark.usefixtures("one_bucket")
def test_programs_that_forget_their_state_when_they_are_started_again_are_found_out(
    stem: Mainstem, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = StagedBatches._before
    monkeypatch.setattr(
        StagedBatches, "_before", lambda self, number: {} if self._last is None else right(self, number)
    )
    [found] = differing(stem, range(2, 4), set(), steps=2)
    assert found.startswith("step 1")
