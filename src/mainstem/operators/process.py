"""process: a user's own operator with state and timers per key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from mainstem.errors import Invalid
from mainstem.log.record import EVENT_TIME_MARK, RECORD_MARK
from mainstem.log.rows.schema_ddl import schema_from_ddl
from mainstem.log.watermark import WATERMARKED_RECORD
from mainstem.operators.processes.process_class import Process
from mainstem.operators.processes.process_engine import ProcessEngine
from mainstem.operators.processes.process_state import StateText
from mainstem.operators.stage.frame_columns import Shown, by_names, columns_of, select_columns
from mainstem.operators.stage.keyed_rows import KeyedRows
from mainstem.operators.stage.stage import StageSpec, add_stage, remember

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["process"]


def process(rows: DataFrame, *, by: str | Sequence[str], using: type[Process], name: str | None = None) -> DataFrame:
    """Applies a class of your own to the rows, key by key, with a state and timers for each key.

    `by`: the columns of the key. `using`: a subclass of `Process`. Rows of a key arrive in log order if they are in one
    partition, which holds if the key of the topic is among the columns of `by`. See docs/guides/own_operators.md.

    >>> from dataclasses import dataclass
    >>> from mainstem.testing import TestStream
    >>> class Visits(Process):
    ...     output = "user STRING, visits BIGINT"
    ...
    ...     @dataclass
    ...     class State:
    ...         visits: int = 0
    ...
    ...     def on_rows(self, key, rows, state, timers):
    ...         for row in rows:
    ...             state.visits += 1
    ...         yield {"user": key, "visits": state.visits}
    >>> stream = TestStream("user STRING, page STRING").rows([{"user": "ada", "page": "/"}]).rows([{"user": "ada"}])
    >>> stream.run(lambda rows: process(rows, by="user", using=Visits)).rows
    [{'user': 'ada', 'visits': 1}, {'user': 'ada', 'visits': 2}]
    """
    spec, columns = remember("process", lambda: _plan(columns_of(rows), by, using))
    return select_columns(add_stage(rows, spec, name=name), columns)


def _plan(schema: pa.Schema, by: str | Sequence[str], using: type[Process]) -> tuple[StageSpec, list[Shown]]:
    keyed = KeyedRows(schema, by_names(by, schema, "process"))
    _check_class(using)
    output = schema_from_ddl(using.output)
    if using.event_time is not None and using.event_time not in output.names:
        raise Invalid(
            f'process "{using.__name__}" has the event time "{using.event_time}", which its output lacks',
            detail=f"Its output columns are: {', '.join(output.names)}.",
            hint="Name one of these.",
        )
    engine = ProcessEngine(using, tuple(keyed.by_fields), output, StateText(using.State), keyed.watermarked)
    spec = StageSpec(
        "process", engine, keyed.native, keyed.arrow, bounded_by=using.bounded_by, definition={"by": list(keyed.by)},
        parameters={"by": list(keyed.by), "using": using.__name__},
        packed=keyed.input_schema if keyed.packable else None,
    )  # fmt: skip
    columns = [
        Shown(f"o_{place}", column.with_metadata(EVENT_TIME_MARK if column.name == using.event_time else None))
        for place, column in enumerate(output)
    ]
    return spec, [*columns, Shown("record", pa.field("record", WATERMARKED_RECORD, metadata=RECORD_MARK))]


def _check_class(using: type[Process]) -> None:
    if not (isinstance(using, type) and issubclass(using, Process)):
        raise Invalid(
            f"{using!r} is not a subclass of Process",
            detail="process creates one instance for each batch and bucket.",
            hint="Write class Visits(Process): ..., and give using=Visits.",
        )
    for wanted, what in (("output", 'output = "user STRING, visits BIGINT"'), ("State", "@dataclass class State: ...")):
        if not hasattr(using, wanted):
            raise Invalid(
                f'process "{using.__name__}" has no {wanted}',
                detail="A process declares its output columns and its state per key.",
                hint=f"Add: {what}",
            )
    if using.on_rows is Process.on_rows:
        raise Invalid(
            f'process "{using.__name__}" has no on_rows', hint="Add: def on_rows(self, key, rows, state, timers)"
        )
