"""ValidityEngine: windows from each row's time to the next row's of its key: how long a value holds.

The windows of a key lie side by side, and the last is open until everything has come. A row divides the window in
which its time falls; what was shown of that window is taken back (`discard` takes nothing back). Rows of one time are
in one window.

Which window a row divides is decided in the order of the rows' own watermarks, which are facts of the log: a row is
on time if its own watermark is below the end of that window as it is then, late if it is below that end and the
lateness, else too late. Of rows with the same watermark the earlier one comes first. Rows wait until the batch's watermark is above their own, since one with the same may still
come before them.

What comes in is `PaneEngine.single_rows`: group, check, by_0 ..., time, watermark (NO_TIME if nothing was known), topic,
partition, offset, accumulators.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from mainstem.operators.stage.engine import BatchClock, StateTable, Step
from mainstem.operators.windows.late_contributions import late_contributions
from mainstem.operators.windows.pane_engine import PaneEngine
from mainstem.operators.windows.validity_rounds import ValidityRounds
from mainstem.operators.windows.waiting_rows import WaitingRows

__all__ = ["ValidityEngine"]


@dataclass(frozen=True)
class ValidityEngine(PaneEngine):
    """Spans in which a value holds. A value itself: it is sent to Spark's workers."""

    windows = "validity"

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        came = WaitingRows(self.layout, rows, 1, clock)
        kept, ready, waits, released = came.sorted_out(state, came.known, beyond=1)
        if not (rows.num_rows or kept.num_rows or ready.rows.num_rows):
            return Step(self.output_schema.empty_table())
        rounds = ValidityRounds(self, kept, ready, clock)
        rounds.run()
        put, gone = rounds.state()
        put, gone = pa.concat_tables([put, waits]), pa.concat_tables([gone, released])
        late = [late_contributions(self.late_schema, part, self.aggregates)
                for part in (rounds.too_late(), came.taken(~came.known))]  # fmt: skip
        given = [part for part in late if part is not None]
        too_late = pa.concat_tables(given) if given else None
        counts = {"late": rounds.late_count, "too_late": 0 if too_late is None else too_late.num_rows}
        put, gone = put if put.num_rows else None, gone if gone.num_rows else None
        return Step(rounds.output(), put, gone, too_late, counts, own=rounds.own())
