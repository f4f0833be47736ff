"""What a row costs as events grow: `python -m benchmarks.nexmark_growth [--events 2000000,10000000,50000000] [--folder DIR]`.

Queries q0 (no state), q18 (a row for each bidder and auction) and q20 (every bid is kept) of Nexmark, ours alone, as
`benchmarks.nexmark` runs them. Prints CPU microseconds a row and the highest memory, and draws
docs/internals/nexmark_growth.svg. 50 M events need 30 GB of disk and half an hour.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.growth_picture import STYLE
from benchmarks.measured_run import Measured
from benchmarks.nexmark import NexmarkRun, Result
from benchmarks.nexmark_program import OURS
from benchmarks.nexmark_queries import QUERIES

SIZES = [2_000_000, 10_000_000, 50_000_000]
SHOWN = {"q0": "#009e73", "q18": "#0072b2", "q20": "#d55e00"}
PICTURE = Path(__file__).parent.parent / "docs" / "internals" / "nexmark_growth.svg"
WIDTH, HEIGHT, LEFT, FOOT, TOP, BAR = 640, 320, 60, 260, 60, 50

# By number of events and query.
Growth = Mapping[tuple[int, str], Measured]


def cost(run: Measured) -> float:
    """CPU microseconds a row."""
    return run.cpu_seconds / run.rows * 1e6


def table(growth: Growth, sizes: Sequence[int]) -> str:
    lines = [
        "| query | " + " | ".join(f"{size / 1e6:g} M events" for size in sizes) + " |",
        "|---" * (len(sizes) + 1) + "|",
    ]
    for query in SHOWN:
        runs = [growth[size, query] for size in sizes]
        cells = [
            f"{cost(run):.2f} us, {run.bytes_peak / 1e9:.1f} GB and {run.bytes_mapped / 1e9:.1f} mapped" for run in runs
        ]
        lines.append(f"| {query} {QUERIES[query].title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def picture(growth: Growth, sizes: Sequence[int]) -> str:
    """The cost of a row as bars: a group for each number of events, a bar for each query."""
    most = max(map(cost, growth.values()))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            f'<text x="{LEFT}" y="24">Nexmark: CPU microseconds a row, by number of events</text>',
            f'<line class="axis" x1="{LEFT}" x2="{WIDTH - 20}" y1="{FOOT}" y2="{FOOT}"/>',
            *_bars(growth, sizes, most),
            "</svg>\n",
        ]
    )


def _bars(growth: Growth, sizes: Sequence[int], most: float) -> Iterator[str]:
    for place, size in enumerate(sizes):
        left = LEFT + 20 + place * (len(SHOWN) + 1) * BAR
        middle = left + len(SHOWN) * BAR / 2
        yield f'<text x="{middle}" y="{FOOT + 18}" text-anchor="middle">{size / 1e6:g} M events</text>'
        for number, (query, colour) in enumerate(SHOWN.items()):
            height = round(cost(growth[size, query]) / most * (FOOT - TOP))
            x, top = left + number * BAR, FOOT - height
            yield f'<rect x="{x}" y="{top}" width="{BAR - 6}" height="{height}" fill="{colour}"/>'
            yield f'<text x="{x + BAR / 2 - 3}" y="{top - 6}" text-anchor="middle">{cost(growth[size, query]):.1f}</text>'
    for number, (query, colour) in enumerate(SHOWN.items()):
        x = LEFT + 20 + number * 180
        yield f'<rect x="{x}" y="{HEIGHT - 24}" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 18}" y="{HEIGHT - 14}">{query} {QUERIES[query].title}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark_growth", description=__doc__)
    parser.add_argument("--events", default=",".join(map(str, SIZES)), help="numbers of events")
    parser.add_argument("--folder", help="where files and topics go, and stay for the next run")
    given = parser.parse_args()
    sizes = [int(size) for size in given.events.split(",")]
    folder = given.folder or tempfile.mkdtemp(prefix="mainstem-nexmark-")
    growth: dict[tuple[int, str], Measured] = {}
    try:
        for size in sizes:
            for query in SHOWN:
                result = Result(query)
                NexmarkRun(folder, size, [OURS]).add_round(result)
                [growth[size, query]] = result.runs[OURS]
                print(size, query, f"{cost(growth[size, query]):.2f} us a row", flush=True)
    finally:
        if not given.folder:
            shutil.rmtree(folder)
    print(table(growth, sizes))
    PICTURE.write_text(picture(growth, sizes))


if __name__ == "__main__":
    main()
