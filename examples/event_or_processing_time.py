"""Event time or processing time: the spike that never happened.

Requests come at a steady rate. The job that collects them stops for an hour, then processes the backlog. Counted by
processing time there is an hour of silence and then a spike; neither happened. In Mainstem windows use the *event time*
of a row; `on="record.appended_at"` uses its append time.
"""

import random
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

from mainstem.operators import tumbling, windowed
from mainstem.testing import TestStream

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
QUARTER, QUARTERS = timedelta(minutes=15), range(16)
STOPPED, STARTED = NOON + 6 * QUARTER, NOON + 10 * QUARTER
BARS = " ▁▂▃▄▅▆▇█"


def collected(times: list[datetime]) -> TestStream:
    """The rows that the collecting job appends every five minutes, if it runs."""
    stream = TestStream("at TIMESTAMP", event_time="at", delay="5 minutes")
    held: list[dict] = []
    for minutes in range(0, 240, 5):
        now = NOON + timedelta(minutes=minutes + 5, seconds=-1)
        held += [{"at": at} for at in times if now - timedelta(minutes=5) < at <= now]
        if not STOPPED < now < STARTED:
            stream, held = stream.now(now).rows(held), []
    end = NOON + timedelta(days=1)
    return stream.now(end).watermark(end)


def counted(stream: TestStream, on: str) -> list[int]:
    shown = stream.run(lambda rows: windowed(rows, tumbling("15 minutes"), aggregates="count(*) AS requests", on=on))
    found = {row["window"]["start"]: row["requests"] for row in shown.rows}
    return [found.get(NOON + number * QUARTER, 0) for number in QUARTERS]


def picture(by_event: list[int], by_processing: list[int]) -> str:
    """Both as bars, one above the other."""
    bars = [
        f'<rect x="{40 * number + 5}" y="{foot - count}" width="30" height="{count}" fill="{colour}"/>'
        for foot, colour, counts in ((250, "#009e73", by_event), (520, "#d55e00", by_processing))
        for number, count in enumerate(counts)
    ]
    titles = '<text x="5" y="20">by event time</text><text x="5" y="290">by processing time</text>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 530">{titles}{"".join(bars)}</svg>\n'


def line(counts: list[int], most: int) -> str:
    bars = "".join(BARS[-(-count * 8 // most)] for count in counts)
    return f"|{bars}|  {min(counts):2} to {max(counts):3} requests in a quarter of an hour"


def main(home: str) -> None:
    chance = random.Random(37)
    times = [NOON + timedelta(seconds=22 * number + chance.randrange(22)) for number in range(654)]
    stream = collected(times)
    by_event, by_processing = counted(stream, "at"), counted(stream, "record.appended_at")
    Path(home, "requests.svg").write_text(picture(by_event, by_processing), encoding="utf-8")
    print("by event time     ", line(by_event, max(by_processing)))
    print("by processing time", line(by_processing, max(by_processing)))
    print("both plotted in requests.svg")

    happened = Counter((at - NOON) // QUARTER for at in times)
    expected = [happened[number] for number in QUARTERS]
    if by_event != expected or sum(by_processing) != len(times) or by_processing[6:10] != [0, 0, 0, 0]:
        sys.exit(f"different: {by_event} and {by_processing}, happened {expected}")
    print("equal")


if __name__ == "__main__":
    main(".")
