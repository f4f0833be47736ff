"""The queries of Nexmark, Mainstem beside plain Spark: `python -m benchmarks.nexmark [--only q0,q5] [--quick] [--save]`.

Each query runs on each side in a process of its own, in turns, for some rounds; `nexmark_program` says what a run is. Every
answer is checked against DuckDB before it is timed. A rate is rows per CPU-second of the whole process tree; a ratio is
ours over plain Spark's with six files a batch in the same round, with its spread over the rounds. Prints a table, and as
the last line all of it as one line of JSON.

`--save` keeps the ratios in benchmarks/nexmark.json. `--quick` runs a few queries on few events, and exits with 1 if a ratio
is further below the median of those that `--quick --save` kept than these are apart; such a query is run once more first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.flows_run import FlowsRun, say
from benchmarks.measured_run import Measured, run_measured
from benchmarks.nexmark_events import Nexmark
from benchmarks.nexmark_files import NexmarkFiles
from benchmarks.nexmark_program import INTO, OURS, SIDES
from benchmarks.nexmark_queries import QUERIES

STORED = Path(__file__).with_name("nexmark.json")
BASELINE = "spark6"
EVENTS, ROUNDS = 2_000_000, 3
# One query that only reads, one with Spark's own state, one with a stage: enough to see each part become slower.
QUICK_QUERIES, QUICK_SIDES, QUICK_EVENTS = ["q0", "q5", "q20"], [OURS, BASELINE], 300_000
# Into a view and a topic: a row for each bid, few rows, wide rows.
STORED_QUERIES = ["q0", "q5", "q20"]


@dataclass
class Result:
    """What was measured of one query: by side, a run for each round."""

    query: str
    runs: dict[str, list[Measured]] = field(default_factory=dict)

    def rate(self, side: str) -> float:
        return median(run.rate for run in self.runs[side])

    def ratios(self, side: str = BASELINE) -> list[float]:
        """Ours over another side's rate, round by round."""
        pairs = zip(self.runs.get(OURS, []), self.runs.get(side, []), strict=False)
        return [ours.rate / theirs.rate for ours, theirs in pairs]

    def to_json(self) -> dict[str, Any]:
        """What does not depend on the machine."""
        return {
            "rows": self.runs[OURS][0].rows,
            "answer_rows": self.runs[OURS][0].facts["answer_rows"],
            "batches": {side: runs[0].facts["batches"] for side, runs in self.runs.items()},
            "ratios": {side: [round(it, 3) for it in self.ratios(side)] for side in self.runs if side != OURS},
        }


@dataclass(frozen=True)
class NexmarkRun:
    """One run of the harness: what is run, and the files and topics that all of it reads, made when first used."""

    folder: str
    events: int
    sides: Sequence[str]
    into: str = "nowhere"
    topics: Any = "sealed"

    def add_round(self, result: Result) -> None:
        """Run a query once on each side."""
        files = NexmarkFiles(f"{self.folder}/files-{self.events}", Nexmark(events=self.events))
        if not os.path.exists(files.side):
            say("writing files")
            shutil.rmtree(files.folder, ignore_errors=True)
            files.write()
        home = FlowsRun(self.folder, events=self.events).home(self.topics)
        where = ("--folder", files.folder, "--home", home, "--events", str(self.events), "--into", self.into)
        for side in self.sides:
            say(f"{result.query}: {side}")
            measured = run_measured("benchmarks.nexmark_program", result.query, side, *where)
            result.runs.setdefault(side, []).append(measured)


def table(results: Sequence[Result], sides: Sequence[str]) -> str:
    """The results as a person reads them."""
    rows = [["query", *sides, "ratio", "spread", "batches", "GB", "mapped GB", "our CPU: java, workers, driver"]]
    for it in results:
        ratios = it.ratios()
        shown = [f"{median(ratios):.2f}", f"{max(ratios) - min(ratios):.2f}"] if ratios else ["", ""]
        compared = [side for side in (OURS, BASELINE) if side in it.runs]
        rows.append(
            [
                f"{it.query} {QUERIES[it.query].title}",
                *(f"{it.rate(side) / 1e3:,.0f}" for side in sides),
                *shown,
                " / ".join(f"{it.runs[side][0].facts['batches']:.0f}" for side in compared),
                " / ".join(f"{max(run.bytes_peak for run in it.runs[side]) / 1e9:.1f}" for side in compared),
                " / ".join(f"{max(run.bytes_mapped for run in it.runs[side]) / 1e9:.1f}" for side in compared),
                " ".join(f"{_share(it.runs[OURS], kind):.0%}" for kind in ("java", "workers", "driver"))
                if OURS in it.runs
                else "",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    note = f"Thousand rows per CPU-second; ratio: {OURS} over {BASELINE}; batches and memory: {OURS} / {BASELINE}."
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], note])


def parts_table(result: Result) -> str:
    """CPU-seconds of a query's runs by what they did, median of the rounds, a column a side."""
    sides = list(result.runs)
    parts = {side: _parts(result.runs[side]) for side in sides}
    names = sorted({name for found in parts.values() for name in found}, key=lambda it: -parts[sides[0]].get(it, 0))
    lines = [f"  {name:60}" + "".join(f"{parts[side].get(name, 0):8.2f}" for side in sides) for name in names]
    return "\n".join([f"  {'CPU-seconds':60}" + "".join(f"{side:>8}" for side in sides), *lines])


