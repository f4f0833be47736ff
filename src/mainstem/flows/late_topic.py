"""The rows that came too late for a flow's stages: into the topic `<flow>.late`, each once.

    the columns that the operator says      by what it is keyed, its time, its watermark, its window, what it would have added
    stage: string                           which stage found it too late
    version: int, batch: bigint             of the flow

They are appended when the sink has taken their batch, by a producer of the flow's own with the batch's number as sequence:
a batch that is done again appends nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.log import Log
from mainstem.log.producer import Producer
from mainstem.log.rows import check_rows
from mainstem.log_on_spark.checkpoint_check import checkpoint_id
from mainstem.log_on_spark.flow_run import FlowRun
from mainstem.log_on_spark.rejected_rows import TIMEOUT, widened_topic
from mainstem.operators.stage import Stage
from mainstem.operators.told_late import told_late

__all__ = ["LateTopic", "late_topic_of"]


def late_topic_of(flow: str) -> str:
    """The name of the topic of a flow's late rows.

    >>> late_topic_of("revenue")
    'revenue.late'
    """
    return f"{flow}.late"


class LateTopic:
    """The way of one run's late rows into their topic. For one thread."""

    def __init__(self, log: Log, run: FlowRun, checkpoint: str) -> None:
        self._log = log
        self._run = run
        self._checkpoint = checkpoint
        self._producer: Producer | None = None

    def read(self, paths: Sequence[str], stage: Stage) -> list[pa.Table]:
        """What the tasks of a stage left, under the names that users know."""
        found = []
        for path in filter(None, paths):
            with pa.OSFile(path) as file:
                rows = pa.ipc.open_file(file).read_all()
            named = told_late(rows, stage.spec)
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
        """Append them, once for each batch; on disk when this returns."""
        if not late:
            return
        name = late_topic_of(self._run.flow)
        rows = pa.concat_tables(late, promote_options="default")
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
        fitting = [at.name for at in rows.schema if topic.settings.schema.field(at.name).type.equals(at.type)]
        check_rows(rows.select(fitting), topic.settings)
        # All of them or none: a part of them would be taken for the whole when the batch is done again.
        with self._producer.transaction(timeout=TIMEOUT) as own:
            own.append(name, rows.select(fitting), sequence=batch)
