"""What finding patterns costs: microseconds of CPU for each row, the engine alone.

    python -m benchmarks.patterns

The matcher is the automaton over rows that are sorted and have their bits; the engine is one batch with everything around it:
from prepared Arrow rows to the output and the state.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from mainstem.operators.patterns.after_match import NO_SKIP
from mainstem.operators.patterns.automaton import ALWAYS, Automaton
from mainstem.operators.patterns.match_engine import MatchEngine, condition_column
from mainstem.operators.patterns.matcher import CANDIDATES_MAX, KeyMatches, Matcher
from mainstem.operators.patterns.pattern import Pattern, step
from mainstem.operators.stage.engine import NO_TIME, BatchClock
from mainstem.operators.stage.state_runs import MemoryState

ROWS = 100_000
WITHIN = 600_000_000
# Twenty rows a second.
BETWEEN = 50_000
# A condition's number is its text; its share of the rows is beside the pattern.
FIRST, SECOND, THIRD = step("first", "0"), step("second", "1"), step("third", "2")
PATTERNS: dict[str, tuple[Pattern, list[float]]] = {
    "three small, then large": (FIRST.times(3).then(SECOND), [0.3, 0.05]),
    "three small at once, large next": (FIRST.times(3).strict().next(SECOND), [0.3, 0.05]),
    "a, then b, then c": (FIRST.then(SECOND).then(THIRD), [0.05, 0.05, 0.05]),
    "a, then any b": (FIRST.then_any(SECOND), [0.05, 0.05]),
    "up one or more, down next": (FIRST.at_least(1).strict().next(SECOND), [0.5, 0.5]),
}


def batch_of(shares: list[float], keys: int) -> pa.Table:
    """Prepared rows."""
    random = np.random.default_rng(1)
    key = random.integers(0, keys, ROWS)
    columns = [pa.array(random.random(ROWS) < share) for share in shares]
    row = pa.StructArray.from_arrays(columns, names=[condition_column(number) for number in range(len(shares))])
    plain = {"group": key, "check": key, "by_0": key, "partition": np.zeros(ROWS, np.int32), "offset": np.arange(ROWS)}
    times = {"tie": np.zeros(ROWS, np.int64), "time": np.arange(ROWS) * BETWEEN, "watermark": np.full(ROWS, NO_TIME)}
    return pa.table({**plain, **times, "row": row})


def engine_of(pattern: Pattern) -> MatchEngine:
    return MatchEngine(
        (pa.field("by_0", pa.int64()),), pattern, (), (), (), (), WITHIN, None, NO_SKIP, False, CANDIDATES_MAX
    )


def seconds_of(work: Callable[[], int]) -> tuple[float, int]:
    begin = time.process_time()
    found = work()
    return time.process_time() - begin, found


def match_all(pattern: Pattern, rows: pa.Table, keys: int) -> Callable[[], int]:
    """The matcher alone, key by key."""
    matcher = Matcher(Automaton(pattern), WITHIN)
    row = rows.column("row").combine_chunks()
    bits = np.full(ROWS, ALWAYS)
    for number in range(row.type.num_fields):
        bits |= np.asarray(row.field(number)).astype(np.int64) * (2 << number)
    key = np.asarray(rows.column("by_0"))
    order = np.argsort(key, kind="stable")
    ends = np.searchsorted(key[order], np.arange(keys), side="right").tolist()
    times, sorted_bits = np.asarray(rows.column("time"))[order].tolist(), bits[order].tolist()

    def work() -> int:
        found, begin = 0, 0
        for end in ends:
            given = zip(range(end - begin), sorted_bits[begin:end], times[begin:end], strict=True)
            found += len(matcher.run(KeyMatches(), given))
            begin = end
        return found

    return work


def step_once(pattern: Pattern, rows: pa.Table) -> Callable[[], int]:
    engine = engine_of(pattern)

    def work() -> int:
        clock = BatchClock(ROWS * BETWEEN, 0, NO_TIME, 0)
        return engine.step(MemoryState(engine.state_schema), rows, clock).output.num_rows

    return work


def main() -> None:
    print(f"{'pattern':34} {'keys':>6} {'matches':>8} {'matcher us':>11} {'engine us':>10}")
    for keys in (1_000, 10_000):
        for title, (pattern, shares) in PATTERNS.items():
            rows = batch_of(shares, keys)
            alone, found = seconds_of(match_all(pattern, rows, keys))
            whole, told = seconds_of(step_once(pattern, rows))
            assert found == told, (found, told)
            print(f"{title:34} {keys:6} {found:8} {alone * 1e6 / ROWS:11.2f} {whole * 1e6 / ROWS:10.2f}")


if __name__ == "__main__":
    main()
