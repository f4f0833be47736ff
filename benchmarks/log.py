"""The log's speed and memory: `python -m benchmarks.log [--only NAME ...] [--gigabytes 20] [--quick]`.

Every figure is a ratio to a baseline taken in the same run, in turns with it. Prints a table, and as the last line all
of it as one line of JSON.
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

from benchmarks import append_speed, follow_latency, query_speed, read_speed, size_effects
from benchmarks.figure import Figure, table
from benchmarks.run_size import RunSize

Subject = Callable[[str, RunSize], list[Figure]]

SUBJECTS: dict[str, Subject] = {
    "batches": append_speed.batches,
    "single": append_speed.single,
    "threads": append_speed.threads,
    "reading": read_speed.reading,
    "sealing": append_speed.sealing,
    "query": query_speed.query,
    "following": follow_latency.following,
    "opening": size_effects.opening,
    "volume": size_effects.volume,
}


def main() -> None:
    arguments = _arguments()
    size = RunSize(gigabytes=arguments.gigabytes)
    if arguments.quick:
        size = RunSize.quick()
    figures: list[Figure] = []
    for name in arguments.only or SUBJECTS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        folder = tempfile.mkdtemp(prefix="mainstem-benchmark-", dir=arguments.folder)
        try:
            figures += [replace(figure, name=f"{name}: {figure.name}") for figure in SUBJECTS[name](folder, size)]
        finally:
            shutil.rmtree(folder)
    print(table(figures))
    machine = {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}
    print(
        json.dumps({"figures": [figure.to_json() for figure in figures], "quick": arguments.quick, "machine": machine})
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.log", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--only", nargs="+", choices=SUBJECTS, metavar="NAME", help=f"some of: {', '.join(SUBJECTS)}")
    parser.add_argument("--gigabytes", type=float, default=20, help="how much `volume` puts into its topic")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: to see that all of it works, not how fast")
    parser.add_argument("--folder", help="where to put the homes; the disk that it is on is what is measured")
    return parser.parse_args()


if __name__ == "__main__":
    main()
