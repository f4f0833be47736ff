"""What a row costs the engines of windows, without Spark: `python -m benchmarks.window_engines [rows a batch]`.

Ten batches; processor time of the steps alone, in microseconds a row. The state is in memory, and finding rows in it is
part of a step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.operators.aggregates.accumulators import AggregateCall
from mainstem.operators.aggregates.aggregates import Aggregates
from mainstem.operators.stage.engine import BatchClock
from mainstem.operators.stage.hashes import mix
from mainstem.operators.stage.state_runs import MemoryState
from mainstem.operators.windows.session_engine import SessionEngine
from mainstem.operators.windows.sliding_engine import SlidingEngine
from mainstem.operators.windows.triggers import after_rows, each_row, every
from mainstem.operators.windows.validity_engine import ValidityEngine
from mainstem.operators.windows.window_engine import WindowEngine

BATCHES = 10
SECOND = 1_000_000
BY = pa.schema([("by_0", pa.int64())])
NUMBER = pa.int64()
AGGREGATES = Aggregates(
    (AggregateCall("sum", (NUMBER,), NUMBER, "sum(value)"), AggregateCall("count", (), NUMBER, "count(*)"))
)

Column = npt.NDArray[Any]
Batch = tuple[pa.Table, BatchClock]


@dataclass(frozen=True)
class Rows:
    """Rows of a stream; each second has a hundredth of a batch."""

    batch: int
    keys: int = 10_000
    windows: int = 10
    late: float = 0.0

    def fixed(self, engine: WindowEngine) -> Iterator[Batch]:
        """Rows of 10 windows for each key; in each batch one window ends and one begins."""
        chance = np.random.default_rng(1)
        for number in range(BATCHES):
            end = (number + 1 + chance.integers(0, self.windows, self.batch)) * SECOND
            columns = self._columns(chance, number) | {
                "window_start": end - SECOND,
                "window_end": end,
                "timing": np.zeros(self.batch, np.int8),
                "rows": np.ones(self.batch, np.int64),
                "time": end - 1,
                "watermark": np.zeros(self.batch, np.int64),
            }
            yield self._table(engine, columns), _clock(number, (number + 1) * SECOND, SECOND)

    def single(self, engine: Any) -> Iterator[Batch]:
        """Rows up to two seconds out of order, of which some come 20 seconds late."""
        chance = np.random.default_rng(1)
        mode = 100 * SECOND // self.batch
        for number in range(BATCHES):
            reached = np.arange(number * self.batch, (number + 1) * self.batch) * mode
            time_of = reached - chance.integers(0, 2 * SECOND, self.batch)
            time_of -= np.where(chance.random(self.batch) < self.late, 20 * SECOND, 0)
            columns = self._columns(chance, number) | {
                "time": time_of,
                "watermark": reached - 2 * SECOND,
                "gap": np.full(self.batch, 30 * SECOND),
            }
            yield self._table(engine, columns), _clock(number, int(reached[-1]) + mode - 2 * SECOND, self.batch * mode)

    def _columns(self, chance: np.random.Generator, number: int) -> dict[str, Column]:
        key = chance.integers(0, self.keys, self.batch)
        partials = AGGREGATES.of_rows(pa.table({"i0_0": chance.integers(0, 100, self.batch)}))
        return {
            "group": mix(key),
            "check": mix(key, key),
            "by_0": key,
            "topic": np.zeros(self.batch, np.int32),
            "partition": np.zeros(self.batch, np.int32),
            "offset": np.arange(number * self.batch, (number + 1) * self.batch),
            **{name: partials.column(name) for name in partials.column_names},
        }

    def _table(self, engine: Any, columns: dict[str, Column]) -> pa.Table:
        return pa.table(columns).select(engine.input_schema.names)


def _clock(number: int, watermark: int, step: int) -> BatchClock:
    """`step` is how far the watermark moves from one batch to the next."""
    if not number:
        return BatchClock(watermark, 0)
    return BatchClock(watermark, number * SECOND, watermark - step, (number - 1) * SECOND)


def measured(name: str, engine: Any, batches: Callable[[Any], Iterator[Batch]]) -> str:
    state, seconds, came, given = MemoryState(engine.state_schema), 0.0, 0, 0
    for rows, clock in batches(engine):
        began = time.process_time()
        step = engine.step(state, rows, clock)
        seconds += time.process_time() - began
        state.apply(step)
        came, given = came + rows.num_rows, given + step.output.num_rows
    return f"{name:<44} {seconds / came * 1e6:6.2f} us a row  ({came:,} rows in, {given:,} out)"


def main() -> None:
    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    few, many, late = Rows(batch, keys=1_000), Rows(batch), Rows(batch, late=0.01)
    hour = 3_600 * SECOND

    def fixed(**asked: Any) -> WindowEngine:
        return WindowEngine(BY, AGGREGATES, **asked)

    def sessions(**asked: Any) -> SessionEngine:
        return SessionEngine(BY, AGGREGATES, **asked)

    second, ten = every("1 second"), after_rows(10)
    print(measured("fixed, on time", fixed(), few.fixed))
    print(measured("fixed, early every second, retract", fixed(early=second, results="retract"), few.fixed))
    print(measured("fixed, early each row", fixed(early=each_row()), few.fixed))
    print(measured("fixed, early after 10 rows, retract", fixed(early=ten, results="retract"), few.fixed))
    print(measured("sessions, on time", sessions(), many.single))
    print(measured("sessions, 1% late, retract", sessions(lateness=hour, results="retract"), late.single))
    print(measured("sessions, early each row", sessions(early=each_row()), many.single))
    print(measured("sliding, 20 seconds", SlidingEngine(BY, AGGREGATES, span=20 * SECOND), many.single))
    print(measured("validity", ValidityEngine(BY, AGGREGATES), many.single))
    correcting = ValidityEngine(BY, AGGREGATES, lateness=hour, results="retract")
    print(measured("validity, 1% late, retract", correcting, late.single))
    print(measured("validity, 1% late, retract, few keys", correcting, Rows(batch, keys=100, late=0.01).single))


if __name__ == "__main__":
    main()