def _parts(runs: Sequence[Measured]) -> dict[str, float]:
    names = {name for run in runs for name in run.cpu_by_part}
    return {name: median(run.cpu_by_part.get(name, 0.0) for run in runs) for name in names}


def _share(runs: Sequence[Measured], kind: str) -> float:
    return sum(run.cpu_by_kind[kind] for run in runs) / sum(run.cpu_seconds for run in runs)


def fallen(ratios: Sequence[float], stored: Sequence[float]) -> bool:
    """Whether a query became slower: its best ratio is further below the stored median than the stored ones are apart.

    >>> fallen([0.82], [0.8, 0.9, 1.0]), fallen([0.69], [0.8, 0.9, 1.0]), fallen([0.69, 0.85], [0.8, 0.9, 1.0])
    (False, True, False)
    """
    return max(ratios) < median(stored) - (max(stored) - min(stored))


def stored_results() -> dict[str, Any]:
    """What `--save` kept: by kind of run, its size and by query its facts."""
    kept: dict[str, Any] = json.loads(STORED.read_text()) if STORED.exists() else {}
    return kept


def save(kind: str, events: int, results: Sequence[Result]) -> None:
    """Keep the results; those of other queries of the same kind and size stay."""
    kept = stored_results()
    before = kept.get(kind, {})
    queries = before["queries"] if before.get("events") == events else {}
    queries |= {it.query: it.to_json() for it in results}
    kept[kind] = {"events": events, "queries": {name: queries[name] for name in QUERIES if name in queries}}
    STORED.write_text(json.dumps(kept, indent=1) + "\n")


def check_quick(run: NexmarkRun, results: Sequence[Result]) -> list[str]:
    """The queries that became slower than their stored ratios."""
    kept = stored_results().get("quick", {}).get("queries", {})
    slower = []
    for it in results:
        if it.query not in kept:
            say(f"{it.query}: no stored ratios; --quick --save keeps them")
            continue
        stored = kept[it.query]["ratios"][BASELINE]
        if fallen(it.ratios(), stored):
            run.add_round(it)
        if fallen(it.ratios(), stored):
            slower.append(it.query)
            given = ", ".join(f"{ratio:.2f}" for ratio in it.ratios())
            print(f"{it.query} became slower: {given} of plain Spark, stored are {stored}", file=sys.stderr)
    return slower


def main() -> None:
    arguments = _arguments()
    folder = arguments.folder or tempfile.mkdtemp(prefix="mainstem-nexmark-")
    run = NexmarkRun(folder, arguments.events, arguments.sides, arguments.into, arguments.topics)
    results = {name: Result(name) for name in arguments.only}
    failed: list[str] = []
    slower: list[str] = []
    try:
        for name, result in results.items():
            try:
                for _ in range(arguments.rounds):
                    run.add_round(result)
                # A whole run takes long: what is known is told at once.
                print(table([result], run.sides), parts_table(result), sep="\n", file=sys.stderr, flush=True)
            except RuntimeError as error:
                failed.append(name)
                print(f"{name}: {error}", file=sys.stderr)
        done = [result for name, result in results.items() if name not in failed]
        if arguments.save:
            save("quick" if arguments.quick else arguments.into, arguments.events, done)
        elif arguments.quick:
            slower = check_quick(run, done)
    finally:
        if not arguments.folder:
            shutil.rmtree(folder)
    print(table(done, run.sides))
    facts = {it.query: {side: [asdict(one) for one in runs] for side, runs in it.runs.items()} for it in done}
    print(json.dumps({"events": run.events, "into": run.into, "queries": facts, "failed": failed, "slower": slower}))
    sys.exit(1 if failed or slower else 0)


def _some_of(names: Sequence[str]) -> Any:
    def chosen(text: str) -> list[str]:
        for name in text.split(","):
            if name not in names:
                raise argparse.ArgumentTypeError(f'"{name}" is none of: {", ".join(names)}')
        return text.split(",")

    return chosen


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.nexmark",
        description=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    queries, sides = list(QUERIES), list(SIDES)
    parser.add_argument("--only", type=_some_of(queries), metavar="NAME,...", help=f"some of: {', '.join(queries)}")
    parser.add_argument("--sides", type=_some_of(sides), metavar="SIDE,...", help=f"some of: {', '.join(sides)}")
    parser.add_argument("--events", type=int, help=f"how many events there are; {EVENTS:,} unless told")
    parser.add_argument("--rounds", type=int, help=f"how often each is run, in turns; {ROUNDS} unless told")
    parser.add_argument("--into", choices=INTO, default="nowhere", help="where our rows go; plain Spark's: to files")
    parser.add_argument("--topics", choices=["sealed", "tail"], default="sealed", help="which segments our rows are in")
    parser.add_argument("--quick", action="store_true", help="a few queries on few events, against the stored ratios")
    parser.add_argument("--save", action="store_true", help=f"keep the ratios in {STORED.name}")
    parser.add_argument("--folder", help="where files and topics go, and stay for the next run")
    given = parser.parse_args()
    given.only = given.only or (
        QUICK_QUERIES if given.quick else queries if given.into == "nowhere" else STORED_QUERIES
    )
    given.sides = given.sides or (QUICK_SIDES if given.quick else sides)
    given.events = given.events or (QUICK_EVENTS if given.quick else EVENTS)
    given.rounds = given.rounds or (1 if given.quick and not given.save else ROUNDS)
    return given


if __name__ == "__main__":
    main()
