"""Flows beside their throughput: `python -m benchmarks.flows [--events 5000000] [--only scan,latency] [--rounds 3] [--json]`.

How history is read, how soon a result is there, what a replay needs; rates are measured by `benchmarks.nexmark`. Every
figure is a ratio in the same run, each side in processes of its own. Prints a table, and as the last line all of it as one
line of JSON (with --json only that).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace

from benchmarks import flows_history, flows_latency
from benchmarks.figure import Figure, table
from benchmarks.flows_run import FlowsRun

Subject = Callable[[FlowsRun], list[Figure]]

SUBJECTS: dict[str, Subject] = {
    "scan": flows_history.scan,
    "columns": flows_history.columns,
    "latency": flows_latency.latency,
    "cold": flows_latency.cold,
    "replay": flows_history.replay,
}


def main() -> None:
    arguments = _arguments()
    folder = arguments.folder or tempfile.mkdtemp(prefix="mainstem-flows-")
    run = FlowsRun(
        folder,
        events=arguments.events,
        rounds=arguments.rounds,
        latency_samples=arguments.latency_samples,
        rebuild_rows=arguments.rebuild_rows,
    )
    figures: list[Figure] = []
    failed: list[str] = []
    try:
        for name in arguments.only:
            try:
                found = [replace(figure, name=f"{name}: {figure.name}") for figure in SUBJECTS[name](run)]
                # A whole run takes long: what is known is told at once.
                print(table(found), file=sys.stderr, flush=True)
                figures += found
            except RuntimeError as error:
                # The other subjects are hours of work: they are still told.
                failed.append(name)
                print(f"{name}: {error}", file=sys.stderr)
    finally:
        if not arguments.folder:
            shutil.rmtree(folder)
    if not arguments.json:
        print(table(figures))
    machine = {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}
    print(
        json.dumps(
            {
                "figures": [figure.to_json() for figure in figures],
                "failed": failed,
                "events": arguments.events,
                "machine": machine,
            }
        )
    )
    sys.exit(1 if failed else 0)


def _subjects(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in SUBJECTS:
            raise argparse.ArgumentTypeError(f'"{name}" is none of: {", ".join(SUBJECTS)}')
    return names


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.flows", description=(__doc__ or "").partition("\n\n")[2]
    )
    parser.add_argument("--events", type=int, default=FlowsRun.events, help="how many Nexmark events there are")
    parser.add_argument(
        "--only", type=_subjects, default=list(SUBJECTS), metavar="NAME,...", help=f"some of: {', '.join(SUBJECTS)}"
    )
    parser.add_argument("--rounds", type=int, default=FlowsRun.rounds, help="how often each is run, in turns")
    parser.add_argument("--latency-samples", type=int, default=FlowsRun.latency_samples, help="appends that are timed")
    parser.add_argument("--rebuild-rows", type=int, default=FlowsRun.rebuild_rows, help="50000000 is a day's worth")
    parser.add_argument("--folder", help="where files and homes go, and stay for the next run")
    parser.add_argument("--json", action="store_true", help="print the line of JSON alone")
    return parser.parse_args()


if __name__ == "__main__":
    main()
