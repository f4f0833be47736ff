"""The speed of joins: `python -m benchmarks.joins [--rows 2000000] [--only q20,q3] [--rounds 1] [--json]`.

Rates are rows per CPU-second of the whole process tree, as a share of what Spark's own operator does with the same rows from the
same topics in the same batches of about 100,000 rows, on RocksDB and on its default store; both sides agree on the rows. Each
runs twice in one session and is measured the second time. And of q20 how much cheaper a row is that was there before. Prints a
table, and as the last line all of it as one line of JSON (with --json only that).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from statistics import median

from benchmarks.figure import Figure, table
from benchmarks.flows_run import say
from benchmarks.measured_run import Measured, run_measured

# Times Spark's own join on RocksDB, and times that on its default store where it is asked.
GOALS = {"q20": (2.5, 1.2), "q3": (1.5, 1.2), "q8": (1.5, None), "q18": (1.5, None)}
# Live batches of so many rows, and how many of them; and what is there before the flow begins, in batches as large as it takes.
LIVE_ROWS, LIVE_BATCHES = 1_000, 40
CATCH_UP = "catch-up"


def figures_of(query: str, rows: int, rounds: int) -> list[Figure]:
    """One query on all sides, in turns."""
    found: dict[str, list[Measured]] = {"rocksdb": [], "memory": [], "ours": []}
    for _ in range(rounds):
        for side, measured in found.items():
            say(f"{query}: {side}")
            measured.append(run_measured("benchmarks.joins_program", query, side, "--rows", str(rows)))
    answers = [{name: of[0].facts[name] for name in ("pairs", "total")} for of in found.values()]
    if any(answer != answers[0] for answer in answers):
        raise RuntimeError(f"the answers differ: {dict(zip(found, answers, strict=True))}")
    ours = found["ours"]
    figures = []
    for store, goal in zip(("rocksdb", "memory"), GOALS[query], strict=True):
        plain = found[store]
        times = median(mine.rate / theirs.rate for mine, theirs in zip(ours, plain, strict=True))
        memory = max(it.bytes_peak for it in ours) / max(it.bytes_peak for it in plain)
        figures.append(
            Figure(
                f"{query}: times the rate of Spark's own join ({store})",
                times,
                at_least=goal,
                detail=f"{ours[0].rate / 1e3:,.0f} against {plain[0].rate / 1e3:,.0f} thousand rows per CPU-second, "
                f"{memory:.2f} of its memory; {answers[0]['pairs']:,.0f} pairs agree",
                facts={"rate": ours[0].rate, "baseline_rate": plain[0].rate, "memory": memory},
            )
        )
        if store == "memory":
            figures.append(Figure(f"{query}: share of the memory of Spark's own join (memory)", memory, at_most=0.5))
    return figures


def catch_up(rows: int) -> list[Figure]:
    """How much cheaper a row is that was there before the flow began than one that comes in a small batch."""
    say("catch-up: behind")
    behind = run_measured("benchmarks.joins_program", "q20", "ours", "--rows", str(rows), "--behind")
    say("catch-up: live")
    few = str(LIVE_ROWS * LIVE_BATCHES)
    live = run_measured("benchmarks.joins_program", "q20", "ours", "--rows", few, "--part", str(LIVE_ROWS))
    return [
        Figure(
            f"q20: times the rate of live batches of {LIVE_ROWS:,} rows, behind by {rows:,}",
            behind.rate / live.rate,
            at_least=5,
            detail=f"{behind.rate / 1e3:,.0f} against {live.rate / 1e3:,.1f} thousand rows per CPU-second",
            facts={"rate": behind.rate, "live_rate": live.rate},
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.joins", description=(__doc__ or "").partition("\n\n")[2]
    )
    parser.add_argument("--rows", type=int, default=2_000_000, help="how many rows the topics of a query have")
    parser.add_argument(
        "--only", default=",".join([*GOALS, CATCH_UP]), help=f"some of: {', '.join([*GOALS, CATCH_UP])}"
    )
    parser.add_argument("--rounds", type=int, default=1, help="how often each is run, in turns")
    parser.add_argument("--json", action="store_true", help="print the line of JSON alone")
    arguments = parser.parse_args()
    figures: list[Figure] = []
    failed: list[str] = []
    for query in arguments.only.split(","):
        try:
            found = (
                catch_up(arguments.rows) if query == CATCH_UP else figures_of(query, arguments.rows, arguments.rounds)
            )
            print(table(found), file=sys.stderr, flush=True)
            figures += found
        except RuntimeError as error:
            failed.append(query)
            print(f"{query}: {error}", file=sys.stderr)
    if not arguments.json:
        print(table(figures))
    facts = {"figures": [it.to_json() for it in figures], "failed": failed, "rows": arguments.rows}
    print(json.dumps({**facts, "cores": os.cpu_count()}))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
