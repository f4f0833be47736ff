"""Types of windows: tumbling, hopping, sliding, session.

Two clicks at 10:03:39 and 10:08:12 are less than five minutes apart, yet no tumbling and no hopping window of five
minutes has both: their boundaries are fixed. A sliding window has both, and so has a session. In Mainstem the kind of
window is an argument of `windowed`; everything else stays the same.
"""

import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from mainstem.operators import hopping, sessions, sliding, tumbling, windowed
from mainstem.testing import TestStream

TEN = datetime(2026, 1, 1, 10, tzinfo=UTC)
CLICKS = [TEN + timedelta(minutes=m, seconds=s) for m, s in [(1, 5), (3, 39), (8, 12), (8, 50), (16, 0), (17, 30)]]
PAIR = CLICKS[1:3]
FIVE, TICK = timedelta(minutes=5), timedelta(microseconds=1)
KINDS = {
    "tumbling": tumbling("5 minutes"),
    "hopping": hopping("5 minutes", slide="1 minute"),
    "sliding": sliding("5 minutes"),
    "session": sessions(gap="5 minutes"),
}


def windows(kind: str) -> list[tuple[datetime, datetime, list[datetime]]]:
    clicks = TestStream("at TIMESTAMP", event_time="at", delay="10 minutes").rows([{"at": at} for at in CLICKS])
    shown = clicks.watermark(TEN + timedelta(days=1)).run(
        lambda rows: windowed(rows, KINDS[kind], aggregates="collect_list(at) AS clicks")
    )
    return sorted((row["window"]["start"], row["window"]["end"], sorted(row["clicks"])) for row in shown.rows)


def recomputed(kind: str) -> list[tuple[datetime, datetime, list[datetime]]]:
    """The same by definition: try every boundary."""
    if kind == "session":
        cuts = [0, *(n + 1 for n, (one, two) in enumerate(pairwise(CLICKS)) if two - one >= FIVE), len(CLICKS)]
        return [(CLICKS[first], CLICKS[end - 1] + FIVE, CLICKS[first:end]) for first, end in pairwise(cuts)]
    if kind == "sliding":
        # The set of clicks changes when one enters and right after one leaves; both ends are inclusive.
        starts = {at - FIVE for at in CLICKS} | {at + TICK for at in CLICKS}
        spans = [(start, start + FIVE) for start in sorted(starts)]
        found = [(start, end, [at for at in CLICKS if start <= at <= end]) for start, end in spans]
    else:
        step = timedelta(minutes=5 if kind == "tumbling" else 1)
        spans = [(TEN + number * step, TEN + number * step + FIVE) for number in range(-5, 20)]
        found = [(start, end, [at for at in CLICKS if start <= at < end]) for start, end in spans]
    return [window for window in found if window[2]]


def main(home: str) -> None:
    different = []
    for kind in KINDS:
        found = windows(kind)
        both = [window for window in found if set(PAIR) <= set(window[2])]
        together = f"{both[0][0]:%H:%M:%S} to {both[0][1]:%H:%M:%S}" if both else "not in one window"
        sizes = " ".join(str(len(clicks)) for _, _, clicks in found)
        print(f"{kind:8} {len(found):2} windows of {sizes} clicks; the two: {together}")
        different += [(kind, found, recomputed(kind))] * (found != recomputed(kind))
    if different:
        sys.exit(f"different: {different}")
    print("equal")


if __name__ == "__main__":
    main("")
