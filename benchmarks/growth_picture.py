"""The growth of a flow with workers and partitions as a table and a picture, for the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.measured_run import Measured

PAGE = Path(__file__).parent.parent / "docs" / "internals" / "kafka.md"
PICTURE = PAGE.with_name("kafka_growth.svg")
BEGIN, END = "<!-- growth -->\n", "<!-- end of growth -->\n"
SHOWN = f"\n![Thousand rows a second for one and two workers over 2, 4 and 8 partitions]({PICTURE.name})\n"

WIDTH, HEIGHT = 640, 320
LEFT, FOOT, TOP = 80, 260, 60
GROUP, BAR = 180, 60
# Told apart by people who see few colours, too.
COLOURS = {1: "#009e73", 2: "#d55e00"}
STYLE = "text{font:12px sans-serif;fill:#333}.title{font-size:16px}.axis{stroke:#999}"

# By workers and partitions.
Growth = Mapping[tuple[int, int], Measured]


def table(growth: Growth) -> str:
    """Rows a second, and what a row costs."""
    lines = ["| partitions | workers | thousand rows a second | microseconds of CPU a row |", "|--:|--:|--:|--:|"]
    for (workers, partitions), it in sorted(growth.items(), key=lambda item: item[0][::-1]):
        speed, cost = it.rows / it.seconds / 1e3, it.cpu_seconds / it.rows * 1e6
        lines.append(f"| {partitions} | {workers} | {speed:,.0f} | {cost:,.1f} |")
    return "\n".join(lines) + "\n"


def picture(growth: Growth) -> str:
    """Rows a second as bars, side by side for one and for two workers; what a row costs is written above each."""
    most = max(it.rows / it.seconds for it in growth.values())
    title = "Windows over a topic on Kafka: thousand rows a second, and microseconds of CPU a row above"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24">{title}</text>',
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - 20}" y1="{FOOT}" y2="{FOOT}"/>',
        *_bars(growth, most),
        *_legend(),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _bars(growth: Growth, most: float) -> Iterator[str]:
    counts = sorted({partitions for _, partitions in growth})
    for place, partitions in enumerate(counts):
        left = LEFT + 20 + place * GROUP
        yield f'<text x="{left + BAR}" y="{FOOT + 18}" text-anchor="middle">{partitions} partitions</text>'
        for workers, colour in COLOURS.items():
            it = growth[workers, partitions]
            speed, cost = it.rows / it.seconds, it.cpu_seconds / it.rows * 1e6
            height = round(speed / most * (FOOT - TOP - 30))
            x, top = left + (workers - 1) * BAR, FOOT - height
            yield f'<rect x="{x}" y="{top}" width="{BAR - 6}" height="{height}" fill="{colour}"/>'
            yield f'<text x="{x + BAR / 2 - 3}" y="{top + 16}" text-anchor="middle">{speed / 1e3:,.0f}</text>'
            yield f'<text x="{x + BAR / 2 - 3}" y="{top - 6}" text-anchor="middle">{cost:,.1f}</text>'


def _legend() -> Iterator[str]:
    for workers, colour in COLOURS.items():
        x = LEFT + 20 + (workers - 1) * 120
        yield f'<rect x="{x}" y="{HEIGHT - 24}" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 18}" y="{HEIGHT - 14}">{workers} worker{"s" * (workers > 1)}</text>'


def write(growth: Growth) -> None:
    """Put both into the documentation."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{table(growth)}{SHOWN}{END}{after}")
    PICTURE.write_text(picture(growth))
