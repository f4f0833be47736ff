"""What a row costs a user's own operator, without Spark: `python -m benchmarks.process_speed [rows a batch]`.

Ten batches of rows with seven columns and `record`; processor time of the steps alone, in microseconds a row. The state
is in memory, and finding rows in it is part of a step. `visits` has a timer and a list for each key, `latest` yields a
row for each row; both with ten rows of a key in a batch and with one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from mainstem.log.rows.schema_ddl import schema_from_ddl
from mainstem.log.watermark import TIME, WATERMARKED_RECORD
from mainstem.operators.processes.process_class import Process
from mainstem.operators.processes.process_engine import ProcessEngine
from mainstem.operators.processes.process_state import StateText, Timers
from mainstem.operators.stage.engine import BatchClock
from mainstem.operators.stage.keyed_rows import KeyedRows
from mainstem.operators.stage.state_runs import MemoryState

BATCHES = 10
SECOND = 1_000_000
START = 1_767_225_600 * SECOND
CLICKS = "user BIGINT, page STRING, agent STRING, amount DOUBLE, number INT, shown BOOLEAN, at TIMESTAMP"


class Visits(Process):
    """Pages of a user until none came for 200 milliseconds."""

    output = "user BIGINT, pages ARRAY<STRING>, closed_at TIMESTAMP"

    @dataclass
    class State:
        pages: list[str] = field(default_factory=list)
        last: datetime | None = None

    def on_rows(self, key: Any, rows: Any, state: State, timers: Timers) -> Any:
        for row in rows:
            state.pages.append(row["page"])
            state.last = row["at"] if state.last is None else max(state.last, row["at"])
            timers.set_event("close", state.last + timedelta(milliseconds=200))
        return ()

    def on_timer(self, key: Any, name: str, at: Any, state: State, timers: Timers) -> Any:
        yield {"user": key, "pages": state.pages, "closed_at": at}
        self.forget(state)


class Latest(Process):
    """A running count and sum, and the time of the row, for each row."""

    output = "user BIGINT, count BIGINT, total DOUBLE, at TIMESTAMP"

    @dataclass
    class State:
        count: int = 0
        total: float = 0.0

    def on_rows(self, key: Any, rows: Any, state: State, timers: Timers) -> Any:
        for row in rows:
            state.count += 1
            state.total += row["amount"]
            yield {"user": key, "count": state.count, "total": state.total, "at": row["at"]}


def clicks(batch: int, keys: int, number: int) -> pa.Table:
    """Rows of a topic, a second a batch."""
    chance = np.random.default_rng(number)
    at = START + number * SECOND + np.arange(batch) * SECOND // batch
    record: dict[str, Any] = {
        "partition": pa.array(np.zeros(batch, np.int32)),
        "offset": pa.array(np.arange(number * batch, (number + 1) * batch)),
        "appended_at": pa.array(at).view(TIME),
        "change": pa.array(["insert"] * batch),
        "watermark": pa.array(at - 2 * SECOND).view(TIME),
    }
    columns = [record.get(of.name, pa.nulls(batch, of.type)) for of in WATERMARKED_RECORD]
    page = chance.integers(0, 1_000, batch)
    return pa.table(
        {
            "user": chance.integers(0, keys, batch),
            "page": [f"/page/{one}" for one in page.tolist()],
            "agent": ["Mozilla/5.0 (X11; Linux x86_64)"] * batch,
            "amount": chance.random(batch),
            "number": page.astype(np.int32),
            "shown": page % 2 == 0,
            "at": pa.array(at).view(TIME),
            "record": pa.StructArray.from_arrays(columns, fields=list(WATERMARKED_RECORD)),
        }
    )


def measured(name: str, using: type[Process], batch: int, keys: int) -> str:
    schema = pa.schema([*schema_from_ddl(CLICKS), ("record", WATERMARKED_RECORD)])
    keyed = KeyedRows(schema, ("user",))
    engine = ProcessEngine(using, tuple(keyed.by_fields), schema_from_ddl(using.output), StateText(using.State))
    state, seconds, given = MemoryState(engine.state_schema), 0.0, 0
    for rows, clock in _batches(keyed, batch, keys):
        began = time.process_time()
        step = engine.step(state, rows, clock)
        seconds += time.process_time() - began
        state.apply(step)
        given += step.output.num_rows
    came = batch * BATCHES
    return f"{name:<32} {seconds / came * 1e6:6.2f} us a row  ({came:,} rows in, {given:,} out)"


def _batches(keyed: KeyedRows, batch: int, keys: int) -> Iterator[tuple[pa.Table, BatchClock]]:
    for number in range(BATCHES):
        reached = START + (number - 1) * SECOND
        yield keyed.arrow(clicks(batch, keys, number)), BatchClock(reached, reached, reached - SECOND, reached - SECOND)


def main() -> None:
    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    for each, keys in (("ten", batch // 10), ("one", batch)):
        print(measured(f"visits, {each} rows of a key", Visits, batch, keys))
        print(measured(f"latest, {each} rows of a key", Latest, batch, keys))


if __name__ == "__main__":
    main()
