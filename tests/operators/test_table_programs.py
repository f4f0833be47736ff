"""Generated programs over tables that change, against DuckDB, which computes them anew from all changes after every batch."""

from dataclasses import replace

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from mainstem.operators.tables import aggregate_engine, distinct_engine, table_engine, table_join_engine, top_engine
from mainstem.operators.tables.weights import sum_weights
from mainstem.testing.scripted_rows import ScriptedRun
from tests.operators.table_programs import NAMES, Tables, history, program

BATCHES, CASES, ROWS = 4, 20, 4
# Chains of operators that are tried on the same histories, each of them a program for every case; and how many times.
CHAINS, ROUNDS = 20, 25
# After each batch the cases are cases of their own: these are added to their numbers. A filter looks at case_id % 4.
STEP = 1000
ENGINES = (aggregate_engine, distinct_engine, table_join_engine, top_engine)


def at_every_step(rows: pa.Table) -> pa.Table:
    """What has come up to each batch, for each batch."""
    batch = np.asarray(rows.column("batch"))
    cases = np.asarray(rows.column("case_id"))
    parts = []
    for number in range(BATCHES):
        so_far = np.flatnonzero(batch <= number)
        told = pa.array((cases[so_far] + number * STEP).astype(np.int32))
        parts.append(rows.take(pa.array(so_far)).set_column(0, "case_id", told))
    return pa.concat_tables(parts)


def given(rows) -> pa.Table:
    """What came out, each row with its batch and its weight."""
    parts = []
    for number, batch in enumerate(rows.batches):
        change = batch.rows.column("record").combine_chunks().field("change")
        weight = np.where(np.asarray(change) == "delete", -1, 1)
        plain = batch.rows.drop_columns(["record"]).append_column("weight", pa.array(weight))
        parts.append(plain.append_column("batch", pa.array(np.full(len(weight), number))))
    return pa.concat_tables(parts)


def differences(connection, sql: str) -> list:
    """Rows that are there too often or too rarely after a batch."""
    return connection.sql(
        f"""SELECT {NAMES}, sum(weight) AS too_many FROM (
            SELECT {NAMES}, weight FROM stepped UNION ALL SELECT {NAMES}, -1 FROM ({sql})
        ) GROUP BY ALL HAVING sum(weight) <> 0"""
    ).fetchall()


def redundant(connection, rows: pa.Table) -> list:
    """Rows that a batch took back and put out again."""
    connection.register("passed", rows)
    return connection.sql(
        "SELECT * EXCLUDE (weight) FROM passed GROUP BY ALL HAVING min(weight) <> max(weight)"
    ).fetchall()


def wrong(seed: int, connection, chains: int = CHAINS) -> str:
    """What is wrong with generated programs; empty if nothing is."""
    chance = np.random.default_rng(seed)
    facts = [history(chance, CASES, BATCHES, ROWS) for _ in range(2)]
    killed = set(chance.integers(0, BATCHES, 1).tolist())
    run = ScriptedRun()
    tables = Tables([one.scripted(run, killed) for one in facts])
    for place, one in enumerate(facts):
        connection.register(f"facts_{place}", at_every_step(one.plain()))
    checked: set[int] = set()
    for number in range(seed * chains, seed * chains + chains):
        made = program(number, tables)
        connection.register("stepped", at_every_step(given(made.node.rows)))
        if found := differences(connection, made.node.sql):
            return f"seed {seed}, chain {number}, {made.operators}: {found[:5]} of {made.node.sql}"
        for passed in made.node.given:
            if id(passed) not in checked and (found := redundant(connection, given(passed))):
                return f"seed {seed}, chain {number}, {made.operators}: taken back and put out again: {found[:5]}"
        checked |= {id(passed) for passed in tables.given()}
    return ""


@pytest.fixture
def connection():
    with duckdb.connect() as opened:
        opened.execute("SET threads = 1")
        yield opened


# A fifth of them in every run.
@pytest.mark.thorough
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 5))])
def test_ten_thousand_programs_are_right_after_every_batch(part, connection):
    assert CHAINS * ROUNDS * CASES == 10_000
    for seed in range(part * ROUNDS // 5, (part + 1) * ROUNDS // 5):
        assert not wrong(seed, connection)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_ten_thousand_chains_are_right_after_every_batch(connection):
    for seed in range(ROUNDS, ROUNDS + 10_000 // CHAINS):
        assert not wrong(seed, connection)


# Engines with a mistake in them


def never_cancelled(weights, *keys):
    firsts, total = sum_weights(np.abs(weights), *keys)
    return firsts, total


def one_too_many(self, table, items, counts):
    return AMONG_THE_FIRST(replace(self, limit=self.limit + 1), table, items, counts)


def order_forgotten(values):
    return np.zeros(len(values), np.int64)


def everything_shown(left, right):
    return np.ones(left.num_rows, np.bool_)


def always_known(known, groups, items):
    return np.full(len(groups), -1, np.int64)


AMONG_THE_FIRST = top_engine.TopEngine._among_the_first
MUTANTS = {
    "what is taken away is put in": [(module, "sum_weights", never_cancelled) for module in ENGINES],
    "no state is found": [(module, "places_of", always_known) for module in ENGINES],
    "a top of one more": [(top_engine.TopEngine, "_among_the_first", one_too_many)],
    "a top in no order": [(top_engine, "value_ranks", order_forgotten)],
    "the last in the log in place of the newest": [(table_engine, "value_ranks", order_forgotten)],
    "what stays as it is put out again": [(aggregate_engine, "differ", everything_shown)],
    "values in no order": [(aggregate_engine, "value_ranks", order_forgotten)],
    "an outer join without rows that are alone": [
        (table_join_engine, "HOWS", dict.fromkeys(table_join_engine.HOWS, (True, {})))
    ],
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_an_engine_with_a_mistake_is_found_out(mutant, connection, monkeypatch):
    for module, name, mistake in MUTANTS[mutant]:
        monkeypatch.setattr(module, name, mistake)

    assert any(wrong(seed, connection) for seed in range(3))
