"""Rows per CPU-second of each query, as a share of what plain Spark does with the same rows in the same run."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.figure import Figure
from benchmarks.flows_run import FlowsRun, Where
from benchmarks.measured_run import Measured
from benchmarks.nexmark_queries import QUERIES

# From the tail every row goes through Python into Java. A filter keeps most of them out.
TAIL_GOALS = {"q0": 0.45, "q1": 0.45, "q2": 0.9}
SEALED_GOAL = 0.9
JSON_GOAL = 3.0
STATEFUL_GOAL = 0.8


def passing(run: FlowsRun, query: str) -> list[Figure]:
    """A query that only passes rows through: from the tail and over sealed history, against Parquet and JSON files."""
    parquet, json, tail, sealed = _in_turns(run, query, [("parquet",), ("json",)], ["tail", "sealed"])
    title = f"{QUERIES[query].title}: rate of plain Spark"
    return [
        _share(f"{title} on Parquet, over sealed history", sealed, parquet, at_least=SEALED_GOAL),
        _share(f"{title} on Parquet, from the tail", tail, parquet, at_least=TAIL_GOALS[query]),
        _share(f"{title} on JSON, over sealed history", sealed, json, at_least=JSON_GOAL),
        _share(f"{title} on JSON, from the tail", tail, json),
        _share("for orientation: plain Spark on Parquet, rate of it on JSON", parquet, json),
    ]


def kept(run: FlowsRun, query: str) -> list[Figure]:
    """A query with a result that is kept: in a view or a topic, against Parquet files."""
    stores = [("parquet", "--state", "rocksdb")]
    if QUERIES[query].stateful:
        stores.append(("parquet", "--state", "memory"))
    plain, *in_memory, tail, sealed = _in_turns(run, query, stores, ["tail", "sealed"])
    title = f"{QUERIES[query].title}: rate of plain Spark"
    figures = [
        _share(f"{title}, over sealed history", sealed, plain, at_least=STATEFUL_GOAL),
        _share(f"{title}, from the tail", tail, plain, at_least=STATEFUL_GOAL),
    ]
    figures += [_share(f"{title} with its state in memory, from the tail", tail, memory) for memory in in_memory]
    return figures


def _in_turns(run: FlowsRun, query: str, plain: Sequence[Sequence[str]], ours: Sequence[Where]) -> list[list[Measured]]:
    """All of them, round by round: what disturbs one round disturbs all of it."""
    rounds = [
        [run.plain(query, "--form", *more) for more in plain] + [run.ours(query, where) for where in ours]
        for _ in range(run.rounds)
    ]
    return [list(runs) for runs in zip(*rounds, strict=True)]


def _share(name: str, ours: Sequence[Measured], plain: Sequence[Measured], *, at_least: float | None = None) -> Figure:
    pairs = list(zip(ours, plain, strict=True))
    rate, baseline = median(it.rate for it in ours), median(it.rate for it in plain)
    return Figure(
        name,
        median(mine.rate / theirs.rate for mine, theirs in pairs),
        at_least=at_least,
        detail=f"{rate / 1e3:,.0f} against {baseline / 1e3:,.0f} thousand rows per CPU-second; answers checked",
        facts={
            "rate": rate,
            "baseline_rate": baseline,
            # The same with everything that went before: interpreter, Java, warm-up.
            "whole_ratio": median(mine.whole_rate / theirs.whole_rate for mine, theirs in pairs),
            "seconds": median(it.seconds for it in ours),
            "baseline_seconds": median(it.seconds for it in plain),
            "bytes_peak": max(it.bytes_peak for it in ours),
            "baseline_bytes_peak": max(it.bytes_peak for it in plain),
            "batches": ours[0].facts["batches"],
            "baseline_batches": plain[0].facts["batches"],
        },
    )
