"""SessionEngine: windows that rows make themselves, each as long as rows follow one another within a gap.

What is a session is decided in the order of the rows' own watermarks, which are facts of the log: before a row with
the watermark v is looked at, the sessions that end at or before v are shown on time, and those whose lateness is over
are forgotten; then the row joins what it overlaps. A row whose watermark the batch's has not reached waits in the
state, so that every division into batches gives the same. A row is too late if its own span, [time, time + gap), and
the lateness were over.

With touching="join" a row at the very end of a session belongs to it, and with the watermark v a row at v is not late.
So there a session closes when the watermark is past its end: those that end before v.

A session that grows is another window: what was shown of the old one is taken back (`discard` takes nothing back),
and its panes are counted anew. So a late row may join two closed sessions: both are taken back, and one is put out.

What comes in (`input_schema`), one row for each row:

    group, check                int64       hashes of the key
    by_0, by_1, ...                         the key
    time                        int64       null in rows that have no event time
    watermark                   int64       the row's own; NO_TIME if nothing was known
    gap                         int64       in microseconds; a row where it is null or not positive is told as late
    topic, partition, offset                where it stands
    a0_sum, ...                             accumulators

Rows are taken in rounds, each over all keys at once. A round takes of every run of connected rows as many as come
before any of its sessions can close; usually that is all of them. Only where a trigger counts rows, or late rows come
to closed sessions, a round takes one row of each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from mainstem.operators.stage.engine import BatchClock, StateTable, Step
from mainstem.operators.windows.late_contributions import late_contributions
from mainstem.operators.windows.numbering import later
from mainstem.operators.windows.pane_engine import PaneEngine
from mainstem.operators.windows.session_rounds import SessionRounds
from mainstem.operators.windows.waiting_rows import WaitingRows

__all__ = ["SessionEngine"]


@dataclass(frozen=True)
class SessionEngine(PaneEngine):
    """Sessions. A value: it is sent to Spark's workers."""

    windows = "sessions"

    # split | join: whether rows exactly one gap apart are two sessions or one.
    touching: str = field(default="split", kw_only=True)

    @property
    def input_schema(self) -> pa.Schema:
        """What `step` takes; see above."""
        return self.single_rows(pa.field("gap", pa.int64()))

    @property
    def closes_after(self) -> int:
        return 1 if self.touching == "join" else 0

    @property
    def behind(self) -> int:
        return self.closes_after

    def described(self) -> dict[str, Any]:
        return {**super().described(), "touching": self.touching}

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        came = WaitingRows(self.layout, rows, "gap", clock)
        over = came.over(self.closes_after + self.lateness)
        too_late = came.taken(came.known & (over <= came.watermark))
        kept, ready, waits, released = came.sorted_out(state, over > came.watermark)
        if not (rows.num_rows or kept.num_rows or ready.rows.num_rows):
            return Step(self.output_schema.empty_table())
        rounds = SessionRounds(self, kept, ready, clock)
        late_rows = int((later(ready.end, self.closes_after) <= ready.watermark).sum())
        rounds.run()
        put, gone = rounds.state()
        timeless = came.taken(~came.known)
        late = late_contributions(self.late_schema, pa.concat_tables([too_late, timeless]), self.aggregates)
        put = pa.concat_tables([put, waits])
        gone = pa.concat_tables([gone, released])
        counts = {"late": late_rows, "too_late": too_late.num_rows + timeless.num_rows}
        put, gone = put if put.num_rows else None, gone if gone.num_rows else None
        return Step(rounds.output(), put, gone, late, counts, own=rounds.own())
