"""The late rows of a flow's stages: written into the topic `<flow>.late`, exactly once.

    the columns of the operator             its key, time, watermark and window, and what it would have added
    stage: string                           the stage for which it was late
    other: string                           as JSON, columns whose type does not fit the topic's column of that name
    version: int, batch: bigint             of the flow

They are appended when the sink has committed their batch, by the flow's own producer with the batch number as sequence:
a replayed batch appends nothing twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.batch import FlowRun
from mainstem.log.log import Log
from mainstem.log.producer import Producer
from mainstem.log.rows.readable_values import python_rows, readable_part
from mainstem.log.rows.rows import check_rows
from mainstem.operators.stage.stage import Stage, show_late_rows
from mainstem.spark.checkpoint.checkpoint_check import checkpoint_id
from mainstem.spark.checkpoint.rejected_rows import TIMEOUT, readable, storable, widened_topic

__all__ = ["LateTopic", "late_topic_of"]

# Columns added to those of the operator.
OWN = (pa.field("other", pa.string()), pa.field("version", pa.int32()), pa.field("batch", pa.int64()))


def late_topic_of(flow: str) -> str:
    """The name of the topic of a flow's late rows.

    >>> late_topic_of("revenue")
    'revenue.late'
    """
    return f"{flow}.late"


class LateTopic:
    """Appends the late rows of one run to their topic. For one thread."""

    def __init__(self, log: Log, run: FlowRun, checkpoint: str) -> None:
        self._log = log
        self._run = run
        self._checkpoint = checkpoint
        self._producer: Producer | None = None

    def read(self, paths: Sequence[str], stage: Stage) -> list[pa.Table]:
        """The late rows that the tasks of a stage wrote, with the column names of the user."""
        found = []
        for path in filter(None, paths):
            with pa.OSFile(path) as file:
                rows = pa.ipc.open_file(file).read_all()
            named = show_late_rows(rows, stage.spec)
            found.append(named.append_column("stage", pa.repeat(pa.scalar(stage.name), named.num_rows)))
        return found

    def totals(self, known: Mapping[str, Any], late: Sequence[pa.Table], stage: Stage) -> dict[str, Any]:
        """How many rows were late so far, and what they would have added, in the unit of each aggregate."""
        found = {"rows": known.get("rows", 0) + sum(rows.num_rows for rows in late)}
        for unit in stage.spec.late_units:
            values = [pc.sum(rows.column(unit)).as_py() for rows in late if unit in rows.schema.names]
            added = sum(float(value) if isinstance(value, Decimal) else value for value in values if value is not None)
            found[unit] = known.get(unit, 0) + added
        return found

    def append(self, late: Sequence[pa.Table], batch: int) -> None:
        """Append them, once per batch; durable when this returns."""
        if not late:
            return
        name = late_topic_of(self._run.flow)
        rows = readable_part(self._fit_rows(name, late))
        count = rows.num_rows
        rows = rows.append_column("version", pa.repeat(pa.scalar(self._run.version, pa.int32()), count))
        rows = rows.append_column("batch", pa.repeat(pa.scalar(batch, pa.int64()), count))
        topic = widened_topic(self._log, name, rows.schema)
        if self._producer is None:
            run = self._log.open_producer(
                f"mainstem.flow.{self._run.flow}.v{self._run.version}.late.{checkpoint_id(self._checkpoint)}"
            )
            self._producer = Producer(self._log, run)
        if self._producer.kept_sequence(name) >= batch:
            return
        check_rows(rows, topic.settings)
        # In one transaction: when the batch is replayed, a part of them would be taken for all.
        with self._producer.transaction(timeout=TIMEOUT) as own:
            own.append(name, rows, sequence=batch)

    def _fit_rows(self, name: str, late: Sequence[pa.Table]) -> pa.Table:
        """Late rows of several stages as one table for the topic; columns of another type than the topic's go into `other`."""
        tables = []
        for rows in late:
            stored = pa.schema([at for at in rows.schema if storable(at)])
            known = widened_topic(self._log, name, pa.schema([*stored, *OWN])).settings.schema
            fits = [at.name for at in stored if known.field(at.name).type.equals(at.type)]
            rest = [at.name for at in rows.schema if at.name not in fits]
            texts = [json.dumps(readable(row), ensure_ascii=False) for row in python_rows(rows.select(rest))]
            other = pa.array(texts if rest else [None] * rows.num_rows, pa.string())
            tables.append(rows.select(fits).append_column("other", other))
        return pa.concat_tables(tables, promote_options="default")
