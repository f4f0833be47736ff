"""The speed of windows: `python -m benchmarks.windows [--events 2000000] [--only tumbling,state] [--rounds 1] [--json]`.

Rates are rows per CPU-second of the whole process tree, as a share of what Spark's own windows do with the same rows from
the same source in the same run; both sides agree on what the windows hold. Prints a table, and as the last line all of it
as one line of JSON (with --json only that).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from statistics import median

from benchmarks import windows_state
from benchmarks.figure import Figure, table
from benchmarks.flows_run import FlowsRun, say
from benchmarks.measured_run import Measured, run_measured

Subject = Callable[[FlowsRun], list[Figure]]

GOALS = {"tumbling": 1.0, "hopping": 1.0, "sessions": 1.0, "early": 0.6}
TITLES = {
    "tumbling": "tumbling windows on time: rate of Spark's own",
    "hopping": "hopping windows on time: rate of Spark's own",
    "sessions": "sessions: rate of Spark's own",
    "early": "early results every second, with retractions: rate of Spark's own on-time windows",
}


def rate(run: FlowsRun, shape: str) -> list[Figure]:
    """One shape on both sides, in turns."""
    ours: list[Measured] = []
    plain: list[Measured] = []
    for _ in range(run.rounds):
        for side, found in (("spark", plain), ("ours", ours)):
            say(f"{shape}: {side}")
            # What Spark is measured against for early results is its tumbling window.
            asked = "tumbling" if side == "spark" and shape == "early" else shape
            found.append(run_measured("benchmarks.windows_program", asked, side, "--home", run.home("tail")))
    answers = [
        {name: it.facts[name] for name in ("windows", "window_bids", "window_price")} for it in (ours[0], plain[0])
    ]
    if answers[0] != answers[1]:
        raise RuntimeError(f"the answers differ: {answers[0]} and {answers[1]}")
    return [
        Figure(
            TITLES[shape],
            median(mine.rate / theirs.rate for mine, theirs in zip(ours, plain, strict=True)),
            at_least=GOALS[shape],
            detail=f"{ours[0].rate / 1e3:,.0f} against {plain[0].rate / 1e3:,.0f} thousand rows per CPU-second; "
            f"{answers[0]['windows']:,.0f} windows agree",
            facts={
                "rate": median(it.rate for it in ours),
                "baseline_rate": median(it.rate for it in plain),
                "batches": ours[0].facts["batches"],
                "baseline_batches": plain[0].facts["batches"],
                "bytes_peak": max(it.bytes_peak for it in ours),
                "baseline_bytes_peak": max(it.bytes_peak for it in plain),
            },
        )
    ]


SUBJECTS: dict[str, Subject] = {
    "tumbling": lambda run: rate(run, "tumbling"),
    "hopping": lambda run: rate(run, "hopping"),
    "sessions": lambda run: rate(run, "sessions"),
    "early": lambda run: rate(run, "early"),
    "latency": windows_state.latency,
    "state": windows_state.state,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.windows", description=(__doc__ or "").partition("\n\n")[2]
    )
    parser.add_argument("--events", type=int, default=2_000_000, help="how many Nexmark events there are")
    parser.add_argument("--only", default=",".join(SUBJECTS), help=f"some of: {', '.join(SUBJECTS)}")
    parser.add_argument("--rounds", type=int, default=1, help="how often each is run, in turns")
    parser.add_argument("--folder", help="where homes go, and stay for the next run")
    parser.add_argument("--json", action="store_true", help="print the line of JSON alone")
    arguments = parser.parse_args()
    folder = arguments.folder or tempfile.mkdtemp(prefix="mainstem-windows-")
    run = FlowsRun(folder, events=arguments.events, rounds=arguments.rounds)
    figures: list[Figure] = []
    failed: list[str] = []
    try:
        for name in arguments.only.split(","):
            try:
                found = SUBJECTS[name](run)
                print(table(found), file=sys.stderr, flush=True)
                figures += found
            except RuntimeError as error:
                failed.append(name)
                print(f"{name}: {error}", file=sys.stderr)
    finally:
        if not arguments.folder:
            shutil.rmtree(folder)
    if not arguments.json:
        print(table(figures))
    facts = {
        "figures": [it.to_json() for it in figures],
        "failed": failed,
        "events": arguments.events,
        "cores": os.cpu_count(),
    }
    print(json.dumps(facts))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
