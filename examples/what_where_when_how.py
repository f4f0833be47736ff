"""What, where, when, how: the four questions of the Dataflow model.

*What* is computed: the sum of a team's scores. *Where* in event time: in windows of two minutes. *When* it is emitted:
early each minute, on time when the watermark passes, late for each late row. *How* the results of one window relate:
each is independent (discard), includes all so far (accumulate), or retracts the one before (retract). The scores are
those of the book "Streaming Systems", and so are the answers to the first two. In Mainstem: `aggregates`, a window,
`early` and `late`, `results`.
"""

import sys
import tempfile
from functools import partial

import mainstem
from mainstem.operators import each_row, every, tumbling, windowed
from mainstem.testing import TestStream

# "@" is the processing time, "w" the watermark; otherwise a score and its event time.
SCRIPT = """w 12:00:00 @ 12:04:59, 5 12:00:26 @ 12:05:39, 7 12:02:24 @ 12:06:00, w 12:02:00 @ 12:06:13, 3 12:03:39 @ 12:06:39,
4 12:04:19 @ 12:07:06, 8 12:03:06 @ 12:07:19, 3 12:06:39 @ 12:07:30, w 12:04:00 @ 12:07:40, w 12:06:00 @ 12:08:19,
9 12:01:25 @ 12:08:39, 8 12:07:26 @ 12:09:00, 1 12:07:46 @ 12:09:30, w 12:08:30"""
# The part of it in the first window.
FIRST_WINDOW = "@ 12:04:59, 5 12:00:26 @ 12:06:00, w 12:02:00 @ 12:08:19, 9 12:01:25"
# The panes of each window in the book (examples 2-9 and 2-7 with the heuristic watermark).
BOOK = {
    "discard": {"12:00": "+5 +0 +9", "12:02": "+10 +8", "12:04": "+4 +0", "12:06": "+3 +9"},
    "accumulate": {"12:00": "+5 +5 +14", "12:02": "+10 +18", "12:04": "+4 +4", "12:06": "+3 +12"},
    # Like accumulate, and each but the last is retracted.
    "retract": {"12:00": "+5 -5 +5 -5 +14", "12:02": "+10 -10 +18", "12:04": "+4 -4 +4", "12:06": "+3 -3 +12"},
}
TIMINGS = {"12:00": "early on_time late", "12:02": "early on_time", "12:04": "early on_time", "12:06": "early on_time"}


def scores(script: str) -> TestStream:
    stream = TestStream("team STRING, score INT, at TIMESTAMP", event_time="at")
    words = script.replace(",", "").split()
    for what, at in zip(words[::2], words[1::2], strict=True):
        if what == "w":
            stream = stream.watermark(f"2026-01-01 {at}")
        elif what == "@":
            stream = stream.now(f"2026-01-01 {at}")
        else:
            stream = stream.rows([{"team": "X", "score": int(what), "at": f"2026-01-01 {at}"}])
    return stream


def totals(rows, results: str):
    when = {"early": every("1 minute", since="first row"), "late": each_row(), "lateness": "1 hour"}
    return windowed(rows, tumbling("2 minutes"), by="team", aggregates="sum(score) AS total", **when, results=results)


def panes(changes: list) -> tuple[dict[str, str], dict[str, str]]:
    """For each window the emitted (+) and retracted (-) panes, and their timing."""
    shown, timings = {}, {}
    for change, row in changes:
        window = f"{row['window']['start']:%H:%M}"
        sign = "-" if change == "delete" else "+"
        shown[window] = f"{shown.get(window, '')} {sign}{row['total']}".strip()
        if change != "delete":
            timings[window] = f"{timings.get(window, '')} {row['pane']['timing']}".strip()
    return shown, timings


def main(home: str) -> None:
    found = {results: panes(scores(SCRIPT).run(partial(totals, results=results)).changes) for results in BOOK}
    print("the window from 12:00 is shown", found["discard"][1]["12:00"].replace(" ", ", ").replace("_", " "))
    for results, (shown, _) in found.items():
        print(f"{results:10} {shown['12:00']}")
    with mainstem.open(home) as stem:
        on_spark = panes(scores(FIRST_WINDOW).run_on_spark(partial(totals, results="retract"), stem.spark).changes)
    print("in a flow on Spark:", on_spark[0]["12:00"])
    expected = {results: (shown, TIMINGS) for results, shown in BOOK.items()}
    first = tuple({"12:00": of["12:00"]} for of in expected["retract"])
    same = found == expected and on_spark == first
    print("equal") if same else sys.exit(f"different: {found} and {on_spark}, expected {expected}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
